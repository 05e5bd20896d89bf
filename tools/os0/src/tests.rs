//! The verbs on machines that are not there.

use crate::{
    codes::exit,
    doctor::{Report, State, examine},
    machine::{Asked, DEVICE, System},
    verbs::{Clock, Verb, run},
};
use serde_json::{Value, json};
use std::{cell::RefCell, collections::BTreeMap, io};

const ATTACH: Verb = Verb::Attach {
    dry_run: false,
    clock: Clock::Continue,
};

struct Fake {
    files: BTreeMap<&'static str, String>,
    facts: Option<Value>,
    refuses: Option<&'static str>,
    log: &'static str,
    asked: RefCell<Vec<String>>,
}

impl Fake {
    /// A machine with Underpin beneath, of two CPUs as QEMU's `neoverse-n1`.
    fn ready() -> Self {
        let cpu = |cpu: u32| {
            let mut id = vec![0_u64; 16];
            id[0] = 0x1100_0000_1111_1112;
            json!({ "cpu": cpu, "lists": 4, "reach": 43, "address_bits": 48, "gic": 3, "flags": 0,
                    "refusal": "none", "id": id })
        };
        let files = [
            ("/proc/self/status", "Name:\tx\nUid:\t0\t0\t0\t0\n"),
            (
                "/proc/iomem",
                "40000000-401fffff : System RAM\n40400000-7fffffff : System RAM\n",
            ),
            (
                "/sys/kernel/security/lockdown",
                "[none] integrity confidentiality\n",
            ),
            ("/sys/module/underpin/taint", "OE\n"),
            (DEVICE, ""),
        ];
        Self {
            files: files
                .into_iter()
                .map(|(path, text)| (path, text.to_owned()))
                .collect(),
            facts: Some(json!({
                "revision": 1, "version": 1, "kept": { "start": 0x4020_0000, "size": 2 << 20 },
                "psci": 0x1_0001, "cpus": [cpu(0), cpu(1)],
            })),
            refuses: None,
            log: "",
            asked: RefCell::default(),
        }
    }

    /// A machine that started this kernel at EL2, without a module.
    fn bare() -> Self {
        let mut fake = Self::ready();
        fake.files.remove(DEVICE);
        fake.facts = None;
        fake.log = "6,1,0,-;CPU: All CPU(s) started at EL2\n";
        fake
    }
}

impl System for Fake {
    fn read(&self, path: &str) -> Option<String> {
        self.files.get(path).cloned()
    }

    fn tail(&self, path: &str, _: usize) -> Option<Vec<u8>> {
        self.read(path).map(String::into_bytes)
    }

    fn exists(&self, path: &str) -> bool {
        self.files.contains_key(path)
    }

    fn kernel_log(&self) -> String {
        self.log.to_owned()
    }

    fn ask(&self, request: &str) -> Asked {
        self.asked.borrow_mut().push(request.to_owned());
        let state = |refusal| {
            let beneath = if request == "attach" { 2 } else { 0 };
            json!({ "state": "", "beneath": beneath, "cpus": 2, "kept": 2 << 20, "switches": 1,
                    "refusal": refusal, "dma": "open" })
            .to_string()
        };
        match (&self.facts, self.refuses) {
            (None, _) => Asked::Failed(io::ErrorKind::NotFound.into()),
            (Some(facts), _) if request == "facts" => Asked::Done(facts.to_string()),
            (_, Some(refusal)) if request != "status" => Asked::Refused(state(refusal)),
            _ => Asked::Done(state("none")),
        }
    }

    fn architecture(&self) -> &'static str {
        "aarch64"
    }
}

fn against(report: &Report) -> Vec<(&'static str, State)> {
    let checks = report.checks.iter().map(|check| (check.name, check.state));
    checks.filter(|(_, state)| state.is_against()).collect()
}

#[test]
fn a_machine_that_is_ready_is_attached() {
    let fake = Fake::ready();
    let report = examine(&fake);
    assert_eq!(against(&report), []);
    assert!(
        report
            .checks
            .iter()
            .any(|check| check.found.contains("DMA: open"))
    );
    assert_eq!(run(Verb::Doctor, false, &fake).status, 0);
    assert!(!fake.asked.borrow().contains(&"attach".to_owned()));
    let attached = run(ATTACH, false, &fake);
    assert_eq!((attached.status, attached.error.as_str()), (0, ""));
    assert!(
        attached.output.starts_with("attached"),
        "{}",
        attached.output
    );
}

#[test]
fn dry_runs_ask_for_no_switch() {
    let fake = Fake::ready();
    let attach = run(
        Verb::Attach {
            dry_run: true,
            clock: Clock::Continue,
        },
        true,
        &fake,
    );
    let value: Value = serde_json::from_str(&attach.output).unwrap();
    assert_eq!((attach.status, &value["ready"]), (0, &json!(true)));
    assert!(value["steps"].as_array().unwrap().len() > 2);
    assert_eq!(
        run(
            Verb::Detach {
                dry_run: true,
                park: false
            },
            false,
            &fake
        )
        .status,
        exit::REFUSED
    );
    let asked = fake.asked.borrow();
    assert!(
        asked.iter().all(|word| word == "facts" || word == "status"),
        "{asked:?}"
    );
}

#[test]
fn without_underpin_nothing_is_asked_for_and_what_is_missing_is_told() {
    let fake = Fake::bare();
    let report = examine(&fake);
    let names: Vec<_> = against(&report);
    assert!(names.contains(&("exception-level", State::Missing)));
    assert!(names.contains(&("module", State::Missing)));
    assert!(names.contains(&("hypervisor", State::Unproved)));
    let ended = run(ATTACH, false, &fake);
    assert_eq!(ended.status, exit::NOT_READY);
    assert!(
        ended.error.contains("exception-level: EL2") && ended.error.contains("-> Boot Underpin")
    );
    assert!(fake.asked.borrow().is_empty());
}

#[test]
fn a_feature_that_the_table_does_not_know_is_told_by_name() {
    let mut fake = Fake::ready();
    fake.facts.as_mut().unwrap()["cpus"][1]["id"][1] = json!(1_u64 << 48);
    let report = examine(&fake);
    assert_eq!(against(&report), [("cpu-features", State::Missing)]);
    assert_eq!(report.features.unknown, ["ID_AA64PFR1_EL1 bits 51:48 = 1"]);
    let ended = run(ATTACH, true, &fake);
    assert_eq!(ended.status, exit::NOT_READY);
    let error: Value = serde_json::from_str(&ended.error).unwrap();
    assert_eq!(error["error"]["name"], "not-ready");
    assert!(!fake.asked.borrow().contains(&"attach".to_owned()));
}

#[test]
fn an_upgrade_to_a_file_that_is_not_there_asks_for_one() {
    let fake = Fake::ready();
    let file = "/not/there".into();
    let ended = run(Verb::Upgrade { file }, false, &fake);
    assert_eq!(ended.status, exit::FILE);
    assert!(ended.error.contains("there is no /not/there") && ended.error.contains("upgrade FILE"));
    assert!(fake.asked.borrow().is_empty());
}

#[test]
fn a_machine_without_random_bits_is_told_of_and_is_ready() {
    let mut fake = Fake::ready();
    for (flags, state) in [(0, State::Note), (8, State::Holds)] {
        for cpu in 0..2 {
            fake.facts.as_mut().unwrap()["cpus"][cpu]["flags"] = json!(flags);
        }
        let report = examine(&fake);
        let mut checks = report.checks.iter();
        let check = checks.find(|check| check.name == "random-bits").unwrap();
        assert_eq!((check.state, report.is_ready()), (state, true));
        let ended = run(Verb::Doctor, false, &fake);
        let is_told = ended.output.contains("guests get no seeds");
        assert_eq!(is_told, state == State::Note, "{}", ended.output);
    }
}

#[test]
fn a_refusal_has_its_name_its_reason_and_what_next() {
    let mut fake = Fake::ready();
    fake.refuses = Some("late");
    let ended = run(ATTACH, false, &fake);
    assert_eq!(ended.status, exit::REFUSED);
    assert!(ended.error.contains("within a second (late)") && ended.error.contains("try again"));
    let ended = run(
        Verb::Detach {
            dry_run: false,
            park: false,
        },
        true,
        &fake,
    );
    let error: Value = serde_json::from_str(&ended.error).unwrap();
    assert_eq!(error["error"]["name"], "late");
}

#[test]
fn memory_that_the_system_uses_too_stands_against_it() {
    let mut fake = Fake::ready();
    fake.files
        .insert("/proc/iomem", "40000000-7fffffff : System RAM\n".to_owned());
    assert_eq!(against(&examine(&fake)), [("memory", State::Missing)]);
    // Without root, addresses are zeroes.
    fake.files
        .insert("/proc/iomem", "00000000-00000000 : System RAM\n".to_owned());
    assert_eq!(against(&examine(&fake)), [("memory", State::Unproved)]);
}

#[test]
fn a_module_that_lockdown_keeps_out_is_explained() {
    let mut fake = Fake::bare();
    let path = "/lib/modules/6.12/updates/dkms/underpin.ko";
    let more = [
        ("/proc/sys/kernel/osrelease", "6.12\n"),
        (path, "no signature"),
        (
            "/sys/kernel/security/lockdown",
            "none [integrity] confidentiality\n",
        ),
    ];
    fake.files
        .extend(more.map(|(path, text)| (path, text.to_owned())));
    let report = examine(&fake);
    let module = report
        .checks
        .iter()
        .find(|check| check.name == "module")
        .unwrap();
    for part in ["not signed", path, "locked down"] {
        assert!(module.found.contains(part), "{}", module.found);
    }
    fake.log = "6,1,0,-;CPU: All CPU(s) started at EL1\n3,2,0,-;underpin: Underpin is not beneath this system\n";
    let report = examine(&fake);
    assert!(against(&report).contains(&("hypervisor", State::Missing)));
}
