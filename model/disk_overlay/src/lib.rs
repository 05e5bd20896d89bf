//! Copy-on-write disks: a base that is never written, and one overlay per VM.
//!
//! A disk is a row of 4 KiB blocks, the size of a frame. An [`Overlay`] says of each where its
//! contents are:
//!
//! ```text
//!            commit                 zero
//!   Base ─────────────> Data ─────────────────┐
//!    │                    ^                   v
//!    │                    └────────────────  Zero
//!    └───────── zero ───────────────────────> ^
//! ```
//!
//! The overlay decides and keeps the books; bytes are moved by its owner, who holds the disk's
//! lock from [`Overlay::prepare_write`] to [`Overlay::commit`]. It is a radix tree of 512-word
//! tables in which an entry above the leaves stands for its whole run: an untouched or discarded
//! run of 2 MiB, 1 GiB.. costs one entry.
#![no_std]
#![forbid(unsafe_code)]

mod state;
mod stored;
mod teardown;

pub use stored::Turn;
pub use teardown::Teardown;

use core::ops::Range;
use machine_contract::{FrameSource, TableMemory};
use model_addr::{FRAME_SHIFT, Mfn};

/// log2 of the entries of a table.
const TABLE_SHIFT: u32 = 9;
/// Entries of a table.
const ENTRIES: usize = 1 << TABLE_SHIFT;
/// What giving a frame back costs of the budget of [`Overlay::zero`], and what a new table does.
pub const FRAME_COST: u32 = 16;
/// Blocks of the largest disk: what bytes can be counted of in 64 bits.
const MAX_BLOCKS: u64 = 1 << (u64::BITS - FRAME_SHIFT);
/// Table levels of the largest disk.
const MAX_LEVELS: usize = MAX_BLOCKS.ilog2().div_ceil(TABLE_SHIFT) as usize;

/// Memory for an overlay: frames for its blocks, and tables to find them by.
pub trait OverlayMemory: TableMemory + FrameSource {}
impl<M: TableMemory + FrameSource> OverlayMemory for M {}

/// Where the contents of a block are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// In the base, at the same block number.
    Base,
    /// In this frame of the overlay.
    Data(Mfn),
    /// Nowhere: it reads as zeroes.
    Zero,
}

/// How to write to a block.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum WritePlan {
    /// Write into this frame, the overlay's own.
    InPlace(Mfn),
    /// Fill and write the new block's frame, then [`Overlay::commit`] it.
    New(NewBlock),
}

/// A frame that is to become a block of the overlay. Must be given to [`Overlay::commit`] or to
/// [`Overlay::abandon`]; until then the block has its old contents.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct NewBlock {
    block: u64,
    frame: Mfn,
    fill: Fill,
}

/// What belongs into a new block's frame before the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Nothing: the write covers it all.
    Nothing,
    /// Zeroes.
    Zeroes,
    /// The base's block of the same number; zeroes behind the base's last byte.
    Base,
}

impl NewBlock {
    /// The frame to fill.
    pub fn frame(&self) -> Mfn {
        self.frame
    }

    /// What to fill it with.
    pub fn fill(&self) -> Fill {
        self.fill
    }
}

/// Why a block could not be written. The disk is as it was. To a guest both full and out of
/// memory are I/O errors: virtio-blk has no status for "no space".
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OverlayError {
    /// The overlay holds as many blocks as it may.
    #[error("the disk's overlay is full")]
    Full,
    /// The machine has no frame left.
    #[error("no machine frame left for the disk's overlay")]
    NoMemory,
    /// The block is beyond the end of the disk, or the disk beyond the largest there can be.
    #[error("block beyond the end of the disk")]
    Beyond,
    /// The block was written by somebody else since the write was prepared.
    #[error("block written twice at the same time")]
    Conflict,
}

/// A word of the tree. Two bits of kind, and a frame number from bit 12 on; all zeroes, as in a
/// fresh table, is [`Entry::BASE`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Entry(u64);

impl Entry {
    const BASE: Self = Self(0);
    const ZERO: Self = Self(2);
    const KIND: u64 = 3;

    fn data(frame: Mfn) -> Self {
        Self(frame.0 << FRAME_SHIFT | 1)
    }

    fn table(frame: Mfn) -> Self {
        Self(frame.0 << FRAME_SHIFT | 3)
    }

    fn as_data(self) -> Option<Mfn> {
        (self.0 & Self::KIND == 1).then_some(Mfn(self.0 >> FRAME_SHIFT))
    }

    fn as_table(self) -> Option<Mfn> {
        (self.0 & Self::KIND == 3).then_some(Mfn(self.0 >> FRAME_SHIFT))
    }
}

/// Where an entry is kept: the root in the overlay itself, all others in tables.
#[derive(Clone, Copy)]
enum Slot {
    Root,
    Table(Mfn, usize),
}

/// Blocks under an entry at `level`; leaves are at level 0.
const fn span(level: u32) -> u64 {
    1 << (TABLE_SHIFT * level)
}

/// The index of `block` in a table whose entries are at `level`.
const fn index(block: u64, level: u32) -> usize {
    (block >> (TABLE_SHIFT * level)) as usize % ENTRIES
}

/// The private part of one VM's disk.
///
/// Every call takes the memory that the overlay was built in.
#[derive(Debug)]
pub struct Overlay {
    root: Entry,
    /// Levels of tables; the root entry is at this level.
    levels: u32,
    blocks: u64,
    base_blocks: u64,
    limit: u64,
    data_blocks: u64,
}

impl Overlay {
    /// An untouched disk of `blocks` blocks, the first `base_blocks` of which are the base's and
    /// the rest zero, that may hold `limit` blocks of its own. Takes no memory.
    pub fn new(blocks: u64, base_blocks: u64, limit: u64) -> Result<Self, OverlayError> {
        if blocks > MAX_BLOCKS {
            return Err(OverlayError::Beyond);
        }
        let bits = u64::BITS - blocks.saturating_sub(1).leading_zeros();
        let levels = bits.div_ceil(TABLE_SHIFT);
        Ok(Self {
            root: Entry::BASE,
            levels,
            blocks,
            base_blocks,
            limit,
            data_blocks: 0,
        })
    }

    /// Blocks of the disk.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Frames of data that the overlay holds or has promised to a [`NewBlock`].
    pub fn data_blocks(&self) -> u64 {
        self.data_blocks
    }

    /// Where the contents of `block` are. Behind the end there are zeroes.
    pub fn lookup(&self, memory: &impl TableMemory, block: u64) -> Block {
        if block >= self.blocks {
            return Block::Zero;
        }
        let mut entry = self.root;
        let mut level = self.levels;
        while let Some(table) = entry.as_table() {
            level -= 1;
            entry = Entry(memory.read(table, index(block, level)));
        }
        match entry.as_data() {
            Some(frame) => Block::Data(frame),
            None if self.reads_zero(entry, block) => Block::Zero,
            None => Block::Base,
        }
    }

    /// How to write to `block`: to all of it (`whole`) or to a part.
    pub fn prepare_write(
        &mut self,
        memory: &mut impl OverlayMemory,
        block: u64,
        whole: bool,
    ) -> Result<WritePlan, OverlayError> {
        if block >= self.blocks {
            return Err(OverlayError::Beyond);
        }
        let fill = match self.lookup(memory, block) {
            Block::Data(frame) => return Ok(WritePlan::InPlace(frame)),
            _ if whole => Fill::Nothing,
            Block::Base => Fill::Base,
            Block::Zero => Fill::Zeroes,
        };
        if self.data_blocks >= self.limit {
            return Err(OverlayError::Full);
        }
        let frame = memory.allocate_frame().ok_or(OverlayError::NoMemory)?;
        self.data_blocks += 1;
        Ok(WritePlan::New(NewBlock { block, frame, fill }))
    }

    /// Makes the frame of `new`, filled and written, the contents of its block. On error the frame
    /// is given back and the block is as it was.
    pub fn commit(
        &mut self,
        memory: &mut impl OverlayMemory,
        new: NewBlock,
    ) -> Result<(), OverlayError> {
        let slot = self.leaf(memory, new.block);
        match slot {
            Ok(slot) if self.read(memory, slot).as_data().is_none() => {
                self.write(memory, slot, Entry::data(new.frame));
                Ok(())
            }
            other => {
                self.abandon(memory, new);
                Err(other.err().unwrap_or(OverlayError::Conflict))
            }
        }
    }

    /// Makes `frame`, which is the caller's to give, the contents of `block`; the frame that it had
    /// is the caller's from now on.
    ///
    /// # Errors
    /// [`OverlayError`]; `frame` stays the caller's.
    pub fn put(
        &mut self,
        memory: &mut impl OverlayMemory,
        block: u64,
        frame: Mfn,
    ) -> Result<Option<Mfn>, OverlayError> {
        if block >= self.blocks {
            return Err(OverlayError::Beyond);
        }
        let before = match self.lookup(memory, block) {
            Block::Data(frame) => Some(frame),
            Block::Base | Block::Zero => None,
        };
        if before.is_none() && self.data_blocks >= self.limit {
            return Err(OverlayError::Full);
        }
        let slot = self.leaf(memory, block)?;
        self.write(memory, slot, Entry::data(frame));
        self.data_blocks += u64::from(before.is_none());
        Ok(before)
    }

    /// Gives the frame of `new` back: its fill or its write failed.
    #[allow(
        clippy::needless_pass_by_value,
        reason = "a promise is taken back only once"
    )]
    pub fn abandon(&mut self, memory: &mut impl FrameSource, new: NewBlock) {
        memory.free_frame(new.frame);
        self.data_blocks -= 1;
    }

    /// Makes `blocks` read as zeroes (write-zeroes, and discard whose failure may be ignored) and
    /// gives their frames back, as far as `budget` goes: an entry that is looked at costs 1, a frame
    /// that is given back [`FRAME_COST`]. Says how far it came: call again from there until that is the end.
    pub fn zero(
        &mut self,
        memory: &mut impl OverlayMemory,
        blocks: Range<u64>,
        budget: &mut u32,
    ) -> Result<u64, OverlayError> {
        let end = blocks.end.min(self.blocks);
        let mut at = blocks.start;
        while at < end && *budget > 0 {
            at = self.zero_run(memory, at..end, budget)?;
        }
        Ok(if at < end { at } else { blocks.end })
    }

    /// Gives up the disk. Frames promised to a [`NewBlock`] must have been committed or abandoned.
    pub fn into_teardown(self) -> Teardown {
        Teardown::new(self.root, self.levels)
    }

    /// Zeroes the largest run at the start of `blocks` that one entry stands for, or leaves of one table; the
    /// block after those.
    fn zero_run(
        &mut self,
        memory: &mut impl OverlayMemory,
        blocks: Range<u64>,
        budget: &mut u32,
    ) -> Result<u64, OverlayError> {
        let (at, end) = (blocks.start, blocks.end);
        let mut slot = Slot::Root;
        let mut level = self.levels;
        loop {
            let entry = self.read(memory, slot);
            let first = at & !(span(level) - 1);
            let next = first + span(level);
            let whole = at == first && next.min(self.blocks) <= end;
            let table = match entry.as_table() {
                Some(table) if level == 1 => {
                    return Ok(self.zero_leaves(memory, (slot, table), at..next.min(end), budget));
                }
                Some(table) => table,
                None if self.reads_zero(entry, first) => {
                    *budget = budget.saturating_sub(1);
                    return Ok(next);
                }
                None if whole => {
                    self.write(memory, slot, self.zeroed(at));
                    self.free_data(memory, entry);
                    *budget = budget.saturating_sub(1);
                    return Ok(next);
                }
                None => {
                    *budget = budget.saturating_sub(FRAME_COST);
                    self.split(memory, slot, entry)?
                }
            };
            level -= 1;
            slot = Slot::Table(table, index(at, level));
        }
    }

    /// Zeroes leaves of one table as far as `budget` goes, and gives the table back where nothing else is left
    /// in it; the block after the last.
    fn zero_leaves(
        &mut self,
        memory: &mut impl OverlayMemory,
        (slot, table): (Slot, Mfn),
        blocks: Range<u64>,
        budget: &mut u32,
    ) -> u64 {
        let mut at = blocks.start;
        // One at least, so that every call gets on.
        while at == blocks.start || at < blocks.end && *budget > 0 {
            let leaf = Slot::Table(table, index(at, 0));
            let entry = self.read(memory, leaf);
            self.write(memory, leaf, self.zeroed(at));
            self.free_data(memory, entry);
            let is_data = entry.as_data().is_some();
            *budget = budget.saturating_sub(if is_data { FRAME_COST } else { 1 });
            at += 1;
        }
        let first = blocks.start & !(span(1) - 1);
        let is_zero = |n: u64| {
            let entry = self.read(memory, Slot::Table(table, n as usize));
            self.reads_zero(entry, first + n)
        };
        if at == (first + span(1)).min(self.blocks) {
            let zeroes = (0..span(1)).take_while(|n| is_zero(*n)).count();
            *budget = budget.saturating_sub(zeroes as u32);
            if zeroes == ENTRIES {
                self.write(memory, slot, self.zeroed(first));
                memory.free_table(table);
            }
        }
        at
    }

    fn free_data(&mut self, memory: &mut impl FrameSource, entry: Entry) {
        if let Some(frame) = entry.as_data() {
            memory.free_frame(frame);
            self.data_blocks -= 1;
        }
    }

    /// The slot of `block`'s leaf entry; tables are added on the way.
    fn leaf(&mut self, memory: &mut impl OverlayMemory, block: u64) -> Result<Slot, OverlayError> {
        let mut slot = Slot::Root;
        for level in (0..self.levels).rev() {
            let entry = self.read(memory, slot);
            let table = match entry.as_table() {
                Some(table) => table,
                None => self.split(memory, slot, entry)?,
            };
            slot = Slot::Table(table, index(block, level));
        }
        Ok(slot)
    }

    /// Replaces an entry that stands for a run by a table that says the same of each part.
    fn split(
        &mut self,
        memory: &mut impl OverlayMemory,
        slot: Slot,
        entry: Entry,
    ) -> Result<Mfn, OverlayError> {
        let table = memory.allocate_table().ok_or(OverlayError::NoMemory)?;
        if entry != Entry::BASE {
            for n in 0..ENTRIES {
                memory.write(table, n, entry.0);
            }
        }
        self.write(memory, slot, Entry::table(table));
        Ok(table)
    }

    /// Whether `entry`, no data nor table, of a run that starts at `first` stands for zeroes.
    fn reads_zero(&self, entry: Entry, first: u64) -> bool {
        entry == Entry::ZERO || entry == Entry::BASE && first >= self.base_blocks
    }

    /// The entry that makes a run from `first` zero: behind the base an untouched one does.
    fn zeroed(&self, first: u64) -> Entry {
        if first >= self.base_blocks {
            Entry::BASE
        } else {
            Entry::ZERO
        }
    }

    fn read(&self, memory: &impl TableMemory, slot: Slot) -> Entry {
        match slot {
            Slot::Root => self.root,
            Slot::Table(table, n) => Entry(memory.read(table, n)),
        }
    }

    fn write(&mut self, memory: &mut impl TableMemory, slot: Slot, entry: Entry) {
        match slot {
            Slot::Root => self.root = entry,
            Slot::Table(table, n) => memory.write(table, n, entry.0),
        }
    }
}
