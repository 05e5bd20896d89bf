//! Hosts that are drained and then killed, while their VM runs.

use super::super::cluster::{await_log, one_key};
use super::super::kernels::WORK;
use super::moves::computing;
use super::{HOSTS, LITMUS, LONG_PATIENCE, PATIENCE, await_off, await_said, seen_by};
use crate::{Outcome, machine::Hardware, machine::Machine, scenario::Scenario, vm::Vm};

/// Two of three hosts are drained and killed, one after the other, while all vCPUs run litmus tests. The VM comes to its end on the
/// first, and no outcome is forbidden.
pub fn litmus() -> Scenario {
    let hardware = Hardware::hosts(3, "512M", "class=20us");
    let vm = Vm::bare("litmus", "litmus", "rounds=12000").flat();
    let vms = vec![vm.memory("66MiB").cpus(4).hosts(3), watcher()];
    let scenario = Scenario::new("span/drain", hardware, vms);
    scenario.prepare(one_key::<3>).check(|stage| {
        let machine = stage.machine()?;
        for host in &HOSTS[..3] {
            await_log(machine, host, &["litmus runs on all its hosts"])?;
        }
        let status = machine.refused(&["drain", "left"])?;
        if status != 2 {
            return Err(format!("the host that has the devices: {status}"));
        }
        drain(machine, (1, "right"), "litmus")?;
        drain(machine, (2, "third"), "litmus")?;
        await_off(machine, (1, PATIENCE), "litmus", &LITMUS)
    })
}

/// A VM of each host's own.
fn watcher() -> Vm {
    Vm::bare("watcher", "spanned", "forever").flat().cpus(2)
}

/// One of two hosts is drained and killed while Debian's kernel computes on both: its result is that of one machine.
pub fn linux() -> Scenario {
    let hardware = Hardware::hosts(2, "768M", "class=20us");
    let vms = vec![computing(), watcher()];
    let scenario = Scenario::new("span/drain-linux", hardware, vms).prepare(one_key::<2>);
    let scenario = scenario.check(|stage| {
        let machine = stage.machine()?;
        await_log(machine, "host0", &["debian runs on all its hosts"])?;
        await_said(machine, LONG_PATIENCE, "debian", "cpus=4")?;
        drain(machine, (1, "right"), "debian")?;
        await_off(machine, (1, LONG_PATIENCE), "debian", &[WORK])
    });
    scenario.slow()
}

/// Drains a host and kills it; the VM goes on, and so did the host's own.
fn drain(machine: &Machine, (number, name): (usize, &str), vm: &str) -> Outcome {
    let host = HOSTS[number];
    let told = machine.run(&["drain", name])?;
    if !told.contains(&format!("{vm} goes on without it"))
        || !told.contains("watcher runs there still")
    {
        return Err(told);
    }
    let here = seen_by(machine, host, vm)?;
    let own = seen_by(machine, host, "watcher")?;
    let is_gone =
        here.state == "ended" && here.reason == "its vCPUs and pages are on its other hosts";
    if !is_gone || own.state != "running" {
        return Err(format!("{host} has {here:?}, {own:?}"));
    }
    await_log(machine, "host0", &[&format!("cluster: {name} has left")])?;
    let listed = machine.run(&["--host", "host0", "list"])?;
    if !listed.contains("left") || listed.contains(name) {
        return Err(format!("hosts of a VM that {name} has left: {listed}"));
    }
    machine.kill_host(host)?;
    let there = seen_by(machine, "host0", vm)?;
    let goes_on = there.state == "running";
    goes_on.then_some(()).ok_or_else(|| format!("{there:?}"))
}
