//! Whether the machine is OS-0's, and how OS-0 is told of something.

use arch::gic::Distributor;
use machine_locks::Once;

static DISTRIBUTOR: Once<Distributor> = Once::new();

/// The machine is OS-0's, and its interrupt controller.
pub fn install(distributor: Distributor) -> bool {
    DISTRIBUTOR.set(distributor).is_ok()
}

/// Whether this machine belongs to OS-0.
#[inline]
pub fn is_here() -> bool {
    DISTRIBUTOR.get().is_some()
}

/// Raises a shared interrupt of OS-0's, as a device does with an edge.
pub fn interrupt(intid: u32) {
    if let Some(distributor) = DISTRIBUTOR.get() {
        distributor.set_pending(intid);
    }
}
