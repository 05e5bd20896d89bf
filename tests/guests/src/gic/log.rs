//! The interrupt handlers, and what they saw.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use machine_bare::cpu::{self, MAX_CPUS};
use machine_bare::vectors::Frame;
use machine_bare::{gic, timer};

/// INTIDs that are counted.
const INTIDS: usize = 128;
/// Interrupts whose order is kept.
const KEPT: usize = 16;
/// No interrupt.
pub const NONE: u32 = gic::SPURIOUS;

static COUNTS: [[AtomicU32; INTIDS]; MAX_CPUS] =
    [const { [const { AtomicU32::new(0) }; INTIDS] }; MAX_CPUS];
static GROUP0_COUNTS: [AtomicU32; INTIDS] = [const { AtomicU32::new(0) }; INTIDS];
static ORDER: [AtomicU32; KEPT] = [const { AtomicU32::new(NONE) }; KEPT];
static ORDERED: AtomicUsize = AtomicUsize::new(0);
static LISTENING: AtomicUsize = AtomicUsize::new(0);
/// The interrupt whose handler lets others in, and which one it makes pending.
static OUTER: AtomicU32 = AtomicU32::new(NONE);
static INNER: AtomicU32 = AtomicU32::new(NONE);
static RUNNING_PRIORITY: AtomicU32 = AtomicU32::new(0);

/// Handles an IRQ: counts it, keeps the order on the boot CPU, ends it.
pub fn handle(_frame: &mut Frame) {
    let intid = gic::acknowledge();
    if intid == NONE {
        return;
    }
    let index = cpu::index();
    if let Some(count) = COUNTS[index].get(intid as usize) {
        count.fetch_add(1, Ordering::AcqRel);
    }
    if index == 0 {
        keep(intid);
    }
    if intid == timer::VIRTUAL_INTID && count(index, intid) >= 3 {
        timer::stop();
    }
    if intid == OUTER.load(Ordering::Relaxed) {
        let inner = INNER.load(Ordering::Relaxed);
        RUNNING_PRIORITY.store(u32::from(gic::running_priority()), Ordering::Relaxed);
        gic::Line::new(inner).set_pending(true);
        cpu::unmask();
        timer::wait_until(2_000, || count(index, inner) != 0);
        cpu::mask();
        keep(NONE);
    }
    gic::end(intid);
}

/// Handles an FIQ: an interrupt of group 0.
pub fn handle_group0(_frame: &mut Frame) {
    let intid = gic::acknowledge_group0();
    if let Some(count) = GROUP0_COUNTS.get(intid as usize) {
        count.fetch_add(1, Ordering::AcqRel);
        gic::end_group0(intid);
    }
}

fn keep(intid: u32) {
    let place = ORDERED.fetch_add(1, Ordering::AcqRel);
    if let Some(slot) = ORDER.get(place) {
        slot.store(intid, Ordering::Release);
    }
}

/// How often `intid` came to the CPU `index` since [`clear`].
pub fn count(index: usize, intid: u32) -> u32 {
    COUNTS[index][intid as usize].load(Ordering::Acquire)
}

/// How often `intid` came to this CPU as an FIQ.
pub fn group0_count(intid: u32) -> u32 {
    GROUP0_COUNTS[intid as usize].load(Ordering::Acquire)
}

/// The interrupts of the boot CPU in order; [`NONE`] marks the end of the outer handler.
pub fn order(place: usize) -> u32 {
    ORDER[place].load(Ordering::Acquire)
}

/// The running priority that the outer handler saw.
pub fn running_priority() -> u32 {
    RUNNING_PRIORITY.load(Ordering::Relaxed)
}

/// Lets the handler of `outer` make `inner` pending and wait for it.
pub fn nest(outer: u32, inner: u32) {
    INNER.store(inner, Ordering::Relaxed);
    OUTER.store(outer, Ordering::Relaxed);
}

/// Forgets all that was seen.
pub fn clear() {
    for counts in &COUNTS {
        for count in counts {
            count.store(0, Ordering::Release);
        }
    }
    for slot in &ORDER {
        slot.store(NONE, Ordering::Release);
    }
    ORDERED.store(0, Ordering::Release);
    OUTER.store(NONE, Ordering::Relaxed);
}

/// Says that this CPU takes interrupts.
pub fn count_listener() {
    LISTENING.fetch_add(1, Ordering::AcqRel);
}

/// How many CPUs beside the boot CPU take interrupts.
pub fn listening() -> usize {
    LISTENING.load(Ordering::Acquire)
}
