//! Paying TLB debts.

use core::arch::asm;
use model_addr::Ipa;

/// Which CPUs drop entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaches {
    /// This one.
    Here,
    /// All of the machine.
    AllCpus,
}

/// Drops every entry of the current VMID, both stages.
pub fn flush_vmid(reaches: Reaches) {
    // SAFETY: dropping TLB entries only costs time.
    unsafe {
        match reaches {
            Reaches::Here => asm!(
                "dsb nshst",
                "tlbi vmalls12e1",
                "dsb nsh",
                "isb",
                options(nostack)
            ),
            Reaches::AllCpus => asm!(
                "dsb ishst",
                "tlbi vmalls12e1is",
                "dsb ish",
                "isb",
                options(nostack)
            ),
        }
    }
}

/// Drops stage-1 entries of the current VMID on this CPU: another vCPU of the same VM ran here.
pub fn flush_stage1_local() {
    // SAFETY: as above.
    unsafe { asm!("tlbi vmalle1", "dsb nsh", "isb", options(nostack)) }
}

/// Drops the stage-2 entries of the pages or blocks at `ipas` of the current VMID. Combined entries go too (Arm ARM
/// D8.14: IPAS2E1 + DSB + VMALLE1).
pub fn flush_stage2(ipas: impl Iterator<Item = Ipa>, reaches: Reaches) {
    // SAFETY: as above, and a barrier changes nothing; the operand is IPA[51:12].
    unsafe {
        match reaches {
            Reaches::Here => {
                asm!("dsb nshst", options(nostack));
                for ipa in ipas {
                    asm!("tlbi ipas2e1, {}", in(reg) ipa.0 >> 12, options(nostack));
                }
                asm!(
                    "dsb nsh",
                    "tlbi vmalle1",
                    "dsb nsh",
                    "isb",
                    options(nostack)
                );
            }
            Reaches::AllCpus => {
                asm!("dsb ishst", options(nostack));
                for ipa in ipas {
                    asm!("tlbi ipas2e1is, {}", in(reg) ipa.0 >> 12, options(nostack));
                }
                asm!(
                    "dsb ish",
                    "tlbi vmalle1is",
                    "dsb ish",
                    "isb",
                    options(nostack)
                );
            }
        }
    }
}

/// Drops what this CPU holds of the current VMID, whose tables have not changed.
pub(crate) fn flush_vmid_here() {
    // SAFETY: as above.
    unsafe { asm!("tlbi vmalls12e1", "dsb nsh", "isb", options(nostack)) }
}

/// Drops all that this CPU holds for EL1.
pub(crate) fn flush_el1_here() {
    // SAFETY: as above.
    unsafe { asm!("tlbi alle1", "dsb nsh", "isb", options(nostack)) }
}
