//! A host's process that is killed, again and again: the VM that it had a share of ends on the other one, and nothing else.

use super::super::{
    cluster::{await_log, one_key},
    reading::random,
};
use super::{HOSTS, PATIENCE, await_loss};
use crate::{
    Outcome,
    machine::Hardware,
    scenario::{Scenario, Stage},
    vm::Vm,
};
use std::{thread::sleep, time::Duration};

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
    for time in 0..TIMES {
        let random = random(time.into());
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
    // It fails, as one of its hosts has.
    machine.await_exit(PATIENCE).map(drop)
}

fn once(stage: &mut Stage, victim: usize, after: Duration) -> Outcome {
    let machine = stage.machine()?;
    for host in &HOSTS[..2] {
        await_log(machine, host, &["spanned runs on all its hosts"])?;
    }
    sleep(after);
    machine.kill_host(HOSTS[victim])?;
    await_loss(machine, (HOSTS[1 - victim], NAMES[victim]), "watcher")
}
