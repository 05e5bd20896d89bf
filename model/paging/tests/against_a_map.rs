//! Words against a map, with memory for tables that runs out.
#![allow(clippy::unwrap_used)]

use machine_contract::TableMemory;
use machine_fake::FakeTables;
use model_addr::Mfn;
use model_paging::{Full, Words};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Table memory that fails on demand.
#[derive(Default)]
struct Memory {
    tables: FakeTables,
    left: u32,
    out: i64,
}

impl TableMemory for Memory {
    fn allocate_table(&mut self) -> Option<Mfn> {
        self.left = self.left.checked_sub(1)?;
        self.out += 1;
        self.tables.allocate_table()
    }
    fn free_table(&mut self, table: Mfn) {
        self.out -= 1;
        self.tables.free_table(table);
    }
    fn read(&self, table: Mfn, index: usize) -> u64 {
        self.tables.read(table, index)
    }
    fn write(&mut self, table: Mfn, index: usize, value: u64) {
        self.tables.write(table, index, value);
    }
}

#[derive(Clone, Debug)]
enum Step {
    Set(u64, u64),
    Take(u64),
    Memory(u32),
    Clear,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let block = prop_oneof![0..8_u64, 500..530_u64, 0..600_000_u64];
    let step = prop_oneof![
        6 => (block, 0..3_u64).prop_map(|(block, word)| Step::Set(block, word)),
        6 => (1..9_u64).prop_map(Step::Take),
        2 => (0..4_u32).prop_map(Step::Memory),
        1 => Just(Step::Clear),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    #[test]
    fn words_are_a_map(blocks in prop_oneof![1..10_u64, 500..600_000_u64], steps in steps()) {
        let mut memory = Memory { left: 100, ..Memory::default() };
        let (mut words, mut model) = (Words::new(blocks), BTreeMap::new());
        for step in steps {
            match step {
                Step::Set(block, word) => match words.set(&mut memory, block, word) {
                    Ok(()) if word == 0 => { model.remove(&block); }
                    Ok(()) => { model.insert(block, word); }
                    Err(Full) => prop_assert!(block >= blocks || memory.left == 0),
                },
                Step::Take(budget) => match words.take(&mut memory, 7, budget) {
                    Ok(block) => {
                        prop_assert!(block < blocks);
                        prop_assert_eq!(model.insert(block, 7), None);
                    }
                    Err(Full) => prop_assert!(memory.left == 0 || model.len() as u64 >= budget.min(blocks)),
                },
                Step::Memory(left) => memory.left = left,
                Step::Clear => {
                    words.clear(&mut memory);
                    model.clear();
                    prop_assert_eq!(memory.out, 0);
                }
            }
            prop_assert_eq!(words.free(), blocks - model.len() as u64);
            for (block, word) in &model {
                prop_assert_eq!(words.get(&memory, *block), *word);
            }
        }
        for block in 0..40 {
            prop_assert_eq!(words.get(&memory, block), model.get(&block).copied().unwrap_or(0));
        }
        words.clear(&mut memory);
        prop_assert_eq!(memory.out, 0);
    }
}
