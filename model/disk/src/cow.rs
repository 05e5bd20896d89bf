//! A copy-on-write disk: a base, which is an image or a partition of a physical disk, and what the VM wrote
//! over it, in frames, or in slots of a partition that is the VM's alone.
//!
//! A block that was written as a whole is a frame that others of the VM's share group may use, with
//! the disk as one of its users; and a block that equals what a frame of the group holds uses that
//! frame. Before the disk changes a block, it makes the frame its own again.

use crate::{Bytes, Image, Machine, Outcome, Store};
use machine_contract::{FrameSource, TableMemory};
use model_addr::{FRAME_SIZE, Mfn};
use model_disk_overlay::{Block, Fill, Overlay, OverlayError, Teardown, WritePlan};
use model_frame_table::{CacheKey, Owner};

/// Frames and tables of an overlay.
pub(crate) struct Memory<M: Machine> {
    pub(crate) machine: M,
    pub(crate) tables: M::Tables,
    /// The disk as a user of frames.
    pub(crate) user: Owner,
    /// Frames of it that others may use.
    pub(crate) shared: u64,
    /// Where its blocks are, if not in frames.
    pub(crate) store: Option<M::Store>,
}

impl<M: Machine> Memory<M> {
    /// Lets others use what a block holds.
    fn publish(&mut self, frame: Mfn) {
        self.shared += u64::from(self.machine.share(frame, self.user));
    }

    /// Takes the frame of a block back from those who may use it; whether it can be written now.
    fn claim(&mut self, frame: Mfn) -> bool {
        if !self.machine.is_shared(frame) {
            return true;
        }
        let claimed = self.machine.claim(frame, self.user);
        self.shared -= u64::from(claimed);
        claimed
    }
}

impl<M: Machine> TableMemory for Memory<M> {
    fn allocate_table(&mut self) -> Option<Mfn> {
        self.tables.allocate_table()
    }
    fn free_table(&mut self, table: Mfn) {
        self.tables.free_table(table);
    }
    fn read(&self, table: Mfn, index: usize) -> u64 {
        self.tables.read(table, index)
    }
    fn write(&mut self, table: Mfn, index: usize, value: u64) {
        self.tables.write(table, index, value);
    }
}

impl<M: Machine> FrameSource for Memory<M> {
    fn allocate_frame(&mut self) -> Option<Mfn> {
        match &self.store {
            Some(store) => store.reserve().map(Mfn),
            None => self.machine.allocate(self.user),
        }
    }
    fn free_frame(&mut self, frame: Mfn) {
        if let Some(store) = &self.store {
            store.forget(frame.0);
        } else if self.machine.is_shared(frame) {
            self.machine.leave(frame, self.user);
            self.shared -= 1;
        } else {
            self.machine.free(frame);
        }
    }
}

/// Where a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// In the base.
    Base,
    /// In this frame.
    Frame(Mfn),
    /// In this slot of the partition that the overlay is on.
    Stored(u64),
    /// Nowhere: zeroes.
    Zero,
}

/// What is below what a VM wrote.
pub enum Base<M: Machine> {
    /// An image in memory.
    Image(M::Image),
    /// A partition that nobody writes.
    Partition(M::Store),
}

impl<M: Machine> Base<M> {
    /// Bytes; whole blocks of a partition.
    pub fn size(&self) -> u64 {
        match self {
            Self::Image(image) => image.size(),
            Self::Partition(partition) => partition.size(),
        }
    }
}

/// A base and an overlay.
pub struct CowDisk<M: Machine> {
    /// The base.
    pub base: Base<M>,
    /// Whether others may use its blocks, and it theirs.
    pub share: bool,
    pub(crate) overlay: Overlay,
    pub(crate) memory: Memory<M>,
}

impl<M: Machine> CowDisk<M> {
    /// Makes a disk of `size` bytes over `base`, that may keep `limit` bytes of its own in the `store`, or
    /// in frames, as `user` of frames.
    ///
    /// # Errors
    /// [`OverlayError::Beyond`] where it is too large.
    pub fn new(
        (base, store): (Base<M>, Option<M::Store>),
        (size, limit): (u64, u64),
        (machine, tables): (M, M::Tables),
        user: Owner,
        share: bool,
    ) -> Result<Self, OverlayError> {
        let blocks = size.div_ceil(FRAME_SIZE);
        let overlay = Overlay::new(
            blocks,
            base.size().div_ceil(FRAME_SIZE).min(blocks),
            limit.div_ceil(FRAME_SIZE),
        )?;
        Ok(Self {
            base,
            share,
            overlay,
            memory: Memory {
                machine,
                tables,
                user,
                shared: 0,
                store,
            },
        })
    }

    pub(crate) fn machine(&self) -> M {
        self.memory.machine
    }

    /// Bytes of frames it holds.
    pub fn usage(&self) -> u64 {
        let blocks = match &self.memory.store {
            Some(store) => store.tables(),
            None => self.overlay.data_blocks(),
        };
        (blocks + self.tables()) * FRAME_SIZE
    }

    /// Frames of its tables.
    pub fn tables(&self) -> u64 {
        M::count(&self.memory.tables)
    }

    /// Where its blocks are, if not in frames.
    pub fn store(&self) -> Option<&M::Store> {
        self.memory.store.as_ref()
    }

    /// Bytes that it keeps on a partition.
    pub fn stored(&self) -> u64 {
        self.store()
            .map_or(0, |_| self.overlay.data_blocks() * FRAME_SIZE)
    }

    /// Bytes of frames that nobody else can use.
    pub fn private(&self) -> u64 {
        self.usage().saturating_sub(self.memory.shared * FRAME_SIZE)
    }

    /// What the block of byte `at` is known as, where the base is a partition.
    pub fn key(&self, at: u64) -> Option<CacheKey> {
        let Base::Partition(partition) = &self.base else {
            return None;
        };
        let (user, number) = (self.memory.user, partition.number());
        Some(self.machine().key(user, number, at / FRAME_SIZE))
    }

    /// Where the block of byte `at` is.
    pub fn locate(&self, at: u64) -> Piece {
        match self.overlay.lookup(&self.memory, at / FRAME_SIZE) {
            Block::Base => Piece::Base,
            Block::Data(slot) if self.memory.store.is_some() => Piece::Stored(slot.0),
            Block::Data(frame) => Piece::Frame(frame),
            Block::Zero => Piece::Zero,
        }
    }

    /// Writes `len` bytes at `at`, all in one 4 KiB block; `copy` puts them where it is told.
    /// [`Outcome::Missing`] where the base's block must be read first: then `loaded` is to be the frame that it
    /// was read to. Others may use a whole block where it is to be `share`d.
    pub(crate) fn write(
        &mut self,
        (at, len): (u64, u64),
        loaded: Option<Mfn>,
        share: bool,
        copy: impl FnOnce(Bytes) -> Result<(), OverlayError>,
    ) -> Result<Outcome, OverlayError> {
        let (block, whole) = (at / FRAME_SIZE, len == FRAME_SIZE);
        let part = |frame| {
            let part = Bytes::frames(frame, 1).part(at % FRAME_SIZE, len);
            part.ok_or(OverlayError::Beyond)
        };
        let plan = self.overlay.prepare_write(&mut self.memory, block, whole)?;
        let frame = match plan {
            WritePlan::InPlace(old) => {
                self.rewrite((at, whole), old, |frame| copy(part(frame)?))?
            }
            WritePlan::New(new) => {
                let frame = new.frame();
                let filled = match new.fill() {
                    Fill::Nothing => Outcome::Done,
                    Fill::Base => self.fill(at, frame, loaded),
                    Fill::Zeroes => {
                        self.machine().zero(Bytes::frames(frame, 1));
                        Outcome::Done
                    }
                };
                if filled != Outcome::Done {
                    self.overlay.abandon(&mut self.memory, new);
                    return Ok(filled);
                }
                if let Err(error) = part(frame).and_then(copy) {
                    self.overlay.abandon(&mut self.memory, new);
                    return Err(error);
                }
                self.overlay.commit(&mut self.memory, new)?;
                frame
            }
        };
        if whole && self.share && share {
            self.memory.publish(frame);
        }
        Ok(Outcome::Done)
    }

    /// How many blocks from that of byte `at` on, at most `most`, have slots from `slot` on.
    pub(crate) fn run(&self, at: u64, slot: u64, most: u64) -> u64 {
        let block = at / FRAME_SIZE;
        self.overlay.run(&self.memory, block, Mfn(slot), most)
    }

    /// Fills a frame with what the block at `at` holds, whose overlay is on a partition, where that is
    /// at hand, or was `loaded`.
    pub(crate) fn fetch(&self, at: u64, frame: Mfn, loaded: Option<Mfn>) -> Outcome {
        match (self.locate(at), loaded) {
            (Piece::Base, loaded) => return self.fill(at, frame, loaded),
            (Piece::Zero, _) => self.machine().zero(Bytes::frames(frame, 1)),
            (_, Some(page)) => self.copy_frame(frame, page),
            (_, None) => return Outcome::Missing,
        }
        Outcome::Done
    }

    /// How many blocks from that of byte `at` on, at most `most`, one transfer may write: those whose slots
    /// follow each other, or that have none yet.
    pub(crate) fn fitting(&self, at: u64, most: u64) -> u64 {
        if let Piece::Stored(slot) = self.locate(at) {
            return self.run(at, slot, most);
        }
        let is_new = |n: &u64| !matches!(self.locate(at + n * FRAME_SIZE), Piece::Stored(_));
        (0..most).take_while(is_new).count() as u64
    }

    /// Gives the blocks from that of byte `at` on slots that follow each other, of which each is to hold what its
    /// word says, as far as there are words: the first, and how many.
    pub(crate) fn place(&mut self, at: u64, words: &[u64]) -> Result<(u64, u64), OverlayError> {
        let (block, most) = (at / FRAME_SIZE, words.len() as u64);
        let (first, count) = self.overlay.place(&mut self.memory, block, most)?;
        if let Some(store) = &self.memory.store {
            for (slot, word) in (first.0..first.0 + count).zip(words) {
                store.remember(slot, *word);
            }
        }
        Ok((first.0, count))
    }

    /// Fills a frame with the base's block at `at`, where that is at hand, and what it was before.
    fn fill(&self, at: u64, frame: Mfn, loaded: Option<Mfn>) -> Outcome {
        match (&self.base, loaded) {
            (Base::Image(image), _) => match image.block(at / FRAME_SIZE) {
                Some(page) => self.copy_frame(frame, page),
                None => self.machine().zero(Bytes::frames(frame, 1)),
            },
            (Base::Partition(base), Some(page)) if !base.check(at / FRAME_SIZE, page) => {
                return Outcome::Failed;
            }
            (Base::Partition(_), Some(page)) => self.copy_frame(frame, page),
            (Base::Partition(_), None) => {
                let key = self.key(at).filter(|_| self.share);
                let to = Bytes::frames(frame, 1);
                if !key.is_some_and(|key| self.machine().copy_block(key, 0, to)) {
                    return Outcome::Missing;
                }
            }
        }
        Outcome::Done
    }

    fn copy_frame(&self, to: Mfn, from: Mfn) {
        if to != from {
            let machine = self.machine();
            machine.copy(Bytes::frames(to, 1), Bytes::frames(from, 1));
        }
    }

    /// Writes into the frame `old` of the block at `at`, a whole one or a part, or into another frame
    /// where others use that: the block gets it once it holds all, for a write may fail.
    fn rewrite(
        &mut self,
        (at, whole): (u64, bool),
        old: Mfn,
        copy: impl FnOnce(Mfn) -> Result<(), OverlayError>,
    ) -> Result<Mfn, OverlayError> {
        if self.memory.claim(old) {
            return copy(old).map(|()| old);
        }
        let new = self.memory.allocate_frame().ok_or(OverlayError::NoMemory)?;
        if !whole {
            self.copy_frame(new, old);
        }
        if let Err(error) = copy(new) {
            self.memory.free_frame(new);
            return Err(error);
        }
        // The block has an entry: this needs no memory.
        self.overlay.put(&mut self.memory, at / FRAME_SIZE, new)?;
        self.memory.free_frame(old);
        Ok(new)
    }

    /// Makes the block at `at` use a frame of the group that holds what `page` holds, if there is
    /// one; whether it does. `page` is the guest's: what it stores there meanwhile is written, or
    /// not.
    pub(crate) fn write_equal(&mut self, at: u64, page: Mfn, left: &mut u32) -> bool {
        if !self.share {
            return false;
        }
        let Some(frame) = self.machine().join_equal(page, self.memory.user, left) else {
            return false;
        };
        self.memory.shared += 1;
        let put = self.overlay.put(&mut self.memory, at / FRAME_SIZE, frame);
        let is_put = put.is_ok();
        // What the block had before, or what it could not get.
        if let Some(left) = put.unwrap_or(Some(frame)) {
            self.memory.free_frame(left);
        }
        is_put
    }

    /// Makes whole blocks among `len` bytes from `at` read as zeroes, as many as `budget` allows
    /// ([`Overlay::zero`]); how many bytes it came.
    pub(crate) fn zero(
        &mut self,
        at: u64,
        len: u64,
        budget: &mut u32,
    ) -> Result<u64, OverlayError> {
        let (first, end) = (at / FRAME_SIZE, (at + len) / FRAME_SIZE);
        let reached = self.overlay.zero(&mut self.memory, first..end, budget)?;
        Ok((reached - first) * FRAME_SIZE)
    }

    /// Begins to give all frames back.
    pub fn dismantle(self) -> Remains<M> {
        Remains {
            teardown: self.overlay.into_teardown(),
            memory: self.memory,
        }
    }
}

/// A disk on its way back to the pools.
pub struct Remains<M: Machine> {
    teardown: Teardown,
    memory: Memory<M>,
}

impl<M: Machine> Remains<M> {
    /// Gives back some more; `true` when all is back.
    pub fn step(&mut self, budget: u32) -> bool {
        self.teardown.step(&mut self.memory, budget)
    }

    /// Frames of tables that are not back yet.
    pub fn tables(&self) -> u64 {
        M::count(&self.memory.tables)
    }
}
