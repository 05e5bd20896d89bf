//! Work that is nobody's in particular: requests from outside, VMs to take apart, output that
//! waits. Done between guests, a bounded piece at a time.

use crate::cpu;
use crate::{control, vm};
use core::sync::atomic::{AtomicBool, Ordering};

static NEEDED: AtomicBool = AtomicBool::new(false);
static BUSY: AtomicBool = AtomicBool::new(false);

/// There is something to do: some CPU will come.
pub fn request() {
    NEEDED.store(true, Ordering::SeqCst);
}

/// Whether there is something to do.
pub fn is_needed() -> bool {
    NEEDED.load(Ordering::SeqCst) && !BUSY.load(Ordering::SeqCst)
}

/// Does a piece of what there is to do, if no other CPU is at it.
pub fn some() {
    // Whoever asks while this CPU is at it finds it busy and relies on the second look.
    while NEEDED.load(Ordering::SeqCst) && !BUSY.swap(true, Ordering::SeqCst) {
        NEEDED.store(false, Ordering::SeqCst);
        control::serve();
        let more = vm::reaper::step();
        vm::flush_terminals();
        BUSY.store(false, Ordering::SeqCst);
        if more {
            // In pieces: vCPUs that wait for this CPU come first.
            request();
            break;
        }
    }
    debug_assert!(cpu::this().held.is_empty());
}
