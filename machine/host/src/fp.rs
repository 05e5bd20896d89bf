//! Floating-point registers, into memory and out of it.

use crate::guest::FpState;
use crate::machine;
use crate::native::SVE_BYTES;

/// Takes the registers out.
///
/// # Safety
/// There is room for a state.
pub(crate) unsafe fn fp_save(state: *mut FpState) {
    let own = machine::with(|machine| machine.cpu().floating_point);
    // SAFETY: the caller's promise: room for a state.
    unsafe { state.write(own) }
}

/// Puts a state into the registers.
///
/// # Safety
/// There is a state.
pub(crate) unsafe fn fp_load(state: *const FpState) {
    // SAFETY: the caller's promise: a state.
    let new = unsafe { state.read() };
    machine::with(|machine| machine.cpu().floating_point = new);
}

/// No CPU here has SVE, so that nobody calls it.
///
/// # Safety
/// Nothing is done.
pub(crate) unsafe fn sve_save(_vectors: *mut [u8; SVE_BYTES]) {}

/// See [`sve_save`].
///
/// # Safety
/// Nothing is done.
pub(crate) unsafe fn sve_load(_vectors: *const [u8; SVE_BYTES]) {}
