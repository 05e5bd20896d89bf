//! How much memory one, two, four and eight VMs take that do the same work (Disco, figure 7): Debian
//! boots, and gcc compiles.

use super::{Found, lab, plot::Plot, plot_of};
use crate::step::{Outcome, Step};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    thread::sleep,
    time::{Duration, Instant},
};
use tests_boot::{
    assets,
    machine::{Hardware, Machine},
    status::{self, MachineStatus},
    vm::Vm,
};

/// How many VMs there are.
const COUNTS: [usize; 4] = [1, 2, 4, 8];
/// Memory of the machine, and of each VM.
const MACHINE: &str = "6G";
const MEMORY: &str = "384MiB";
/// How long the work of one VM may take, and how often one looks.
const WORK_MAX: Duration = Duration::from_mins(10);
const POLL: Duration = Duration::from_secs(2);
/// What the plot's parts are.
const PARTS: [&str; 5] = ["private", "kernel", "page cache", "overlays", "hypervisor"];
const HEAD: [&str; 9] = [
    "MiB, at the most",
    "virtual",
    "machine",
    "saved",
    "private",
    "kernel",
    "page cache",
    "overlays",
    "hypervisor",
];

/// `underpin mem -o json`.
#[derive(Deserialize)]
struct Memory {
    vms: Vec<VmMemory>,
    machine: MachineMemory,
}

#[derive(Deserialize)]
struct VmMemory {
    resident: u64,
    private: u64,
    overlay: u64,
    tables: u64,
    events: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
struct MachineMemory {
    shared: u64,
    records: u64,
}

/// Bytes at one moment.
#[derive(Clone, Copy, Default)]
struct Footprint {
    /// What the guests have, each frame counted for each.
    virtual_: u64,
    /// What the machine has for it, in the order of [`PARTS`].
    parts: [u64; PARTS.len()],
}

impl Footprint {
    fn machine(&self) -> u64 {
        self.parts.iter().sum()
    }
}

/// Measures.
pub fn run(step: &mut Step<'_>) -> Outcome<Found> {
    let mut found = Found {
        name: "footprint",
        rows: vec![HEAD.map(str::to_owned).to_vec()],
        notes: Vec::new(),
        wrong: Vec::new(),
    };
    let mut bars = Vec::new();
    for count in COUNTS {
        step.doing(&format!("{count} VMs boot and compile"));
        let most = measure(count)?;
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let show = |bytes: u64| format!("{:.0}", mib(bytes));
        let saved = most.virtual_.saturating_sub(guests(&most));
        let mut row = vec![format!("{count} VMs")];
        row.extend([most.virtual_, most.machine(), saved].map(show));
        row.extend(most.parts.map(show));
        found.rows.push(row);
        bars.push((format!("{count}, virtual"), vec![mib(most.virtual_)]));
        let parts = most.parts.iter().map(|bytes| mib(*bytes)).collect();
        bars.push((format!("{count}, machine"), parts));
    }
    let plot = Plot {
        title: "Memory of VMs that boot Debian and compile, in MiB (virtual: all of it private)",
        parts: &PARTS,
        bars,
    };
    plot.write(&plot_of("footprint")?)?;
    Ok(found)
}

/// What the machine has for the guests' own memory.
fn guests(footprint: &Footprint) -> u64 {
    footprint.parts[..3].iter().sum()
}

/// The moment at which the guests have most.
fn measure(count: usize) -> Outcome<Footprint> {
    let vms: Vec<Vm> = (1..=count).map(worker).collect();
    let work = lab::directory(&format!("footprint-{count}"))?;
    let hardware = Hardware::new(2, MACHINE);
    let mut machine = Machine::start(&assets::command(), &work, &hardware, &vms)?;
    machine.await_answer()?;
    let deadline = Instant::now() + WORK_MAX * count as u32;
    let mut most = Footprint::default();
    loop {
        machine.check_alive()?;
        let now = look(&machine)?;
        if now.virtual_ > most.virtual_ {
            most = now;
        }
        let list = machine.list()?;
        if list.iter().all(|vm| vm.state == "ended") {
            break;
        }
        if Instant::now() > deadline {
            return Err("the VMs have not done their work in time".to_owned());
        }
        sleep(POLL);
    }
    let idle = (1..=count).map(|n| machine.console(&format!("vm{n}")));
    let all = idle.filter(|console| console.contains("compiled")).count();
    machine.shut_down()?;
    if all == count {
        Ok(most)
    } else {
        Err(format!("{all} of {count} VMs have compiled"))
    }
}

fn worker(n: usize) -> Vm {
    let vm = Vm::linux(&format!("vm{n}"), "trixie-cloud", "compile");
    let vm = vm.args("root=/dev/vda1 rw nokaslr kpti=off").memory(MEMORY);
    vm.cow_disk(assets::DEBIAN13)
}

fn look(machine: &Machine) -> Outcome<Footprint> {
    let memory: Memory = status::parse("mem", &machine.run(&["mem", "-o", "json"])?)?;
    let status: MachineStatus = machine.status()?;
    let sum = |of: fn(&VmMemory) -> u64| memory.vms.iter().map(of).sum::<u64>();
    // All have the same kernel and initrd: what one uses of them, others use too.
    let at_boot = |vm: &VmMemory| vm.events.get("shared-at-boot").copied().unwrap_or(0) * 4096;
    let kernel = memory.vms.iter().map(at_boot).max().unwrap_or(0);
    let kernel = kernel.min(memory.machine.shared);
    let hypervisor = status.image + status.frame_table + status.heap + memory.machine.records;
    Ok(Footprint {
        virtual_: sum(|vm| vm.resident),
        parts: [
            sum(|vm| vm.private),
            kernel,
            memory.machine.shared - kernel,
            sum(|vm| vm.overlay),
            hypervisor + sum(|vm| vm.tables),
        ],
    })
}
