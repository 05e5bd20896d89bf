//! A host's process that is killed, again and again: the VM that it had a share of ends on the other one, and nothing else.

use super::super::cluster::{await_log, one_key};
use super::{HOSTS, PATIENCE, POLL, seen_by};
use crate::{
    Outcome,
    machine::Hardware,
    scenario::{Scenario, Stage},
    vm::Vm,
};
use std::{
    thread::sleep,
    time::{Duration, Instant},
};

const NAMES: [&str; 2] = ["left", "right"];
const TIMES: u32 = 100;
/// How long the VM runs before, at most.
const LIFE_MAX_MS: u64 = 3000;

pub(super) fn killed() -> Scenario {
    let hardware = Hardware::hosts(2, "512M", "class=20us");
    let scenario = Scenario::new("span/killed", hardware, vms()).prepare(one_key::<2>);
    scenario.check(all).slow()
}

/// One that spans both hosts, and one of each host's own.
fn vms() -> Vec<Vm> {
    let vm = |name| Vm::bare(name, "spanned", "forever").flat().cpus(2);
    vec![vm("spanned").hosts(2), vm("watcher")]
}

fn all(stage: &mut Stage) -> Outcome {
    // xorshift64
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for time in 0..TIMES {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let after = Duration::from_millis(random % LIFE_MAX_MS);
        let victim = (random >> 32) as usize % 2;
        let told = |why| format!("time {time}, {} after {after:?}: {why}", HOSTS[victim]);
        once(stage, victim, after)
            .and_then(|()| end(stage, HOSTS[1 - victim]))
            .map_err(told)?;
        stage.lose_power(&vms())?;
    }
    Ok(())
}

/// Ends the host that is left, and waits until all processes have.
fn end(stage: &mut Stage, survivor: &str) -> Outcome {
    let machine = stage.machine()?;
    machine.run(&["--host", survivor, "shutdown"])?;
    let deadline = Instant::now() + PATIENCE;
    while !machine.has_ended() {
        if Instant::now() > deadline {
            return Err("it does not end".to_owned());
        }
        sleep(POLL);
    }
    Ok(())
}

fn once(stage: &mut Stage, victim: usize, after: Duration) -> Outcome {
    let machine = stage.machine()?;
    for host in &HOSTS[..2] {
        await_log(machine, host, &["spanned runs on all its hosts"])?;
    }
    sleep(after);
    machine.kill_host(HOSTS[victim])?;
    let survivor = HOSTS[1 - victim];
    let why = format!("host {} is lost", NAMES[victim]);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (vm, other) = (
            seen_by(machine, survivor, "spanned")?,
            seen_by(machine, survivor, "watcher")?,
        );
        if other.state != "running" {
            return Err(format!("{other:?}"));
        }
        if vm.state == "ended" && vm.reason.contains(&why) {
            return Ok(());
        }
        if vm.state == "ended" || Instant::now() > deadline {
            return Err(format!("{vm:?}"));
        }
        sleep(POLL);
    }
}
