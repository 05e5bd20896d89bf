//! What it costs to move a page, beside its copy: all of a guest's memory goes to the other node and back while
//! the guest waits, on the plain machine, so that nobody else's instructions are counted with EL2's.

use super::directory;
use crate::step::{Outcome, Step};
use std::{
    fs,
    time::{Duration, Instant},
};
use tests_boot::{
    assets,
    machine::{Hardware, Machine},
    status::{NumaStatus, parse},
    vm::Vm,
};

const WORK_MAX: Duration = Duration::from_mins(10);
/// Each instruction is two nanoseconds.
const NS: f64 = 2.0;

/// The table.
///
/// # Errors
/// A run that fails.
pub fn measure(step: &mut Step<'_>) -> Outcome<Vec<Vec<String>>> {
    let place = directory()?.join("machine");
    let _ = fs::remove_dir_all(&place); // absent is fine
    fs::create_dir_all(&place).map_err(|error| format!("cannot make a directory: {error}"))?;
    let hardware = Hardware::new(2, "1G").nodes(2).counted();
    let vm = Vm::bare("guest", "hungry", "mib=16 wait").memory("64MiB");
    let mut machine = Machine::start(&assets::command(), &place, &hardware, &[vm])?;
    machine.await_answer()?;
    machine.expect("guest", "hungry: has eaten", 1, WORK_MAX)?;
    let head = ["", "pages", "instructions for each", "and its copy"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut before = status(&machine)?;
    for (what, node) in [
        ("to the other node, out of blocks of 2 MiB", 1),
        ("back", 0),
    ] {
        step.doing(what);
        machine.run(&["numa", "move", "guest", &node.to_string()])?;
        let now = settled(&machine)?;
        let pages = now.moved - before.moved;
        if pages == 0 {
            return Err(format!("no page went {what}"));
        }
        let each = |ns: u64| format!("{:.0}", ns as f64 / NS / pages as f64);
        rows.push(vec![
            what.to_owned(),
            pages.to_string(),
            each(now.moving_ns - before.moving_ns),
            each(now.copying_ns - before.copying_ns),
        ]);
        before = now;
    }
    machine.shut_down()?;
    Ok(rows)
}

fn status(machine: &Machine) -> Outcome<NumaStatus> {
    let vms: Vec<NumaStatus> = parse("numa", &machine.run(&["numa", "-o", "json"])?)?;
    vms.into_iter()
        .next()
        .ok_or_else(|| "there is no VM".to_owned())
}

/// Once nothing is on its way.
fn settled(machine: &Machine) -> Outcome<NumaStatus> {
    let deadline = Instant::now() + WORK_MAX;
    loop {
        let now = status(machine)?;
        if !now.moving {
            return Ok(now);
        }
        if Instant::now() > deadline {
            return Err("pages are still on their way".to_owned());
        }
        std::thread::sleep(Duration::from_millis(250));
    }
}
