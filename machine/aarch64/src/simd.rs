//! Calls of routines that use the SIMD registers, which EL2 leaves to guests otherwise.

use core::arch::global_asm;

global_asm!(include_str!("simd.S"));

unsafe extern "C" {
    fn simd_call(argument: *mut u8, function: *const ());
}

/// Calls a routine that may use all SIMD registers. They hold afterwards what they held before, but for what SVE has
/// beyond 128 bits.
///
/// # Safety
/// The routine may be called with the argument, and no SVE state is loaded that anybody needs.
pub(crate) unsafe fn call<A>(routine: unsafe extern "C" fn(*mut u8), argument: &mut A) {
    // SAFETY: the caller's promise.
    unsafe { simd_call(core::ptr::from_mut(argument).cast(), routine as *const ()) }
}
