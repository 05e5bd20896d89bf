//! What sampling costs where nothing is to move: vCPU 0 uses memory of its own node, which is far from
//! a CPU that another vCPU ran on. On the plain machine, in instructions of all its CPUs.

use super::directory;
use crate::step::{Outcome, Step};
use std::{fs, time::Duration};
use tests_boot::{assets, machine::Hardware, machine::Machine, vm::Vm};

const WORK_MAX: Duration = Duration::from_mins(10);
/// 16 MiB, and work for about a second of the guest's time.
const ARGS: &str = "work=alone kib=16384 passes=160";
/// The machine's clock counts 16 ns, which are so many instructions where each is one of 2 ns.
const PER_TICK: f64 = 8.0;

/// A run: instructions, and faults of the guest.
struct Run {
    instructions: f64,
    faults: f64,
}

/// The table.
///
/// # Errors
/// A run that fails.
pub fn measure(step: &mut Step<'_>) -> Outcome<Vec<Vec<String>>> {
    let runs = [("numa=off", "numa=off"), ("sampled", "numa=sample")].map(|(name, line)| {
        step.doing(name);
        Run::of(line)
    });
    let [off, sampled] = runs;
    let (off, sampled) = (off?, sampled?);
    let (more, pages) = (
        sampled.instructions - off.instructions,
        sampled.faults - off.faults,
    );
    if pages < 1.0 {
        return Err("nothing was sampled".to_owned());
    }
    let table = [
        ["", "instructions"],
        [
            "the work, nothing sampled",
            &format!("{:.0}", off.instructions),
        ],
        ["sampled", &format!("{:.0}", sampled.instructions)],
        ["more", &format!("{:.2} %", 100.0 * more / off.instructions)],
        ["pages that faulted for it", &format!("{pages:.0}")],
        ["for each of them", &format!("{:.0}", more / pages)],
    ];
    Ok(table.map(|row| row.map(str::to_owned).to_vec()).to_vec())
}

impl Run {
    fn of(line: &str) -> Outcome<Self> {
        let place = directory()?.join("machine");
        let _ = fs::remove_dir_all(&place); // absent is fine
        fs::create_dir_all(&place).map_err(|error| format!("cannot make a directory: {error}"))?;
        let mut hardware = Hardware::new(2, "1G").nodes(2).counted();
        if !line.is_empty() {
            hardware = hardware.option("--append").option(line);
        }
        let vm = Vm::bare("guest", "placement", ARGS).cpus(2);
        let vms = std::slice::from_ref(&vm);
        let mut machine = Machine::start(&assets::command(), &place, &hardware, vms)?;
        machine.await_answer()?;
        let took = machine.expect("guest", "took ", 1, WORK_MAX)?;
        machine.await_state("guest", "ended", WORK_MAX)?;
        let ticks = took.split(' ').find_map(|word| word.parse::<f64>().ok());
        let exits = machine.vm("guest")?.exits;
        machine.shut_down()?;
        Ok(Self {
            instructions: PER_TICK * ticks.ok_or("the guest told no time")?,
            faults: exits.get("memory").copied().unwrap_or(0) as f64,
        })
    }
}
