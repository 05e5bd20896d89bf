//! Table memory that counts, fails on demand and forgets nothing.

use std::collections::BTreeMap;

use machine_contract::TableMemory;
use model_addr::Mfn;

/// Words in a table.
const WORDS: usize = 512;
/// Frame numbers of tables start here: above 32 bits, so that a number cut short is noticed.
const FIRST_FRAME: u64 = 0xb_0000_0000;
/// And advance by this, so that two tables never follow each other by chance.
const STRIDE: u64 = 37;

/// Table memory on the host.
///
/// Touching a table that is not allocated fails the test, and so does freeing one twice.
#[derive(Debug, Default)]
pub struct FakeTables {
    tables: BTreeMap<Mfn, Box<[u64; WORDS]>>,
    allocations: u64,
    fail_at: Option<u64>,
    next: u64,
}

impl FakeTables {
    /// No table yet, and memory for any number.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets the allocation after `successes` more fail, and all that follow, until it is called
    /// with `None`.
    pub fn fail_after(&mut self, successes: Option<u64>) {
        self.fail_at = successes.map(|n| self.allocations + n);
    }

    /// How many tables are allocated now.
    pub fn in_use(&self) -> usize {
        self.tables.len()
    }

    /// How many tables were ever allocated.
    pub fn allocations(&self) -> u64 {
        self.allocations
    }

    /// Allocates `count` (a power of two) tables that follow each other, aligned to their size:
    /// the concatenated root of a stage-2 translation.
    pub fn allocate_root(&mut self, count: u64) -> Mfn {
        let first = Mfn(FIRST_FRAME + self.next).align_down(count).add(count);
        self.next = first.0 + count - FIRST_FRAME;
        for n in 0..count {
            self.tables.insert(first.add(n), Box::new([0; WORDS]));
        }
        first
    }
}

impl TableMemory for FakeTables {
    fn allocate_table(&mut self) -> Option<Mfn> {
        if self.fail_at.is_some_and(|at| self.allocations >= at) {
            return None;
        }
        self.allocations += 1;
        self.next += STRIDE;
        let table = Mfn(FIRST_FRAME + self.next);
        self.tables.insert(table, Box::new([0; WORDS]));
        Some(table)
    }

    fn free_table(&mut self, table: Mfn) {
        assert!(
            self.tables.remove(&table).is_some(),
            "table {table} is not allocated"
        );
    }

    fn read(&self, table: Mfn, index: usize) -> u64 {
        let words = self.tables.get(&table);
        words.unwrap_or_else(|| unallocated(table))[index]
    }

    fn write(&mut self, table: Mfn, index: usize, value: u64) {
        let words = self.tables.get_mut(&table);
        words.unwrap_or_else(|| unallocated(table))[index] = value;
    }
}

#[allow(clippy::panic, reason = "it is there to fail the test")]
fn unallocated(table: Mfn) -> ! {
    panic!("table {table} is not allocated")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocations_fail_when_asked_to() {
        let mut tables = FakeTables::new();
        tables.fail_after(Some(1));
        let first = tables.allocate_table().unwrap();
        assert_eq!(tables.allocate_table(), None);
        tables.fail_after(None);
        let second = tables.allocate_table().unwrap();
        assert!(second.0 > first.0 + 1);
        tables.write(first, 511, 7);
        assert_eq!((tables.read(first, 511), tables.read(second, 511)), (7, 0));
        tables.free_table(first);
        assert_eq!(tables.in_use(), 1);
    }

    #[test]
    fn roots_are_aligned_and_apart() {
        let mut tables = FakeTables::new();
        let roots = [tables.allocate_root(16), tables.allocate_root(16)];
        assert!(roots.iter().all(|root| root.is_aligned(16)));
        assert!(roots[1].0 >= roots[0].0 + 16);
        assert_eq!(tables.in_use(), 32);
    }

    #[test]
    #[should_panic(expected = "is not allocated")]
    fn a_freed_table_cannot_be_read() {
        let mut tables = FakeTables::new();
        let table = tables.allocate_table().unwrap();
        tables.free_table(table);
        tables.read(table, 0);
    }
}
