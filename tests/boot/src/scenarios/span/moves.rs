//! vCPUs that go from host to host, while their VM runs.

use super::super::cluster::{await_log, one_key};
use super::super::kernels::{WORK, WORK_ARGS};
use super::{HOSTS, LITMUS, LONG_PATIENCE, PATIENCE, POLL, await_off};
use crate::{
    Outcome, because,
    machine::{Hardware, Machine},
    scenario::Scenario,
    vm::Vm,
};
use serde_json::Value;
use std::{thread::sleep, time::Instant};

/// Where vCPUs go: the last but one on its host leaves that without any. In the end all are where they began.
const WAY: [(&str, &str); 6] = [
    ("3", "left"),
    ("1", "right"),
    ("2", "left"),
    ("1", "left"),
    ("2", "right"),
    ("3", "right"),
];

/// They go all ways four times, while all of them run litmus tests: no outcome is forbidden. What cannot move stays.
pub fn litmus() -> Scenario {
    let hardware = Hardware::hosts(2, "512M", "class=20us");
    // Twice as long as the moves take where nothing else runs, as commands take longer on a busy machine.
    let vm = Vm::bare("litmus", "litmus", "rounds=12000").flat();
    let scenario = Scenario::new("span/move", hardware, vec![vm.cpus(4).hosts(2)]);
    scenario.prepare(one_key::<2>).check(|stage| {
        let machine = stage.machine()?;
        for host in &HOSTS[..2] {
            await_log(machine, host, &["litmus runs on all its hosts"])?;
        }
        for _ in 0..4 {
            move_around(machine, "litmus")?;
        }
        for (vcpu, to) in [
            ("0", "right"),
            ("3", "right"),
            ("4", "left"),
            ("3", "nobody"),
        ] {
            let status = machine.refused(&["span", "move", "litmus", vcpu, to])?;
            if ![2, 15].contains(&status) {
                return Err(format!("vCPU {vcpu} to {to}: {status}"));
            }
        }
        await_off(machine, (2, PATIENCE), "litmus", &LITMUS)
    })
}

/// Debian's kernel, which computes on two CPUs of each of two hosts.
pub fn computing() -> Vm {
    let vm = Vm::linux("debian", "trixie", "work").args(WORK_ARGS);
    vm.memory("320MiB").cpus(4).hosts(2)
}

/// They go all ways twice, while Debian's kernel boots and computes on them.
pub fn linux() -> Scenario {
    let hardware = Hardware::hosts(2, "768M", "class=20us");
    let scenario =
        Scenario::new("span/move-linux", hardware, vec![computing()]).prepare(one_key::<2>);
    let scenario = scenario.check(|stage| {
        let machine = stage.machine()?;
        await_log(machine, "host0", &["debian runs on all its hosts"])?;
        for _ in 0..2 {
            move_around(machine, "debian")?;
        }
        await_off(machine, (2, LONG_PATIENCE), "debian", &["cpus=4", WORK])
    });
    scenario.slow()
}

/// Moves vCPUs all ways; each time, both hosts come to show where it is.
fn move_around(machine: &Machine, vm: &str) -> Outcome {
    for (vcpu, to) in WAY {
        machine.run(&["span", "move", vm, vcpu, to])?;
        let mut hosts = [("left", "host0"), ("right", "host1")];
        hosts.sort_by_key(|(name, _)| *name != to);
        for ((_, host), at) in hosts.iter().zip([Value::Null, to.into()]) {
            await_shown(machine, (host, vm, vcpu), &at)?;
        }
        sleep(POLL);
    }
    Ok(())
}

/// Waits until a host shows that another one has a vCPU, or null for itself: its state is on its way for a moment.
fn await_shown(machine: &Machine, (host, vm, vcpu): (&str, &str, &str), at: &Value) -> Outcome {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let shown = machine.run(&["--host", host, "show", vm, "-o", "json"])?;
        let shown: Value = serde_json::from_str(&shown).map_err(because("no JSON"))?;
        let shown = &shown["vcpu"][vcpu.parse::<usize>().unwrap_or_default()];
        if shown["host"] == *at {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("{host} shows {shown:#} for vCPU {vcpu}"));
        }
        sleep(POLL);
    }
}
