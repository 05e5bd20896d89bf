//! Regions against a list of who uses what, looked through anew at every step.

use abi::Text;
use model_regions::{Name, REGIONS_MAX, Refused, Regions, STEP, Wanted};
use proptest::prelude::*;

fn name(n: u8) -> Name {
    Text::cut(&format!("region-{n}"))
}

fn wanted((region, group, blocks): (u8, u8, u8)) -> Wanted {
    Wanted {
        name: name(region),
        group: Text::cut(&format!("group-{group}")),
        size: u64::from(blocks) * STEP,
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Somebody wants it; there is memory, or not.
    Join((u8, u8, u8), bool),
    /// One of those that use something leaves it.
    Leave(prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Mostly few regions, sometimes more than there can be.
    let region = prop_oneof![4 => 0..3_u8, 1 => 0..20_u8];
    let join = ((region, 0..2_u8, 0..3_u8), prop::bool::weighted(0.9));
    let step = prop_oneof![
        3 => join.prop_map(|(it, there)| Step::Join(it, there)),
        2 => any::<prop::sample::Index>().prop_map(Step::Leave),
    ];
    prop::collection::vec(step, 0..120)
}

/// What a VM uses: the region as it asked for it, and which making of it that is.
type Use = (Wanted, u32);

/// What the list says must become of a wish.
fn expected(uses: &[Use], wanted: Wanted, there: bool) -> Result<Option<u32>, Refused> {
    if wanted.size == 0 {
        return Err(Refused::Bytes(wanted));
    }
    if let Some((first, made)) = uses.iter().find(|(it, _)| it.name == wanted.name) {
        return match (first.group == wanted.group, first.size == wanted.size) {
            (false, _) => Err(Refused::Group {
                wanted,
                owner: first.group,
            }),
            (true, false) => Err(Refused::Size {
                wanted,
                has: first.size,
            }),
            (true, true) => Ok(Some(*made)),
        };
    }
    let mut names: Vec<_> = uses.iter().map(|(it, _)| it.name.to_string()).collect();
    names.sort();
    names.dedup();
    match (names.len() < REGIONS_MAX, there) {
        (false, _) => Err(Refused::TooMany(wanted)),
        (true, false) => Err(Refused::NoMemory(wanted)),
        (true, true) => Ok(None),
    }
}

proptest! {
    /// A region is one as long as somebody uses it, and new after that; it has one size and one group.
    #[test]
    fn regions_are_what_a_list_says(steps in steps()) {
        let mut regions = Regions::empty();
        let (mut uses, mut made) = (Vec::<Use>::new(), 0);
        for step in steps {
            match step {
                Step::Join(it, there) => {
                    let wanted = wanted(it);
                    let mut asked = false;
                    let joined = regions.join(wanted, || {
                        asked = true;
                        there.then_some(made + 1)
                    });
                    let expected = expected(&uses, wanted, there);
                    if expected == Ok(None) {
                        made += 1;
                    }
                    let is_new = matches!(expected, Ok(None) | Err(Refused::NoMemory(_)));
                    prop_assert_eq!(asked, is_new, "memory is taken for the first user only");
                    let expected = expected.map(|old| old.unwrap_or(made));
                    prop_assert_eq!(joined, expected);
                    uses.extend(joined.ok().map(|made| (wanted, made)));
                }
                Step::Leave(who) if !uses.is_empty() => {
                    let (left, made) = uses.remove(who.index(uses.len()));
                    let is_last = uses.iter().all(|(it, _)| it.name != left.name);
                    prop_assert_eq!(regions.leave(left.name), is_last.then_some(made));
                }
                Step::Leave(_) => prop_assert_eq!(regions.leave(name(0)), None),
            }
            let mut all: Vec<_> = regions
                .iter()
                .map(|(known, users, made)| (known.name.to_string(), known.size, users, *made))
                .collect();
            all.sort();
            let mut listed: Vec<_> = uses
                .iter()
                .map(|(it, made)| {
                    let users = uses.iter().filter(|(other, _)| other.name == it.name).count();
                    (it.name.to_string(), it.size, users as u32, *made)
                })
                .collect();
            listed.sort();
            listed.dedup();
            prop_assert_eq!(regions.bytes(), listed.iter().map(|it| it.1).sum::<u64>());
            prop_assert_eq!(all, listed);
        }
    }
}

/// A region that another image had is there before its users are, and ends with the last of them.
#[test]
fn a_region_is_put_before_it_is_joined() {
    let mut regions = Regions::empty();
    let known = wanted((0, 0, 2));
    assert_eq!(regions.put(known, 7), Ok(()));
    assert!(regions.put(known, 8).is_err(), "there is one of that name");
    assert!(
        regions.put(wanted((1, 0, 0)), 8).is_err(),
        "it has no bytes"
    );
    assert_eq!(regions.iter().map(|(_, users, _)| users).sum::<u32>(), 0);
    for _ in 0..2 {
        assert_eq!(regions.join(known, || None), Ok(7));
    }
    assert!(regions.join(wanted((0, 1, 2)), || None).is_err());
    let left = [known.name; 2].map(|name| regions.leave(name));
    assert_eq!(left, [None, Some(7)]);
    assert_eq!(regions.missing(known), known.size);
}

#[test]
fn a_refusal_names_both_numbers() {
    let mut regions = Regions::empty();
    let ok = wanted((0, 0, 32));
    assert_eq!(regions.join(ok, || Some(())), Ok(()));
    let refused = regions.join(wanted((0, 0, 16)), || Some(())).unwrap_err();
    let said = refused.to_string();
    assert!(said.contains("64 MiB") && said.contains("32 MiB"), "{said}");
    assert_eq!(refused.value(), 32 << 20);
    // Another group is not told the size.
    let said = regions
        .join(wanted((0, 1, 16)), || Some(()))
        .unwrap_err()
        .to_string();
    assert!(said.contains("group-0") && !said.contains("64"), "{said}");
    let odd = Wanted {
        size: STEP + 4096,
        ..ok
    };
    assert!(model_regions::check(odd).is_err());
    assert!(
        model_regions::check(Wanted {
            size: (1 << 30) + STEP,
            ..ok
        })
        .is_err()
    );
    assert_eq!(regions.missing(ok), 0);
    assert_eq!(regions.missing(wanted((1, 0, 3))), 3 * STEP);
}
