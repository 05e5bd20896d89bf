//! Whether anything that a guest does or learns depends on what VMs of another share group read.
//!
//! The first of two VMs has what the second reads, or as much of something else. All that the second times, how
//! often it leaves for EL2, and what EL2 says of its memory must be the same; in one group they must not be. Pages that
//! were written are in the index, where those of all groups may meet in a bucket: of their times few may differ.

use super::{
    Found, Vm,
    histogram::{Histogram, distance, farthest, histogram},
    lab::Lab,
    steps,
};
use crate::step::{Outcome, Step};
use std::path::Path;
use tools_abi::EXIT_CLASSES;
use tools_abi::status::MemStatus;

const STORES: u64 = 20_000;
/// The blocks that only the first VM works with.
const OTHER_BLOCKS: u64 = 1024;
/// When the first VM is ready for sure, in microseconds.
const WAIT: u64 = 2_000_000;
/// The guest that is done sleeps, and leaves for EL2 in these ways, for as long as nobody asks.
const SLEEPS: [&str; 3] = ["irq", "timer", "wfi"];
const KINDS: [(&str, &str); 2] = [
    ("image", "pages of the image"),
    ("written", "pages that were written"),
];

/// How many stores may differ where pages are in the index, and by how much: by a step of the guest's counter, for
/// a store that takes some instructions more lets those that follow begin elsewhere between two steps.
const DISTANCE_MAX: f64 = 0.01;
const STEP_NS: u64 = 16;

/// What a guest knows, and what is known of it.
struct Seen {
    times: Histogram,
    exits: Vec<(&'static str, u64)>,
    memory: Vec<u64>,
}

/// Measures.
pub fn run(step: &mut Step<'_>) -> Outcome<Found> {
    let disk = steps::disk()?;
    let head = [
        "first stores to",
        "the other VM is of",
        "exits, memory and limit, where that has the same pages or others",
        "times: distance, instructions more or less at most",
        "exits",
        "",
    ];
    let mut found = Found {
        name: "groups",
        rows: vec![head.map(str::to_owned).to_vec()],
        notes: Vec::new(),
        wrong: Vec::new(),
        figures: None,
    };
    for (kind, what) in KINDS {
        for (group, whose) in [("other", "another group"), ("default", "the same group")] {
            step.doing(&format!("{what}, {whose}"));
            let [same, others] = [true, false].map(|same| Seen::of(kind, group, same, &disk));
            let (same, others) = (same?, others?);
            let is_equal = (&same.exits, &same.memory) == (&others.exits, &others.memory);
            let distance = distance(&same.times, &others.times);
            let farthest = farthest(&same.times, &others.times);
            let (most, step) = match kind {
                "image" => (0.0, 0),
                _ => (DISTANCE_MAX, STEP_NS),
            };
            let is_hidden = is_equal && distance <= most && farthest <= step;
            let is_right = is_hidden == (group == "other");
            if !is_right {
                let line = format!("{what}, {whose}: equal {is_equal}, distance {distance}");
                found.wrong.push(line);
            }
            let exits: u64 = same.exits.iter().map(|(_, count)| count).sum();
            found.rows.push(vec![
                what.to_owned(),
                whose.to_owned(),
                if is_equal { "the same" } else { "differ" }.to_owned(),
                format!("{:.3} %, {}", distance * 100.0, farthest / 2),
                exits.to_string(),
                if is_right { "met" } else { "missed" }.to_owned(),
            ]);
        }
    }
    let note = format!("{STORES} stores each; exits without those of a guest that sleeps");
    found.notes.push(note);
    Ok(found)
}

impl Seen {
    /// By a VM of a group, where one of the group "default" has the same, or something else.
    fn of(kind: &str, group: &str, same: bool, disk: &Path) -> Outcome<Self> {
        let kernel = steps::kernel();
        let sharing = format!("claim = 'grow', group = '{group}'");
        let vm = |name, args, sharing| Vm {
            name,
            kernel: &kernel,
            initrd: None,
            args,
            memory: "{ base = '64MiB', max = '96MiB' }",
            sharing,
            disk: Some(disk),
            limit: None,
        };
        let first = if same { 0 } else { OTHER_BLOCKS };
        let hold = format!("do=hold kind={kind} first={first}");
        let writes = format!("do=writes kind={kind} count={STORES} wait={WAIT}");
        // The image is the group's that is described first.
        let vms = [
            vm("one", hold, "").text(),
            vm("two", writes, &sharing).text(),
        ];
        let mut lab = Lab::start("groups", "512M", &vms)?;
        lab.await_all(&["one", "two"], "timing: done")?;
        let (status, memory) = (lab.vm("two")?, lab.mem("two")?);
        let exits = EXIT_CLASSES.into_iter().zip(status.exits);
        Ok(Self {
            times: histogram(lab.console("two"), "store")?,
            exits: exits.filter(|(class, _)| !SLEEPS.contains(class)).collect(),
            memory: numbers(&memory),
        })
    }
}

fn numbers(memory: &MemStatus) -> Vec<u64> {
    let sums = [
        memory.limit,
        memory.target,
        memory.resident,
        memory.private,
        memory.shared,
        memory.charge,
        memory.entitlement,
        memory.owed,
        memory.tables,
    ];
    sums.into_iter().chain(memory.events).collect()
}
