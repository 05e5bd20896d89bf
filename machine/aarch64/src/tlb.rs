//! Paying TLB debts.

use core::arch::asm;
use model_addr::Ipa;

/// Drops every entry of the current VMID, both stages, on every CPU.
pub fn flush_vmid() {
    // SAFETY: dropping TLB entries only costs time.
    unsafe {
        asm!(
            "dsb ishst",
            "tlbi vmalls12e1is",
            "dsb ish",
            "isb",
            options(nostack)
        )
    }
}

/// Drops every entry of the current VMID, both stages, on this CPU: it may have walked from another
/// root.
pub fn flush_vmid_local() {
    // SAFETY: as above.
    unsafe { asm!("tlbi vmalls12e1", "dsb nsh", "isb", options(nostack)) }
}

/// Drops stage-1 entries of the current VMID on this CPU: another vCPU of the same VM ran here.
pub fn flush_stage1_local() {
    // SAFETY: as above.
    unsafe { asm!("tlbi vmalle1", "dsb nsh", "isb", options(nostack)) }
}

/// Begins dropping the stage-2 entry of the page or block at `ipa` of the current VMID, on every
/// CPU. [`finish_stage2`] ends a batch of these.
pub fn flush_stage2_page(ipa: Ipa) {
    // SAFETY: as above; the operand is IPA[51:12].
    unsafe { asm!("tlbi ipas2e1is, {}", in(reg) ipa.0 >> 12, options(nostack)) }
}

/// Makes stores to tables visible before the batch of [`flush_stage2_page`].
pub fn begin_stage2() {
    // SAFETY: a barrier changes nothing.
    unsafe { asm!("dsb ishst", options(nostack)) }
}

/// Ends a batch: combined entries go too (Arm ARM D8.14: IPAS2E1IS + DSB + VMALLE1IS).
pub fn finish_stage2() {
    // SAFETY: as above.
    unsafe {
        asm!(
            "dsb ish",
            "tlbi vmalle1is",
            "dsb ish",
            "isb",
            options(nostack)
        )
    }
}
