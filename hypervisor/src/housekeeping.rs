//! Work that is nobody's in particular: requests from outside, VMs to take apart, output that
//! waits. Done between guests, a bounded piece at a time.

use crate::cpu;
use crate::{control, vm};
use core::sync::atomic::{AtomicBool, Ordering};

static NEEDED: AtomicBool = AtomicBool::new(false);
static BUSY: AtomicBool = AtomicBool::new(false);

/// There is something to do: some CPU will come.
pub fn request() {
    NEEDED.store(true, Ordering::Release);
}

/// Whether there is something to do.
pub fn is_needed() -> bool {
    NEEDED.load(Ordering::Acquire) && !BUSY.load(Ordering::Relaxed)
}

/// Does a piece of what there is to do, if no other CPU is at it.
pub fn some() {
    if !NEEDED.load(Ordering::Acquire) || BUSY.swap(true, Ordering::Acquire) {
        return;
    }
    NEEDED.store(false, Ordering::Relaxed);
    control::serve();
    if vm::reaper::step() {
        request();
    }
    vm::flush_terminals();
    BUSY.store(false, Ordering::Release);
    debug_assert!(cpu::this().held.is_empty());
}
