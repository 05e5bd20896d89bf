//! In and out of a guest.

use crate::interpreter;

pub use crate::context::{GuestContext, Leave, Syndrome};

/// Nothing is predicted here, so nothing is to be forgotten.
pub fn forget_branches_at_exits(_branches: u32) {}

/// Runs the guest until it leaves: its instructions are interpreted.
///
/// # Safety
///
/// As on AArch64.
#[inline]
pub unsafe fn enter(context: &mut GuestContext) -> Leave {
    interpreter::run(context)
}

/// Whether the CPU has RAS.
pub(crate) fn has_ras() -> bool {
    false
}

/// Whether a system error of the guest that has left is there: none ever is.
pub fn has_pending_error() -> bool {
    false
}

/// As [`has_pending_error`], with RAS.
pub fn take_deferred_error() -> bool {
    false
}
