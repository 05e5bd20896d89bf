//! OS-0's interrupts while EL2 is beneath it: the metal under `model_gic_forward`.

use super::Os0Cpu;
use machine_aarch64::gic::{self, Distributor, Redistributor};
use machine_aarch64::list_registers::HardwareLists;
use model_gic_forward::{Forwarded, PhysicalGic};

/// The executing CPU's part of the GIC.
pub struct OwnGic {
    /// The shared part.
    pub distributor: Distributor,
    /// Its own.
    pub redistributor: Redistributor,
    /// The maintenance interrupt.
    pub maintenance: u32,
}

impl PhysicalGic for OwnGic {
    #[inline]
    fn acknowledge(&mut self) -> u32 {
        gic::acknowledge()
    }

    #[inline]
    fn running_priority(&mut self) -> u8 {
        gic::running_priority()
    }

    #[inline]
    fn drop_priority(&mut self, intid: u32) {
        gic::drop_priority(intid);
    }

    #[inline]
    fn deactivate(&mut self, intid: u32) {
        gic::deactivate(intid);
    }

    fn hold(&mut self, on: bool) {
        if on {
            // Linux silences all private interrupts when it brings a CPU up.
            self.redistributor.enable_urgent(self.maintenance);
        }
        gic::set_priority_mask(if on { gic::MASK_URGENT } else { gic::MASK_ALL });
    }

    fn set_pending(&mut self, intid: u32) {
        if intid < gic::FIRST_SPI {
            self.redistributor.set_pending(intid);
        } else {
            self.distributor.set_pending(intid);
        }
    }

    fn is_edge(&mut self, intid: u32) -> bool {
        if intid < gic::FIRST_SPI {
            self.redistributor.is_edge(intid)
        } else {
            self.distributor.is_edge(intid)
        }
    }
}

/// A physical interrupt brought the CPU here: one is handed on.
#[inline]
pub fn forward(me: &Os0Cpu) {
    let mut forwarder = me.forwarder.get();
    let mut lists = HardwareLists::of_this_cpu();
    let outcome = forwarder.forward(&mut lists, &mut me.gic());
    if !matches!(outcome, Forwarded::Given(_)) {
        me.forwarder.set(forwarder);
    }
}
