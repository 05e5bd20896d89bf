//! Hosts that are drained and then killed, while their VM runs.

use super::super::cluster::{await_log, one_key};
use super::super::kernels::{WORK, WORK_ARGS};
use super::{HOSTS, LONG_PATIENCE, PATIENCE, POLL, await_all, seen_by};
use crate::{Outcome, machine::Hardware, machine::Machine, scenario::Scenario, vm::Vm};
use std::{thread::sleep, time::Instant};

/// Two of three hosts are drained and killed, one after the other, while all vCPUs run litmus tests. The VM comes to its end on the
/// first, and no outcome is forbidden.
pub fn litmus() -> Scenario {
    let hardware = Hardware::hosts(3, "512M", "class=20us");
    let vm = Vm::bare("litmus", "litmus", "rounds=12000").flat();
    let vms = vec![
        vm.memory("66MiB").cpus(4).hosts(3),
        Vm::bare("watcher", "spanned", "forever").flat().cpus(2),
    ];
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
        drain(machine, (1, "right"))?;
        drain(machine, (2, "third"))?;
        await_all(machine, (1, PATIENCE), "litmus", |it| {
            it.state == "ended" && it.reason == "powered off"
        })?;
        let console = machine.host_console("host0", "litmus");
        let is_good = console.contains("4 CPUs, 0 forbidden") && console.contains("litmus ok");
        is_good.then_some(()).ok_or(console)
    })
}

/// One of two hosts is drained and killed while Debian's kernel computes on both: its result is that of one machine.
pub fn linux() -> Scenario {
    let hardware = Hardware::hosts(2, "768M", "class=20us");
    let vm = Vm::linux("litmus", "trixie", "work").args(WORK_ARGS);
    let vms = vec![
        vm.memory("320MiB").cpus(4).hosts(2),
        Vm::bare("watcher", "spanned", "forever").flat().cpus(2),
    ];
    let scenario = Scenario::new("span/drain-linux", hardware, vms).prepare(one_key::<2>);
    let scenario = scenario.check(|stage| {
        let machine = stage.machine()?;
        await_log(machine, "host0", &["litmus runs on all its hosts"])?;
        let deadline = Instant::now() + LONG_PATIENCE;
        while !machine.host_console("host0", "litmus").contains("cpus=4") {
            if Instant::now() > deadline {
                return Err(machine.host_console("host0", "litmus"));
            }
            sleep(POLL);
        }
        drain(machine, (1, "right"))?;
        await_all(machine, (1, LONG_PATIENCE), "litmus", |it| {
            it.state == "ended" && it.reason == "powered off"
        })?;
        let console = machine.host_console("host0", "litmus");
        console.contains(WORK).then_some(()).ok_or(console)
    });
    scenario.slow()
}

/// Drains a host and kills it; the VM goes on, and so did the host's own.
fn drain(machine: &Machine, (number, name): (usize, &str)) -> Outcome {
    let host = HOSTS[number];
    let told = machine.run(&["drain", name])?;
    if !told.contains("litmus goes on without it") || !told.contains("watcher runs there still") {
        return Err(told);
    }
    let vm = seen_by(machine, host, "litmus")?;
    let own = seen_by(machine, host, "watcher")?;
    let is_gone = vm.state == "ended" && vm.reason == "its vCPUs and pages are on its other hosts";
    if !is_gone || own.state != "running" {
        return Err(format!("{host} has {vm:?}, {own:?}"));
    }
    await_log(machine, "host0", &[&format!("cluster: {name} has left")])?;
    let listed = machine.run(&["--host", "host0", "list"])?;
    if !listed.contains("left") || listed.contains(name) {
        return Err(format!("hosts of a VM that {name} has left: {listed}"));
    }
    machine.kill_host(host)?;
    let vm = seen_by(machine, "host0", "litmus")?;
    let goes_on = vm.state == "running";
    goes_on.then_some(()).ok_or_else(|| format!("{vm:?}"))
}
