//! The state of 32 interrupts, a bit each.

use crate::affinity::bits;
use crate::registers::{Fields, Register};
use abi::state::Interrupts;
use bitflags::bitflags;

bitflags! {
    /// The interrupt groups that the distributor lets through (`GICD_CTLR`, same bits).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Groups: u32 {
        /// `EnableGrp0`.
        const GROUP0 = 1;
        /// `EnableGrp1`.
        const GROUP1 = 2;
    }
}

/// The priority bits that are kept: five, as in the list registers.
const PRIORITY_MASK: u8 = 0xf8;

/// 32 interrupts. While one is `loaded`, what its list register says comes on top of `latch` and
/// `active`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bank {
    /// What a record has of them. An interrupt is pending by `latch` whatever its line says: an edge, an SGI or a
    /// write of `ISPENDR`.
    pub(crate) state: Interrupts,
    groups: Groups,
    /// Enabled, and its group is let through.
    pub(crate) open: u32,
    /// In a list register.
    pub(crate) loaded: u32,
    /// Loaded, but what the list register says no longer holds.
    stale: u32,
    /// Loaded, and the pending state in the list register was cleared by `ICPENDR`.
    drop_pending: u32,
    /// Loaded, and the active state in the list register was cleared by `ICACTIVER`.
    drop_active: u32,
    /// Pending by its latch in its list register, when that was last published.
    held_pending: u32,
    /// Active in its list register, when that was last published.
    held_active: u32,
}

impl Bank {
    /// Everything off, group 0, priority 0; `edge` are edge triggered.
    pub(crate) fn edge_triggered(edge: u32) -> Self {
        let mut bank = Self::default();
        bank.state.edge = edge;
        bank
    }

    /// As a record has it, with nothing in list registers: `None` where one of `edge` is not edge triggered, or a
    /// priority has bits that are not kept.
    pub(crate) fn of(state: Interrupts, edge: u32, groups: Groups) -> Option<Self> {
        let has_more = |priority: &u8| priority & !PRIORITY_MASK != 0;
        if edge & !state.edge != 0 || state.priority.iter().any(has_more) {
            return None;
        }
        let mut bank = Self {
            state,
            groups,
            ..Self::default()
        };
        bank.reopen();
        Some(bank)
    }

    /// Pending, apart from what list registers hold.
    #[inline]
    pub(crate) const fn pending(&self) -> u32 {
        self.state.latch | self.state.line & !self.state.edge
    }

    /// What belongs into a list register and is in none: pending and let through, or active, since
    /// the guest's end of it must find it.
    #[inline]
    pub(crate) const fn ready(&self) -> u32 {
        !self.loaded & (self.state.active | self.pending() & self.open)
    }

    /// Loaded, and became pending once more.
    #[inline]
    pub(crate) const fn refired(&self) -> u32 {
        self.loaded & self.state.latch & self.open
    }

    /// Loaded, and its list register must be looked at anew.
    #[inline]
    pub(crate) const fn stale(&self) -> u32 {
        self.stale
    }

    /// What the next [`crate::ListFile::deliver`] has to act on.
    #[inline]
    pub(crate) const fn attention(&self) -> u32 {
        self.ready() | self.refired() | self.stale
    }

    #[inline]
    pub(crate) fn priority(&self, bit: u32) -> u8 {
        self.state.priority[bit as usize % 32]
    }

    #[inline]
    pub(crate) const fn is_group1(&self, bit: u32) -> bool {
        self.state.group1 >> (bit % 32) & 1 != 0
    }

    /// Whether anything pending and let through is more urgent than `mask`, list registers apart.
    pub(crate) fn deliverable_below(&self, among: u32, mask: u8) -> bool {
        let candidates = self.pending() & self.open & !(self.loaded | self.state.active) & among;
        bits(candidates.into()).any(|bit| self.priority(bit) < mask)
    }

    pub(crate) fn set_groups(&mut self, groups: Groups) {
        if self.groups != groups {
            self.groups = groups;
            self.reopen();
            self.stale |= self.loaded;
        }
    }

    /// The input lines in `mask` become high or low.
    pub(crate) fn set_level(&mut self, mask: u32, high: bool) {
        if high {
            self.state.latch |= mask & !self.state.line & self.state.edge;
            self.state.line |= mask;
        } else {
            // A level-sensitive interrupt that nobody has taken yet is pending no more.
            self.stale |= mask & self.state.line & !self.state.edge & self.loaded;
            self.state.line &= !mask;
        }
    }

    /// Clears the pending latch of the interrupts in `mask`; lines that are high stay so.
    pub(crate) fn clear_pending(&mut self, mask: u32) {
        self.state.latch &= !mask;
        self.drop_pending |= mask & self.loaded;
        self.stale |= mask & self.loaded;
    }

    /// Interrupt `bit` goes into a list register.
    #[inline]
    pub(crate) fn load(&mut self, bit: u32) -> Loaded {
        let mask = 1 << bit;
        let active = self.state.active & mask != 0;
        // An active one that is pending too is made so afterwards, like one that fires again.
        let latched = if active { 0 } else { self.state.latch & mask };
        self.state.latch &= !latched;
        self.loaded |= mask;
        self.held_pending = (self.held_pending & !mask) | latched;
        self.held_active = (self.held_active & !mask) | (self.state.active & mask);
        self.state.active &= !mask;
        Loaded {
            active,
            latched: latched != 0,
            level: self.state.edge & mask == 0,
        }
    }

    /// Interrupt `bit`, which fires now, goes into a list register at once.
    #[inline]
    pub(crate) fn load_fired(&mut self, bit: u32) {
        let mask = 1 << bit;
        self.loaded |= mask;
        self.held_pending |= mask;
        self.held_active &= !mask;
    }

    /// Interrupt `bit` leaves its list register, where it was still pending by its latch, or
    /// active, or neither.
    #[inline]
    pub(crate) fn unload(&mut self, bit: u32, latched: bool, active: bool) {
        let mask = 1 << bit;
        if latched {
            self.state.latch |= mask & !self.drop_pending;
        }
        if active {
            self.state.active |= mask & !self.drop_active;
        }
        self.loaded &= !mask;
        // What is dropped is stale, too.
        if self.stale & mask != 0 {
            self.stale &= !mask;
            self.drop_pending &= !mask;
            self.drop_active &= !mask;
        }
    }

    /// Notes what the list register of `bit` says, for readers on other CPUs.
    pub(crate) fn publish(&mut self, bit: u32, latched: bool, active: bool) {
        let mask = 1 << bit;
        self.held_pending = (self.held_pending & !mask) | (u32::from(latched) << bit);
        self.held_active = (self.held_active & !mask) | (u32::from(active) << bit);
    }

    /// The value of `fields`; loaded interrupts as last published.
    pub(crate) fn read(&self, fields: Fields) -> u32 {
        match fields.register {
            Register::Group => self.state.group1,
            Register::SetEnable | Register::ClearEnable => self.state.enabled,
            Register::SetPending | Register::ClearPending => {
                self.pending() | self.held_pending & self.loaded & !self.drop_pending
            }
            Register::SetActive | Register::ClearActive => {
                self.state.active | self.held_active & self.loaded & !self.drop_active
            }
            Register::Priority => (0..fields.count).fold(0, |value, i| {
                value | u32::from(self.priority(fields.first + i)) << (8 * i)
            }),
            Register::Configuration => (0..fields.count).fold(0, |value, i| {
                value | (self.state.edge >> (fields.first + i) & 1) << (2 * i + 1)
            }),
        }
    }

    /// Writes `fields`. Answers which interrupts were touched.
    pub(crate) fn write(&mut self, fields: Fields, value: u32) -> u32 {
        match fields.register {
            Register::Group => {
                self.stale |= (self.state.group1 ^ value) & self.loaded;
                self.state.group1 = value;
                self.reopen();
                u32::MAX
            }
            Register::SetEnable => {
                self.state.enabled |= value;
                self.reopen();
                value
            }
            Register::ClearEnable => {
                self.stale |= self.state.enabled & value & self.loaded;
                self.state.enabled &= !value;
                self.reopen();
                value
            }
            Register::SetPending => {
                self.state.latch |= value;
                value
            }
            Register::ClearPending => {
                self.clear_pending(value);
                value
            }
            Register::SetActive => {
                self.state.active |= value;
                self.stale |= value & self.loaded;
                value
            }
            Register::ClearActive => {
                self.state.active &= !value;
                self.drop_active |= value & self.loaded;
                self.stale |= value & self.loaded;
                value
            }
            Register::Priority => self.write_priorities(fields, value),
            Register::Configuration => self.write_configuration(fields, value),
        }
    }

    fn write_priorities(&mut self, fields: Fields, value: u32) -> u32 {
        let mut changed = 0;
        for i in 0..fields.count {
            let bit = fields.first + i;
            let priority = (value >> (8 * i)) as u8 & PRIORITY_MASK;
            changed |= u32::from(self.priority(bit) != priority) << bit;
            self.state.priority[bit as usize % 32] = priority;
        }
        self.stale |= changed & self.loaded;
        changed
    }

    fn write_configuration(&mut self, fields: Fields, value: u32) -> u32 {
        let meant = (u32::MAX >> (32 - fields.count)) << fields.first;
        let edge = (0..fields.count).fold(0, |edge, i| {
            edge | (value >> (2 * i + 1) & 1) << (fields.first + i)
        });
        let changed = (self.state.edge ^ edge) & meant;
        self.state.edge ^= changed;
        self.stale |= changed & self.loaded;
        changed
    }

    /// Marks loaded interrupts as stale, so that their list registers are made anew.
    pub(crate) fn mark_stale(&mut self, mask: u32) {
        self.stale |= mask & self.loaded;
    }

    fn reopen(&mut self) {
        let group = |group| {
            if self.groups.contains(group) {
                u32::MAX
            } else {
                0
            }
        };
        let through =
            self.state.group1 & group(Groups::GROUP1) | !self.state.group1 & group(Groups::GROUP0);
        self.open = self.state.enabled & through;
    }
}

/// How an interrupt went into a list register.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loaded {
    /// As active; otherwise as pending.
    pub(crate) active: bool,
    /// The pending latch went along.
    pub(crate) latched: bool,
    /// Level sensitive: look at the line when the guest has ended it.
    pub(crate) level: bool,
}
