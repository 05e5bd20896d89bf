//! VMs that span the hosts of a cluster, in lock-step of virtual time.

mod drain;
mod killed;
mod moves;
mod storms;
mod systemd;

use super::cluster::{one_key, time_ms};
use crate::{
    Outcome, because,
    cluster_file::{JUMBO, options, write_for},
    machine::{Hardware, Machine},
    scenario::{Prepare, Scenario, Stage},
    status::{self, VmStatus},
    twice::{Twice, again},
    vm::Vm,
};
use serde_json::Value;
use std::{
    thread::sleep,
    time::{Duration, Instant},
};

/// How long something may take to come, on a busy host.
const PATIENCE: Duration = Duration::from_mins(4);
/// The same, where four or more hosts boot a kernel.
const LONG_PATIENCE: Duration = Duration::from_mins(15);
const POLL: Duration = Duration::from_millis(250);
/// What litmus tests say in the end.
const LITMUS: [&str; 2] = ["4 CPUs, 0 forbidden", "litmus ok"];
const HOSTS: [&str; 8] = [
    "host0", "host1", "host2", "host3", "host4", "host5", "host6", "host7",
];

pub fn scenarios() -> Vec<Scenario> {
    let once = || {
        let litmus = litmus(10_000, 1);
        vec![
            vcpus(),
            memory(),
            litmus,
            moves::litmus(),
            linux(4),
            linux(8),
            lost(),
        ]
    };
    let all = once().into_iter().chain(again(once(), twice));
    let systemd = [(2, "trixie-cloud"), (3, "bookworm"), (4, "newest")];
    let systemd = systemd.map(|(hosts, kernel)| systemd::systemd(hosts, kernel));
    let lossy = "class=20us,lose=5%";
    let others = [
        storms::storms("span/storms-2", (2, 8), "class=20us", PATIENCE),
        storms::storms("span/storms-4", (4, 12), "class=20us", LONG_PATIENCE).slow(),
        storms::storms("span/storms-lossy", (2, 12), lossy, LONG_PATIENCE).slow(),
        litmus(100_000, 2).slow(),
        moves::linux(),
        killed::killed(),
        drain::litmus(),
        drain::linux(),
    ];
    all.chain(others).chain(systemd).collect()
}

/// Until when two runs of a scenario are compared. A death comes at 20 s; the others are busy for as long as they run.
fn twice(name: &str) -> Twice {
    let seconds = if name == "span/lost" { 23 } else { 2 };
    Twice {
        seconds,
        transfer: None,
        says: None,
    }
}

/// So many hosts are of one cluster.
fn all_join(hosts: u8) -> Prepare {
    match hosts {
        2 => one_key::<2>,
        3 => one_key::<3>,
        4 => one_key::<4>,
        _ => one_key::<8>,
    }
}

/// Debian's kernel boots on so many hosts, with a CPU of each, to its first program, and powers off.
///
/// Its memory is more than a run of frames has entries for.
fn linux(hosts: u8) -> Scenario {
    let hardware = Hardware::hosts(hosts, "768M", "class=20us");
    let vm = Vm::linux("debian", "trixie", "poweroff").memory("320MiB");
    let name = format!("span/linux-{hosts}");
    let scenario = Scenario::new(name, hardware, vec![vm.cpus(hosts.into()).hosts(hosts)]);
    let is_slow = hosts > 2;
    let patience = if is_slow { LONG_PATIENCE } else { PATIENCE };
    let scenario = scenario.prepare(all_join(hosts)).check(move |stage| {
        let machine = stage.machine()?;
        await_off(
            machine,
            (hosts, patience),
            "debian",
            &[&format!("cpus={hosts}")],
        )
    });
    if is_slow { scenario.slow() } else { scenario }
}

/// Two vCPUs on two hosts see one memory: counts, false sharing, and what the other has written.
fn memory() -> Scenario {
    let hardware = Hardware::hosts(2, "512M", "class=20us");
    let vm = Vm::bare("spanned", "spanned", "").flat();
    let scenario = Scenario::new("span/memory", hardware, vec![vm.cpus(2).hosts(2)]);
    scenario
        .prepare(one_key::<2>)
        .check(|stage| await_off(stage.machine()?, (2, PATIENCE), "spanned", &["spanned ok"]))
}

/// Litmus tests, up to IRIW, of vCPUs on four hosts: no outcome that no order of their accesses has.
fn litmus(rounds: u64, seed: u64) -> Scenario {
    let hosts = 4;
    let hardware = Hardware::hosts(hosts, "512M", "class=20us");
    let args = format!("rounds={rounds} seed={seed}");
    let vm = Vm::bare("litmus", "litmus", &args).flat();
    let vm = vm.cpus(hosts.into()).hosts(hosts);
    let scenario = Scenario::new(format!("span/litmus-{rounds}"), hardware, vec![vm]);
    // Pages take one frame each, which other scenarios do not.
    let prepared = scenario.prepare(|directory| {
        let file = write_for((directory, "cluster"), 'a', 4, JUMBO)?;
        Ok(options(&[file]))
    });
    prepared.check(move |stage| {
        let machine = stage.machine()?;
        await_off(machine, (hosts, LONG_PATIENCE), "litmus", &LITMUS)
    })
}

/// A cut shorter than T_stop is survived, and one in which vCPUs stop, but shorter than T_declare. The death of a host ends
/// the VM on the other one, which says why, and nothing else.
fn lost() -> Scenario {
    let wire = "class=20us,cut=0-1@6s+1s,cut=0-1@9s+1700ms,die=1@20s";
    let hardware = Hardware::hosts(2, "512M", wire);
    let vm = Vm::bare("spanned", "spanned", "forever").flat();
    let other = Vm::bare("watcher", "spanned", "forever").flat();
    let scenario = Scenario::new(
        "span/lost",
        hardware,
        vec![vm.cpus(2).hosts(2), other.cpus(2)],
    );
    scenario.prepare(one_key::<2>).check(|stage| {
        let machine = stage.machine()?;
        lock_is_told(machine)?;
        await_loss(machine, ("host0", "right"), "watcher")?;
        let log = machine.host_log("host0");
        let lost = log.lines().find(|line| line.contains("right is lost"));
        let lost_ms = lost.and_then(time_ms);
        let is_late = lost_ms.is_some_and(|ms| ms > 20_000);
        is_late.then_some(()).ok_or(log)
    })
}

/// Waits until 'spanned' has ended on `host` as it has lost the one of that name. Its neighbour runs on.
fn await_loss(machine: &Machine, (host, lost): (&str, &str), neighbour: &str) -> Outcome {
    let why = format!("host {lost} is lost");
    let deadline = Instant::now() + PATIENCE;
    loop {
        let vm = seen_by(machine, host, "spanned")?;
        let other = seen_by(machine, host, neighbour)?;
        let is_over = vm.state == "ended" || Instant::now() > deadline;
        if other.state == "running" && !is_over {
            sleep(POLL);
            continue;
        }
        let is_told = vm.state == "ended" && vm.reason.contains(&why);
        let is_good = is_told && other.state == "running";
        return is_good
            .then_some(())
            .ok_or_else(|| format!("{vm:?}, {other:?}"));
    }
}

/// Each host adds to one word, over and over: its page is the one that costs most, and what it is used for is told.
fn lock_is_told(machine: &Machine) -> Outcome {
    await_said(machine, PATIENCE, "spanned", "spanned: sum")?;
    let told = machine.run(&["span", "why", "spanned", "--for", "1s", "-o", "json"])?;
    let json: Value = serde_json::from_str(&told).map_err(because("no JSON"))?;
    let page = &json["pages"][0];
    let has_missed = |host: &str| page["misses"][host].as_u64() > Some(0);
    if page["kind"] != "lock" || !HOSTS[..2].iter().all(|host| has_missed(host)) {
        return Err(format!("a word of both hosts is told as {json:#}"));
    }
    let status = machine.refused(&["span", "why", "watcher"])?;
    let is_told = status == 2;
    is_told
        .then_some(())
        .ok_or_else(|| format!("pages of a VM of one machine: {status}"))
}

/// vCPUs of two hosts use each other and the devices of the first; either ends the VM, and so does somebody at either host.
fn vcpus() -> Scenario {
    let hardware = Hardware::hosts(2, "512M", "class=20us");
    let vm = |name, args| Vm::bare(name, "span", args).cpus(2).hosts(2);
    let vms = vec![
        vm("second", "end=1 rounds=20"),
        vm("first", "end=0 rounds=2").asleep(),
        vm("stays", "stay rounds=2").asleep(),
    ];
    let scenario = Scenario::new("span/vcpus", hardware, vms).prepare(one_key::<2>);
    scenario.check(use_and_end)
}

fn use_and_end(stage: &mut Stage) -> Outcome {
    let machine = stage.machine()?;
    let both = (2, PATIENCE);
    let said = ["vCPU 1 has the console", "span ok"];
    await_off(machine, both, "second", &said)?;
    start(machine, "first")?;
    await_off(machine, both, "first", &[])?;
    stays(machine)?;
    machine.run(&["--host", "host1", "pause", "stays"])?;
    await_both(machine, "stays", |it| it.state == "paused")?;
    machine.run(&["--host", "host0", "resume", "stays"])?;
    await_both(machine, "stays", |it| it.state == "running")?;
    machine.run(&["--host", "host1", "kill", "stays"])?;
    await_both(machine, "stays", is_killed)?;
    // This host's end waits for answers to an invalidation of TLB entries.
    stays(machine)?;
    machine.run(&["--host", "host0", "kill", "stays"])?;
    await_both(machine, "stays", is_killed)
}

fn is_killed(it: &VmStatus) -> bool {
    it.state == "ended" && it.reason == "killed"
}

/// Starts the VM that stays.
fn stays(machine: &Machine) -> Outcome {
    let said = || {
        machine
            .host_console("host0", "stays")
            .matches("span: stays")
            .count()
    };
    let before = said();
    start(machine, "stays")?;
    let deadline = Instant::now() + PATIENCE;
    while said() == before {
        if Instant::now() > deadline {
            return Err("the guest does not stay".to_owned());
        }
        sleep(POLL);
    }
    Ok(())
}

/// Starts a VM on both hosts.
fn start(machine: &Machine, vm: &str) -> Outcome {
    for host in &HOSTS[..2] {
        machine.run(&["--host", host, "start", vm])?;
    }
    Ok(())
}

/// Waits until so many hosts have seen the VM power itself off; its console has all that is to be `said`.
fn await_off(
    machine: &Machine,
    (hosts, patience): (u8, Duration),
    vm: &str,
    said: &[&str],
) -> Outcome {
    await_all(machine, (hosts, patience), vm, |it| {
        it.state == "ended" && it.reason == "powered off"
    })?;
    let console = machine.host_console("host0", vm);
    match said.iter().find(|said| !console.contains(**said)) {
        Some(said) => Err(format!("the console has no '{said}': {console}")),
        None => Ok(()),
    }
}

/// Waits until a VM's console has that.
fn await_said(machine: &Machine, patience: Duration, vm: &str, said: &str) -> Outcome {
    let deadline = Instant::now() + patience;
    while !machine.host_console("host0", vm).contains(said) {
        if Instant::now() > deadline {
            let console = machine.host_console("host0", vm);
            return Err(format!("{vm} does not say '{said}': {console}"));
        }
        sleep(POLL);
    }
    Ok(())
}

/// Waits until both hosts have the VM as `wanted`.
fn await_both(machine: &Machine, vm: &str, wanted: impl Fn(&VmStatus) -> bool) -> Outcome {
    await_all(machine, (2, PATIENCE), vm, wanted)
}

/// Waits until so many hosts have the VM as `wanted`.
fn await_all(
    machine: &Machine,
    (hosts, patience): (u8, Duration),
    vm: &str,
    wanted: impl Fn(&VmStatus) -> bool,
) -> Outcome {
    let deadline = Instant::now() + patience;
    loop {
        let hosts = HOSTS.iter().take(hosts.into());
        let seen: Vec<_> = hosts.map(|host| seen_by(machine, host, vm)).collect();
        let is_wanted = |it: &Outcome<VmStatus>| it.as_ref().is_ok_and(&wanted);
        if seen.iter().all(is_wanted) {
            return Ok(());
        }
        if Instant::now() > deadline {
            let console = machine.host_console("host0", vm);
            return Err(format!("the hosts have {seen:?}; the console: {console}"));
        }
        sleep(POLL);
    }
}

fn seen_by(machine: &Machine, host: &str, vm: &str) -> Outcome<VmStatus> {
    let text = machine.run(&["--host", host, "list", "-o", "json"])?;
    let all: Vec<VmStatus> = status::parse("list", &text)?;
    let found = all.into_iter().find(|it| it.name == vm);
    found.ok_or_else(|| format!("{host} does not list {vm}"))
}
