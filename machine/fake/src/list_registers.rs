//! List registers and the guest's side of them: a virtual CPU interface.
//!
//! Written from the GIC architecture specification (Arm IHI 0069): `ICH_LR<n>_EL2`, `ICV_IAR1_EL1`,
//! `ICV_EOIR1_EL1` with `ICV_CTLR_EL1.EOImode` = 0, and `ICH_ELRSR_EL2`, `ICH_MISR_EL2`.

use std::collections::BTreeSet;

use machine_contract::ListRegisters;

/// The state of the interrupt that a list register holds (`ICH_LR<n>_EL2.State`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListState {
    /// The register holds nothing.
    Invalid,
    /// To be taken by the guest.
    Pending,
    /// Taken by the guest and not ended.
    Active,
    /// Taken, and pending again.
    PendingAndActive,
}

/// The fields of `ICH_LR<n>_EL2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListRegister {
    /// The interrupt as the guest knows it.
    pub intid: u32,
    /// The physical interrupt that ends with it, where the HW bit is set.
    pub physical: Option<u32>,
    /// Whether its end asks for a maintenance interrupt (the EOI bit; only without HW).
    pub end_maintenance: bool,
    /// 0 is the most urgent.
    pub priority: u8,
    /// Group 1 (IRQ), else group 0 (FIQ).
    pub group1: bool,
    /// Pending, active, both or none.
    pub state: ListState,
}

impl ListRegister {
    /// Takes the register's 64 bits apart.
    pub fn decode(value: u64) -> Self {
        let hardware = value >> 61 & 1 == 1;
        Self {
            intid: value as u32,
            physical: hardware.then_some((value >> 32 & 0x1fff) as u32),
            end_maintenance: !hardware && value >> 41 & 1 == 1,
            priority: (value >> 48) as u8,
            group1: value >> 60 & 1 == 1,
            state: match value >> 62 {
                0 => ListState::Invalid,
                1 => ListState::Pending,
                2 => ListState::Active,
                _ => ListState::PendingAndActive,
            },
        }
    }
}

const STATE_SHIFT: u32 = 62;
/// Bits of a priority that decide about preemption: five are implemented, all in the group
/// priority (`ICV_BPR1_EL1` at its smallest).
const PREEMPTION_MASK: u8 = 0xf8;

/// List registers with the guest behind them.
///
/// The hypervisor's side is the trait; the guest's side are the `guest_` methods. Both may be
/// used in any order, but whatever the architecture leaves unpredictable fails the test when the
/// guest runs: one interrupt in two registers, a hardware interrupt that is pending and active.
#[derive(Clone, Debug)]
pub struct FakeListRegisters {
    registers: Vec<u64>,
    underflow_interrupt: bool,
    priority_mask: u8,
    /// Priority and group of what the guest has acknowledged and not ended, latest last.
    running: Vec<(u8, bool)>,
    unlisted_ends: u32,
    physical_active: BTreeSet<u32>,
}

impl FakeListRegisters {
    /// `count` empty registers, 1..=16, and a guest that masks no priority.
    pub fn new(count: usize) -> Self {
        assert!(
            (1..=16).contains(&count),
            "the architecture has 1 to 16 list registers"
        );
        Self {
            registers: vec![0; count],
            underflow_interrupt: false,
            priority_mask: 0xff,
            running: Vec::new(),
            unlisted_ends: 0,
            physical_active: BTreeSet::new(),
        }
    }

    /// The registers that hold something, decoded, in register order.
    pub fn listed(&self) -> impl Iterator<Item = ListRegister> + '_ {
        let all = self
            .registers
            .iter()
            .map(|value| ListRegister::decode(*value));
        all.filter(|register| register.state != ListState::Invalid)
    }

    /// The physical distributor makes `intid` active: the hypervisor has acknowledged it and
    /// dropped its priority, and its guest is to end it.
    pub fn activate_physical(&mut self, intid: u32) {
        assert!(
            self.physical_active.insert(intid),
            "interrupt {intid} is active already"
        );
    }

    /// Whether the physical interrupt `intid` is still active.
    pub fn physical_is_active(&self, intid: u32) -> bool {
        self.physical_active.contains(&intid)
    }

    /// The guest sets its priority mask (`ICV_PMR_EL1`).
    pub fn guest_mask(&mut self, mask: u8) {
        self.priority_mask = mask;
    }

    /// The interrupt that the guest's IRQ line is high for: the most urgent pending one, where
    /// neither the mask nor a running interrupt holds it back.
    pub fn guest_signalled(&self) -> Option<u32> {
        self.signalled()
            .map(|n| ListRegister::decode(self.registers[n]).intid)
    }

    /// The guest reads `ICV_IAR1_EL1`: `None` stands for 1023, nothing to take. A group 0
    /// interrupt is left for [`Self::guest_acknowledge_group0`].
    pub fn guest_acknowledge(&mut self) -> Option<u32> {
        self.acknowledge(true)
    }

    /// The guest reads `ICV_IAR0_EL1`.
    pub fn guest_acknowledge_group0(&mut self) -> Option<u32> {
        self.acknowledge(false)
    }

    /// The guest writes `intid` to `ICV_EOIR1_EL1` (or `ICV_EOIR0_EL1`): the running priority
    /// drops, and the interrupt is deactivated, with the physical one that belongs to it.
    pub fn guest_end(&mut self, intid: u32) {
        self.check();
        self.running.pop();
        let is_active = |value: &u64| *value >> (STATE_SHIFT + 1) & 1 == 1;
        let holds = |value: &&mut u64| **value as u32 == intid && is_active(value);
        let Some(value) = self.registers.iter_mut().find(holds) else {
            self.unlisted_ends += 1;
            return;
        };
        *value &= !(2 << STATE_SHIFT);
        if let Some(physical) = ListRegister::decode(*value).physical {
            self.physical_active.remove(&physical);
        }
    }

    /// How many interrupts the guest ended that no register held (`ICH_HCR_EL2.EOIcount`).
    pub fn unlisted_ends(&self) -> u32 {
        self.unlisted_ends
    }

    /// Whether the CPU interface asks for the hypervisor (`ICH_MISR_EL2` is not zero): underflow,
    /// or the end of an interrupt that asked for it.
    pub fn maintenance_due(&self) -> bool {
        let valid = self.listed().count();
        let ended = |value: &u64| {
            let register = ListRegister::decode(*value);
            register.state == ListState::Invalid && register.end_maintenance
        };
        (self.underflow_interrupt && valid <= 1) || self.registers.iter().any(ended)
    }

    /// Whether the underflow maintenance interrupt is on.
    pub fn underflow_interrupt(&self) -> bool {
        self.underflow_interrupt
    }

    fn acknowledge(&mut self, group1: bool) -> Option<u32> {
        let n = self.signalled()?;
        let register = ListRegister::decode(self.registers[n]);
        if register.group1 != group1 {
            return None;
        }
        self.registers[n] ^= 3 << STATE_SHIFT;
        self.running.push((register.priority, group1));
        Some(register.intid)
    }

    /// The register whose interrupt the guest would take now. Of equal priorities the lowest
    /// register wins; the architecture leaves that open.
    fn signalled(&self) -> Option<usize> {
        self.check();
        let pending = self.registers.iter().enumerate().filter_map(|(n, value)| {
            let register = ListRegister::decode(*value);
            (register.state == ListState::Pending).then_some((register.priority, n))
        });
        let (priority, n) = pending.min()?;
        let preempts = self
            .running
            .last()
            .is_none_or(|(running, _)| priority & PREEMPTION_MASK < running & PREEMPTION_MASK);
        (preempts && priority < self.priority_mask).then_some(n)
    }

    /// What must hold whenever the guest runs.
    fn check(&self) {
        let mut seen = BTreeSet::new();
        for register in self.listed() {
            let intid = register.intid;
            assert!(
                seen.insert(intid),
                "interrupt {intid} is in two list registers"
            );
            if let Some(physical) = register.physical {
                let both = register.state == ListState::PendingAndActive;
                assert!(!both, "hardware interrupt {intid} is pending and active");
                let shared = (16..1020).contains(&physical);
                assert!(
                    shared,
                    "{physical} is not a PPI or SPI: it cannot end with {intid}"
                );
            }
        }
    }
}

impl ListRegisters for FakeListRegisters {
    fn count(&self) -> usize {
        self.registers.len()
    }

    fn empty(&self) -> u16 {
        let is_empty = |value: &u64| {
            let register = ListRegister::decode(*value);
            register.state == ListState::Invalid && !register.end_maintenance
        };
        let bit = |(n, value)| u16::from(is_empty(value)) << n;
        self.registers.iter().enumerate().map(bit).sum()
    }

    fn read(&self, n: usize) -> u64 {
        self.registers[n]
    }

    fn write(&mut self, n: usize, value: u64) {
        self.registers[n] = value;
    }

    fn set_underflow_interrupt(&mut self, on: bool) {
        self.underflow_interrupt = on;
    }

    fn deactivate_physical(&mut self, intid: u32) {
        self.physical_active.remove(&intid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PENDING: u64 = 1 << 62;
    const GROUP1: u64 = 1 << 60;
    const HARDWARE: u64 = 1 << 61;

    fn pending(intid: u64, priority: u64) -> u64 {
        PENDING | GROUP1 | priority << 48 | intid
    }

    #[test]
    fn the_most_urgent_is_taken_first_and_preempts() {
        let mut registers = FakeListRegisters::new(4);
        registers.write(0, pending(40, 0xa0));
        registers.write(1, pending(41, 0x80));
        assert_eq!(registers.guest_acknowledge(), Some(41));
        assert_eq!(
            registers.guest_acknowledge(),
            None,
            "0xa0 does not preempt 0x80"
        );
        registers.write(2, pending(42, 0x10));
        assert_eq!(registers.guest_acknowledge(), Some(42));
        assert_eq!(registers.empty(), 0b1000);
        registers.guest_end(42);
        registers.guest_end(41);
        assert_eq!(registers.guest_acknowledge(), Some(40));
        registers.guest_mask(0x40);
        registers.write(1, pending(41, 0x80));
        registers.guest_end(40);
        assert_eq!(registers.guest_signalled(), None, "masked");
        assert_eq!(registers.empty(), 0b1101);
    }

    #[test]
    fn pending_and_active_stays_until_ended_once_more() {
        let mut registers = FakeListRegisters::new(1);
        registers.write(0, pending(5, 0));
        assert_eq!(registers.guest_acknowledge(), Some(5));
        let value = registers.read(0);
        registers.write(0, value | PENDING);
        assert_eq!(registers.guest_acknowledge(), None);
        registers.guest_end(5);
        assert_eq!(registers.guest_acknowledge(), Some(5));
        registers.guest_end(5);
        assert_eq!(registers.empty(), 1);
        registers.guest_end(6);
        assert_eq!(registers.unlisted_ends(), 1);
    }

    #[test]
    fn a_hardware_interrupt_ends_its_physical_one() {
        let mut registers = FakeListRegisters::new(2);
        registers.activate_physical(27);
        registers.write(0, pending(27, 0) | HARDWARE | 27 << 32);
        assert_eq!(registers.guest_acknowledge(), Some(27));
        assert!(registers.physical_is_active(27));
        registers.guest_end(27);
        assert!(!registers.physical_is_active(27));
    }

    #[test]
    fn groups_are_acknowledged_apart() {
        let mut registers = FakeListRegisters::new(2);
        registers.write(0, pending(8, 0) & !GROUP1);
        assert_eq!(registers.guest_acknowledge(), None);
        assert_eq!(registers.guest_acknowledge_group0(), Some(8));
    }

    #[test]
    fn maintenance_is_due_on_underflow_and_on_an_asked_for_end() {
        let mut registers = FakeListRegisters::new(2);
        registers.write(0, pending(8, 0));
        registers.write(1, pending(9, 0) | 1 << 41);
        registers.set_underflow_interrupt(true);
        assert!(!registers.maintenance_due());
        assert_eq!(registers.guest_acknowledge(), Some(8));
        registers.guest_end(8);
        assert!(registers.maintenance_due());
        registers.set_underflow_interrupt(false);
        assert!(!registers.maintenance_due());
        assert_eq!(registers.guest_acknowledge(), Some(9));
        registers.guest_end(9);
        assert!(registers.maintenance_due());
        assert_eq!(
            registers.empty(),
            0b01,
            "an ended register that asked is not free yet"
        );
    }

    #[test]
    #[should_panic(expected = "two list registers")]
    fn one_interrupt_in_two_registers_is_refused() {
        let mut registers = FakeListRegisters::new(2);
        registers.write(0, pending(8, 0));
        registers.write(1, pending(8, 0));
        registers.guest_acknowledge();
    }
}
