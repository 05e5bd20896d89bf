//! Whether the machine is short of memory: seen by whoever finds no frame, and ended by the economy's ledger.

use crate::machine::due;
use arch::timer;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

const NONE: u8 = 0;
/// Somebody found no frame: whoever owes is to be found.
const MET: u8 = 1;
/// Nobody owes.
const NOBODYS: u8 = 2;

static SHORTAGE: AtomicU8 = AtomicU8::new(NONE);
static SOMEBODY_OWES: AtomicBool = AtomicBool::new(false);

/// Whether it is.
pub fn is_short() -> bool {
    SHORTAGE.load(Ordering::Relaxed) != NONE
}

/// Whether whoever found no frame may wait for one: somebody owes some, or that is to be found out.
pub fn may_wait_for_frames() -> bool {
    let (relaxed, met) = (Ordering::Relaxed, MET);
    let first = SHORTAGE.compare_exchange(NONE, met, relaxed, relaxed);
    if first.is_ok() {
        due::tick_at(timer::now());
    }
    first != Err(NOBODYS) || SOMEBODY_OWES.load(relaxed)
}

/// Whether a VM owes memory, as far as is known.
pub fn somebody_owes() -> bool {
    SOMEBODY_OWES.load(Ordering::Relaxed)
}

/// Whether a VM owes memory from now on.
pub fn note_owes(owes: bool) {
    SOMEBODY_OWES.store(owes, Ordering::Relaxed);
}

/// How things stand where memory was short: whether frames are few still, and whether anybody owes some.
pub fn settle(are_few: bool, owes: bool) {
    let shortage = match (are_few, owes) {
        (false, _) => NONE,
        (true, true) => MET,
        (true, false) => NOBODYS,
    };
    SHORTAGE.store(shortage, Ordering::Relaxed);
}
