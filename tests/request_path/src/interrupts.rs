//! The interrupt controller of a VM with one vCPU, which stays on its CPU.

use machine_fake::FakeListRegisters;
use model_vgic::{Distributor, ListFile, Redistributor};

/// The disk's interrupt.
pub const INTID: u32 = 48;

const GICD_CTLR: u32 = 0x0;
const GICD_IGROUPR1: u32 = 0x84;
const GICD_ISENABLER1: u32 = 0x104;
/// Affinity routing, and group 1 enabled (Arm GIC 12.9.4).
const ARE_AND_GROUP1: u64 = 0x32;

/// Distributor, redistributor, list registers.
pub struct Interrupts {
    distributor: Distributor,
    redistributor: Redistributor,
    lists: ListFile,
    registers: FakeListRegisters,
}

impl Default for Interrupts {
    fn default() -> Self {
        Self::new()
    }
}

impl Interrupts {
    /// The disk's interrupt is enabled, in group 1, level-sensitive.
    pub fn new() -> Self {
        let mut distributor = Distributor::new(64, 1);
        let mut redistributor = Redistributor::new(0, 1);
        let effects = distributor.write(GICD_CTLR, 4, ARE_AND_GROUP1);
        redistributor.set_groups(effects.groups.unwrap_or_default());
        let bit = 1 << (INTID % 32);
        let _ = distributor.write(GICD_IGROUPR1, 4, bit);
        let _ = distributor.write(GICD_ISENABLER1, 4, bit);
        Self {
            distributor,
            redistributor,
            lists: ListFile::new(),
            registers: FakeListRegisters::new(4),
        }
    }

    /// The disk's line is high, or low, and the vCPU enters the guest.
    pub fn set_line(&mut self, high: bool) {
        let vcpus = self.distributor.set_level(INTID, high);
        if !vcpus.is_empty() {
            let distributor = Some(&mut self.distributor);
            self.lists
                .deliver(&mut self.redistributor, distributor, &mut self.registers);
        }
    }

    /// The guest takes an interrupt, if one is signalled.
    pub fn acknowledge(&mut self) -> Option<u32> {
        self.registers.guest_acknowledge()
    }

    /// The guest ends it; what is still pending is delivered again.
    pub fn end(&mut self, intid: u32) {
        self.registers.guest_end(intid);
        let distributor = Some(&mut self.distributor);
        self.lists
            .deliver(&mut self.redistributor, distributor, &mut self.registers);
    }
}
