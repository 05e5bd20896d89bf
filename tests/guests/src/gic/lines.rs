//! PPIs and SPIs, made pending by software, and the timer's, which is a level.

use machine_bare::gic::Line;
use machine_bare::machine::Machine;
use machine_bare::timer;
use machine_bare::verdict::{Verdict, check, equal};

use crate::{PATIENCE, SPI, came, last_cpu, log, silent};

/// A PPI that no device of the machine uses.
const PPI: u32 = 21;

/// A PPI by its redistributor.
pub fn ppis(_machine: &'static Machine) -> Verdict {
    log::clear();
    held_and_let_go(&Line::new(PPI))
}

/// SPIs by the distributor, as edge and as level.
pub fn spis(_machine: &'static Machine) -> Verdict {
    for (offset, edge) in [(0, true), (1, false), (7, true)] {
        log::clear();
        let line = Line::new(SPI + offset);
        line.disable();
        line.set_edge(edge);
        held_and_let_go(&line)?;
    }
    Ok(())
}

/// Pending while disabled, once when enabled, gone when cleared.
fn held_and_let_go(line: &Line) -> Verdict {
    line.set_up();
    line.disable();
    line.set_pending(true);
    check(
        line.is_pending(),
        "a disabled interrupt does not become pending",
    )?;
    check(silent(line.intid()), "a disabled interrupt comes")?;
    line.enable();
    check(
        came(0, line.intid(), 1),
        "an interrupt does not come once when enabled",
    )?;
    check(
        !line.is_pending() && !line.is_active(),
        "a handled interrupt is pending or active",
    )?;
    line.set_pending(true);
    check(
        came(0, line.intid(), 2),
        "an enabled interrupt does not come once when pended",
    )?;
    line.disable();
    line.set_pending(true);
    line.set_pending(false);
    line.enable();
    check(
        silent(line.intid()),
        "an interrupt comes although it was cleared",
    )?;
    line.disable();
    Ok(())
}

/// An SPI goes where IROUTER says, or to any one CPU.
pub fn routing(machine: &'static Machine) -> Verdict {
    log::clear();
    let line = Line::new(SPI + 2);
    let (last, affinity) = last_cpu();
    line.set_up();
    line.set_edge(true);
    line.route(affinity);
    line.set_pending(true);
    check(
        came(last, line.intid(), 1),
        "an SPI does not come where it is routed",
    )?;
    line.disable();
    line.route(machine.cpus()[0]);
    line.enable();
    line.set_pending(true);
    let wanted = if last == 0 { 2 } else { 1 };
    check(
        came(0, line.intid(), wanted),
        "an SPI does not come where it is routed anew",
    )?;
    // Pending and disabled, it follows the route.
    line.disable();
    line.set_pending(true);
    line.route(affinity);
    line.enable();
    let wanted = if last == 0 { 3 } else { 2 };
    check(
        came(last, line.intid(), wanted),
        "a pending SPI does not follow its route",
    )?;

    log::clear();
    line.route_to_any();
    line.set_pending(true);
    let total = || -> u32 {
        (0..=last)
            .map(|index| log::count(index, line.intid()))
            .sum()
    };
    timer::wait_until(PATIENCE, || total() != 0);
    silent(line.intid());
    equal("CPUs that an SPI to any one came to", total().into(), 1)?;
    line.disable();
    Ok(())
}

/// An interrupt that software made active does not come until it is inactive.
pub fn active(_machine: &'static Machine) -> Verdict {
    for intid in [PPI, SPI + 3] {
        log::clear();
        let line = Line::new(intid);
        line.set_up();
        line.set_active(true);
        check(
            line.is_active(),
            "ISACTIVER does not make an interrupt active",
        )?;
        line.set_pending(true);
        check(silent(intid), "an active interrupt comes")?;
        check(
            line.is_pending(),
            "an active interrupt is not pending when pended",
        )?;
        line.set_active(false);
        check(
            came(0, intid, 1),
            "an interrupt does not come when made inactive",
        )?;
        line.disable();
    }
    Ok(())
}

/// The timer's interrupt comes again as long as the timer fires; pending is its level.
pub fn timer_level(_machine: &'static Machine) -> Verdict {
    log::clear();
    let line = Line::new(timer::VIRTUAL_INTID);
    line.set_up();
    line.disable();
    timer::fire_at(timer::now());
    let pends = timer::wait_until(PATIENCE, || line.is_pending());
    check(pends, "a timer that fires is not pending")?;
    timer::stop();
    let gone = timer::wait_until(PATIENCE, || !line.is_pending());
    check(gone, "a timer that was stopped is pending")?;
    line.enable();
    check(silent(line.intid()), "a timer that was stopped interrupts")?;
    // The handler stops it the third time.
    timer::fire_at(timer::now());
    check(
        came(0, line.intid(), 3),
        "a level does not come again until it falls",
    )?;
    check(silent(line.intid()), "a level comes after it fell")?;
    line.disable();
    Ok(())
}
