//! The verbs.

use crate::{
    codes::{exit, find},
    doctor::{Report, State, examine},
    machine::{Asked, DEVICE, System},
};
use clap::{Subcommand, ValueEnum};
use serde_json::{Value, json};
use std::{
    fmt::Write as _,
    io,
    path::{Path, PathBuf},
};

/// What the command does for the system that it runs in.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Verb {
    /// In a running system: prove everything that attaching needs, and change nothing
    Doctor,
    /// In a running system: put the hypervisor beneath it; VMs that are parked go on
    Attach {
        /// What parked VMs take the time for that they did not run
        #[arg(long, value_enum, default_value_t = Clock::Continue)]
        clock: Clock,
        /// Only tell what would be checked and done
        #[arg(long)]
        dry_run: bool,
    },
    /// In a running system: take the hypervisor away from beneath it
    Detach {
        /// Let VMs stand still in the memory that is lent to them, until `attach`; refused where
        /// their disks have not done in 10 s what they were asked for
        #[arg(long)]
        park: bool,
        /// Only tell what would be checked and done
        #[arg(long)]
        dry_run: bool,
    },
    /// In a running system, detached: put a new hypervisor into the place of the one that is there
    Upgrade {
        /// Its image
        file: PathBuf,
    },
    /// In a running system: tell whether the hypervisor is beneath it, and how it stands
    Status,
    /// In a running system: print what the hypervisor has logged since it started
    Log,
}

/// What a VM's clock shows when it goes on after it was parked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Clock {
    /// What it showed when the VM was parked
    #[default]
    Continue,
    /// What it would show had the VM run
    Host,
}

/// What a verb has to say, and its exit status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The exit status.
    pub status: u8,
    /// The result.
    pub output: String,
    /// Why it failed, for standard error.
    pub error: String,
}

/// What attaching does once all is proved.
const ATTACH_STEPS: [&str; 5] = [
    "all CPUs stop (stop_machine) and call the hypervisor with interrupts masked",
    "each checks again: interrupts, list registers, number of CPUs, reach; a failure undoes all",
    "each makes its interrupt interface virtual, and turns stage 2 and interrupt routing on",
    "the last vote is the point of no return; then all commit",
    "from then on each interrupt passes the hypervisor, and its memory is nothing",
];
/// What detaching does.
const DETACH_STEPS: [&str; 3] = [
    "all CPUs stop (stop_machine) and call the hypervisor with interrupts masked",
    "each gives back what its list registers hold, its interrupt interface, and turns stage 2 off",
    "a CPU that holds a message-signalled interrupt takes it first, and is asked again by itself",
];

/// Does what a verb says.
pub fn run(verb: Verb, json: bool, system: &dyn System) -> Ended {
    match verb {
        Verb::Doctor => doctor(json, system),
        Verb::Attach { dry_run: true, .. } => attach_dry(json, system),
        Verb::Attach { .. } => attach(json, system),
        Verb::Detach { dry_run: true, .. } => detach_dry(json, system),
        Verb::Detach { park: true, .. } => switch("detach park", json, system),
        Verb::Detach { .. } => switch("detach", json, system),
        Verb::Upgrade { file } => upgrade(&file, json, system),
        Verb::Status => status(json, system),
        Verb::Log => log(json, system),
    }
}

fn print(status: u8, is_json: bool, json: &Value, text: String) -> Ended {
    Ended {
        status,
        output: if is_json { format!("{json:#}\n") } else { text },
        error: String::new(),
    }
}

/// The exit status of a report.
fn readiness(report: &Report) -> u8 {
    if report.is_ready() {
        0
    } else {
        exit::NOT_READY
    }
}

fn doctor(json: bool, system: &dyn System) -> Ended {
    let report = examine(system);
    let mut text = checks(&report);
    text.push_str(if report.is_attached {
        "attached already\n"
    } else if report.is_ready() {
        "ready: underpin attach\n"
    } else {
        "not ready; nothing was touched\n"
    });
    print(readiness(&report), json, &report.to_json(), text)
}

fn checks(report: &Report) -> String {
    let mut text = String::new();
    for check in &report.checks {
        let mark = match check.state {
            State::Holds => "ok",
            State::Note => "note",
            State::Missing => "MISS",
            State::Unproved => "?",
        };
        let _ = writeln!(text, "{mark:4}  {:16}{}", check.name, check.found);
        for advice in Report::advice(check) {
            let _ = writeln!(text, "{:22}-> {advice}", "");
        }
    }
    text
}

fn attach_dry(json: bool, system: &dyn System) -> Ended {
    let report = examine(system);
    let mut value = report.to_json();
    value["steps"] = json!(ATTACH_STEPS);
    let text = format!(
        "{}would be done:\n{}",
        checks(&report),
        steps(&ATTACH_STEPS)
    );
    print(readiness(&report), json, &value, text)
}

fn detach_dry(json: bool, system: &dyn System) -> Ended {
    let state = match ask_status(system) {
        Ok(state) => state,
        Err(error) => return unreachable_device(&error, json),
    };
    let beneath = state["beneath"].as_u64().unwrap_or(0);
    let text = format!(
        "Underpin is beneath {beneath} of {} CPUs; would be done:\n{}",
        state["cpus"],
        steps(&DETACH_STEPS)
    );
    let ended = if beneath == 0 { exit::REFUSED } else { 0 };
    print(
        ended,
        json,
        &json!({ "status": state, "steps": DETACH_STEPS }),
        text,
    )
}

fn steps(steps: &[&str]) -> String {
    let number = |(n, step): (usize, &&str)| format!("  {}. {step}\n", n + 1);
    steps.iter().enumerate().map(number).collect()
}

fn attach(json: bool, system: &dyn System) -> Ended {
    let report = examine(system);
    if report.is_ready() || report.is_attached {
        return switch("attach", json, system);
    }
    let names: Vec<&str> = report.misses().map(|check| check.name).collect();
    let message = format!("cannot attach, nothing was touched: {}", names.join(", "));
    let failure = Failed {
        status: exit::NOT_READY,
        name: "not-ready",
        message: &message,
        advice: &[],
    };
    if json {
        let mut value = failure.to_json();
        value["checks"] = report.to_json()["checks"].take();
        return failure.ended(format!("{value:#}\n"));
    }
    let mut text = failure.to_text();
    for check in report.misses() {
        let _ = writeln!(text, "  {}: {}", check.name, check.found);
        for advice in Report::advice(check) {
            let _ = writeln!(text, "    -> {advice}");
        }
    }
    failure.ended(text)
}

/// A switch, as the hypervisor makes it.
fn switch(request: &str, json: bool, system: &dyn System) -> Ended {
    match system.ask(request) {
        Asked::Done(answer) => told(&parsed(&answer), json),
        Asked::Refused(answer) => refused(request, &parsed(&answer), json),
        Asked::Failed(error) => unreachable_device(&error, json),
    }
}

/// The module reads the file: it wants all of its name.
fn upgrade(file: &Path, json: bool, system: &dyn System) -> Ended {
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    if !system.exists(&file.to_string_lossy()) {
        let failure = Failed {
            status: exit::FILE,
            name: "no-file",
            message: &format!("cannot upgrade: there is no {}", file.display()),
            advice: &["name an image of Underpin: underpin upgrade FILE"],
        };
        return failure.told(json);
    }
    switch(&format!("upgrade {}", file.display()), json, system)
}

/// What the hypervisor, or the module, did not do, and why.
fn refused(request: &str, state: &Value, json: bool) -> Ended {
    let name = state["refusal"].as_str().unwrap_or("unknown");
    let code = find(name);
    let why = code.map_or("for a reason that this version does not know", |c| {
        c.meaning
    });
    let failure = Failed {
        status: exit::REFUSED,
        name,
        message: &format!("cannot {request}: {why}"),
        advice: code.map_or(&[], |code| code.advice),
    };
    failure.told(json)
}

/// What the module answers, whose JSON is its own.
fn parsed(answer: &str) -> Value {
    serde_json::from_str(answer).unwrap_or_default()
}

fn ask_status(system: &dyn System) -> io::Result<Value> {
    match system.ask("status") {
        Asked::Done(answer) | Asked::Refused(answer) => Ok(parsed(&answer)),
        Asked::Failed(error) => Err(error),
    }
}

fn status(json: bool, system: &dyn System) -> Ended {
    match ask_status(system) {
        Ok(state) => told(&state, json),
        Err(error) => unreachable_device(&error, json),
    }
}

fn told(state: &Value, is_json: bool) -> Ended {
    let number = |key: &str| state[key].as_u64().unwrap_or(0);
    let (beneath, cpus) = (number("beneath"), number("cpus"));
    let how = match beneath {
        0 => "detached: this system has the machine for itself".to_owned(),
        _ if beneath == cpus => format!("attached: Underpin is beneath all {cpus} CPUs"),
        _ => {
            format!("Underpin is beneath {beneath} of {cpus} CPUs: `underpin detach` takes it away")
        }
    };
    let mut text = format!("{how}\n");
    let _ = writeln!(text, "  hypervisor's memory  {} KiB", number("kept") >> 10);
    let _ = writeln!(text, "  switches             {}", number("switches"));
    let _ = writeln!(text, "  upgrades             {}", number("upgrades"));
    let parked = if state["parked"] == true {
        ", for VMs that are parked"
    } else {
        ""
    };
    let _ = writeln!(
        text,
        "  lent                 {} MiB{parked}",
        number("lent") >> 20
    );
    if let Some(spare) = state["spare"].as_u64() {
        let _ = writeln!(text, "  could be lent        {} MiB", spare >> 20);
    }
    let _ = writeln!(
        text,
        "  last refusal         {}",
        state["refusal"].as_str().unwrap_or("none")
    );
    let _ = writeln!(
        text,
        "  DMA                  {}",
        state["dma"].as_str().unwrap_or("open")
    );
    print(0, is_json, state, text)
}

fn log(json: bool, system: &dyn System) -> Ended {
    match system.ask("log") {
        Asked::Done(text) | Asked::Refused(text) => {
            let lines: Vec<&str> = text.lines().collect();
            print(0, json, &json!({ "lines": lines }), text.clone())
        }
        Asked::Failed(error) => unreachable_device(&error, json),
    }
}

fn unreachable_device(error: &io::Error, json: bool) -> Ended {
    let failure = Failed {
        status: exit::NOT_READY,
        name: "not-ready",
        message: &format!("cannot ask the hypervisor: {DEVICE}: {error}"),
        advice: &["`underpin doctor` says what is missing"],
    };
    failure.told(json)
}

/// What a verb did not do.
struct Failed<'a> {
    status: u8,
    name: &'a str,
    message: &'a str,
    advice: &'a [&'a str],
}

impl Failed<'_> {
    fn to_json(&self) -> Value {
        json!({ "error": {
            "code": self.status, "name": self.name, "message": self.message, "help": self.advice,
        } })
    }

    fn to_text(&self) -> String {
        let mut text = format!("underpin: {} ({})\n", self.message, self.name);
        for advice in self.advice {
            let _ = writeln!(text, "  -> {advice}");
        }
        text
    }

    fn told(&self, is_json: bool) -> Ended {
        self.ended(if is_json {
            format!("{:#}\n", self.to_json())
        } else {
            self.to_text()
        })
    }

    /// With what is said of it.
    fn ended(&self, error: String) -> Ended {
        Ended {
            status: self.status,
            output: String::new(),
            error,
        }
    }
}
