//! In and out of a guest.

use crate::cpu::isb;
use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicU32, Ordering};

pub use crate::context::{GuestContext, Leave, Syndrome};

global_asm!(include_str!("entry.S"));

unsafe extern "C" {
    fn guest_enter(context: *mut GuestContext) -> u64;
    fn el2_vectors_mitigated();
    static branch_history: AtomicU32;
}

/// Makes the executing CPU take `branches` branches at every exit of a guest, so that EL2 does not
/// predict by the guest's branch history. All CPUs of a machine take as many as the worst needs.
pub fn forget_branches_at_exits(branches: u32) {
    let vectors = el2_vectors_mitigated as *const () as u64;
    // SAFETY: the word is only read by the vectors; the vectors differ from the plain ones by the
    // branches alone.
    unsafe {
        branch_history.fetch_max(branches, Ordering::Relaxed);
        write_sysreg!("vbar_el2", vectors);
    }
    isb();
}

/// Runs the guest until it leaves.
///
/// # Safety
///
/// The executing CPU has the state of the vCPU loaded that `context` belongs to: EL1 registers,
/// `VTTBR_EL2` with tables that give it its own frames only, `HCR_EL2` with VM, IMO and FMO set.
/// Or it is the machine's owner and the CPU is as [`crate::native::open`] leaves it.
#[inline]
pub unsafe fn enter(context: &mut GuestContext) -> Leave {
    // SAFETY: the routine keeps EL2's callee-saved registers and stack; the guest can reach no
    // memory of EL2's by the caller's promise.
    match unsafe { guest_enter(context) } {
        0 => Leave::Synchronous,
        1 => Leave::Interrupt,
        2 => Leave::FastInterrupt,
        3 => Leave::SystemError,
        _ => Leave::Aarch32,
    }
}

/// Whether the CPU has RAS (`ID_AA64PFR0_EL1`).
pub(crate) fn has_ras() -> bool {
    read_sysreg!("id_aa64pfr0_el1") >> 28 & 0xf != 0
}

/// Waits for what the guest that has left may have done wrong, and says whether a system error of it is
/// there, which EL2 masks: it is taken when a guest is entered next (`ISR_EL1.A`).
pub fn has_pending_error() -> bool {
    // SAFETY: barriers.
    unsafe { asm!("dsb sy", "isb", options(nostack)) }
    read_sysreg!("isr_el1") >> 8 & 1 != 0
}

/// As [`has_pending_error`], with RAS: such an error is deferred and then gone (Arm ARM: ESB, `DISR_EL1.A`).
pub fn take_deferred_error() -> bool {
    if !has_ras() {
        return false;
    }
    // SAFETY: the hint is ESB, which takes no exception where system errors are masked.
    unsafe { asm!("dsb sy", "hint #16", options(nostack)) }
    let is_deferred = read_sysreg!("s3_0_c12_c1_1") >> 31 & 1 != 0;
    if is_deferred {
        // SAFETY: the register exists with RAS, and nothing but this function depends on it.
        unsafe { write_sysreg!("s3_0_c12_c1_1", 0_u64) }
    }
    is_deferred
}
