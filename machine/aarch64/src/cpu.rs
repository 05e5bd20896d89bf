//! The executing CPU: barriers, sleep, identity.

use core::arch::asm;
use model_addr::Ipa;

/// `MPIDR_EL1`'s affinity fields, which name a CPU (Arm ARM D24.2).
pub const AFFINITY_MASK: u64 = 0xff_00ff_ffff;

/// The executing CPU's affinity, `MPIDR_EL1` without its flags.
pub fn affinity() -> u64 {
    read_sysreg!("mpidr_el1") & AFFINITY_MASK
}

/// Whether `HCR_EL2.E2H` is set, as it stays on CPUs where it cannot be cleared.
pub fn is_e2h() -> bool {
    read_sysreg!("hcr_el2") >> 34 & 1 != 0
}

/// Completes every memory access and cache or TLB maintenance before what follows.
pub fn dsb_sy() {
    // SAFETY: a barrier changes nothing.
    unsafe { asm!("dsb sy", options(nostack)) }
}

/// Makes earlier stores to translation tables visible to every walker of the inner domain.
pub fn dsb_ishst() {
    // SAFETY: a barrier changes nothing.
    unsafe { asm!("dsb ishst", options(nostack)) }
}

/// Makes changed system registers take effect.
pub fn isb() {
    // SAFETY: a barrier changes nothing.
    unsafe { asm!("isb", options(nostack)) }
}

/// Sleeps until an interrupt is pending, masked or not. A count that is read next is no earlier than that.
pub fn wait_for_interrupt() {
    // SAFETY: WFI completes all earlier stores first through the barrier; it changes nothing.
    unsafe { asm!("dsb sy", "wfi", "isb", options(nostack)) }
}

/// Whether an interrupt is pending, masked or not, so that WFI would return at once.
pub fn is_interrupt_pending() -> bool {
    read_sysreg!("isr_el1") != 0
}

/// What to do between two looks at what another CPU changes. A simulator that runs the CPUs in
/// turn goes on to the next.
pub fn relax() {
    // SAFETY: a hint.
    unsafe { asm!("yield", options(nomem, nostack)) }
}

/// Sleeps for ever: what is left to do after an epitaph.
pub fn halt() -> ! {
    loop {
        wait_for_interrupt();
    }
}

/// The per-CPU word (`TPIDR_EL2`).
pub fn local_word() -> u64 {
    read_sysreg!("tpidr_el2")
}

/// Sets the per-CPU word.
pub fn set_local_word(word: u64) {
    // SAFETY: TPIDR_EL2 has no effect on the machine; who reads it back argues for what it says.
    unsafe { write_sysreg!("tpidr_el2", word) }
}

/// DCZID_EL0, as guests read it, too: how much `dc zva` clears.
pub fn dczid() -> u64 {
    read_sysreg!("dczid_el0")
}

/// The guest-physical address of the loaded guest's virtual address, for a read at EL1: stage 1
/// alone. `None` where it faults.
pub fn translate_stage1(va: u64) -> Option<Ipa> {
    let saved = read_sysreg!("par_el1");
    // SAFETY: the instruction writes PAR_EL1 only, which belongs to the guest and is put back.
    unsafe { asm!("at s1e1r, {}", "isb", in(reg) va, options(nostack)) }
    let par = read_sysreg!("par_el1");
    // SAFETY: the guest's own value.
    unsafe { write_sysreg!("par_el1", saved) }
    (par & 1 == 0).then_some(Ipa((par & 0x000f_ffff_ffff_f000) | (va & 0xfff)))
}

/// `RNDRRS` and the flags that it sets. The register exists.
pub(crate) fn random() -> (u64, u64) {
    let (value, flags): (u64, u64);
    // SAFETY: the register exists; reading it changes the flags, which are declared.
    unsafe {
        asm!(
            "mrs {value}, s3_3_c2_c4_1",
            "mrs {flags}, nzcv",
            value = out(reg) value,
            flags = out(reg) flags,
            options(nostack)
        );
    }
    (value, flags)
}
