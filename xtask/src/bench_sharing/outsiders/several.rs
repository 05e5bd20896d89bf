//! The same on several CPUs, each VM on one of its own, so that others hold locks that a fault waits for.
//!
//! The measuring machine (`sim/`) counts what each CPU executes and lets them run in turns of 500 instructions,
//! as if side by side; waiting for a lock is executed, too. Memory takes no time there.

use super::super::{histogram::Histogram, lab::directory};
use super::{MACHINE, NAMES, OUTSIDE, OUTSIDE_FILL, Run, STORMING, STORMING_FILL};
use crate::step::Outcome;
use std::{fs, path::Path, time::Duration};
use tests_boot::{
    assets,
    machine::{Hardware, Machine},
    vm::Vm,
};

/// CPUs: one for each VM.
const CPUS: u32 = 4;
const STORES: u64 = 80_000;
/// When the others have filled their memory for sure, in microseconds of counted instructions.
const WAIT: u64 = 500_000;
/// What executes more was a fault.
const FAULT: u64 = 100;
/// How long a run may take, on a host that is busy.
const WORK_MAX: Duration = Duration::from_mins(15);
/// What the measuring machine is told: memory takes no time, and turns are short.
const OPTIONS: [&str; 3] = ["local_ns=0", "remote_ns=0", "slice_ns=500"];

/// The VMs of the group do that; the outsider has faults.
pub fn run(doing: &str, disk: &Path) -> Outcome<Run> {
    let place = directory("outsiders")?.join("several");
    let _ = fs::remove_dir_all(&place); // absent is fine
    fs::create_dir_all(&place).map_err(|error| format!("cannot make a directory: {error}"))?;
    let results = place.join("results.csv");
    let mut hardware = Hardware::new(CPUS, MACHINE).option("--flash");
    hardware = hardware
        .option("--results")
        .option(results.display().to_string());
    for option in OPTIONS {
        hardware = hardware.option("--flash-option").option(option);
    }
    let disk = disk.display().to_string();
    let [base, max] = STORMING;
    let storming = |name| {
        let args = format!("do={doing} kind=image fill={STORMING_FILL}");
        Vm::bare(name, "timing", &args)
            .terms(base, max, None)
            .cow_disk(&disk)
    };
    let args = format!("do=faults count={STORES} wait={WAIT} fill={OUTSIDE_FILL}");
    let outsider = Vm::bare("outsider", "timing", &args).memory(OUTSIDE);
    let mut vms = NAMES.map(storming).to_vec();
    // The image is the group's, which is described first.
    vms.push(outsider.group("other").cow_disk(&disk));
    let mut machine = Machine::start(&assets::command(), &place, &hardware, &vms)?;
    machine.await_answer()?;
    // Nobody asks meanwhile: an answer is work of EL2, which a fault would have to wait for.
    machine.hear("outsider", "timing: done", WORK_MAX)?;
    let mut breaks = 0;
    for name in NAMES {
        breaks += machine
            .mem(name)?
            .events
            .get("breaks")
            .copied()
            .unwrap_or(0);
    }
    machine.shut_down()?;
    let [faults, interrupted] = faults(&results)?;
    Ok(Run {
        breaks,
        faults,
        interrupted,
        spare: 0,
    })
}

/// Instructions of the outsider's CPU in each store that was a fault, undisturbed and interrupted; doubled, as
/// histograms have them.
fn faults(results: &Path) -> Outcome<[Histogram; 2]> {
    let text = fs::read_to_string(results)
        .map_err(|error| format!("cannot read {}: {error}", results.display()))?;
    let mut lines = text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let head = lines.next().ok_or("there are no results")?;
    let column = |title: &str| {
        let at = head.iter().position(|column| *column == title);
        at.ok_or_else(|| format!("the results have no column {title}"))
    };
    let columns = [column("region")?, column("instructions")?];
    let number = |line: &[&str], at: usize| line.get(at).and_then(|word| word.parse().ok());
    let rows = lines.map(|line| columns.map(|at| number(&line, at)));
    let rows: Option<Vec<[u64; 2]>> = rows
        .map(|[region, count]| Some([region?, count?]))
        .collect();
    let rows = rows.ok_or("a line of the results is cut off")?;
    let mut found = [Histogram::new(), Histogram::new()];
    let (mut cpu, mut last) = (None, None);
    for visit in rows.chunks_exact(CPUS as usize) {
        let is_store = visit[0][0] == 1;
        if let Some(count) = last.take() {
            *found[usize::from(!is_store)].entry(2 * count).or_default() += 1;
        }
        if !is_store {
            continue;
        }
        // A store that is no fault is executed by one CPU before another one has its turn.
        let mut ran = (0..).zip(visit).filter(|(_, [_, count])| *count > 0);
        if let (Some((only, _)), None) = (ran.next(), ran.next()) {
            cpu = Some(only);
        }
        let count = cpu.and_then(|cpu: usize| Some(visit.get(cpu)?[1]));
        last = count.filter(|count| *count > FAULT);
    }
    Ok(found)
}
