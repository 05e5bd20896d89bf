//! Memory that VMs share on purpose.

use super::kernels::BOOT;
use crate::{
    Outcome, archive, assets, because,
    machine::Hardware,
    scenario::{Scenario, Stage},
    vm::Vm,
};
use serde_json::Value;
use std::{path::Path, thread::sleep, time::Duration};

const KERNEL: &str = "trixie-cloud";
/// Blocks of 1 MiB that go from one VM to the other.
const ROUNDS: u64 = 64;
const MIB: u64 = 1 << 20;
/// What a touch fills of a region.
const CHUNK: u64 = 64 << 10;
/// What a shell does before it uses a region: loads the modules in their order.
const LOAD: &str = "for m in $(cat /pmem.order); do insmod /$m; done; ";

pub fn scenarios() -> Vec<Scenario> {
    let guest = |name: &str| Vm::linux(name, KERNEL, "shell").initrd("../initrd");
    let vms = vec![
        guest("one").region("table", "8MiB", "rw"),
        guest("two").region("table", "8MiB", "rw"),
        guest("eye").region("table", "8MiB", "ro"),
        guest("odd").asleep().region("table", "16MiB", "rw"),
        guest("far")
            .asleep()
            .group("far")
            .region("table", "8MiB", "rw"),
    ];
    let scenario = Scenario::new("regions/exchange", Hardware::new(2, "2G"), vms).prepare(files);
    let ready = ["one", "two", "eye"];
    let scenario = ready.into_iter().fold(scenario, |scenario, vm| {
        scenario.expect(vm, "ready kernel=", 2 * BOOT)
    });
    vec![
        scenario
            .check(exchange)
            .check(a_reader_cannot_write)
            .check(what_is_refused)
            .check(lives_as_long_as_its_users),
    ]
}

/// `initrd`: that of the kernel, with the modules for regions and the program that uses one.
fn files(directory: &Path) -> Outcome<Vec<String>> {
    let read = assets::read_cached;
    let order = read(&format!("pmem/{KERNEL}/modules.order"))?;
    let names = String::from_utf8_lossy(&order).into_owned();
    let mut files = vec![("region", read("region")?), ("pmem.order", order)];
    for name in names.lines() {
        files.push((name, read(&format!("pmem/{KERNEL}/{name}"))?));
    }
    archive::initrd(&directory.join("initrd"), KERNEL, &files)?;
    Ok(Vec::new())
}

/// One program puts blocks, the other takes them and compares their sums; EL2 has nothing to do
/// with it but at the first touch of memory.
fn exchange(stage: &mut Stage) -> Outcome {
    let machine = stage.machine()?;
    machine.type_line("two", &format!("{LOAD}/region table read {ROUNDS}"))?;
    machine.type_line("one", &format!("{LOAD}/region table write {ROUNDS}"))?;
    let within = Duration::from_secs(2 * BOOT);
    machine.expect("one", &format!("region: gave {ROUNDS}"), 1, within)?;
    let said = format!("region: took {ROUNDS}, 0 wrong");
    machine.expect("two", &said, 1, within)?;
    // Once more: all that is touched is there, so that a fault of memory would be one of the region.
    let faults = |machine: &crate::machine::Machine| -> Outcome<u64> {
        let exits = machine.vm("two")?.exits;
        Ok(exits.get("memory").copied().unwrap_or(0))
    };
    let before = faults(machine)?;
    machine.type_line("two", "/region table peek")?;
    machine.expect("two", "region: size 8388608 sum", 1, within)?;
    let more = faults(machine)? - before;
    // Reading 2 MiB of it again is no exit; a program's start is some.
    if more < 100 {
        Ok(())
    } else {
        Err(format!("{more} faults to read what was there"))
    }
}

/// A VM that may only read sees the same, and its store ends in a signal of its own program.
fn a_reader_cannot_write(stage: &mut Stage) -> Outcome {
    let machine = stage.machine()?;
    let within = Duration::from_secs(BOOT);
    machine.type_line(
        "eye",
        &format!("{LOAD}/region table peek; /region table poke"),
    )?;
    let sum = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let at = words.iter().position(|word| *word == "sum");
        at.and_then(|at| words.get(at + 1).map(|word| (*word).to_owned()))
    };
    let seen = machine.expect("eye", "region: size 8388608 sum", 1, within)?;
    machine.expect("eye", "region: refused, 0 is there", 1, within)?;
    machine.type_line("one", "/region table peek")?;
    let there = machine.expect("one", "region: size 8388608 sum", 1, within)?;
    if sum(&seen).is_none() || sum(&seen) != sum(&there) || !there.contains("poked 0") {
        return Err(format!("'{seen}' is seen of '{there}'"));
    }
    // It goes on, and so does its kernel.
    machine.type_line("eye", "echo still $((40 + 2))")?;
    machine.expect("eye", "still 42", 1, within).map(drop)
}

/// Another size and another group, each with what is at fault; and what the machine says it has.
fn what_is_refused(stage: &mut Stage) -> Outcome {
    let machine = stage.machine()?;
    for (vm, words) in [("odd", ["8 MiB", "16 MiB"]), ("far", ["default", "far"])] {
        let said = machine.run(&["start", vm]).err().unwrap_or_default();
        if !words.iter().all(|word| said.contains(word)) {
            return Err(format!("'{vm}' was not refused well: '{said}'"));
        }
    }
    let region = region(machine)?.ok_or("there is no region")?;
    let touched = region["touched"].as_u64().unwrap_or(0);
    // The two blocks, and the chunk with what goes before them.
    if region["users"] != 3 || region["size"] != 8 * MIB || touched != 2 * MIB + CHUNK {
        return Err(format!("not the region: {region}"));
    }
    Ok(())
}

/// The region goes on with one user, and is gone with the last; a new one is empty.
fn lives_as_long_as_its_users(stage: &mut Stage) -> Outcome {
    let machine = stage.machine()?;
    let within = Duration::from_secs(2 * BOOT);
    for vm in ["one", "two"] {
        machine.run(&["kill", vm])?;
        machine.await_state(vm, "ended", within)?;
    }
    machine.type_line("eye", "/region table peek")?;
    let kept = machine.expect("eye", "region: size 8388608 sum", 2, within)?;
    if !kept.contains(&format!("given {ROUNDS}")) {
        return Err(format!("with one user left: '{kept}'"));
    }
    machine.run(&["kill", "eye"])?;
    machine.await_state("eye", "ended", within)?;
    if let Some(region) = region(machine)? {
        return Err(format!("without a user: {region}"));
    }
    let recounted = machine.run(&["mem", "recount"])?;
    // A size that was refused beside others is as good as any now, and all of it is zeroes.
    machine.run(&["start", "odd"])?;
    machine.expect("odd", "ready kernel=", 1, within)?;
    sleep(Duration::from_secs(1));
    machine.type_line("odd", &format!("{LOAD}/region table peek"))?;
    let fresh = machine.expect("odd", "region: size 16777216 sum", 1, within)?;
    if fresh.contains("given 0 ") {
        Ok(())
    } else {
        Err(format!("a new region is not empty: '{fresh}'; {recounted}"))
    }
}

/// What `underpin mem` says of the one region.
fn region(machine: &crate::machine::Machine) -> Outcome<Option<Value>> {
    let said = machine.run(&["-o", "json", "mem"])?;
    let said: Value = serde_json::from_str(&said).map_err(because("no JSON"))?;
    Ok(said["regions"].get(0).cloned())
}
