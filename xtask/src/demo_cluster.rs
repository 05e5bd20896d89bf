//! `xtask demo-cluster`: one Debian over two simulated machines, one of which dies.

use crate::{
    images, project,
    step::{Outcome, Step, Steps, print_line},
};
use std::{
    fs,
    thread::sleep,
    time::{Duration, Instant},
};
use tests_boot::{
    assets, cluster_file,
    machine::{Hardware, Machine},
    status::{self, VmStatus},
    vm::Vm,
};

/// The VM, and what its first program says when it is up.
const VM: &str = "debian";
const UP: &str = "ready kernel=";
/// The Ethernet: frames take 10 us, and the second machine dies 20 s after its start.
const WIRE: &str = "class=20us,die=1@20s";
const POLL: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_mins(5);
const INTRODUCTION: &str = "\
QEMU simulates two arm64 machines of one CPU and 512 MiB each, joined by an Ethernet. Underpin takes both at EL2; they join a
cluster. One Debian kernel boots on them as one NUMA machine of 2 CPUs and 256 MiB, whose pages move to where they are used.
Then the second machine dies.";

/// Runs the demo; gives whether all went well.
pub fn run() -> bool {
    print_line(INTRODUCTION);
    let steps = Steps::new(4, project::products().join("demo-logs"));
    play(&steps).is_some()
}

fn play(steps: &Steps) -> Option<()> {
    steps.run("build", |step| {
        images::command(step)?;
        images::hypervisor(step)?;
        images::plugin(step)
    })?;
    let mut machine = steps.run("start two machines that join a cluster", |step| start(step))?;
    steps.run("one Debian boots on both", |step| boots(step, &machine))?;
    let seen = steps.run("the second machine dies", |step| dies(step, &machine));
    machine.kill();
    seen
}

fn start(step: &Step<'_>) -> Outcome<Machine> {
    let directory = project::products().join("demo-cluster");
    let said = |error| format!("cannot make {}: {error}", directory.display());
    if directory.exists() {
        fs::remove_dir_all(&directory).map_err(said)?;
    }
    fs::create_dir_all(&directory).map_err(said)?;
    let hardware = Hardware::hosts(2, "512M", WIRE);
    let hardware = cluster_file::joined(hardware, &directory, 2)?;
    let vm = Vm::linux(VM, "trixie", "shell").memory("256MiB");
    let vms = [vm.cpus(2).hosts(2)];
    let mut machine = Machine::start(&assets::command(), &directory, &hardware, &vms)?;
    machine.await_answer()?;
    let members = until("the machines have not joined", || {
        let said = machine.run(&["--host", "host0", "cluster"])?;
        Ok(said.contains("epoch 1").then_some(said))
    })?;
    step.say(&members);
    Ok(machine)
}

fn boots(step: &Step<'_>, machine: &Machine) -> Outcome {
    let line = until("Debian has not booted", || {
        let console = machine.host_console("host0", VM);
        let line = console.lines().find(|line| line.contains(UP));
        Ok(line.map(|line| line.trim().to_owned()))
    })?;
    step.say(&line);
    for host in ["host0", "host1"] {
        step.say(&machine.run(&["--host", host, "list"])?);
    }
    Ok(())
}

fn dies(step: &Step<'_>, machine: &Machine) -> Outcome {
    let list = ["--host", "host0", "list", "-o", "json"];
    let vm = until("Debian has not ended", || {
        let vms: Vec<VmStatus> = status::parse("list", &machine.run(&list)?)?;
        let mut vms = vms.into_iter();
        Ok(vms.find(|vm| vm.name == VM && vm.state == "ended"))
    })?;
    step.say(&machine.run(&["--host", "host0", "list"])?);
    let reason = vm.reason;
    step.say(&format!("{VM} has ended on the first machine: {reason}"));
    Ok(())
}

/// Looks until there is something; `failure` says what it means that there is nothing in the end.
fn until<T>(failure: &str, mut look: impl FnMut() -> Outcome<Option<T>>) -> Outcome<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        if Instant::now() > deadline {
            return Err(format!("{failure} in {} s", PATIENCE.as_secs()));
        }
        sleep(POLL);
    }
}
