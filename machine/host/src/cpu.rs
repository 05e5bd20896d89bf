//! The executing CPU: barriers, sleep, identity.

use crate::machine::{self, Pause};
use model_addr::Ipa;

/// `MPIDR_EL1`'s affinity fields, which name a CPU (Arm ARM D24.2).
pub const AFFINITY_MASK: u64 = 0xff_00ff_ffff;

/// The executing CPU's affinity, `MPIDR_EL1` without its flags.
pub fn affinity() -> u64 {
    read_sysreg!("mpidr_el1") & AFFINITY_MASK
}

/// Whether `HCR_EL2.E2H` is set.
pub fn is_e2h() -> bool {
    read_sysreg!("hcr_el2") >> 34 & 1 != 0
}

/// Completes every memory access and cache or TLB maintenance before what follows.
pub fn dsb_sy() {
    machine::step();
}

/// Makes earlier stores to translation tables visible to every walker of the inner domain.
pub fn dsb_ishst() {
    machine::step();
}

/// Makes changed system registers take effect.
pub fn isb() {
    machine::step();
}

/// Sleeps until an interrupt is pending, masked or not.
pub fn wait_for_interrupt() {
    machine::pause(Pause::Sleeps);
}

/// Whether an interrupt is pending, masked or not, so that WFI would return at once.
pub fn is_interrupt_pending() -> bool {
    read_sysreg!("isr_el1") != 0
}

/// What to do between two looks at what another CPU changes: another one goes on.
pub fn relax() {
    machine::pause(Pause::Goes);
}

/// Sleeps for ever.
pub fn halt() -> ! {
    loop {
        machine::pause(Pause::Halted);
    }
}

/// The per-CPU word (`TPIDR_EL2`). Reading it is no point at which another CPU goes on: EL2 does so too often.
pub fn local_word() -> u64 {
    machine::with(|machine| machine.read_register(const { crate::registers::number("tpidr_el2") }))
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

/// The guest-physical address of the loaded guest's virtual address: guests run without stage 1.
pub fn translate_stage1(va: u64) -> Option<Ipa> {
    machine::step();
    Some(Ipa(va))
}

/// `RNDRRS` and the flags that it sets: the seed's numbers.
pub(crate) fn random() -> (u64, u64) {
    (machine::with(machine::Machine::random), 0)
}
