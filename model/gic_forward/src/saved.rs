//! What a CPU's list registers hold for a system that does not run just now.

use crate::{ACTIVE, HW, PENDING};
use machine_contract::ListRegisters;

/// The most list registers that a CPU can have.
const MOST: usize = 16;
const STATE: u64 = PENDING | ACTIVE;

/// List registers in memory: interrupts are put into them as into a CPU's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SavedLists {
    values: [u64; MOST],
    count: usize,
    underflow: bool,
}

impl SavedLists {
    /// Takes what is in a CPU's registers, and leaves them empty.
    pub fn save(lists: &mut impl ListRegisters, underflow: bool) -> Self {
        let mut saved = Self {
            values: [0; MOST],
            count: lists.count().min(MOST),
            underflow,
        };
        let used = !lists.empty();
        for (n, value) in saved.values.iter_mut().enumerate().take(saved.count) {
            if used >> n & 1 == 1 {
                *value = lists.read(n);
            }
            lists.write(n, 0);
        }
        saved
    }

    /// Puts all into a CPU's registers; whether the system waits for room in them.
    pub fn load(&self, lists: &mut impl ListRegisters) -> bool {
        for (n, value) in self.values.iter().enumerate().take(self.count) {
            lists.write(n, *value);
        }
        self.underflow
    }

    /// Whether an interrupt waits to be taken.
    pub fn has_pending(&self) -> bool {
        self.values.iter().any(|value| value & PENDING != 0)
    }

    /// Whether the physical interrupt `intid` is behind one of them.
    pub fn holds(&self, intid: u32) -> bool {
        let is_it = |value: &u64| {
            value & STATE != 0 && value & HW != 0 && (value >> 32 & 0x3ff) as u32 == intid
        };
        self.values.iter().any(is_it)
    }
}

impl ListRegisters for SavedLists {
    fn count(&self) -> usize {
        self.count
    }

    fn empty(&self) -> u16 {
        let is_empty = |(n, value): (usize, &u64)| u16::from(value & STATE == 0) << n;
        self.values.iter().enumerate().map(is_empty).sum()
    }

    fn read(&self, n: usize) -> u64 {
        self.values.get(n).copied().unwrap_or(0)
    }

    fn write(&mut self, n: usize, value: u64) {
        if let Some(place) = self.values.get_mut(n) {
            *place = value;
        }
    }

    fn set_underflow_interrupt(&mut self, on: bool) {
        self.underflow = on;
    }

    /// The system ends them itself, when it runs again.
    fn deactivate_physical(&mut self, _: u32) {}
}
