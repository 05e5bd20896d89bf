//! Calls of routines that use the SIMD registers, which EL2 leaves to guests otherwise.

use crate::cpu::isb;
use crate::fp::{fp_load, fp_save};
use crate::guest::FpState;
use core::mem::MaybeUninit;
use model_id_registers::traps;

/// Calls a routine that may use all SIMD registers. They hold afterwards what they held before, but for what SVE has
/// beyond 128 bits.
///
/// # Safety
/// The routine may be called with the argument, and no SVE state is loaded that anybody needs.
pub(crate) unsafe fn call<A>(routine: unsafe extern "C" fn(*mut u8), argument: &mut A) {
    let trapped = read_sysreg!("cptr_el2");
    let mut kept = MaybeUninit::<FpState>::uninit();
    // SAFETY: with TFP clear EL2 may touch the registers, which no compiled code uses; they are loaded as they were
    // saved. The rest is the caller's promise.
    unsafe {
        write_sysreg!("cptr_el2", trapped & !traps::CPTR_TFP);
        isb();
        fp_save(kept.as_mut_ptr());
        routine(core::ptr::from_mut(argument).cast());
        fp_load(kept.as_ptr());
        write_sysreg!("cptr_el2", trapped);
    }
    isb();
}
