//! Pages that a read fills: a whole page that holds a whole block is not copied where the block is in a
//! frame that the guest may use.

use crate::{Budget, Bytes, Guest, Machine};
use model_addr::{FRAME_SIZE, Gfn, Ipa, Mfn};
use model_address_space::Gets;
use model_frame_table::{CacheKey, Owner};
use model_pmap::Why;

/// Pages that are exchanged at once, which nothing cuts short. Where the guest's blocks stay whole, many of them are
/// copied all the same.
const EXCHANGED_AT_ONCE: usize = 16;
const EXCHANGED_IN_BLOCKS: usize = 8;
/// The same late in a pass: each may be in another block, which is split first.
const EXCHANGED_LATE: usize = 4;

/// Where a block is: in a frame that stays what it is while the disk is locked, or nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// In a page of an image.
    Image(Mfn),
    /// In a frame of the disk's own.
    Own(Mfn),
    /// In a buffer of EL2's.
    Buffer(Bytes),
    /// In this frame of a buffer of EL2's: this block of a partition.
    Loaded(Mfn, CacheKey),
    /// In a frame of the group, if one holds this block of a partition.
    Cached(CacheKey),
    /// Nowhere: zeroes.
    Zero,
}

/// What became of a part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done.
    Done,
    /// The pass is over: it is to be done in the next one.
    Spent,
    /// The block must be read from its disk first.
    Missing,
    /// It cannot be done.
    Failed,
}

impl Outcome {
    /// The worse of two.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        if self as u8 > other as u8 {
            self
        } else {
            other
        }
    }

    /// Done, or failed.
    pub const fn of(done: bool) -> Self {
        if done { Self::Done } else { Self::Failed }
    }
}

/// Pages that a request has read, and what they get in exchange.
pub struct Pages<'a, M: Machine, G: Guest> {
    machine: M,
    guest: &'a G,
    share: bool,
    /// Pages that are listed at most.
    most: usize,
    list: heapless::Vec<(Gfn, Gets), EXCHANGED_AT_ONCE>,
    blocks: heapless::Vec<Block, EXCHANGED_AT_ONCE>,
    /// Bit n: a page of the list has a number that is n modulo 64.
    seen: u64,
    /// The first block of a partition that is in no frame any more, and whose page has not got it.
    lost: Option<u64>,
}

impl<'a, M: Machine, G: Guest> Pages<'a, M, G> {
    /// None yet. Nothing is shared of a disk that is not to be.
    pub fn new(machine: M, guest: &'a G, share: bool) -> Self {
        Self {
            machine,
            guest,
            share: share && guest.shares(),
            most: if guest.keeps_blocks() {
                EXCHANGED_IN_BLOCKS
            } else {
                EXCHANGED_AT_ONCE
            },
            list: heapless::Vec::new(),
            blocks: heapless::Vec::new(),
            seen: 0,
            lost: None,
        }
    }

    /// Reads `len` bytes of a block, from `offset` on, to `ipa`, and charges the pass for it.
    pub fn read(
        &mut self,
        block: Block,
        offset: u64,
        (ipa, len): (Ipa, usize),
        budget: &mut Budget,
    ) -> Outcome {
        if budget.is_late() {
            self.most = EXCHANGED_LATE;
        }
        // A page that is in the list already gets what was read first, first.
        let last = Ipa(ipa.0 + (len as u64).saturating_sub(1)).frame();
        if self.lists(ipa.frame()) || self.lists(last) {
            let finished = self.finish();
            if finished != Outcome::Done {
                return finished;
            }
        }
        let is_page = len as u64 == FRAME_SIZE && ipa.is_aligned(FRAME_SIZE);
        let is_own = self.guest.contains(ipa);
        let share = self.share && !self.guest.is_never_shared(ipa.frame());
        if !is_own || !share || !is_page {
            budget.copied(len);
            let copied = self.copy(block, offset, ipa, len);
            if copied != Outcome::Done || !is_own {
                // A region that it shares with others, or nothing.
                return copied;
            }
            let why = if share { Why::Unaligned } else { Why::Never };
            return self.note(ipa, len, why);
        }
        let gfn = ipa.frame();
        let gets = match self.find(block, gfn, budget) {
            Ok(gets) => {
                budget.mapped();
                gets
            }
            Err(gets) => {
                budget.copied(len);
                let copied = self.copy(block, offset, ipa, len);
                if copied != Outcome::Done {
                    return copied;
                }
                if let Gets::Alone(why) = gets {
                    self.guest.refused(why);
                }
                gets
            }
        };
        self.add(gfn, gets, block)
    }

    /// What the page gets without a copy, or what it gets after one.
    ///
    /// What others are to find as a block of a partition is never in a page that the guest has: it could
    /// store there between the copy and the moment when it no longer can.
    fn find(&self, block: Block, gfn: Gfn, budget: &mut Budget) -> Result<Gets, Gets> {
        let user = Owner::of(self.guest.id(), gfn);
        let joined = |joined: Result<Mfn, Why>| joined.map(Gets::Frame).map_err(Gets::Alone);
        match block {
            Block::Zero => Ok(Gets::Zeroes),
            Block::Image(frame) => joined(self.machine.join_image(frame, user).map(|()| frame)),
            // The disk itself uses it, and is locked: it stays what it is.
            Block::Own(frame) => {
                let is_joined = self.machine.join_own(frame, user);
                joined(is_joined.then_some(frame).ok_or(Why::Full))
            }
            // Where it is missing, the copy finds that.
            Block::Cached(key) => {
                let found = self.machine.join_block(key, user);
                joined(found.unwrap_or(Err(Why::LostRace)))
            }
            Block::Loaded(page, key) => {
                joined(self.machine.join_block(key, user).unwrap_or_else(|| {
                    let entered = self.machine.enter_block(page, key, user);
                    entered.ok_or(Why::Full)
                }))
            }
            Block::Buffer(bytes) => match bytes.whole_frame() {
                None => Err(Gets::Alone(Why::Unaligned)),
                Some(page) => {
                    match budget.compare(|left| self.machine.join_equal(page, user, left)) {
                        Some(frame) => {
                            self.guest.found_equal();
                            Ok(Gets::Frame(frame))
                        }
                        None => Err(Gets::Own),
                    }
                }
            },
        }
    }

    /// Whether a page is in the list.
    fn lists(&self, gfn: Gfn) -> bool {
        self.seen & 1 << (gfn.0 % 64) != 0 && self.list.iter().any(|(listed, _)| *listed == gfn)
    }

    fn add(&mut self, gfn: Gfn, gets: Gets, block: Block) -> Outcome {
        self.seen |= 1 << (gfn.0 % 64);
        let added = self.list.push((gfn, gets)).is_ok() && self.blocks.push(block).is_ok();
        if self.list.len() >= self.most {
            return self.finish();
        }
        Outcome::of(added)
    }

    /// Notes why the page of a piece is the guest's alone, where the piece is most of it.
    fn note(&mut self, ipa: Ipa, len: usize, why: Why) -> Outcome {
        self.guest.refused(why);
        if self.guest.shares() && len as u64 >= FRAME_SIZE / 2 {
            self.add(ipa.frame(), Gets::Alone(why), Block::Zero)
        } else {
            Outcome::Done
        }
    }

    /// The first block that a page was to get and that is in no frame any more, after
    /// [`Outcome::Missing`] of [`Self::finish`]: the request goes on from there.
    pub fn lost(&self) -> Option<u64> {
        self.lost
    }

    /// Gives all pages what they get; whether all have what they are to hold.
    pub fn finish(&mut self) -> Outcome {
        if self.list.is_empty() {
            return Outcome::Done;
        }
        let done = self.guest.exchange(&self.list);
        let mut all = Outcome::Done;
        for (n, ((gfn, gets), block)) in self.list.iter().zip(&self.blocks).enumerate() {
            let is_copied = matches!(gets, Gets::Own | Gets::Alone(_));
            if done & 1 << n == 0 && !is_copied {
                let copied = self.copy(*block, 0, gfn.address(), FRAME_SIZE as usize);
                if let (Outcome::Missing, Block::Cached(key)) = (copied, block) {
                    self.lost = Some(self.lost.map_or(key.block, |lost| lost.min(key.block)));
                }
                all = all.and(copied);
            }
        }
        self.list.clear();
        self.blocks.clear();
        self.seen = 0;
        all
    }

    /// Copies `len` bytes of a block, from `offset` on.
    fn copy(&self, block: Block, offset: u64, ipa: Ipa, len: usize) -> Outcome {
        let mut outcome = Outcome::Done;
        let copied = self.guest.pieces(ipa, len, true, |to, part| {
            let from = offset + part.start as u64;
            let source = match block {
                Block::Image(page) | Block::Own(page) | Block::Loaded(page, _) => {
                    Bytes::frames(page, 1)
                }
                Block::Buffer(bytes) => bytes,
                Block::Cached(key) => {
                    if !self.machine.copy_block(key, from, to) {
                        outcome = outcome.and(Outcome::Missing);
                    }
                    return;
                }
                Block::Zero => return self.machine.zero(to),
            };
            match source.part(from, to.len()) {
                Some(source) => self.machine.copy(to, source),
                None => outcome = Outcome::Failed,
            }
        });
        outcome.and(Outcome::of(copied.is_ok()))
    }
}

impl<M: Machine, G: Guest> Drop for Pages<'_, M, G> {
    /// A request that stops half way has joined frames: its pages get them all the same.
    fn drop(&mut self) {
        self.finish();
    }
}
