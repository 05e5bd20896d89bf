//! Giving back all tables of a translation that nobody uses, in bounded steps.

use machine_contract::TableMemory;
use model_addr::Mfn;

use crate::debt::Invalidation;
use crate::descriptor::{ENTRIES, Entry, Size, decode};
use crate::{IpaSize, Stage2};

/// A translation that no CPU will load again, and that TLBs may still hold.
#[must_use = "the tables are not free until the debt is paid"]
#[derive(Debug)]
pub struct Retired(Teardown);

/// A translation that nothing remembers. [`Self::step`] until it is done.
#[must_use = "tables leak until all steps are done"]
#[derive(Debug)]
pub struct Teardown {
    root: Mfn,
    ipa_size: IpaSize,
    /// The next entry of the root, of all its tables together.
    outer: u64,
    /// The next entry of the level-2 table below that.
    inner: usize,
}

impl Stage2 {
    /// Begins the end. No CPU has the translation loaded, and no replacement is between its
    /// steps.
    pub fn retire(self) -> Retired {
        Retired(Teardown {
            root: self.root,
            ipa_size: self.ipa_size,
            outer: 0,
            inner: 0,
        })
    }
}

impl Retired {
    /// Pays for the whole translation.
    pub fn pay(self, invalidate: impl FnOnce(Invalidation)) -> Teardown {
        invalidate(Invalidation::All);
        self.0
    }
}

impl Teardown {
    /// Frees tables, looking at no more than `budget` entries; `true` when only the root is left.
    pub fn step(&mut self, memory: &mut impl TableMemory, budget: usize) -> bool {
        let entries = ENTRIES as u64;
        let end = self.ipa_size.root_tables() * entries;
        for _ in 0..budget {
            if self.outer == end {
                return true;
            }
            let index = (self.outer % entries) as usize;
            let entry = memory.read(self.root.add(self.outer / entries), index);
            let Entry::Table(middle) = decode(entry, Size::Block1G) else {
                self.outer += 1;
                continue;
            };
            if let Entry::Table(leaves) = decode(memory.read(middle, self.inner), Size::Block2M) {
                memory.free_table(leaves);
            }
            self.inner += 1;
            if self.inner == ENTRIES {
                memory.free_table(middle);
                self.outer += 1;
                self.inner = 0;
            }
        }
        self.outer == end
    }

    /// The root, for its owner to free: it still points at tables that are gone.
    pub fn root(self) -> Mfn {
        self.root
    }
}
