//! Which interrupt comes, and when it ends.

use machine_bare::gic::{self, Line};
use machine_bare::machine::Machine;
use machine_bare::verdict::{Verdict, check, equal};
use machine_bare::{cpu, println};

use crate::{SPI, came, log, silent};

const OUTER: u32 = SPI + 4;
const INNER: u32 = SPI + 5;
const THIRD: u32 = SPI + 6;

fn edge(intid: u32, priority: u8) -> Line {
    let line = Line::new(intid);
    line.disable();
    line.set_edge(true);
    line.set_up();
    line.set_priority(priority);
    line
}

/// Several pending at once come by priority.
pub fn order(_machine: &'static Machine) -> Verdict {
    log::clear();
    cpu::mask();
    for (intid, priority) in [(OUTER, 0xa0), (INNER, 0x40), (THIRD, 0x80)] {
        edge(intid, priority).set_pending(true);
    }
    equal("ICC_HPPIR1", gic::highest_pending().into(), INNER.into())?;
    cpu::unmask();
    check(came(0, OUTER, 1), "not all of three interrupts come")?;
    for (place, intid) in [INNER, THIRD, OUTER].into_iter().enumerate() {
        equal(
            "the next by priority",
            log::order(place).into(),
            intid.into(),
        )?;
    }
    Ok(())
}

/// A higher group priority preempts a handler that lets it; an equal one does not.
pub fn preemption(_machine: &'static Machine) -> Verdict {
    // (priority of the inner, binary point, whether it preempts 0xa0)
    for (priority, point, preempts) in [(0x40, 0, true), (0xc0, 0, false), (0x80, 6, false)] {
        log::clear();
        gic::set_binary_point(point);
        let outer = edge(OUTER, 0xa0);
        edge(INNER, priority);
        log::nest(OUTER, INNER);
        outer.set_pending(true);
        check(came(0, OUTER, 1), "the outer interrupt does not come once")?;
        check(came(0, INNER, 1), "the inner interrupt does not come once")?;
        let wanted = if preempts {
            [OUTER, INNER, log::NONE]
        } else {
            [OUTER, log::NONE, INNER]
        };
        for (place, intid) in wanted.into_iter().enumerate() {
            equal(
                "preemption: the next event",
                log::order(place).into(),
                intid.into(),
            )?;
        }
        check(
            log::running_priority() < 0xff,
            "ICC_RPR is idle in a handler",
        )?;
    }
    log::clear();
    gic::set_binary_point(0);
    equal("ICC_RPR when idle", gic::running_priority().into(), 0xff)
}

/// What the mask holds back stays pending.
pub fn mask(_machine: &'static Machine) -> Verdict {
    log::clear();
    gic::set_priority_mask(0x80);
    let held = edge(OUTER, 0xa0);
    held.set_pending(true);
    check(silent(OUTER), "an interrupt below the mask comes")?;
    check(
        held.is_pending(),
        "an interrupt below the mask is not pending",
    )?;
    edge(INNER, 0x40).set_pending(true);
    check(
        came(0, INNER, 1),
        "an interrupt above the mask does not come once",
    )?;
    gic::set_priority_mask(gic::ALL_PRIORITIES.into());
    check(
        came(0, OUTER, 1),
        "an interrupt does not come when the mask is lifted",
    )
}

/// EOImode 1: the end drops the priority, the interrupt stays active until it is deactivated.
pub fn split_end(_machine: &'static Machine) -> Verdict {
    log::clear();
    gic::set_split_end(true);
    let line = edge(OUTER, 0xa0);
    line.set_pending(true);
    check(
        came(0, OUTER, 1),
        "an interrupt does not come once in EOImode 1",
    )?;
    check(
        line.is_active(),
        "an interrupt is not active after EOI in EOImode 1",
    )?;
    line.set_pending(true);
    check(silent(OUTER), "an active interrupt comes in EOImode 1")?;
    edge(INNER, 0xa0).set_pending(true);
    check(
        came(0, INNER, 1),
        "EOI does not drop the priority in EOImode 1",
    )?;
    gic::deactivate(OUTER);
    check(
        came(0, OUTER, 2),
        "a deactivated interrupt does not come again",
    )?;
    gic::deactivate(OUTER);
    gic::deactivate(INNER);
    check(!line.is_active(), "an interrupt is active after DIR")?;
    gic::set_split_end(false);
    Ok(())
}

/// Group 0 waits for its own enable and comes as FIQ; group 1 as IRQ.
pub fn groups(_machine: &'static Machine) -> Verdict {
    log::clear();
    let line = edge(OUTER, 0xa0);
    gic::set_group0(0);
    line.set_group1(false);
    if line.is_group1() {
        println!("gic: this machine has group 1 alone");
        return Ok(());
    }
    line.set_pending(true);
    check(silent(OUTER), "an interrupt of group 0 comes as IRQ")?;
    check(
        line.is_pending(),
        "an interrupt of a disabled group is not pending",
    )?;
    line.set_group1(true);
    check(
        came(0, OUTER, 1),
        "an interrupt moved to group 1 does not come",
    )?;
    if gic::group0() == 0 {
        gic::set_group0(1);
    }
    line.set_group1(false);
    line.set_pending(true);
    check(silent(OUTER), "an interrupt of group 0 comes as IRQ")?;
    equal(
        "FIQs by an interrupt of group 0",
        log::group0_count(OUTER).into(),
        1,
    )?;
    gic::set_group0(0);
    line.set_group1(true);
    gic::set_group1(0);
    line.set_pending(true);
    check(
        silent(OUTER),
        "an interrupt comes although group 1 is disabled",
    )?;
    gic::set_group1(1);
    check(
        came(0, OUTER, 2),
        "an interrupt does not come when group 1 is enabled",
    )
}

/// An acknowledge with nothing pending gives 1023.
pub fn spurious(_machine: &'static Machine) -> Verdict {
    cpu::mask();
    let intid = gic::acknowledge();
    cpu::unmask();
    equal(
        "acknowledge with nothing pending",
        intid.into(),
        gic::SPURIOUS.into(),
    )?;
    equal(
        "ICC_HPPIR1 with nothing pending",
        gic::highest_pending().into(),
        gic::SPURIOUS.into(),
    )
}
