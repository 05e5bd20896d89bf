//! All of Debian over several hosts, which compiles with all their CPUs what one of them compiles alike.

use super::{HOSTS, POLL, all_join, await_all, seen_by};
use crate::{
    Outcome,
    assets::DEBIAN13,
    machine::{Hardware, Machine},
    scenario::{Scenario, Stage},
    vm::Vm,
};
use std::{
    thread::sleep,
    time::{Duration, Instant},
};

/// How long a boot may take, or a compilation: a second of the machines takes half a minute.
const PATIENCE: Duration = Duration::from_mins(25);
/// Compiles bzip2 with all CPUs and once more with the first host's, and compresses what is known. The word at its end is
/// not in what is typed.
const COMPILE: &str = r#"cd /usr/src/bzip2; sums() { make -s clean; taskset -c $1 make -s -j4 CFLAGS=-O0 bzip2 > /dev/null && sha256sum *.o bzip2 | sha256sum; }; many=$(sums 0-3); one=$(sums 0); test "$many" = "$one" && ./bzip2 -1 < sample1.ref | cmp - sample1.bz2 && echo compiled"-alike" on $(nproc) CPUs || echo compiled"-otherwise""#;

/// Debian 13 with that kernel boots on so many hosts to its login prompt, compiles, and is powered off by its button.
pub(super) fn systemd(hosts: u8, kernel: &str) -> Scenario {
    let hardware = Hardware::hosts(hosts, "1500M", "class=20us");
    let vm = Vm::linux("debian", kernel, "none").args("root=/dev/vda1 rw");
    let vm = vm.memory("576MiB").cow_disk(DEBIAN13);
    let vm = vm.cpus(hosts.into()).hosts(hosts);
    let scenario = Scenario::new(format!("span/systemd-{hosts}"), hardware, vec![vm]);
    let scenario = scenario.prepare(all_join(hosts));
    scenario.check(move |stage| compiles(stage, hosts)).slow()
}

fn compiles(stage: &mut Stage, hosts: u8) -> Outcome {
    let machine = stage.machine()?;
    await_text(machine, " login:")?;
    await_text(machine, "root@debian13:")?;
    machine.type_by(&["--host", HOSTS[0], "console", "debian"], COMPILE)?;
    await_text(machine, "compiled-alike on ")?;
    let console = machine.host_console(HOSTS[0], "debian");
    if !console.contains(&format!("compiled-alike on {hosts} CPUs")) {
        return Err(format!("not with all CPUs: {}", end_of(&console)));
    }
    machine.run(&["--host", HOSTS[0], "stop", "debian", "--timeout", "600s"])?;
    await_all(machine, (hosts, PATIENCE), "debian", |it| {
        it.state == "ended" && it.reason == "powered off"
    })
}

/// Waits until the console has said it, while the VM runs.
fn await_text(machine: &Machine, text: &str) -> Outcome {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let console = machine.host_console(HOSTS[0], "debian");
        if console.contains(text) {
            return Ok(());
        }
        let state = seen_by(machine, HOSTS[0], "debian")?.state;
        let is_over = state == "ended" || Instant::now() > deadline;
        if is_over || console.contains("compiled-otherwise") {
            let end = end_of(&console);
            return Err(format!("no '{text}' of a VM that is {state}: {end}"));
        }
        sleep(POLL);
    }
}

fn end_of(console: &str) -> String {
    let from = console.chars().count().saturating_sub(600);
    console.chars().skip(from).collect()
}
