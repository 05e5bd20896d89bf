//! OS-0's interrupts while EL2 is beneath it: the metal under `model_gic_forward`.

use crate::beneath::{Os0Cpu, get, run::Next, world};
use arch::gic::{self, Distributor, Redistributor};
use arch::list_registers::HardwareLists;
use model_gic_forward::{Forwarded, PhysicalGic};

/// Whether VMs share the CPU, and whether OS-0 is in it just now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beside {
    /// OS-0 has it for itself.
    No,
    /// They do, and OS-0 runs.
    Here,
    /// They do, and OS-0 does not run.
    Away,
}

/// The executing CPU's part of the GIC.
pub struct OwnGic {
    /// The shared part.
    pub distributor: Distributor,
    /// Its own.
    pub redistributor: Redistributor,
    /// The maintenance interrupt.
    pub maintenance: u32,
    /// Which interrupts are EL2's own.
    pub beside: Beside,
}

impl PhysicalGic for OwnGic {
    #[inline]
    fn is_own(&self, intid: u32) -> bool {
        if self.beside == Beside::No {
            return false;
        }
        let timer = get().tree.timer;
        // What a VM in the CPU causes is not OS-0's.
        let is_vms = intid == timer.virtual_timer.intid || intid == self.maintenance;
        intid == gic::kick_sgi()
            || intid == timer.hypervisor_timer.intid
            || is_vms && self.beside == Beside::Away
    }

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

/// A physical interrupt brought the CPU here: one is handed on, or is EL2's own.
#[inline]
pub fn forward(me: &Os0Cpu) -> Next {
    let mut forwarder = me.forwarder.get();
    let mut lists = HardwareLists::of_this_cpu();
    let beside = if me.shares.get() {
        Beside::Here
    } else {
        Beside::No
    };
    let mut gic = me.gic(beside);
    match forwarder.forward(&mut lists, &mut gic) {
        Forwarded::Given(_) => {}
        Forwarded::Own(intid) => return world::own_interrupt(me, &mut gic, intid),
        Forwarded::Held | Forwarded::Maintenance | Forwarded::Spurious => {
            me.forwarder.set(forwarder);
        }
    }
    Next::Go
}
