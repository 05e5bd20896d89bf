//! Software-generated interrupts.

use machine_bare::cpu;
use machine_bare::gic::{self, Line};
use machine_bare::machine::Machine;
use machine_bare::verdict::{Verdict, check, equal};

use crate::{PATIENCE, came, log, silent};
use machine_bare::timer;

/// All 16, to this CPU.
pub fn to_self(machine: &'static Machine) -> Verdict {
    log::clear();
    for intid in 0..16 {
        Line::new(intid).set_up();
        gic::send(intid, machine.cpus()[0]);
        check(came(0, intid, 1), "an SGI to this CPU does not come once")?;
    }
    silent(15);
    let others: u32 = (1..machine.cpus().len())
        .map(|index| (0..16).map(|intid| log::count(index, intid)).sum::<u32>())
        .sum();
    equal("SGIs to this CPU that came to others", others.into(), 0)
}

/// All 16 to each CPU by its affinity, then to all others at once.
pub fn to_others(machine: &'static Machine) -> Verdict {
    log::clear();
    let cpus = machine.cpus();
    for (index, &affinity) in cpus.iter().enumerate().skip(1) {
        for intid in 0..16 {
            gic::send(intid, affinity);
            check(
                came(index, intid, 1),
                "an SGI to another CPU does not come once",
            )?;
        }
    }
    gic::send_to_others(7);
    for index in 1..cpus.len() {
        check(came(index, 7, 2), "an SGI to all others does not come once")?;
    }
    check(
        silent(7) && log::count(0, 7) == 0,
        "an SGI to all others came to the sender",
    )
}

/// A disabled SGI waits until it is enabled; several sends are one interrupt.
pub fn disabled(machine: &'static Machine) -> Verdict {
    log::clear();
    let line = Line::new(9);
    line.disable();
    for _ in 0..3 {
        gic::send(9, machine.cpus()[0]);
    }
    let pends = timer::wait_until(PATIENCE, || line.is_pending());
    check(pends, "a disabled SGI is not pending")?;
    check(silent(9), "a disabled SGI comes")?;
    line.enable();
    check(came(0, 9, 1), "an SGI that was enabled does not come once")?;
    check(
        silent(9),
        "three sends while disabled are more than one SGI",
    )?;
    cpu::mask();
    gic::send(9, machine.cpus()[0]);
    line.set_pending(false);
    cpu::unmask();
    check(silent(9), "an SGI comes although GICR_ICPENDR0 cleared it")
}
