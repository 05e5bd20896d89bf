//! Marks of where EL2 was when, for people who look for what makes a stretch long: a ring of the last ones, of which
//! those of a stretch over the bound are logged. Images without the feature `test_hooks` have none.

use crate::machine::stretch::Kind;
use crate::machine::{self, Cpu};
use abi::control::STRETCH_COUNT;
use arch::entry::Syndrome;
use arch::timer;
use core::panic::Location;
use core::sync::atomic::{AtomicU64, Ordering};
use machine_locks::{Rank, SpinLock};

const MARKS: usize = 512;
/// Marks closer to the one before than this are counted, not printed.
const APART_NS: u64 = 2_000;

/// When, where, and a number of the place's own.
type Mark = Option<(u64, &'static Location<'static>, u32)>;

static RING: SpinLock<[Mark; MARKS]> = SpinLock::new(Rank::Heap, [None; MARKS]);
static NEXT: AtomicU64 = AtomicU64::new(0);
/// The longest of each kind that was told.
static TOLD: [AtomicU64; STRETCH_COUNT] = [const { AtomicU64::new(0) }; STRETCH_COUNT];

/// Puts a mark here.
#[track_caller]
pub fn put(number: u32) {
    let at = NEXT.fetch_add(1, Ordering::Relaxed) as usize % MARKS;
    if let Some(mut ring) = RING.try_lock() {
        ring[at] = Some((timer::now(), Location::caller(), number));
    }
}

/// Logs the marks of a stretch, if it is longer by a tenth than those of its kind that were told. The next stretch
/// begins after that.
#[cold]
pub fn tell(cpu: &Cpu, kind: Kind, since: u64, took: u64) {
    let Some(told) = TOLD.get(kind as usize) else {
        return;
    };
    if took * 10 <= told.load(Ordering::Relaxed) * 11 {
        return;
    }
    told.store(took, Ordering::Relaxed);
    let ring = RING.lock();
    let took = machine::nanoseconds(took);
    let Syndrome { esr, far, hpfar } = Syndrome::read();
    log::warn!("a stretch of {kind:?} took {took} ns; last exit {esr:#x} {far:#x} {hpfar:#x}");
    let first = NEXT.load(Ordering::Relaxed) as usize % MARKS;
    let (later, sooner) = ring.split_at(first);
    let marks = sooner.iter().chain(later).flatten();
    let (mut last, mut skipped) = (0, 0);
    for (at, place, number) in marks.filter(|(at, ..)| *at >= since) {
        let at = machine::nanoseconds(at - since);
        if at < last + APART_NS {
            skipped += 1;
            continue;
        }
        log::warn!("at {at} ns: {place}, {number} (and {skipped} before)");
        (last, skipped) = (at, 0);
    }
    cpu.stretch.since.set(timer::now());
}
