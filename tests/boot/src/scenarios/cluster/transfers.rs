//! Transfers from one host to another, of which both compute a checksum.

use super::{await_seen, hosts, one_key, seen_by};
use crate::{
    Outcome, because,
    machine::{Hardware, Machine},
    scenario::{Scenario, Stage},
    status::HostStatus,
    vm::Vm,
};
use serde_json::Value;
use std::fs;

/// MiB of the long transfer, of that over a wire with faults, and of that beside a VM that looks after its registers.
pub const BULK_MIB: u64 = 256;
pub const FAULTS_MIB: u64 = 4;
const REGISTERS_MIB: u64 = 1;

pub fn scenarios() -> Vec<Scenario> {
    let loses = bulk("cluster/bulk-loss", "class=20us,lose=5%");
    vec![
        bulk("cluster/bulk", "class=20us"),
        loses.check(has_resent),
        hosts("cluster/faults", 2, FAULTS, one_key::<2>).check(bear_faults),
        registers(),
    ]
}

/// Frames that come twice, late, or with a wrong bit.
const FAULTS: &str = "class=20us,repeat=3%,reorder=3%,corrupt=3%,spread=300us";

fn bulk(name: &'static str, wire: &'static str) -> Scenario {
    let scenario = hosts(name, 2, wire, one_key::<2>).slow();
    scenario.check(|stage| transfer(stage.machine()?, BULK_MIB).map(drop))
}

/// Sends so many MiB from host0 to host1; gives what each sees of the other afterwards. They are members of one epoch all the
/// time.
fn transfer(machine: &Machine, mib: u64) -> Outcome<[HostStatus; 2]> {
    let is_in = |it: &HostStatus| it.state == "in";
    let before = [
        await_seen(machine, 0, is_in)?,
        await_seen(machine, 1, is_in)?,
    ];
    let line = format!("--host host0 cluster probe right --rounds 0 --bytes {mib}MiB -o json");
    // It fails where the checksums differ.
    let told = machine.run(&line.split(' ').collect::<Vec<_>>())?;
    let json: Value = serde_json::from_str(&told).map_err(because("no JSON"))?;
    let after = [seen_by(machine, 0)?, seen_by(machine, 1)?];
    let stay =
        |(before, after): (&HostStatus, &HostStatus)| is_in(after) && after.epoch == before.epoch;
    let is_right = json["transfer"]["bytes"] == mib << 20 && before.iter().zip(&after).all(stay);
    is_right
        .then(|| after.clone())
        .ok_or_else(|| format!("it tells {told}; {before:?}, then {after:?}"))
}

/// Frames were lost, so that pieces were sent again.
fn has_resent(stage: &mut Stage) -> Outcome {
    let seen = seen_by(stage.machine()?, 0)?;
    (seen.resent > 0)
        .then_some(())
        .ok_or_else(|| format!("nothing was sent again: {seen:?}"))
}

/// Damaged and repeated frames are dropped by the receiver, and counted.
fn bear_faults(stage: &mut Stage) -> Outcome {
    let [of_receiver, of_sender] = transfer(stage.machine()?, FAULTS_MIB)?;
    let dropped = |why: &str| of_sender.dropped[why];
    let is_right = dropped("forged") > 0 && dropped("replayed") > 0 && of_receiver.resent > 0;
    is_right
        .then_some(())
        .ok_or_else(|| format!("the hosts see each other so: {of_receiver:?}, {of_sender:?}"))
}

/// Two vCPUs on the only CPU of host0 check SIMD registers, FPCR and FPSR, while that CPU seals and opens frames.
fn registers() -> Scenario {
    let hardware = Hardware::hosts(2, "512M", "class=20us");
    let other = Vm::bare("hello", "hello", "").flat();
    let scenario = Scenario::new("cluster/registers", hardware, vec![other]);
    let scenario = scenario.prepare(|directory| {
        let keeper = Vm::bare("keeper", "tlb_hygiene", "rounds=1000000000").cpus(2);
        let file = directory.join("keeper.toml");
        fs::write(&file, keeper.to_toml()?).map_err(because("cannot write a VM file"))?;
        let on = ["--on".to_owned(), format!("host0={}", file.display())];
        Ok([one_key::<2>(directory)?, on.into()].concat())
    });
    scenario.check(|stage| {
        let machine = stage.machine()?;
        let before = ran(machine)?;
        transfer(machine, REGISTERS_MIB)?;
        (ran(machine)? > before)
            .then_some(())
            .ok_or_else(|| "the VM did not run".to_owned())
    })
}

/// For how long the VM that looks after its registers has run; it says so where one is not as it was.
fn ran(machine: &Machine) -> Outcome<u64> {
    let said = machine.run(&["--host", "host0", "show", "keeper", "-o", "json"])?;
    let json: Value = serde_json::from_str(&said).map_err(because("no JSON"))?;
    let console = machine.host_console("host0", "keeper");
    let is_content = json["state"] == "running" && !console.contains("registers");
    let ran = json["run_ns"].as_u64();
    ran.filter(|_| is_content).ok_or(console)
}
