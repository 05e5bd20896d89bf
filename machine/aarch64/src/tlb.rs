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

/// Drops entries by an instruction, after one barrier and before another.
macro_rules! drop_entries {
    ($before:literal, $operation:expr, $after:literal) => {
        asm!(
            concat!("dsb ", $before, "\ntlbi ", $operation, "\ndsb ", $after),
            "isb",
            options(nostack)
        )
    };
}

/// Drops stage-2 entries of pages, and combined ones, in one domain: its barriers and its instructions' endings.
macro_rules! drop_pages {
    ($ipas:ident, $domain:literal, $ending:literal) => {{
        asm!(concat!("dsb ", $domain, "st"), options(nostack));
        for ipa in $ipas {
            asm!(concat!("tlbi ipas2e1", $ending, ", {}"), in(reg) ipa.0 >> 12, options(nostack));
        }
        drop_entries!($domain, concat!("vmalle1", $ending), $domain)
    }};
}

/// Drops every entry of the current VMID, both stages.
pub fn flush_vmid(reaches: Reaches) {
    // SAFETY: dropping TLB entries only costs time.
    unsafe {
        match reaches {
            Reaches::Here => drop_entries!("nshst", "vmalls12e1", "nsh"),
            Reaches::AllCpus => drop_entries!("ishst", "vmalls12e1is", "ish"),
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
            Reaches::Here => drop_pages!(ipas, "nsh", ""),
            Reaches::AllCpus => drop_pages!(ipas, "ish", "is"),
        }
    }
}

/// Drops what this CPU holds of the current VMID, whose tables have not changed.
pub(crate) fn flush_vmid_here() {
    // SAFETY: as above.
    unsafe { asm!("tlbi vmalls12e1", "dsb nsh", "isb", options(nostack)) }
}

/// Drops all that this CPU holds for EL1.
pub fn flush_el1_here() {
    // SAFETY: as above.
    unsafe { asm!("tlbi alle1", "dsb nsh", "isb", options(nostack)) }
}
