//! A disk read as an exchange of frames: a whole page that holds a whole block is not copied where
//! the block is in a frame that the guest may use (Disco 4.2.5, Satori 4).

use crate::frames::{self, Metal};
use crate::numa;
use crate::sharing;
use crate::trace::Event;
use crate::vm::{EXCHANGE_MAX, Gets, Instance};
use abi::control::{share, trace};
use core::sync::atomic::Ordering;
use machine_aarch64::timer;
use model_addr::{FRAME_SIZE, Gfn, Ipa, Mfn};
use model_frame_table::{CacheKey, Owner};
use model_pmap::Why;
use model_sharing::Expect;

/// Where a block is: in a frame that stays what it is while the disk is locked, or nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// In a page of an image.
    Image(Mfn),
    /// In a frame of the disk's own.
    Own(Mfn),
    /// In a buffer of EL2, from this byte of this frame on.
    Buffer(Mfn, u64),
    /// In this frame of a buffer of EL2: this block of a disk.
    Loaded(Mfn, CacheKey),
    /// In a frame of the group, if one holds this block of a disk.
    Cached(CacheKey),
    /// Nowhere: zeroes.
    Zero,
}

/// What became of a part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done.
    Done,
    /// The block must be read from its disk first.
    Missing,
    /// It cannot be done.
    Failed,
}

impl Outcome {
    /// The worse of two.
    pub const fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Failed, _) | (_, Self::Failed) => Self::Failed,
            (Self::Missing, _) | (_, Self::Missing) => Self::Missing,
            (Self::Done, Self::Done) => Self::Done,
        }
    }

    /// Done, or failed.
    pub const fn of(done: bool) -> Self {
        if done { Self::Done } else { Self::Failed }
    }
}

/// Pages that a request has read, and what they get in exchange.
pub struct Pages<'a> {
    vm: &'a Instance,
    share: bool,
    list: heapless::Vec<(Gfn, Gets), EXCHANGE_MAX>,
    blocks: heapless::Vec<Block, EXCHANGE_MAX>,
    /// Bit n: a page of the list has a number that is n modulo 64.
    seen: u64,
    /// The first block of a disk that is in no frame any more, and whose page has not got it.
    lost: Option<u64>,
}

impl<'a> Pages<'a> {
    /// None yet. Nothing is shared of a disk that is not to be.
    pub fn new(vm: &'a Instance, share: bool) -> Self {
        Self {
            vm,
            share: share && vm.space.policy().share,
            list: heapless::Vec::new(),
            blocks: heapless::Vec::new(),
            seen: 0,
            lost: None,
        }
    }

    /// Reads `len` bytes of a block, from `offset` on, to `ipa`.
    pub fn read(&mut self, block: Block, offset: u64, ipa: Ipa, len: usize) -> Outcome {
        // A page that is in the list already gets what was read first, first.
        let last = Ipa(ipa.0 + (len as u64).saturating_sub(1)).frame();
        if self.lists(ipa.frame()) || self.lists(last) {
            let finished = self.finish();
            if finished != Outcome::Done {
                return finished;
            }
        }
        let is_page = len as u64 == FRAME_SIZE && ipa.is_aligned(FRAME_SIZE);
        if !self.vm.space.contains(ipa) {
            // A region that it shares with others, or nothing.
            return copy(self.vm, block, offset, ipa, len);
        }
        if !self.share || !is_page {
            let copied = copy(self.vm, block, offset, ipa, len);
            let why = if self.share {
                Why::Unaligned
            } else {
                Why::Never
            };
            return match copied {
                Outcome::Done => self.note(ipa, len, why),
                other => other,
            };
        }
        let gfn = ipa.frame();
        let gets = match self.find(block, gfn) {
            Ok(gets) => gets,
            Err(gets) => match copy(self.vm, block, offset, ipa, len) {
                Outcome::Done => {
                    if let Gets::Alone(why) = gets {
                        self.vm.sharing.refused(why);
                    }
                    gets
                }
                other => return other,
            },
        };
        self.add(gfn, gets, block)
    }

    /// What the page gets without a copy, or what it gets after one.
    fn find(&self, block: Block, gfn: Gfn) -> Result<Gets, Gets> {
        let user = Owner {
            vm: self.vm.id,
            gfn,
        };
        match block {
            Block::Zero => Ok(Gets::Zeroes),
            Block::Image(frame) => match sharing::join_image(frame, user) {
                Ok(_) => Ok(Gets::Frame(frame)),
                Err(why) => Err(Gets::Alone(why)),
            },
            // The disk itself uses it, and is locked: it stays what it is.
            Block::Own(frame) => {
                let expect = Expect::Group(sharing::group_of(user));
                match model_sharing::join(&Metal, frame, user, expect) {
                    Ok(_) => Ok(Gets::Frame(frame)),
                    Err(_) => Err(Gets::Alone(Why::Full)),
                }
            }
            Block::Cached(key) => match sharing::join_block(key, user) {
                Some(Ok(frame)) => Ok(Gets::Frame(frame)),
                Some(Err(why)) => Err(Gets::Alone(why)),
                // The copy finds that it is missing.
                None => Err(Gets::Alone(Why::LostRace)),
            },
            Block::Loaded(_, key) => match sharing::join_block(key, user) {
                Some(Ok(frame)) => Ok(Gets::Frame(frame)),
                Some(Err(why)) => Err(Gets::Alone(why)),
                None => Err(Gets::Block(key)),
            },
            Block::Buffer(page, 0) => match sharing::join_equal(page, user) {
                Some(frame) => {
                    self.vm.sharing.by_content.fetch_add(1, Ordering::Relaxed);
                    Ok(Gets::Frame(frame))
                }
                None => Err(Gets::Own),
            },
            Block::Buffer(..) => Err(Gets::Alone(Why::Unaligned)),
        }
    }

    /// Whether a page is in the list.
    fn lists(&self, gfn: Gfn) -> bool {
        self.seen & 1 << (gfn.0 % 64) != 0 && self.list.iter().any(|(listed, _)| *listed == gfn)
    }

    fn add(&mut self, gfn: Gfn, gets: Gets, block: Block) -> Outcome {
        self.seen |= 1 << (gfn.0 % 64);
        let added = self.list.push((gfn, gets)).is_ok() && self.blocks.push(block).is_ok();
        if self.list.is_full() {
            return self.finish();
        }
        Outcome::of(added)
    }

    /// Notes why the page of a piece is the guest's alone, where the piece is most of it.
    fn note(&mut self, ipa: Ipa, len: usize, why: Why) -> Outcome {
        self.vm.sharing.refused(why);
        let is_most = self.vm.space.policy().share && len as u64 >= FRAME_SIZE / 2;
        if is_most {
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
        let home = numa::is_on().then_some(self.vm.home);
        let done = self.vm.space.exchange(home, &self.list);
        if crate::cpu::this().trace.wants(trace::SHARE) {
            self.trace();
        }
        let mut all = Outcome::Done;
        for (n, ((gfn, gets), block)) in self.list.iter().zip(&self.blocks).enumerate() {
            let is_copied = matches!(gets, Gets::Own | Gets::Block(_) | Gets::Alone(_));
            if done & 1 << n == 0 && !is_copied {
                let size = FRAME_SIZE as usize;
                let copied = copy(self.vm, *block, 0, gfn.address(), size);
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
}

impl Pages<'_> {
    /// Notes what all pages got. Devices work for a VM, not for one of its vCPUs.
    #[cold]
    fn trace(&self) {
        for (gfn, gets) in &self.list {
            let detail = match gets {
                Gets::Frame(_) => share::MAPPED,
                Gets::Zeroes => share::ZEROES,
                Gets::Own | Gets::Block(_) => share::OFFERED,
                Gets::Alone(_) => share::PRIVATE,
            };
            crate::cpu::this().trace.note(&Event {
                kind: trace::SHARE,
                detail,
                whose: Some((self.vm.id.index, 0)),
                since: timer::now(),
                value: gfn.address().0,
            });
        }
    }
}

impl Drop for Pages<'_> {
    /// A request that stops half way has joined frames: its pages get them all the same.
    fn drop(&mut self) {
        self.finish();
    }
}

/// Copies `len` bytes of a block, from `offset` on.
fn copy(vm: &Instance, block: Block, offset: u64, ipa: Ipa, len: usize) -> Outcome {
    let mut missing = false;
    let copied = vm.memory().pieces(ipa, len, true, |frame, to, part| {
        let (source, from) = match block {
            Block::Image(page) | Block::Own(page) | Block::Loaded(page, _) => {
                (frames::ram(page, 1), offset)
            }
            Block::Cached(key) => {
                let from = offset + part.start as u64;
                missing |= !sharing::copy_block(key, from, frame, to, part.len());
                return;
            }
            // It may go on in the next frame.
            Block::Buffer(page, at) => (frames::ram(page, 2), at + offset),
            Block::Zero => return frames::ram(frame, 1).zero(to, part.len()),
        };
        frames::ram(frame, 1).copy_from(to, source, from + part.start as u64, part.len());
    });
    match copied {
        Ok(()) if missing => Outcome::Missing,
        copied => Outcome::of(copied.is_ok()),
    }
}
