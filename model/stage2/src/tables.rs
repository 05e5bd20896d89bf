//! Walking, filling and emptying the tables.

use core::cell::Cell;

use machine_contract::TableMemory;
use model_addr::{FRAME_SIZE, Ipa, Mfn, Pa};

use crate::debt::Invalidation;
use crate::descriptor::{self, ENTRIES, Entry, decode};
use crate::{FlushDebt, IpaSize, Rights, Size};

/// Why nothing, or not all, was mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// The guest-physical run is empty, past the input size, or crosses what one call may.
    OutOfRange,
    /// An address is not a multiple of the size, or the machine address has more than 48 bits.
    Misaligned,
    /// Something else is mapped there: unmap it, or replace it by break-before-make.
    Occupied,
    /// The entry is being replaced. The guest retries.
    Busy,
    /// No table could be had.
    NoMemory,
}

/// A leaf that translates an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// What the address asked for translates to.
    pub pa: Pa,
    /// The size of the leaf.
    pub size: Size,
    /// The guest's rights.
    pub rights: Rights,
}

/// An entry of a table: the deepest one that an address leads to, or the one of a wanted size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(crate) table: Mfn,
    pub(crate) index: usize,
    /// What a leaf here maps.
    pub(crate) size: Size,
}

impl Slot {
    pub(crate) fn read(self, memory: &impl TableMemory) -> Entry {
        decode(memory.read(self.table, self.index), self.size)
    }

    pub(crate) fn write(self, memory: &mut impl TableMemory, value: u64) {
        memory.write(self.table, self.index, value);
    }

    fn child(table: Mfn, ipa: Ipa, size: Size) -> Self {
        let index = (ipa.0 >> size.shift()) as usize % ENTRIES;
        Self { table, index, size }
    }
}

/// The stage-2 tables of a VM (of one of its nodes, once there are several).
#[derive(Debug)]
pub struct Stage2 {
    pub(crate) root: Mfn,
    pub(crate) ipa_size: IpaSize,
    pub(crate) tables: u64,
    /// The block of 2 MiB whose pages were walked to last, and the table of them: neighbours are
    /// found there without a walk. Forgotten when a table is taken out.
    pub(crate) last: Cell<Option<(u64, Mfn)>>,
}

impl Stage2 {
    /// An empty translation.
    ///
    /// `root` is the first of [`IpaSize::root_tables`] frames that follow each other, aligned to
    /// their size together and full of zeroes. It stays the caller's: [`crate::Teardown`] frees
    /// everything but the root.
    pub const fn new(root: Mfn, ipa_size: IpaSize) -> Self {
        Self {
            root,
            ipa_size,
            tables: 0,
            last: Cell::new(None),
        }
    }

    /// The frame to put into `VTTBR_EL2`.
    pub const fn root(&self) -> Mfn {
        self.root
    }

    /// The input address size.
    pub const fn ipa_size(&self) -> IpaSize {
        self.ipa_size
    }

    /// Frames in use for tables, beside the root.
    pub const fn tables(&self) -> u64 {
        self.tables
    }

    /// How `ipa` is translated.
    pub fn translate(&self, memory: &impl TableMemory, ipa: Ipa) -> Option<Mapping> {
        if ipa.0 >= self.ipa_size.bytes() {
            return None;
        }
        let slot = self.deepest(memory, ipa);
        match slot.read(memory) {
            Entry::Leaf(start, rights) => {
                let offset = ipa.0 & (slot.size.bytes() - 1);
                Some(Mapping {
                    pa: Pa(start.0 | offset),
                    size: slot.size,
                    rights,
                })
            }
            _ => None,
        }
    }

    /// Maps one leaf of `size` from `ipa` to `pa`. What is mapped alike already, perhaps by
    /// another vCPU that was faster, is left. Nothing valid changes, so there is no debt.
    ///
    /// The caller must not map something new where the debt of an unmap is still unpaid.
    ///
    /// # Errors
    /// Any [`MapError`]; the translation is as it was, though empty tables may have been added.
    pub fn map(
        &mut self,
        memory: &mut impl TableMemory,
        ipa: Ipa,
        pa: Pa,
        size: Size,
        rights: Rights,
    ) -> Result<(), MapError> {
        self.check(ipa, pa, size)?;
        let slot = self.reach(memory, ipa, size)?;
        if slot.size != size {
            return covered(memory, slot, ipa, pa, rights);
        }
        let value = descriptor::leaf(pa, size, rights);
        fill(memory, slot, value)
    }

    /// Maps the `N` pages from `ipa` on, an aligned chunk of a power of two up to 2 MiB, to the
    /// frames from `pa` on. It is [`Self::map`] for each page, with one walk. Who knows that none of them was ever mapped
    /// says so: their entries are not read then.
    ///
    /// `N` is a constant since this is the hot path: its loops are unrolled.
    ///
    /// # Errors
    /// As [`Self::map`], and [`MapError::Misaligned`] where it is no such chunk; pages before the
    /// one that could not be mapped are mapped.
    #[inline]
    pub fn map_chunk<const N: usize>(
        &mut self,
        memory: &mut impl TableMemory,
        ipa: Ipa,
        (pa, rights): (Pa, Rights),
        is_new: bool,
    ) -> Result<(), MapError> {
        let bytes = N as u64 * FRAME_SIZE;
        let last = pa.0.wrapping_add(bytes - FRAME_SIZE);
        let is_chunk = N.is_power_of_two() && N <= ENTRIES && ipa.is_aligned(bytes);
        // What either has too much, both have together.
        if !is_chunk || !descriptor::holds(Pa(pa.0 | last), Size::Page) {
            return Err(MapError::Misaligned);
        }
        if ipa.0 >= self.ipa_size.bytes() {
            return Err(MapError::OutOfRange);
        }
        let slot = self.reach(memory, ipa, Size::Page)?;
        if slot.size != Size::Page {
            return covered(memory, slot, ipa, pa, rights);
        }
        let value = descriptor::leaf(pa, Size::Page, rights);
        let first = slot.index & !(N - 1);
        let is_empty = || memory.read_together::<N>(slot.table, first) == 0;
        debug_assert!(!is_new || is_empty(), "{ipa:?} was mapped before");
        if is_new || is_empty() {
            memory.write_series::<N>(slot.table, first, value, FRAME_SIZE);
            return Ok(());
        }
        for n in 0..N {
            let (index, value) = (first + n, value + n as u64 * FRAME_SIZE);
            fill(memory, Slot { index, ..slot }, value)?;
        }
        Ok(())
    }

    /// Takes out all leaves with an address in the `pages` pages from `ipa` on, blocks as a whole.
    /// Replacements under way there are overtaken. The work is proportional to `pages`, less
    /// where whole tables are missing: callers bound it. Tables stay until teardown or a merge.
    pub fn unmap(&mut self, memory: &mut impl TableMemory, ipa: Ipa, pages: u64) -> FlushDebt {
        self.edit(memory, ipa, pages, |_, _| None)
    }

    /// Gives all leaves in the `pages` pages from `ipa` on these rights. A block that reaches out
    /// of the run is taken out instead, to be filled again by faults; so is what is being
    /// replaced. The work is bounded as in [`Self::unmap`].
    pub fn protect(
        &mut self,
        memory: &mut impl TableMemory,
        ipa: Ipa,
        pages: u64,
        rights: Rights,
    ) -> FlushDebt {
        self.edit(memory, ipa, pages, |pa, size| {
            Some(descriptor::leaf(pa, size, rights))
        })
    }

    /// Replaces each leaf in the run by what `change` says, `None` and parts of blocks by nothing.
    fn edit(
        &mut self,
        memory: &mut impl TableMemory,
        ipa: Ipa,
        pages: u64,
        change: impl Fn(Pa, Size) -> Option<u64>,
    ) -> FlushDebt {
        let first = ipa.align_down(FRAME_SIZE).0;
        let end = first
            .saturating_add(pages.saturating_mul(FRAME_SIZE))
            .min(self.ipa_size.bytes());
        let mut at = first;
        let mut debt = Invalidation::Nothing;
        while at < end {
            let slot = self.deepest(memory, Ipa(at));
            let start = Ipa(at).align_down(slot.size.bytes());
            let next = start.0 + slot.size.bytes();
            let whole = start.0 >= first && next <= end;
            let old = memory.read(slot.table, slot.index);
            let new = match decode(old, slot.size) {
                Entry::Leaf(pa, _) if whole => change(pa, slot.size).unwrap_or(0),
                Entry::Broken => descriptor::OVERTAKEN,
                Entry::Leaf(..) | Entry::Empty | Entry::Table(_) => 0,
            };
            if new != old {
                slot.write(memory, new);
            }
            debt = debt.and(owed(old, new, slot.size, start));
            at = next;
        }
        FlushDebt::new(debt)
    }

    pub(crate) fn check(&self, ipa: Ipa, pa: Pa, size: Size) -> Result<(), MapError> {
        if !ipa.is_aligned(size.bytes()) || !descriptor::holds(pa, size) {
            return Err(MapError::Misaligned);
        }
        // Aligned and inside at its start, a leaf ends inside: sizes divide the input size.
        if ipa.0 >= self.ipa_size.bytes() {
            Err(MapError::OutOfRange)
        } else {
            Ok(())
        }
    }

    /// The root's entry for `ipa`, which is below the input size.
    fn root_slot(&self, ipa: Ipa) -> Slot {
        let entry = ipa.0 >> Size::Block1G.shift();
        Slot::child(self.root.add(entry / ENTRIES as u64), ipa, Size::Block1G)
    }

    /// The entry that ends the walk of `ipa`, which is below the input size.
    pub(crate) fn deepest(&self, memory: &impl TableMemory, ipa: Ipa) -> Slot {
        if let Some(slot) = self.remembered(ipa) {
            return slot;
        }
        let mut slot = self.root_slot(ipa);
        while let Some(smaller) = slot.size.smaller() {
            let Entry::Table(table) = slot.read(memory) else {
                break;
            };
            slot = Slot::child(table, ipa, smaller);
        }
        self.remember(ipa, slot);
        slot
    }

    /// The page's entry of `ipa` where the last walk was to a neighbour.
    #[inline]
    fn remembered(&self, ipa: Ipa) -> Option<Slot> {
        let (block, table) = self.last.get()?;
        (block == ipa.0 >> Size::Block2M.shift()).then(|| Slot::child(table, ipa, Size::Page))
    }

    #[inline]
    fn remember(&self, ipa: Ipa, slot: Slot) {
        if slot.size == Size::Page {
            self.last
                .set(Some((ipa.0 >> Size::Block2M.shift(), slot.table)));
        }
    }

    /// The entry for a leaf of `size` at `ipa`, with tables added on the way; or the entry of a
    /// larger leaf that is in the way.
    #[inline]
    pub(crate) fn reach(
        &mut self,
        memory: &mut impl TableMemory,
        ipa: Ipa,
        size: Size,
    ) -> Result<Slot, MapError> {
        if size == Size::Page
            && let Some(slot) = self.remembered(ipa)
        {
            return Ok(slot);
        }
        self.descend(memory, ipa, size)
    }

    /// As [`Self::reach`], from the root.
    #[inline(never)]
    fn descend(
        &mut self,
        memory: &mut impl TableMemory,
        ipa: Ipa,
        size: Size,
    ) -> Result<Slot, MapError> {
        let mut slot = self.root_slot(ipa);
        for smaller in [Size::Block2M, Size::Page] {
            if slot.size == size {
                break;
            }
            let table = match slot.read(memory) {
                Entry::Table(table) => table,
                Entry::Leaf(..) => return Ok(slot),
                Entry::Broken => return Err(MapError::Busy),
                Entry::Empty => {
                    let table = memory.allocate_table().ok_or(MapError::NoMemory)?;
                    self.tables += 1;
                    slot.write(memory, descriptor::table(table));
                    table
                }
            };
            slot = Slot::child(table, ipa, smaller);
        }
        self.remember(ipa, slot);
        Ok(slot)
    }
}

/// Whether the larger leaf in `slot` maps `ipa` to `pa` already.
fn covered(
    memory: &impl TableMemory,
    slot: Slot,
    ipa: Ipa,
    pa: Pa,
    rights: Rights,
) -> Result<(), MapError> {
    let offset = ipa.0 & (slot.size.bytes() - 1);
    let alike = Entry::Leaf(Pa(pa.0.wrapping_sub(offset)), rights);
    if slot.read(memory) == alike {
        Ok(())
    } else {
        Err(MapError::Occupied)
    }
}

/// Writes `value` into an entry that is empty, or holds it already.
fn fill(memory: &mut impl TableMemory, slot: Slot, value: u64) -> Result<(), MapError> {
    match memory.read(slot.table, slot.index) {
        0 => slot.write(memory, value),
        old if old == value => {}
        old if decode(old, slot.size) == Entry::Broken => return Err(MapError::Busy),
        _ => return Err(MapError::Occupied),
    }
    Ok(())
}

/// What an edit from `old` to `new` owes. Who broke an entry under replacement owes for it, but may
/// not have paid yet, and what it held is no longer known.
fn owed(old: u64, new: u64, size: Size, start: Ipa) -> Invalidation {
    match decode(old, size) {
        Entry::Leaf(..) if new != old => Invalidation::leaf(start, size),
        Entry::Broken => Invalidation::All,
        Entry::Leaf(..) | Entry::Empty | Entry::Table(_) => Invalidation::Nothing,
    }
}
