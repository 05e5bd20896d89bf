//! The virtual CPU interface as a guest sees it, over the list registers (Arm IHI 0069: `ICV_*`).

use crate::machine::{Cpu, Machine};
use crate::registers::number;
use machine_fake::{ListRegister, ListState};

/// List registers of a CPU.
const LISTS: usize = 4;
/// The number of the first; the others follow.
const FIRST: usize = number("s3_4_c12_c12_0");
const CONTROL: usize = number("s3_4_c12_c11_7");
const HYPERVISOR_CONTROL: usize = number("s3_4_c12_c11_0");
const STATE: u64 = 3 << 62;
const PENDING: u64 = 1 << 62;
const ACTIVE: u64 = 2 << 62;
/// Bits of a priority that decide about preemption.
const PREEMPTION: u8 = 0xf8;

impl Cpu {
    fn list(&self, n: usize) -> ListRegister {
        ListRegister::decode(self.registers[FIRST + n])
    }

    /// `ICH_ELRSR_EL2`.
    pub(crate) fn empty_lists(&self) -> u16 {
        let is_empty = |n: &usize| {
            let list = self.list(*n);
            list.state == ListState::Invalid && !list.end_maintenance
        };
        (0..LISTS).filter(is_empty).fold(0, |bits, n| bits | 1 << n)
    }

    /// The maintenance interrupt's line: `ICH_HCR_EL2.UIE` with at most one list register in use.
    pub(crate) fn wants_maintenance(&self) -> bool {
        let in_use = |n: &usize| self.list(*n).state != ListState::Invalid;
        self.registers[HYPERVISOR_CONTROL] & 3 == 3 && (0..LISTS).filter(in_use).count() <= 1
    }

    /// The list register that the guest would acknowledge.
    fn virtual_highest(&self) -> Option<usize> {
        let control = self.registers[CONTROL];
        if self.registers[HYPERVISOR_CONTROL] & 1 == 0 || control & 2 == 0 {
            return None;
        }
        let mask = (control >> 24) as u8;
        let running = self.virtual_running.last().copied().unwrap_or(0xff);
        let can = |n: &usize| {
            let list = self.list(*n);
            list.state == ListState::Pending
                && list.group1
                && list.priority < mask
                && list.priority & PREEMPTION < running
        };
        (0..LISTS)
            .filter(can)
            .min_by_key(|n| self.list(*n).priority)
    }

    /// Whether the guest has a virtual interrupt to take.
    pub(crate) fn has_virtual_interrupt(&self) -> bool {
        self.virtual_highest().is_some()
    }

    /// `ICV_IAR1_EL1`.
    pub(crate) fn virtual_acknowledge(&mut self) -> u32 {
        let Some(n) = self.virtual_highest() else {
            return 1023;
        };
        let list = self.list(n);
        self.virtual_running.push(list.priority & PREEMPTION);
        let register = &mut self.registers[FIRST + n];
        *register = *register & !STATE | ACTIVE;
        list.intid
    }
}

impl Machine {
    /// `ICV_EOIR1_EL1` with EOImode 0: drops the priority and ends the interrupt, with HW the physical one, too.
    pub(crate) fn virtual_end(&mut self, cpu: usize, intid: u32) {
        if intid >= 1020 {
            return;
        }
        let own = &mut self.cpus[cpu];
        own.virtual_running.pop();
        for n in 0..LISTS {
            let list = own.list(n);
            let is_active = matches!(list.state, ListState::Active | ListState::PendingAndActive);
            if list.intid == intid && is_active {
                let register = &mut own.registers[FIRST + n];
                *register = if list.state == ListState::Active {
                    *register & !STATE
                } else {
                    *register & !STATE | PENDING
                };
                if let Some(physical) = list.physical {
                    self.gic.deactivate(cpu, physical);
                }
                return;
            }
        }
    }
}
