//! A machine that has not the cluster's key, and floods a host with frames in the name of another one.

use super::{PATIENCE, POLL, all_seen_by};
use crate::{
    Outcome, because,
    cluster_file::{options, write as cluster},
    machine::{Hardware, Machine},
    scenario::{Prepare, Scenario},
    status::HostStatus,
    vm::Vm,
};
use serde_json::Value;
use std::{fs, path::Path, thread::sleep, time::Instant};

/// The most of a CPU that frames of strangers may take, in percent.
const PERCENT_MAX: u64 = 20;
/// How long is looked, in nanoseconds of the machine: longer than a member may be silent.
const WINDOW_NS: u64 = 2_500_000_000;
/// The least frames a second that are called a flood.
const RATE_MIN: u64 = 100_000;

/// Each with the reasons for which its frames are dropped.
pub fn scenarios() -> Vec<Scenario> {
    vec![
        scenario("cluster/flood", foreign, &["foreign"]),
        scenario("cluster/hello-flood", hellos, &["forged", "unopened"]),
        scenario("cluster/sealed-flood", sealed, &["forged"]),
        scenario("cluster/copied-flood", copied, &["replayed"]),
    ]
}

/// They cost no look at a key, but a full frame is copied.
fn foreign(directory: &Path) -> Outcome<Vec<String>> {
    machines(directory, false, "flood=foreign length=1514 busy=800")
}

/// Each of them costs a MAC, within a budget.
fn hellos(directory: &Path) -> Outcome<Vec<String>> {
    machines(
        directory,
        false,
        "flood=hellos length=70 from=20000000 busy=1100",
    )
}

/// Frames that name the session, with stamps of other frames.
fn sealed(directory: &Path) -> Outcome<Vec<String>> {
    machines(directory, true, "flood=sealed length=1200 from=20000000")
}

/// Full frames that begin as the member's latest one does, which costs the decryption of those that overtake it.
fn copied(directory: &Path) -> Outcome<Vec<String>> {
    machines(directory, true, "flood=copies length=1514 from=20000000")
}

/// Hosts 1 and 2 of a cluster, of which the first has a VM that never rests, and a VM of host0 that floods it.
fn machines(directory: &Path, is_overheard: bool, args: &str) -> Outcome<Vec<String>> {
    let file = cluster(directory, "cluster", 'a', 3)?;
    let mut files = [1, 2].map(|host| format!("host{host}={file}"));
    if is_overheard {
        // The wire brings frames for an address that no card has to all hosts.
        let text = fs::read_to_string(&file).map_err(because("cannot read the cluster file"))?;
        let text = text.replace("52:54:00:00:00:01", "52:54:00:00:00:41");
        let file = directory.join("overheard.toml");
        fs::write(&file, text).map_err(because("cannot write a cluster file"))?;
        files[1] = format!("host2={}", file.display());
    }
    let mut words = options(&files);
    let sender = Vm::bare("flooder", "ring", args).uplink("lan");
    let sender = sender.address("52:54:00:00:00:00");
    let busy = Vm::bare("busy", "hello", "turns=1000000000000").flat();
    for (host, vm) in [(0, sender), (1, busy)] {
        let file = directory.join(format!("on{host}.toml"));
        fs::write(&file, vm.to_toml()?).map_err(because("cannot write a VM file"))?;
        words.extend(["--on".to_owned(), format!("host{host}={}", file.display())]);
    }
    Ok(words)
}

/// What host1 sees of itself, and of the member in whose name it is flooded.
struct Seen {
    time_ns: u64,
    ran_ns: u64,
    /// Time that CPUs worked for the cluster.
    work_ns: u64,
    /// Frames that its card took.
    frames: u64,
    member: HostStatus,
}

impl Seen {
    fn now(machine: &Machine) -> Outcome<Self> {
        let said = |words: &[&str]| -> Outcome<Value> {
            let words = [&["--host", "host1"], words, &["-o", "json"]].concat();
            serde_json::from_str(&machine.run(&words)?).map_err(because("no JSON"))
        };
        let (of_machine, of_vm) = (said(&["machine"])?, said(&["show", "busy"])?);
        let all = all_seen_by(machine, 1)?;
        let member = all.iter().find(|it| it.name == "third").cloned();
        let number = |it: &Value| it.as_u64().unwrap_or(0);
        Ok(Self {
            time_ns: number(&of_machine["uptime_ns"]),
            ran_ns: number(&of_vm["run_ns"]),
            work_ns: all.iter().find_map(|it| it.work_ns).unwrap_or(0),
            frames: number(&of_machine["card"]["received"]),
            member: member.ok_or_else(|| format!("host1 does not know the third: {all:?}"))?,
        })
    }

    fn is_in(&self) -> bool {
        self.member.state == "in"
    }
}

fn scenario(name: &str, prepare: Prepare, dropped: &'static [&'static str]) -> Scenario {
    let hardware = Hardware::hosts(3, "512M", "class=20us");
    let other = Vm::bare("hello", "hello", "").flat();
    let scenario = Scenario::new(name, hardware, vec![other]);
    scenario
        .prepare(prepare)
        .check(move |stage| look(stage.machine()?, dropped))
        .slow()
}

/// A bounded part of the CPU goes to the flood, and the VM and the membership go on.
fn look(machine: &Machine, dropped: &[&str]) -> Outcome {
    let deadline = Instant::now() + 3 * PATIENCE;
    let await_seen = |is_wanted: &dyn Fn(&Seen) -> bool| loop {
        let seen = Seen::now(machine)?;
        if is_wanted(&seen) {
            return Ok(seen);
        }
        if Instant::now() > deadline {
            return Err(format!("host1 still sees {:?}", seen.member));
        }
        sleep(POLL);
    };
    let count = |seen: &Seen, why: &str| seen.member.dropped[why];
    let has_begun = |seen: &Seen| dropped.iter().any(|why| count(seen, why) > 0);
    await_seen(&|seen| seen.is_in() && has_begun(seen))?;
    // From here on little time passes between two questions, as the flood is slow to simulate.
    let before = Seen::now(machine)?;
    let end = before.time_ns + WINDOW_NS;
    let after = await_seen(&|seen| seen.time_ns >= end)?;
    let time = after.time_ns - before.time_ns;
    let percent = 100_u64.saturating_sub(100 * (after.ran_ns - before.ran_ns) / time);
    let work = 1000 * (after.work_ns - before.work_ns) / time;
    let rate = (after.frames - before.frames) * 1_000_000_000 / time;
    let told = format!(
        "{rate} frames a second took {percent} % of a CPU, {work} in a thousand for the cluster's work; {:?}",
        after.member
    );
    println!("{told}");
    let goes_on = after.is_in() && after.member.epoch == before.member.epoch;
    let is_counted = |why: &&str| count(&after, why) > count(&before, why);
    let is_right =
        percent <= PERCENT_MAX && rate >= RATE_MIN && goes_on && dropped.iter().all(is_counted);
    is_right.then_some(()).ok_or(told)
}
