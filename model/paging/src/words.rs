//! A word for each block of a partition, in tables that come and go with what is not zero.

use machine_contract::TableMemory;
use model_addr::Mfn;

const ENTRIES: u64 = 512;
const BITS: u32 = 9;
const LEVELS: u32 = 3;

/// A word for each block; all are zero at first. Three levels of tables of 512 words: 512 GiB of
/// blocks of 4 KiB. Frames for tables are taken as words are set.
#[derive(Debug)]
pub struct Words {
    root: Option<Mfn>,
    blocks: u64,
    used: u64,
    hand: u64,
}

/// There is no table for a word, or no free block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl Words {
    /// Words for so many blocks; those beyond the reach of the tables have none.
    pub const fn new(blocks: u64) -> Self {
        let most = 1 << (BITS * LEVELS);
        Self {
            root: None,
            blocks: if blocks < most { blocks } else { most },
            used: 0,
            hand: 0,
        }
    }

    /// Blocks whose word is zero.
    pub const fn free(&self) -> u64 {
        self.blocks - self.used
    }

    /// The word of a block; zero for one that has none.
    pub fn get(&self, memory: &impl TableMemory, block: u64) -> u64 {
        let below = |table: Mfn, level| table_in(memory.read(table, index(block, level)));
        let leaf = (0..LEVELS - 1).try_fold(self.root, |table, level| Some(below(table?, level)));
        match leaf.flatten() {
            Some(leaf) if block < self.blocks => memory.read(leaf, index(block, LEVELS - 1)),
            _ => 0,
        }
    }

    /// Sets the word of a block.
    ///
    /// # Errors
    /// [`Full`] where the block has none, or there is no memory for its table.
    pub fn set(
        &mut self,
        memory: &mut impl TableMemory,
        block: u64,
        word: u64,
    ) -> Result<(), Full> {
        if block >= self.blocks {
            return Err(Full);
        }
        let old = self.get(memory, block);
        if old == word {
            return Ok(());
        }
        let mut table = match self.root {
            Some(root) => root,
            None => memory.allocate_table().ok_or(Full)?,
        };
        self.root = Some(table);
        for level in 0..LEVELS - 1 {
            let at = index(block, level);
            table = if let Some(next) = table_in(memory.read(table, at)) {
                next
            } else {
                let new = memory.allocate_table().ok_or(Full)?;
                memory.write(table, at, new.0 + 1);
                new
            };
        }
        memory.write(table, index(block, LEVELS - 1), word);
        self.used = self.used + u64::from(word != 0) - u64::from(old != 0);
        Ok(())
    }

    /// Finds a block whose word is zero, from where the last one was found, looking at `budget`
    /// blocks, and sets its word, which is not zero.
    ///
    /// # Errors
    /// [`Full`] where there is none, or no memory for its table.
    pub fn take(
        &mut self,
        memory: &mut impl TableMemory,
        word: u64,
        budget: u64,
    ) -> Result<u64, Full> {
        for _ in 0..budget.min(self.blocks) {
            let block = self.hand;
            self.hand = (block + 1) % self.blocks;
            if self.get(memory, block) == 0 {
                self.set(memory, block, word)?;
                return Ok(block);
            }
        }
        Err(Full)
    }

    /// Gives all tables back: all words are zero.
    pub fn clear(&mut self, memory: &mut impl TableMemory) {
        if let Some(root) = self.root.take() {
            for n in 0..ENTRIES as usize {
                if let Some(middle) = table_in(memory.read(root, n)) {
                    for n in 0..ENTRIES as usize {
                        if let Some(leaf) = table_in(memory.read(middle, n)) {
                            memory.free_table(leaf);
                        }
                    }
                    memory.free_table(middle);
                }
            }
            memory.free_table(root);
        }
        *self = Self::new(self.blocks);
    }
}

/// Where a block's entry is in its table of a level, the root being level 0.
const fn index(block: u64, level: u32) -> usize {
    (block >> (BITS * (LEVELS - 1 - level)) & (ENTRIES - 1)) as usize
}

/// The table below an entry.
fn table_in(entry: u64) -> Option<Mfn> {
    entry.checked_sub(1).map(Mfn)
}
