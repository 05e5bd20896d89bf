//! Frames that guests exchange for others while they run: at a disk read, and when they give memory
//! back.

use crate::{Frames, GuestRam, Maps, Translation};
use model_addr::{Gfn, Mfn, VmId};
use model_frame_table::{CacheKey, MAX_ORDER, Owner};
use model_pmap::{Backing, Entry, REGION_FRAMES, Why};
use model_stage2::{FlushDebt, Rights};

/// The most pages that are exchanged under one debt.
pub const EXCHANGE_MAX: usize = 64;

/// What a page that was read from a disk gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gets {
    /// This frame, which the guest frame has joined as a user.
    Frame(Mfn),
    /// Nothing: it reads as zeroes.
    Zeroes,
    /// Its own frame, which others may use from now on.
    Own,
    /// Its own frame, as [`Self::Own`], which is known to hold this block of a disk.
    Block(CacheKey),
    /// Its own frame, alone, and why.
    Alone(Why),
}

/// Gives back what was behind a guest frame. No TLB knows it any more.
pub(crate) fn give_back(frames: &impl Frames, vm: VmId, gfn: Gfn, entry: Entry) {
    match entry.backing {
        Backing::Private(frame) => frames.free(frame, 0),
        Backing::Shared(frame) => frames.leave(frame, Owner { vm, gfn }),
        Backing::Discarded(token) => frames.forget(token),
        Backing::Absent => {}
    }
}

impl<T: Translation> Maps<T> {
    /// Gives pages that were read from a disk what they get, at most [`EXCHANGE_MAX`], and pays one
    /// debt for all. Bit n of the answer: page n has it. Others have what they had, and a frame
    /// that they had joined is left.
    ///
    /// The guest may write its pages until this returns; whatever it writes while a device reads
    /// into the same page is lost, as on any machine.
    pub fn exchange<B: AsRef<[u8]>>(
        &mut self,
        ram: &GuestRam<B>,
        pages: &[(Gfn, Gets)],
        frames: &impl Frames,
    ) -> u64 {
        let mut before = [Entry::default(); EXCHANGE_MAX];
        let mut debt = FlushDebt::none();
        let mut done = 0;
        for (n, ((gfn, gets), before)) in pages.iter().zip(&mut before).enumerate() {
            match self.prepare(ram, *gfn, *gets, frames) {
                Some((old, owed)) => {
                    debt = debt.and(owed);
                    *before = old;
                    done |= 1 << n;
                }
                None => abandon(ram.vm, *gfn, *gets, frames),
            }
        }
        if !debt.is_none() {
            self.events.flushes += 1;
        }
        debt.pay(|what| self.tables.invalidate(what));
        for (n, ((gfn, gets), before)) in pages.iter().zip(before).enumerate() {
            if done & 1 << n != 0 {
                self.settle(ram.vm, *gfn, *gets, before, frames);
            }
        }
        done
    }

    /// Changes the maps for one page; what was there and what is owed, `None` where it stays.
    fn prepare<B: AsRef<[u8]>>(
        &mut self,
        ram: &GuestRam<B>,
        gfn: Gfn,
        gets: Gets,
        frames: &impl Frames,
    ) -> Option<(Entry, FlushDebt)> {
        let survey = self.pmap.survey(&self.tables, gfn).ok()?;
        let old = survey.entry;
        if survey.region.block().is_some() && !matches!(gets, Gets::Alone(_)) {
            if ram.policy.keep_blocks {
                self.set_why(gfn, old, Why::KeptBlock);
                return None;
            }
            self.split(gfn);
        }
        let user = Owner { vm: ram.vm, gfn };
        let new = match gets {
            Gets::Frame(frame) => Entry::shared(frame),
            Gets::Zeroes => Entry::default(),
            Gets::Own | Gets::Block(_) => {
                let Backing::Private(frame) = old.backing else {
                    return None;
                };
                let published = match gets {
                    Gets::Block(key) => frames.publish_block(frame, user, key),
                    _ => frames.publish(frame, user),
                };
                if !published {
                    return None;
                }
                Entry::shared(frame)
            }
            Gets::Alone(why) => {
                self.set_why(gfn, old, why);
                return None;
            }
        };
        self.pmap.set_run(&mut self.tables, gfn, 1, new).ok()?;
        let ipa = gfn.address();
        let owed = match gets {
            Gets::Own | Gets::Block(_) => {
                self.stage2
                    .protect(&mut self.tables, ipa, 1, Rights::READ_EXECUTE)
            }
            _ => self.stage2.unmap(&mut self.tables, ipa, 1),
        };
        Some((old, owed))
    }

    /// The debt is paid: shows the page, and gives back what it had.
    fn settle(&mut self, vm: VmId, gfn: Gfn, gets: Gets, before: Entry, frames: &impl Frames) {
        match gets {
            Gets::Frame(frame) => {
                self.events.exchanged += 1;
                // A guest may name a page twice: what it got last counts.
                if self.entry(gfn).backing == Backing::Shared(frame) {
                    self.show_shared(gfn, frame);
                }
            }
            Gets::Zeroes => self.events.zeroed += 1,
            Gets::Own | Gets::Block(_) => {
                self.events.entered += 1;
                if let Some(frame) = before.frame() {
                    frames.enlist(frame);
                }
                return;
            }
            Gets::Alone(_) => return,
        }
        give_back(frames, vm, gfn, before);
    }

    /// Notes why a private page is the guest's alone.
    fn set_why(&mut self, gfn: Gfn, entry: Entry, why: Why) {
        if matches!(entry.backing, Backing::Private(_)) && entry.why != why {
            let entry = Entry { why, ..entry };
            let _ = self.pmap.set_run(&mut self.tables, gfn, 1, entry);
        }
    }

    /// Maps the pages of the block around `gfn` one by one, so that one of them can change.
    pub(crate) fn split(&mut self, gfn: Gfn) {
        // Where it is no block any more, or there is no table, faults fill what is taken out.
        if let Ok(broken) = self.stage2.begin_split(&mut self.tables, gfn.address()) {
            let ready = broken.pay(&mut self.tables, T::invalidate);
            let _ = self.stage2.make(&mut self.tables, ready);
        }
    }

    /// Takes away what is behind `count` guest frames from `gfn` on, which the guest does not need:
    /// they read as zeroes when they are touched again. How many had something; those that are no
    /// RAM are passed over. The work is proportional to those that are.
    pub fn release<B: AsRef<[u8]>>(
        &mut self,
        ram: &GuestRam<B>,
        gfn: Gfn,
        count: u64,
        frames: &impl Frames,
    ) -> u64 {
        let (start, ram_end) = (ram.range.start.frame(), ram.range.end().frame());
        let end = Gfn(gfn.0.saturating_add(count)).min(ram_end);
        let mut at = gfn.max(start);
        let mut released = 0;
        while at < end {
            let in_region = REGION_FRAMES - at.0 % REGION_FRAMES;
            let left = (end.0 - at.0).min(in_region);
            let (taken, had) = if left == REGION_FRAMES && self.release_block(at, frames) {
                (left, left)
            } else {
                let piece = left.min(EXCHANGE_MAX as u64);
                (piece, self.release_pages(ram.vm, at, piece, frames))
            };
            released += had;
            at = at.add(taken);
        }
        self.events.released += released;
        released
    }

    /// A region that is one block goes as one; whether it was.
    fn release_block(&mut self, first: Gfn, frames: &impl Frames) -> bool {
        let Some(base) = self.pmap.region(&self.tables, first).block() else {
            return false;
        };
        if self
            .pmap
            .clear(&mut self.tables, first, REGION_FRAMES)
            .is_err()
        {
            return false;
        }
        // A region that is touched anew gets a new run.
        let _ = self.pmap.set_base(&mut self.tables, first, None);
        self.take_out(first, REGION_FRAMES);
        frames.free(base, MAX_ORDER);
        true
    }

    /// Up to [`EXCHANGE_MAX`] guest frames of one region.
    fn release_pages(&mut self, vm: VmId, first: Gfn, count: u64, frames: &impl Frames) -> u64 {
        if self.pmap.region(&self.tables, first).block().is_some() {
            self.split(first);
        }
        let mut before = [Entry::default(); EXCHANGE_MAX];
        for (n, entry) in (0..count).zip(&mut before) {
            *entry = self.entry(first.add(n));
        }
        if self.pmap.clear(&mut self.tables, first, count).is_err() {
            return 0;
        }
        self.take_out(first, count);
        let mut had = 0;
        for (n, entry) in (0..count).zip(before) {
            had += u64::from(entry.frame().is_some());
            give_back(frames, vm, first.add(n), entry);
        }
        had
    }

    fn take_out(&mut self, first: Gfn, count: u64) {
        let debt = self.stage2.unmap(&mut self.tables, first.address(), count);
        if !debt.is_none() {
            self.events.flushes += 1;
        }
        debt.pay(|what| self.tables.invalidate(what));
    }
}

/// A page that stays as it is leaves the frame that it had joined.
fn abandon(vm: VmId, gfn: Gfn, gets: Gets, frames: &impl Frames) {
    if let Gets::Frame(frame) = gets {
        frames.leave(frame, Owner { vm, gfn });
    }
}
