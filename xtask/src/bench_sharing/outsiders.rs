//! What a fault takes in a VM outside a share group while all VMs of the group write all that they share.
//!
//! The machine has one CPU, no more memory than the bases of all VMs and what is reserved, and all VMs use
//! theirs. The outsider counts a fault from the store to the next instruction; where it lost its CPU
//! meanwhile, what was stolen is taken off, and the fault stands apart: the switches to others and back are
//! left in it. Then the same on as many CPUs as there are VMs.

mod several;

use super::{
    Found, Vm,
    histogram::{Histogram, bins, histogram, quantile},
    lab::Lab,
    plot::write_bars,
    plot_of, steps,
    unique::event,
};
use crate::step::{Outcome, Step};
use std::path::Path;

/// Stores on each side. A fault fills up to 16 pages, so most of them meet none.
const STORES: u64 = 400_000;
/// What takes longer, in nanoseconds, was a fault.
const FAULT_NS: u64 = 200;
/// When the others have filled their memory for sure, in microseconds.
const WAIT: u64 = 3_000_000;
/// The most that a fault may take beside a storm: so many times what 99 of 100 take where all is quiet.
const AIM: u64 = 2;
/// Memory of the machine and of the VMs. What a VM sees beyond its base is for what it does not touch.
const MACHINE: &str = "520M";
const STORMING: [&str; 2] = ["130MiB", "152MiB"];
const OUTSIDE: &str = "96MiB";
/// Pages that they touch beside those that they share: nearly their bases.
const STORMING_FILL: u64 = (130 << 8) - 1024 - 128;
const OUTSIDE_FILL: u64 = (96 << 8) - 1536;
const NAMES: [&str; 3] = ["one", "two", "three"];
const HEAD: [&str; 9] = [
    "instructions of a fault outside the group",
    "faults",
    "median",
    "99 of 100",
    "most",
    "aim",
    "",
    "interrupted: how many",
    "most of those",
];

/// What a run gave.
struct Run {
    /// Pages that the others wrote while they shared them.
    breaks: u64,
    faults: Histogram,
    interrupted: Histogram,
    /// KiB that were free at its end, beside the reserve.
    spare: u64,
}

/// Measures.
pub fn run(step: &mut Step<'_>) -> Outcome<Found> {
    let disk = steps::disk()?;
    let mut found = Found {
        name: "outsiders",
        rows: vec![HEAD.map(str::to_owned).to_vec()],
        notes: Vec::new(),
        wrong: Vec::new(),
        figures: None,
    };
    step.doing("the group is quiet");
    let quiet = Run::of("hold", &disk)?;
    step.doing("the group storms");
    let storm = Run::of("storm", &disk)?;
    step.doing("again");
    let again = Run::of("storm", &disk)?;
    if (&again.faults, &again.interrupted) != (&storm.faults, &storm.interrupted) {
        let line = "a repeated run gave other figures".to_owned();
        found.wrong.push(line);
    }
    step.doing("on several CPUs, the group is quiet");
    let apart = several::run("hold", &disk)?;
    step.doing("on several CPUs, the group storms");
    let among = several::run("storm", &disk)?;
    compare(
        &mut found,
        ["the group is quiet", "the group storms"],
        &quiet,
        &storm,
    );
    let titles = ["4 CPUs, the group is quiet", "4 CPUs, the group storms"];
    compare(&mut found, titles, &apart, &among);
    found.notes.push(format!(
        "machine of {MACHINE}, of which {} KiB were free at the end beside the reserve; the others broke {} shared \
         pages meanwhile, {} on four CPUs; an interrupted fault has in it the switch to another VM and back, but not \
         what that did; on four CPUs it has all that its CPU did meanwhile, and what a fault waits for locks is executed",
        storm.spare, storm.breaks, among.breaks
    ));
    let bars = |what: &str, run: &Run| {
        let bar = |per_mille| quantile(&run.faults, per_mille) as f64;
        [500, 990, 1000].map(|part| (format!("{what}, {part} of 1000"), bar(part)))
    };
    let bars = [bars("quiet", &quiet), bars("storm", &storm)].concat();
    let title = "Instructions that so many faults outside a group take at most";
    write_bars(&plot_of("outsiders")?, title, bars)?;
    Ok(found)
}

/// Adds what was found where the group is quiet, and where it storms.
fn compare(found: &mut Found, titles: [&str; 2], quiet: &Run, storm: &Run) {
    let aim = AIM * quantile(&quiet.faults, 990);
    if storm.breaks == 0 {
        found.wrong.push("nobody stormed".to_owned());
    }
    let most = storm.most();
    if most > aim {
        let line = format!("a fault took {most} instructions, more than {aim}");
        found.wrong.push(line);
    }
    found.rows.push(quiet.row(titles[0], None));
    found.rows.push(storm.row(titles[1], Some(aim)));
}

impl Run {
    /// The VMs of the group do that; the outsider has faults.
    fn of(doing: &str, disk: &Path) -> Outcome<Self> {
        let kernel = steps::kernel();
        let [base, max] = STORMING;
        let storming = format!("{{ base = '{base}', max = '{max}' }}");
        let outside = format!("'{OUTSIDE}'");
        let vm = |name, args, memory, sharing| Vm {
            name,
            kernel: &kernel,
            initrd: None,
            args,
            memory,
            sharing,
            disk: Some(disk),
            limit: None,
        };
        // The image is the group's, which is described first.
        let args = format!("do={doing} kind=image fill={STORMING_FILL}");
        let of_group = |name| vm(name, args.clone(), &storming, "").text();
        let mut vms = NAMES.map(of_group).to_vec();
        let args = format!("do=faults count={STORES} wait={WAIT} fill={OUTSIDE_FILL}");
        vms.push(vm("outsider", args, &outside, "group = 'other'").text());
        let mut lab = Lab::start("outsiders", MACHINE, &vms)?;
        lab.await_all(&["outsider"], "timing: done")?;
        let console = lab.console("outsider").to_owned();
        let mut breaks = 0;
        for name in NAMES {
            breaks += event(&lab.mem(name)?, "breaks");
        }
        let (node, machine) = (lab.node()?, lab.machine()?);
        let mut faults = histogram(&console, "store")?;
        faults.retain(|ns, _| *ns > FAULT_NS);
        Ok(Self {
            breaks,
            faults,
            interrupted: bins(&console, "interrupted"),
            spare: node.free.saturating_sub(machine.reserve) >> 10,
        })
    }

    /// The most that any fault took, interrupted or not.
    fn most(&self) -> u64 {
        quantile(&self.faults, 1000).max(quantile(&self.interrupted, 1000))
    }

    fn row(&self, what: &str, aim: Option<u64>) -> Vec<String> {
        let [median, usual, most] = [500, 990, 1000].map(|part| quantile(&self.faults, part));
        let verdict = match aim.map(|aim| (aim, self.most() > aim)) {
            None => "",
            Some((_, true)) => "missed",
            Some((_, false)) => "met",
        };
        let interrupted: u64 = self.interrupted.values().sum();
        vec![
            what.to_owned(),
            self.faults.values().sum::<u64>().to_string(),
            median.to_string(),
            usual.to_string(),
            most.to_string(),
            aim.map_or_else(String::new, |aim| format!("<= {aim}")),
            verdict.to_owned(),
            interrupted.to_string(),
            quantile(&self.interrupted, 1000).to_string(),
        ]
    }
}
