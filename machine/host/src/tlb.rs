//! Paying TLB debts.

use crate::machine;
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
    machine::step();
    machine::with(|machine| machine.drop_vmid(reaches));
    machine::step();
}

/// Drops stage-1 entries of the current VMID on this CPU. Guests run without stage 1.
pub fn flush_stage1_local() {
    machine::step();
}

/// Drops the stage-2 entries of the pages or blocks at `ipas` of the current VMID.
pub fn flush_stage2(ipas: impl Iterator<Item = Ipa>, reaches: Reaches) {
    for ipa in ipas {
        machine::step();
        machine::with(|machine| machine.drop_page(ipa, reaches));
    }
    machine::step();
}

/// Drops what this CPU holds of the current VMID, whose tables have not changed.
pub(crate) fn flush_vmid_here() {
    flush_vmid(Reaches::Here);
}

/// Drops all that this CPU holds for EL1.
pub fn flush_el1_here() {
    machine::step();
    machine::with(|machine| machine.cpu().tlb.clear());
}
