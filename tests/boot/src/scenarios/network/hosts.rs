//! VMs on two hosts of a cluster, in lock-step of virtual time.

use crate::{
    Outcome, assets, because,
    machine::{Hardware, Machine},
    scenario::{Prepare, Scenario, Stage},
    twice::Twice,
    vm::Vm,
};
use std::{fs, path::Path};

const ROUNDS: u64 = 50;
/// The line: twice 10 us of latency, and of 224 bytes at 25 Gbit/s.
const LINE_NS: u64 = 2 * (10_000 + 72);
/// What a round trip may take beside the line: two hypervisors and two guests, four times, at 1 ns for an instruction.
const ROUND_TRIP_NS_MAX: u64 = 100_000;
const NS_PER_COUNT: u64 = 16;

/// The guest `ring` on each of two hosts pings the other, through the hosts' network cards. Two runs are equal to the bit.
pub fn ping() -> Scenario {
    // The scenario's own machine makes room for a cluster of its name.
    let other = Vm::bare("hello", "hello", "").flat();
    Scenario::new("net/hosts", Hardware::new(1, "512M"), vec![other]).check(|stage| {
        stage.machine()?.kill();
        let first = run(stage, "first", &[])?.map(|said| said[0].clone());
        let second = run(stage, "second", &[])?.map(|said| said[0].clone());
        if first != second {
            return Err(format!("two runs differ: {first:?}, then {second:?}"));
        }
        first.iter().try_for_each(|said| judge(said))
    })
}

/// The same, but for what the hypervisors do once their VMs have ended: all that two runs leave is compared.
pub fn twice(name: &str, prepare: Prepare) -> Scenario {
    let hardware = Hardware::hosts(2, "512M", "class=20us");
    let other = Vm::bare("hello", "hello", "").flat();
    let scenario = Scenario::new(name, hardware, vec![other]).prepare(prepare);
    scenario.twice(Twice {
        seconds: 5,
        transfer: None,
        says: None,
    })
}

/// The words that name the hosts' VMs.
pub fn words(directory: &Path) -> Outcome<Vec<String>> {
    let mut words = Vec::new();
    for host in 0..2 {
        let file = vm_file(directory, host)?;
        words.extend(["--on".to_owned(), format!("host{host}={file}")]);
    }
    Ok(words)
}

/// Runs the cluster to its end; returns what each host's guest and hypervisor said.
pub fn run(stage: &mut Stage, name: &str, more: &[String]) -> Outcome<[[String; 2]; 2]> {
    let directory = stage.directory.clone();
    let kept = directory.join(name);
    let kept_text = kept.display().to_string();
    let line = "sim --hosts 2 --cpus 1 --memory 512M --wire class=20us --exit-when-done --unasked --timeout 3m";
    let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    words.extend(self::words(&directory)?);
    words.extend(["--keep-logs".to_owned(), kept_text]);
    words.extend(more.iter().cloned());
    let plugin = assets::target().join("sim/release/libsim_wire.so");
    words.extend(["--wire-plugin".to_owned(), plugin.display().to_string()]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let machine: &mut Machine = stage.machine()?;
    machine.run(&words)?;
    let said = |host: usize| -> Outcome<[String; 2]> {
        let kept = kept.join(format!("host{host}"));
        let read = |log: String| fs::read_to_string(kept.join(log)).map_err(because("no log"));
        let console = read(format!("consoles/ring{host}.log"))?;
        Ok([console, read("hypervisor.log".to_owned())?])
    };
    Ok([said(0)?, said(1)?])
}

/// The VM of a host. Its card has the address of the host's own, which the wire knows.
fn vm_file(directory: &Path, host: usize) -> Outcome<String> {
    let args = format!("rounds={ROUNDS} length=200 patience=3000000 end=200000000");
    let vm = Vm::bare(&format!("ring{host}"), "ring", &args).uplink("lan");
    let vm = vm.address(&format!("52:54:00:00:00:{host:02x}"));
    let path = directory.join(format!("ring{host}.toml"));
    fs::write(&path, vm.to_toml()?).map_err(because("cannot write a VM file"))?;
    Ok(path.display().to_string())
}

/// Checks what a guest said of its pings.
pub fn judge(said: &str) -> Outcome {
    let number = |key: &str| -> Outcome<u64> {
        let word = said
            .split_whitespace()
            .find_map(|word| word.strip_prefix(key));
        let number = word.and_then(|word| word.parse().ok());
        number.ok_or_else(|| format!("the guest does not say '{key}': {said:?}"))
    };
    let (pings, least) = (number("pings=")?, number("least=")? * NS_PER_COUNT);
    if pings == ROUNDS && (LINE_NS..ROUND_TRIP_NS_MAX).contains(&least) {
        return Ok(());
    }
    Err(format!(
        "{pings} pings of {ROUNDS} were answered, the first after {least} ns; the line takes {LINE_NS}"
    ))
}
