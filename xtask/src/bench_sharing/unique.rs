//! What sharing costs where nothing is shared: Linux reads a file of which no page is like another.

use super::{Found, Vm, image, lab::Lab, plot::write_bars, plot_of};
use crate::{
    bench::{self, KERNEL, LINUX_ARGS, figures},
    step::{Outcome, Step},
};
use std::path::Path;
use tests_boot::assets;
use tools_abi::MEM_EVENTS;
use tools_abi::status::MemStatus;

/// The most by which the first pass may be dearer.
const OVERHEAD_MAX: f64 = 1.03;
/// Sharing policies, and what they are called.
const POLICIES: [(&str, &str); 3] = [
    ("never", "never = true"),
    ("shared", ""),
    ("hiding", "hide = true"),
];

/// A file, and the memory of the guest that reads it.
struct Case {
    what: &'static str,
    mib: u64,
    memory: &'static str,
    /// Whether the aim is for it.
    has_aim: bool,
}

const CASES: [Case; 2] = [
    Case {
        what: "first pass, the file fits",
        mib: 128,
        memory: "'512MiB'",
        has_aim: true,
    },
    Case {
        what: "a file of four times the memory",
        mib: 512,
        memory: "'128MiB'",
        has_aim: false,
    },
];

/// What a run gave.
struct Read {
    /// Instructions per page.
    cost: f64,
    /// Invalidations per page.
    flushes: f64,
    /// Entries of 2 MiB and 4 KiB at the end.
    entries: (u64, u64),
    console: String,
}

/// Measures.
pub fn run(step: &mut Step<'_>) -> Outcome<Found> {
    let head = [
        "instructions per page",
        "init_on_alloc",
        "never shared",
        "shared",
        "ratio",
        "hiding",
        "ratio",
        "flushes per page",
        "2 MiB, 4 KiB entries",
        "",
    ];
    let mut found = Found {
        name: "unique",
        rows: vec![head.map(str::to_owned).to_vec()],
        notes: Vec::new(),
        wrong: Vec::new(),
        figures: None,
    };
    let mut bars = Vec::new();
    for case in CASES {
        let disk = image(&format!("unique-{}.img", case.mib), case.mib << 8, 0)?;
        for init in [1, 0] {
            let mut reads = Vec::new();
            for (name, policy) in POLICIES {
                step.doing(&format!("{}, init_on_alloc={init}, {name}", case.what));
                let read = Read::run(&case, init, policy, &disk)?;
                bars.push((format!("{} MiB {init} {name}", case.mib), read.cost));
                reads.push(read);
            }
            if case.has_aim && init == 1 {
                step.doing("again");
                if Read::run(&case, init, POLICIES[1].1, &disk)?.console != reads[1].console {
                    found
                        .wrong
                        .push("a repeated run gave other figures".to_owned());
                }
            }
            row(&mut found, &case, init, &reads);
            step.say(&found.rows[found.rows.len() - 1].join(", "));
        }
    }
    let title = "Instructions per page that Linux reads: file, init_on_alloc, policy";
    write_bars(&plot_of("unique")?, title, bars)?;
    Ok(found)
}

fn row(found: &mut Found, case: &Case, init: u32, reads: &[Read]) {
    let [never, shared, hiding] = reads else {
        return;
    };
    let ratio = shared.cost / never.cost;
    let is_missed = case.has_aim && ratio > OVERHEAD_MAX;
    if is_missed {
        found
            .wrong
            .push(format!("{}: {ratio:.3} times the cost", case.what));
    }
    found.rows.push(vec![
        case.what.to_owned(),
        init.to_string(),
        format!("{:.0}", never.cost),
        format!("{:.0}", shared.cost),
        format!("{ratio:.3}"),
        format!("{:.0}", hiding.cost),
        format!("{:.3}", hiding.cost / never.cost),
        format!("{:.3}", shared.flushes),
        format!("{}, {}", shared.entries.0, shared.entries.1),
        match (case.has_aim, is_missed) {
            (false, _) => "",
            (true, true) => "missed (1.03)",
            (true, false) => "met (1.03)",
        }
        .to_owned(),
    ]);
}

impl Read {
    fn run(case: &Case, init: u32, sharing: &str, disk: &Path) -> Outcome<Self> {
        let vm = Vm {
            name: "reader",
            kernel: &assets::cached(&format!("kernels/{KERNEL}/vmlinuz"))?,
            initrd: Some(&bench::initrd()),
            args: format!("{LINUX_ARGS} init_on_alloc={init} -- read"),
            memory: case.memory,
            sharing,
            disk: Some(disk),
            limit: None,
        };
        let mut lab = Lab::start("unique", "2G", &[vm.text()])?;
        lab.await_all(&["reader"], "bench: done")?;
        let console = lab.console("reader").to_owned();
        let figures = figures("bench:", 0, &console)?;
        let ns = figures.get("read_page").ok_or("the guest did not read")?;
        let mem = lab.mem("reader")?;
        Ok(Self {
            cost: ns / 2.0,
            flushes: event(&mem, "flushes") as f64 / (case.mib << 8) as f64,
            entries: (mem.blocks, mem.pages),
            console,
        })
    }
}

/// How often something happened to a VM's memory.
pub fn event(mem: &MemStatus, name: &str) -> u64 {
    let events = MEM_EVENTS.iter().zip(mem.events);
    let named = events.filter(|(event, _)| **event == name);
    named.map(|(_, count)| count).sum()
}
