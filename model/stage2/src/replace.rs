//! Break-before-make: a leaf or table of leaves is replaced in steps that only fit in order.

use machine_contract::TableMemory;
use model_addr::{Ipa, Mfn, Pa};

use crate::debt::Invalidation;
use crate::descriptor::{self, BROKEN, ENTRIES, Entry, decode};
use crate::tables::Slot;
use crate::{MapError, Rights, Size, Stage2};

/// The entry in motion.
#[derive(Debug)]
struct Replacement {
    slot: Slot,
    /// What it becomes.
    value: u64,
    /// The table in `value`, to be freed if it is never made.
    fresh: Option<Mfn>,
}

/// The first step is done: the entry is invalid, and TLBs may hold what it was.
#[must_use = "the guest faults until the replacement is made"]
#[derive(Debug)]
pub struct Broken {
    replacement: Replacement,
    debt: Invalidation,
    torn: Option<Mfn>,
}

/// The second step is done: nothing remembers what the entry was.
#[must_use = "the guest faults until the replacement is made"]
#[derive(Debug)]
pub struct Ready(Replacement);

/// An unmap or a protect came in between. Nothing was made; faults fill the entry anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overtaken;

impl Broken {
    /// Pays the debt of the break with `invalidate`, then frees the table that was taken out.
    pub fn pay<M: TableMemory>(
        self,
        memory: &mut M,
        invalidate: impl FnOnce(&mut M, Invalidation),
    ) -> Ready {
        if self.debt != Invalidation::Nothing {
            invalidate(memory, self.debt);
        }
        if let Some(table) = self.torn {
            memory.free_table(table);
        }
        Ready(self.replacement)
    }
}

impl Stage2 {
    /// Begins to replace whatever is mapped in the block of `size` at `ipa` (pages, smaller
    /// blocks, a block elsewhere) by one block at `pa`.
    ///
    /// # Errors
    /// [`MapError::Occupied`] where a 1 GiB entry has pages below it: merge those first.
    /// [`MapError::Busy`] where a replacement is under way in it. [`MapError::OutOfRange`] for a
    /// page: unmap it, pay and map. And as [`Stage2::map`].
    pub fn begin_merge(
        &mut self,
        memory: &mut impl TableMemory,
        ipa: Ipa,
        pa: Pa,
        size: Size,
        rights: Rights,
    ) -> Result<Broken, MapError> {
        if size == Size::Page {
            return Err(MapError::OutOfRange);
        }
        self.check(ipa, pa, size)?;
        let slot = self.reach(memory, ipa, size)?;
        if slot.size != size {
            return Err(MapError::Occupied);
        }
        let (debt, torn) = match slot.read(memory) {
            Entry::Empty => (Invalidation::Nothing, None),
            Entry::Broken => return Err(MapError::Busy),
            Entry::Leaf(..) => (Invalidation::leaf(ipa, size), None),
            Entry::Table(table) => {
                only_leaves(memory, table, size)?;
                self.tables -= 1;
                self.last.set(None);
                (Invalidation::All, Some(table))
            }
        };
        let value = descriptor::leaf(pa, size, rights);
        slot.write(memory, BROKEN);
        let replacement = Replacement {
            slot,
            value,
            fresh: None,
        };
        Ok(Broken {
            replacement,
            debt,
            torn,
        })
    }

    /// Begins to replace the block that translates `ipa` by a table of the next smaller leaves
    /// that translate alike.
    ///
    /// # Errors
    /// [`MapError::Occupied`] where no block translates `ipa`, [`MapError::NoMemory`].
    pub fn begin_split(
        &mut self,
        memory: &mut impl TableMemory,
        ipa: Ipa,
    ) -> Result<Broken, MapError> {
        if ipa.0 >= self.ipa_size.bytes() {
            return Err(MapError::OutOfRange);
        }
        let slot = self.deepest(memory, ipa);
        let (Entry::Leaf(pa, rights), Some(smaller)) = (slot.read(memory), slot.size.smaller())
        else {
            return Err(MapError::Occupied);
        };
        let table = memory.allocate_table().ok_or(MapError::NoMemory)?;
        self.tables += 1;
        let mut value = descriptor::leaf(pa, smaller, rights);
        for index in 0..ENTRIES {
            memory.write(table, index, value);
            value += smaller.bytes();
        }
        slot.write(memory, BROKEN);
        let replacement = Replacement {
            slot,
            value: descriptor::table(table),
            fresh: Some(table),
        };
        let debt = Invalidation::leaf(ipa.align_down(slot.size.bytes()), slot.size);
        Ok(Broken {
            replacement,
            debt,
            torn: None,
        })
    }

    /// The last step: makes what was begun.
    ///
    /// # Errors
    /// [`Overtaken`]; there is nothing left to do.
    #[expect(clippy::needless_pass_by_value, reason = "it is made once")]
    pub fn make(&mut self, memory: &mut impl TableMemory, ready: Ready) -> Result<(), Overtaken> {
        let Replacement { slot, value, fresh } = ready.0;
        // A broken entry is nobody else's, and its table cannot be merged away.
        if memory.read(slot.table, slot.index) == BROKEN {
            slot.write(memory, value);
            return Ok(());
        }
        slot.write(memory, 0);
        if let Some(table) = fresh {
            self.tables -= 1;
            memory.free_table(table);
        }
        Err(Overtaken)
    }
}

/// Whether `table`, below an entry of `size`, could be freed on its own.
fn only_leaves(memory: &impl TableMemory, table: Mfn, size: Size) -> Result<(), MapError> {
    // Pages have nothing below them, and are never themselves replaced.
    let Some(smaller) = size.smaller().filter(|smaller| *smaller != Size::Page) else {
        return Ok(());
    };
    for index in 0..ENTRIES {
        match decode(memory.read(table, index), smaller) {
            Entry::Table(_) => return Err(MapError::Occupied),
            Entry::Broken => return Err(MapError::Busy),
            Entry::Empty | Entry::Leaf(..) => {}
        }
    }
    Ok(())
}
