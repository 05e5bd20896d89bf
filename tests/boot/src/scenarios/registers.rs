//! System registers that one VM writes, and another on the same CPU reads, or OS-0.

use super::kernels::BOOT;
use crate::{
    Outcome,
    machine::Hardware,
    os0::Os0,
    scenario::{Scenario, Stage},
    vm::Vm,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

const WRITTEN: &str = "underpin-guest: hostile/registers ok";
const READ: &str = "registers were read";
const SAME: &str = "hostile: all registers are the same";

pub fn scenarios() -> Vec<Scenario> {
    vec![
        between_vms("registers", "max"),
        between_vms("registers-n1", "neoverse-n1"),
        beside_os0("max,pauth=off,sme=off"),
        beside_os0("neoverse-n1").slow(),
    ]
}

/// The same VM beside OS-0, with which it shares the only CPU.
fn beside_os0(cpu: &'static str) -> Scenario {
    let vm = Vm::cached("writer", "hostile", "do=registers seconds=5");
    let os0 = Os0::new("trixie-cloud", 1, "1G", "registers").cpu(cpu);
    let model = cpu.split(',').next().unwrap_or(cpu);
    let os0 = os0.beside(vec![vm]).expect("registers looks=", 3 * BOOT);
    Scenario::os0(format!("os0/registers-{model}"), os0).console(owners_are_its_own)
}

/// Registers of OS-0 that change now and then, and why; what they hold is never what the VM has written.
const OWN: [(&str, &str); 6] = [
    ("s3_0_c4_c0_0", "SPSR_EL1: what was interrupted"),
    ("s3_0_c4_c0_1", "ELR_EL1: and where"),
    ("s3_0_c6_c0_0", "FAR_EL1: where a program's last fault was"),
    ("s3_0_c7_c4_0", "PAR_EL1: its last look at a translation"),
    (
        "s3_0_c12_c12_2",
        "ICC_HPPIR1_EL1: which interrupt waits, mostly its timer's",
    ),
    ("s3_3_c14_c3_1", "CNTV_CTL_EL0: whether the time has come"),
];

/// No register changes while a VM runs that does not change by OS-0's own doing; what changes, is not what the VM
/// has written.
fn owners_are_its_own(said: &str) -> Outcome {
    let changes = |when: &str| -> Vec<(String, String)> {
        said.split(&format!("rogue: {when} "))
            .skip(1)
            .filter_map(|rest| rest.lines().next()?.trim().split_once(" = "))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    };
    let own: BTreeSet<String> = changes("alone").into_iter().map(|(name, _)| name).collect();
    let written = registers(said, "os0: console hostile: wrote ");
    let is_bad = |(name, value): &(String, String)| {
        let may_change = own.contains(name) || OWN.iter().any(|(own, _)| own == name);
        !may_change || written.get(name) == Some(value)
    };
    let bad: Vec<_> = changes("beside").into_iter().filter(is_bad).collect();
    if written.is_empty() || !bad.is_empty() {
        return Err(format!(
            "the VM wrote {} registers; of OS-0's these changed: {bad:?}",
            written.len()
        ));
    }
    Ok(())
}

/// A VM writes all registers that it can, with ones and zeroes by turns. One that shares the CPU with it finds
/// its own as they were at each look; one that starts after it finds what the first one found.
fn between_vms(name: &str, cpu: &str) -> Scenario {
    let vm = |name, case, seconds| {
        let args = format!("do={case} seconds={seconds}");
        Vm::bare(name, "hostile", &args)
    };
    let vms = vec![
        vm("before", "registers_read", 1000),
        vm("writer", "registers", 3).asleep(),
        vm("after", "registers_read", 0).asleep(),
    ];
    let hardware = Hardware::new(1, "1G").option("--cpu").option(cpu);
    Scenario::new(format!("hostile/{name}"), hardware, vms)
        .expect("before", SAME, BOOT)
        .check(|stage| {
            let machine = stage.machine()?;
            let minute = Duration::from_mins(1);
            let seen = machine.console("before").matches(SAME).count();
            machine.run(&["start", "writer"])?;
            machine.expect("writer", WRITTEN, 1, minute)?;
            machine.expect("before", SAME, seen + 1, Duration::ZERO)?;
            let seen = machine.console("before").matches(SAME).count();
            machine.expect("before", SAME, seen + 2, minute)?;
            machine.run(&["kill", "before"])?;
            machine.run(&["start", "after"])?;
            machine.expect("after", READ, 1, minute).map(drop)
        })
        .check(finds_what_the_first_found)
}

fn finds_what_the_first_found(stage: &mut Stage) -> Outcome {
    let machine = stage.machine()?;
    let [before, after] =
        ["before", "after"].map(|vm| registers(&machine.console(vm), "hostile: "));
    let differ: Vec<String> = differences(&before, &after);
    if before.is_empty() || !differ.is_empty() {
        return Err(format!(
            "of {} registers these are what another VM has written: {differ:?}",
            before.len()
        ));
    }
    Ok(())
}

/// What the lines `NAME = VALUE` after `head` say.
fn registers(said: &str, head: &str) -> BTreeMap<String, String> {
    said.lines()
        .filter_map(|line| line.trim().strip_prefix(head)?.split_once(" = "))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn differences(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) -> Vec<String> {
    let names: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let zero = "0x0".to_owned();
    let of = |registers: &BTreeMap<_, _>, name| registers.get(name).unwrap_or(&zero).clone();
    names
        .into_iter()
        .map(|name| (name, of(before, name), of(after, name)))
        .filter(|(_, before, after)| before != after)
        .map(|(name, before, after)| format!("{name} was {before} and is {after}"))
        .collect()
}
