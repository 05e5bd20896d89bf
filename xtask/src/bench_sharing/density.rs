//! How many VMs finish their work in a machine that is too small for them all: with sharing off, and
//! where what sharing saves starts more of them (Satori 4.2; the accounts are in docs/sharing.md).

use super::{
    Found,
    crowd::{Crowd, Work, mib, name, names, vm},
};
use crate::step::{Outcome, Step};
use std::{
    thread::sleep,
    time::{Duration, Instant},
};
use tests_boot::vm::Vm;

/// Memory of the machine, and what each VM is sure of.
const MACHINE: &str = "512M";
const MEMORY: &str = "96MiB";
/// More VMs than could ever start.
const VMS: usize = 10;
/// How long one tries to start another one after all others have done their work.
const PATIENCE: Duration = Duration::from_secs(10);
const NAP: Duration = Duration::from_secs(2);
/// What must be reached: so many VMs with sharing for each two without.
const AIM: usize = 3;
const HEAD: [&str; 9] = [
    "MiB, when all have done their work",
    "VMs",
    "sum of bases",
    "private",
    "shared, once",
    "saved",
    "overlays, tables, records",
    "cached only",
    "free, of it reserve",
];

/// Measures.
pub fn run(step: &mut Step<'_>) -> Outcome<Found> {
    step.doing("VMs that share nothing");
    let (alone, alone_row) = measure("sharing off", Vm::never_shares)?;
    step.doing(&format!(
        "{alone} VMs did; those whose savings start others"
    ));
    let (together, together_row) = measure("claim = start", Vm::starts_others)?;
    let (times, told) = (
        together as f64 / alone.max(1) as f64,
        format!("{together} of {alone}"),
    );
    let mut found = Found {
        name: "density",
        rows: vec![HEAD.map(str::to_owned).to_vec(), alone_row, together_row],
        notes: vec![format!(
            "machine of {MACHINE}, VMs of {MEMORY} with one vCPU that compile: {told}, {times:.2} times as many"
        )],
        wrong: Vec::new(),
        figures: None,
    };
    if 2 * together < AIM * alone {
        found.wrong.push(format!("{told} is less than 1.5 times"));
    }
    Ok(found)
}

/// Starts VMs as long as the machine admits them; how many did their work, and a row.
fn measure(what: &str, kind: fn(Vm) -> Vm) -> Outcome<(usize, Vec<String>)> {
    let vms: Vec<Vm> = (1..=VMS).map(|n| kind(vm(n, MEMORY)).asleep()).collect();
    let directory = what.replace([' ', '='], "");
    let mut crowd = Crowd::start(&format!("density-{directory}"), MACHINE, &vms)?;
    let mut count = 0;
    let mut waits = Instant::now();
    while count < VMS && waits.elapsed() < PATIENCE {
        let next = name(count + 1);
        if crowd.machine().run(&["start", &next]).is_ok() {
            crowd.await_boot(&next)?;
            crowd.begin(&next, Work::Compile)?;
            count += 1;
            waits = Instant::now();
        } else {
            sleep(NAP);
            for vm in names(count) {
                if !crowd.is_done(&vm, Work::Compile)? {
                    waits = Instant::now();
                }
            }
        }
    }
    crowd.await_work(&names(count), Work::Compile, |_| Ok(()))?;
    let memory = crowd.memory()?;
    let machine = &memory.machine;
    let own = memory.sum(|vm| vm.overlay + vm.tables) + machine.records;
    let [bases, private, shared, saved, own, cached, free, reserve] = [
        machine.bases,
        memory.sum(|vm| vm.private),
        machine.shared,
        machine.saved,
        own,
        machine.cached,
        machine.free,
        machine.reserve,
    ]
    .map(mib);
    let free = format!("{free}, {reserve}");
    let (what, vms) = (what.to_owned(), count.to_string());
    crowd.shut_down()?;
    Ok((
        count,
        vec![what, vms, bases, private, shared, saved, own, cached, free],
    ))
}
