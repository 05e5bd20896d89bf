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
/// `ICH_AP1R0_EL2`: bit n, an interrupt of group 1 and of the n-th preemption level is acknowledged and not ended. It is
/// all there is of that, so that EL2 switches it with the vCPU.
const ACTIVE_PRIORITIES: usize = number("s3_4_c12_c9_0");
const STATE: u64 = 3 << 62;
const PENDING: u64 = 1 << 62;
const ACTIVE: u64 = 2 << 62;
/// Bits of a priority that do not decide about preemption: there are 32 levels.
const SUBPRIORITY: u8 = 3;

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
        // 32, behind the last level, where nothing is active.
        let running = (self.registers[ACTIVE_PRIORITIES] as u32).trailing_zeros();
        let can = |n: &usize| {
            let list = self.list(*n);
            list.state == ListState::Pending
                && list.group1
                && list.priority < mask
                && u32::from(list.priority >> SUBPRIORITY) < running
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
        self.registers[ACTIVE_PRIORITIES] |= 1 << (list.priority >> SUBPRIORITY);
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
        let active = &mut own.registers[ACTIVE_PRIORITIES];
        *active &= active.wrapping_sub(1);
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

#[cfg(test)]
mod tests {
    use super::*;

    const TIMER: u64 = 27;
    const ENABLED: u64 = 0xf0 << 24 | 2;
    const GROUP_1: u64 = 1 << 60;

    /// A CPU whose guest has the timer's interrupt pending, at the highest priority.
    fn cpu() -> Cpu {
        let mut cpu = Cpu::new(0);
        cpu.registers[HYPERVISOR_CONTROL] = 1;
        cpu.registers[CONTROL] = ENABLED;
        cpu.registers[FIRST] = PENDING | GROUP_1 | TIMER;
        cpu
    }

    #[test]
    fn an_active_priority_masks_its_level_until_el2_switches_it_with_the_vcpu() {
        let mut cpu = cpu();
        assert_eq!(cpu.virtual_acknowledge(), TIMER as u32);
        cpu.registers[FIRST + 1] = PENDING | GROUP_1 | 5;
        assert!(!cpu.has_virtual_interrupt(), "its priority is not higher");
        let left = std::mem::take(&mut cpu.registers[ACTIVE_PRIORITIES]);
        assert_eq!(left, 1);
        assert_eq!(
            cpu.virtual_acknowledge(),
            5,
            "another vCPU has nothing active"
        );
    }
}
