//! Every status that the command may end with, and every name that the log and `underpin mem VM` have
//! for what happens to memory: what it means, what leads to it, what to do.

use crate::failure::exit;
use abi::control::code;
use std::{fmt::Write as _, sync::LazyLock};

mod events;

/// One status or event. Numbers and names are stable.
#[derive(Debug)]
pub struct Code {
    /// The exit status; those from 10 on to 99 are the hypervisor's (`abi::control::code`). Events
    /// have none.
    pub number: Option<u8>,
    /// Its name.
    pub name: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// What usually leads to it.
    pub causes: &'static [&'static str],
    /// What to do about it.
    pub advice: &'static [&'static str],
}

/// All exit statuses, in the order of their numbers.
const STATUSES: [Code; 19] = [
    Code {
        number: Some(exit::OK),
        name: "done",
        meaning: "done",
        causes: &["The command did what it was asked for."],
        advice: &["Nothing."],
    },
    Code {
        number: Some(exit::FAILED),
        name: "failed",
        meaning: "failed for a reason without a number of its own",
        causes: &[
            "A file or directory cannot be read or written.",
            "The command and the hypervisor's image are of different versions.",
        ],
        advice: &[
            "The message names the file: look at its owner, and at the space left.",
            "Build both anew: make build.",
        ],
    },
    Code {
        number: Some(exit::USAGE),
        name: "usage",
        meaning: "the command line makes no sense",
        causes: &["A verb, an option or its value is not known."],
        advice: &["`underpin --help` lists the verbs, `underpin VERB --help` its options."],
    },
    Code {
        number: Some(exit::NO_MACHINE),
        name: "no-machine",
        meaning: "no machine of that name runs",
        causes: &[
            "It was not started, or has powered off.",
            "It was started with --machine NAME, or by another user.",
        ],
        advice: &["Start one: underpin sim FILES..., or name it: underpin --machine NAME VERB."],
    },
    Code {
        number: Some(exit::MACHINE_DIED),
        name: "machine-died",
        meaning: "the machine died or did not start",
        causes: &[
            "QEMU is not installed, or refused its arguments.",
            "The hypervisor found an error of its own and stopped with an epitaph.",
        ],
        advice: &[
            "Read the end of hypervisor.log and qemu.log in the machine's directory.",
            "An epitaph is a bug of Underpin: report it with that log.",
        ],
    },
    Code {
        number: Some(exit::TIMEOUT),
        name: "timeout",
        meaning: "something took longer than allowed",
        causes: &[
            "The computer is busy: an emulated machine is many times slower than a real one.",
            "A guest does not listen to its power button.",
        ],
        advice: &[
            "Allow more: --timeout TIME.",
            "End a VM that does not obey: underpin kill VM.",
        ],
    },
    Code {
        number: Some(exit::FILE),
        name: "file",
        meaning: "a VM file, cluster file, key, kernel or image is wrong, or not there",
        causes: &[
            "A key is misspelt or its value out of range; the message points at it.",
            "A VM file, a cluster file or its key cannot be read.",
            "The kernel is compressed, or no arm64 Image.",
            "The running machine's bundle lacks a file that the VM needs.",
        ],
        advice: &[
            "`underpin check FILE` tells all problems at once, `underpin check --help` all keys.",
            "A machine takes files only when it starts: underpin shutdown, then underpin sim.",
        ],
    },
    Code {
        number: Some(exit::NOT_READY),
        name: "not-ready",
        meaning: "something that attaching needs is missing or not proved; nothing was touched",
        causes: &[
            "Underpin or its kernel module is not there, or one of doctor's other checks fails.",
        ],
        advice: &["`underpin doctor` names what is missing, and what to do about each."],
    },
    Code {
        number: Some(exit::REFUSED),
        name: "refused",
        meaning: "the hypervisor did not attach or detach",
        causes: &["The message ends with the refusal's name: `underpin explain` has it, too."],
        advice: &["As its explanation says; mostly: try again."],
    },
    Code {
        number: Some(code::MALFORMED as u8),
        name: "malformed",
        meaning: "the hypervisor did not understand the request",
        causes: &["The command and the hypervisor's image are of different versions."],
        advice: &["Build both anew (make build), and start the machine again."],
    },
    Code {
        number: Some(code::NO_SUCH_VM as u8),
        name: "no-such-vm",
        meaning: "no VM has that name",
        causes: &["It is misspelt.", "It is on another machine (--machine)."],
        advice: &["`underpin list` shows the names."],
    },
    Code {
        number: Some(code::WRONG_STATE as u8),
        name: "wrong-state",
        meaning: "the VM's state does not allow it",
        causes: &[
            "The VM has ended, is already running, or is paused.",
            "Its guest has no driver for what was asked for.",
        ],
        advice: &["`underpin list` shows the states; `underpin start`, `resume` or `kill` it."],
    },
    Code {
        number: Some(code::EXISTS as u8),
        name: "exists",
        meaning: "a VM of that name is there already",
        causes: &["The VM file was run before; a VM that has ended keeps its name."],
        advice: &["Start it again: underpin start VM; or change 'name' in the VM file."],
    },
    Code {
        number: Some(code::NO_MEMORY as u8),
        name: "no-memory",
        meaning: "the machine has no memory left for it",
        causes: &[
            "The bases of the VMs that run, and this one's, are more than the machine has.",
            "What was saved by sharing was drawn by VMs that may grow (claim = \"grow\").",
        ],
        advice: &[
            "`underpin mem` shows who has what, `underpin mem fit FILE` what binds.",
            "End a VM, lower a base (underpin set VM --base SIZE), or sim --memory MORE.",
            "Let savings start VMs: sharing = { claim = \"start\" }.",
        ],
    },
    Code {
        number: Some(code::IMPOSSIBLE as u8),
        name: "impossible",
        meaning: "what was asked for is impossible on this machine",
        causes: &[
            "The VM file asks for nodes, CPUs, partitions or memory that the machine lacks.",
            "The guest has no balloon driver that could give memory back.",
            "An overlay or swap is to be on a partition of which nobody said that its contents may be overwritten.",
        ],
        advice: &[
            "`underpin machine` and `underpin nodes` show what there is.",
            "Mark a partition for overlays and swap by its type: `sfdisk --part-type DISK NUMBER \
             7d4e0c2a-91b6-4f35-a8e7-55ad2f3c90b1`, or `swap`; of an attached system: --disk NAME=scratch:FILE.",
        ],
    },
    Code {
        number: Some(code::BUSY as u8),
        name: "busy",
        meaning: "somebody else uses the persistent disk, or the control port",
        causes: &[
            "A partition serves one VM at a time.",
            "Inside a control VM, one command at a time has the control port.",
        ],
        advice: &[
            "End the other VM, or give each VM a partition.",
            "End the other command, such as `underpin top`.",
        ],
    },
    Code {
        number: Some(code::OWES as u8),
        name: "in-debt",
        meaning: "the VM is paused, since it owes memory that cannot be taken from it",
        causes: &[
            "It grew by what sharing saved (claim = \"grow\"), and then wrote the pages that it shared.",
            "Its guest has no balloon driver, or gives back less than it was asked for.",
            "It has no swap, or its swap is full.",
        ],
        advice: &[
            "`underpin mem VM` shows what it owes; what is said of it in `underpin list` does, too.",
            "Let it have more (underpin set VM --base SIZE): then it goes on by itself.",
            "Let it run for a while, to free memory itself (underpin resume VM), or end it.",
            "Give it swap: memory = { swap = \"PARTITION\" }.",
        ],
    },
    Code {
        number: Some(code::NOT_ALLOWED as u8),
        name: "not-allowed",
        meaning: "this VM may not ask that of the hypervisor",
        causes: &[
            "Its file says control = \"read\": it sees how VMs of its own share group stand, and no more.",
        ],
        advice: &["Ask from outside, or from a VM with control = \"all\"."],
    },
    Code {
        number: Some(exit::INTERRUPTED),
        name: "interrupted",
        meaning: "interrupted",
        causes: &["Ctrl-C, or another signal that ends processes."],
        advice: &["Nothing; a machine in the foreground was powered off."],
    },
];

/// What can stand against attaching and detaching.
static SWITCHES: LazyLock<Vec<Code>> = LazyLock::new(|| {
    use tools_os0::codes::{CHECKS, REFUSALS};
    let named = REFUSALS.iter().chain(&CHECKS).map(|code| Code {
        number: None,
        name: code.name,
        meaning: code.meaning,
        causes: code.causes,
        advice: code.advice,
    });
    named.collect()
});

/// All of them: statuses in the order of their numbers, then events, then what stands against
/// attaching.
pub fn all() -> impl Iterator<Item = &'static Code> {
    STATUSES.iter().chain(&events::EVENTS).chain(&*SWITCHES)
}

/// The status or event of that number or name.
pub fn find(what: &str) -> Option<&'static Code> {
    let number = what.parse::<u8>().ok();
    all().find(|code| code.name == what || code.number.is_some() && code.number == number)
}

/// The list for the end of the command's help.
pub fn exit_statuses() -> String {
    let mut text = "Exit status (underpin explain CODE says more):\n".to_owned();
    for code in &STATUSES {
        let number = code.number.unwrap_or_default();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{number:4}  {}", code.meaning);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The constants of a module of that source: all that may become an exit status.
    fn constants(source: &str, module: &str) -> Vec<u8> {
        let (_, rest) = source.split_once(&format!("pub mod {module} {{")).unwrap();
        let (body, _) = rest.split_once("\n}").unwrap();
        let values = body.lines().filter(|line| line.contains("pub const "));
        let value = |line: &str| {
            line.rsplit_once("= ")
                .unwrap()
                .1
                .trim_end_matches(';')
                .parse()
        };
        values.map(|line| value(line).unwrap()).collect()
    }

    #[test]
    fn every_code_is_explained_once() {
        let codes = constants(include_str!("../../../abi/src/control.rs"), "code");
        let statuses = constants(include_str!("failure.rs"), "exit");
        assert!(codes.len() >= 8 && statuses.len() >= 8);
        for number in codes.iter().chain(&statuses) {
            assert!(find(&number.to_string()).is_some(), "{number}");
        }
        let explained: std::collections::BTreeSet<&u8> = codes.iter().chain(&statuses).collect();
        assert_eq!(STATUSES.len(), explained.len());
        assert!(STATUSES.is_sorted_by_key(|code| code.number));
        for code in all() {
            assert!(!code.causes.is_empty() && !code.advice.is_empty());
            assert_eq!(find(code.name).map(|found| found.number), Some(code.number));
        }
        assert!(find("9").is_none() && find("").is_none() && find("256").is_none());
    }

    #[test]
    fn what_happens_to_memory_is_explained() {
        for event in tools_abi::MEM_EVENTS {
            assert!(find(event).is_some(), "{event}");
        }
        for news in ["over", "owes", "repaid", "lost-page"] {
            assert!(
                find(news).is_some_and(|code| code.number.is_none()),
                "{news}"
            );
        }
    }
}
