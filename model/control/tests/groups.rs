//! A VM that may read knows the VMs of its own share group, whatever it asks about one.
#![allow(clippy::unwrap_used, reason = "a test")]

use abi::Text;
use abi::bundle::control_rights::{ALL, NONE, READ};
use abi::control::{Request, VmName, request};
use model_control::{Caller, Denied, Right, right};
use zerocopy::IntoBytes;

fn group(name: &str) -> Text<24> {
    Text::cut(name)
}

/// What somebody with these rights, of the group `near`, is told of every request that begins with a VM's name:
/// the request, and the answer.
fn told(rights: u8, group_of_vm: Option<Text<24>>) -> Vec<(u32, Result<(), Denied>)> {
    let name: VmName = Text::cut("some");
    let caller = Caller::vm(rights, group("near"));
    let payloads = [
        name.as_bytes().to_vec(),
        [name.as_bytes(), &[0; 8]].concat(),
    ];
    let mut told = Vec::new();
    for kind in 0..0x1_0000 {
        for payload in &payloads {
            if let Some(request) = Request::decode(kind, payload) {
                let group_of = |asked: VmName| {
                    assert_eq!(asked, name, "request {kind}");
                    group_of_vm
                };
                told.push((kind, caller.check(kind, &request, group_of)));
            }
        }
    }
    told
}

#[test]
fn who_may_read_knows_its_own_group_alone() {
    let none = Denied::NoSuchVm(Text::cut("some"));
    for (group_of_vm, expected) in [
        (Some(group("near")), Ok(())),
        (Some(group("far")), Err(none)),
        (Some(group("")), Err(none)),
        // Where there is none, the answer is the same.
        (None, Err(none)),
    ] {
        let told = told(READ, group_of_vm);
        for (kind, answer) in &told {
            let allowed = right(READ, *kind) != Right::None;
            let expected = if allowed {
                expected
            } else {
                Err(Denied::NotAllowed)
            };
            assert_eq!(*answer, expected, "request {kind} about {group_of_vm:?}");
        }
        let about_one: Vec<u32> = told
            .iter()
            .map(|(kind, _)| *kind)
            .filter(|kind| right(READ, *kind) == Right::Group)
            .collect();
        let all = [
            request::LIST,
            request::SHOW,
            request::NODES,
            request::CPUS,
            request::REGIONS,
            request::PAGE_COUNTS,
            request::PAGES,
        ];
        assert!(
            all.iter().all(|kind| about_one.contains(kind)),
            "{about_one:?}"
        );
        assert_eq!(about_one.len(), all.len());
    }
}

#[test]
fn the_owner_knows_all_and_others_none() {
    for (kind, answer) in told(ALL, Some(group("far"))) {
        assert_eq!(answer, Ok(()), "request {kind}");
    }
    for (kind, answer) in told(NONE, Some(group("near"))) {
        assert_eq!(answer, Err(Denied::NotAllowed), "request {kind}");
    }
    let callers = [READ, ALL, NONE].map(|rights| Caller::vm(rights, group("near")));
    let sees = |name| callers.map(|caller| caller.sees(group(name)));
    assert_eq!(sees("near"), [true, true, false]);
    assert_eq!(sees("far"), [false, true, false]);
    assert_eq!(callers.map(Caller::may_all), [false, true, false]);
    assert!(Caller::owner().may_all() && Caller::owner().sees(group("far")));
}
