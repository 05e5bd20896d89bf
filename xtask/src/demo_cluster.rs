//! `xtask demo-cluster`: one Debian over two simulated machines computes on both, and then one of them is killed.

use crate::{
    bench_span::reported,
    images, project,
    step::{Outcome, Step, Steps, print_line},
};
use std::{
    fs,
    path::PathBuf,
    process::ExitStatus,
    thread::sleep,
    time::{Duration, Instant},
};
use tests_boot::{
    archive, assets, cluster_file,
    machine::{Hardware, Machine},
    status::{self, VmStatus},
    vm::Vm,
};

/// The VM, its kernel, and what its first program says when it is up.
const VM: &str = "debian";
const KERNEL: &str = "trixie-cloud";
const UP: &str = "ready kernel=";
/// What the guest does: a program with one thread, then with two. One of the lines below follows.
const WORK: &str = "#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
echo ready kernel=$(/bin/busybox uname -r) cpus=$(/bin/busybox grep -c ^processor /proc/cpuinfo)
/water 1 512 1
";
/// It goes on with two, again and again.
const GOES_ON: &str = "while /water 2 512 1; do :; done\n";
/// It is there for whoever types, after a while of which pages are traced.
const ASKS: &str = "for run in 1 2 3 4 5 6 7 8; do /water 2 512 1; done
echo 'Again: /water 2 512 1'
while :; do /bin/busybox setsid /bin/busybox cttyhack /bin/busybox sh; done
";
/// The Ethernet: frames take 10 us.
const WIRE: &str = "class=20us";
const POLL: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_mins(5);
const INTRODUCTION: &str = "\
QEMU simulates two arm64 machines of one CPU and 512 MiB each, joined by an Ethernet. Underpin takes both at EL2; they join a
cluster. One Debian kernel boots on them as one NUMA machine of 2 CPUs and 256 MiB, whose pages move to where they are used.
It computes the motion of 512 molecules of water (Water-Nsquared of SPLASH-2) with one CPU and with both. Then the second machine
is killed.";

/// Runs the demo; gives whether all went well. To `keep` is to kill no machine, and to wait until somebody ends them.
pub fn run(keep: bool) -> bool {
    print_line(INTRODUCTION);
    let count = if keep { 5 } else { 6 };
    let steps = Steps::new(count, project::products().join("demo-logs"));
    play(&steps, keep).is_some()
}

fn play(steps: &Steps, keep: bool) -> Option<()> {
    steps.run("build", |step| {
        images::command(step)?;
        images::hypervisor(step)?;
        images::plugin(step)
    })?;
    let mut machine = steps.run("start two machines that join a cluster", |step| {
        start(step, keep)
    })?;
    steps.run("one Debian boots on both", |step| boots(step, &machine))?;
    let seen = goes_on(steps, &machine);
    if keep && seen.is_some() {
        print_line(&invitation());
        return machine.wait().ok().filter(ExitStatus::success).map(drop);
    }
    let seen =
        seen.and_then(|()| steps.run("the second machine is killed", |step| dies(step, &machine)));
    machine.kill();
    seen
}

fn directory() -> PathBuf {
    project::products().join("demo-cluster")
}

/// What somebody who keeps the machines can do with them.
fn invitation() -> String {
    let command = assets::command().display().to_string();
    let directory = directory().display().to_string();
    format!(
        "
Both machines stay up as long as this runs: Ctrl-C ends them. In another terminal:
  export XDG_RUNTIME_DIR={directory}
  {command} list
  {command} --host host0 cluster
  {command} --host host0 console {VM}    (Ctrl-] leaves it; there: /water 2 512 1)
  {command} --host host0 span why {VM}"
    )
}

fn goes_on(steps: &Steps, machine: &Machine) -> Option<()> {
    steps.run("it computes on one CPU, and on both", |step| {
        computes(step, machine)
    })?;
    steps.run("which pages cost most", |step| {
        let words = ["--host", "host0", "span", "why", VM, "--for", "1s"];
        step.say(&machine.run(&words)?);
        Ok(())
    })
}

fn start(step: &Step<'_>, keep: bool) -> Outcome<Machine> {
    let directory = directory();
    let said = |error| format!("cannot make {}: {error}", directory.display());
    if directory.exists() {
        fs::remove_dir_all(&directory).map_err(said)?;
    }
    fs::create_dir_all(&directory).map_err(said)?;
    let hardware = Hardware::hosts(2, "512M", WIRE);
    let hardware = cluster_file::joined(hardware, &directory, (2, 1500))?;
    let initrd = directory.join("initrd");
    let program = ("water", assets::read_cached("parallel/water")?);
    let work = [WORK, if keep { ASKS } else { GOES_ON }].concat();
    archive::initrd(&initrd, KERNEL, &[("work", work.into()), program])?;
    let vm = Vm::linux(VM, KERNEL, "none").initrd(&initrd.display().to_string());
    let vm = vm.args("rdinit=/work numa_balancing=disable");
    let vms = [vm.memory("256MiB").cpus(2).hosts(2)];
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

/// Waits for the program's times with one thread and with two, and shows them.
fn computes(step: &Step<'_>, machine: &Machine) -> Outcome {
    let [one, both] = until("the program has not come to its end", || {
        let console = machine.host_console("host0", VM);
        let times = [1, 2].map(|threads| time_ms(&console, threads));
        let [Some(one), Some(both)] = times else {
            return Ok(None);
        };
        Ok(Some([one, both]))
    })?;
    step.say("THREADS  MACHINES    TIME  TIMES AS FAST");
    for (threads, ms) in [(1, one), (2, both)] {
        let times = one / ms;
        step.say(&format!(
            "{threads:7}  {threads:8}  {ms:3.0} ms  {times:13.2}"
        ));
    }
    Ok(())
}

/// The time of the program with so many threads, in milliseconds of the guest.
fn time_ms(console: &str, threads: u8) -> Option<f64> {
    let threads = format!("threads={threads} ");
    let mut lines = console.lines().filter(|line| line.contains(&threads));
    lines.find_map(reported).map(|run| run.ns / 1e6)
}

fn dies(step: &Step<'_>, machine: &Machine) -> Outcome {
    machine.kill_host("host1")?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_that_of_its_threads() {
        let console = "water: measured ns=5\r\nwater: threads=1 ns=1500000 check=1.5\r\nwater: threads=2 ns=750000 check=1.5\r\n";
        assert_eq!(time_ms(console, 1), Some(1.5));
        assert_eq!(time_ms(console, 2), Some(0.75));
        assert_eq!(time_ms("water: threads=1 ns=15", 1), None);
    }
}
