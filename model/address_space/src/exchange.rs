//! Frames that guests exchange for others while they run: at a disk read, and when they give memory
//! back.

use crate::{Access, Frames, GuestRam, Maps, Translation};
use model_addr::{Gfn, Mfn, NodeId, VmId};
use model_frame_table::{MAX_ORDER, Owner};
use model_pmap::{Backing, Entry, REGION_FRAMES, Why};
use model_stage2::FlushDebt;

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
    /// Its own frame, alone, and why.
    Alone(Why),
}

impl Gets {
    /// Whether a page with this entry has it.
    fn is_at(&self, entry: Entry) -> bool {
        !matches!(self, Self::Frame(frame) if entry.backing != Backing::Shared(*frame))
    }
}

/// Gives back what was behind a guest frame. No TLB knows it any more.
pub(crate) fn give_back(frames: &impl Frames, vm: VmId, gfn: Gfn, backing: Backing) {
    match backing {
        Backing::Private(frame) => frames.free(frame, 0),
        Backing::Shared(frame) => frames.leave(frame, Owner { vm, gfn }),
        Backing::Discarded(token) => frames.forget(token),
        Backing::Absent => {}
    }
}

impl<T: Translation> Maps<T> {
    /// Gives pages that were read from a disk what they get, at most [`EXCHANGE_MAX`], and pays one
    /// debt for all. Bit n of the answer: page n has it. Others have what they had, and a frame
    /// that they had joined is left. Where pages go to their users and `home` is the VM's node, a page that
    /// gets a frame of another node counts as touched ([`Frames::touched`]), but for a VM that hides.
    ///
    /// The guest may write its pages until this returns: what it writes to one that gets a frame is lost, as
    /// on any machine; what others find in one that keeps its own is what it holds once that is protected.
    pub fn exchange<B: AsRef<[u8]>>(
        &mut self,
        ram: &GuestRam<B>,
        home: Option<NodeId>,
        pages: &[(Gfn, Gets)],
        frames: &impl Frames,
    ) -> u64 {
        let mut before = heapless::Vec::<Backing, EXCHANGE_MAX>::new();
        let (mut debt, mut done) = (FlushDebt::none(), 0);
        let (mut split, mut seen, mut is_twice) = (None, 0, false);
        for (n, (gfn, gets)) in pages.iter().take(EXCHANGE_MAX).enumerate() {
            let bit = 1_u64 << (gfn.0 % 64);
            is_twice |= seen & bit != 0;
            seen |= bit;
            let old = if let Some((old, owed)) = self.prepare(ram, (*gfn, gets), &mut split, frames)
            {
                debt = debt.and(owed);
                done |= 1 << n;
                old
            } else {
                abandon(ram.vm, *gfn, gets, frames);
                Backing::Absent
            };
            let _ = before.push(old);
        }
        if !debt.is_none() {
            self.events.flushes += 1;
        }
        debt.pay(|what| self.tables.invalidate(what));
        let mut freed = heapless::Vec::<Mfn, EXCHANGE_MAX>::new();
        for (n, ((gfn, gets), before)) in pages.iter().zip(&before).enumerate() {
            // A guest may name a page twice: what it got last counts.
            let is_last = || !is_twice || gets.is_at(self.entry(*gfn));
            let is_done = done & 1 << n != 0;
            if !is_done || !self.settle(*gfn, gets, (before, is_last()), frames) {
                continue;
            }
            if let (Gets::Frame(frame), Some(home)) = (gets, home) {
                tell_if_far(ram, *gfn, (*frame, home), frames);
            }
            match before {
                Backing::Private(frame) => {
                    let _ = freed.push(*frame);
                }
                _ => give_back(frames, ram.vm, *gfn, *before),
            }
        }
        frames.free_each(&freed);
        done
    }

    /// Changes the maps for one page; what was there and what is owed, `None` where it stays. The
    /// region that was looked at last is one of pages, and is not looked at again.
    fn prepare<B: AsRef<[u8]>>(
        &mut self,
        ram: &GuestRam<B>,
        (gfn, gets): (Gfn, &Gets),
        split: &mut Option<Gfn>,
        frames: &impl Frames,
    ) -> Option<(Backing, FlushDebt)> {
        if let Gets::Alone(why) = gets {
            return self.stay(gfn, *why);
        }
        if self.has_secrets && self.entry(gfn).never_share {
            return self.stay(gfn, Why::Never);
        }
        if self.may_hold && self.is_held(gfn) {
            return None;
        }
        let region = gfn.align_down(REGION_FRAMES);
        if *split != Some(region) && !self.split_block(ram, gfn) {
            return None;
        }
        *split = Some(region);
        self.collapse(gfn, frames);
        let new = match gets {
            Gets::Frame(frame) => Entry::shared(*frame),
            Gets::Own => self.publish(ram.vm, gfn, frames)?,
            Gets::Zeroes | Gets::Alone(_) => Entry::default(),
        };
        let old = self.pmap.replace(&mut self.tables, gfn, new).ok()?;
        let owed = match gets {
            Gets::Own => self.narrow(gfn, self.pmap.made(new)),
            _ => self.unmap(gfn.address(), 1),
        };
        Some((old.backing, owed))
    }

    /// Lets others use the page's own frame; what the page has then, `None` where it stays alone.
    fn publish(&self, vm: VmId, gfn: Gfn, frames: &impl Frames) -> Option<Entry> {
        let Backing::Private(frame) = self.entry(gfn).backing else {
            return None;
        };
        let published = frames.publish(frame, Owner { vm, gfn });
        published.then_some(Entry::shared(frame))
    }

    /// Makes a region that is one block one of pages; `false` where it is to stay whole.
    fn split_block<B: AsRef<[u8]>>(&mut self, ram: &GuestRam<B>, gfn: Gfn) -> bool {
        if self.pmap.region(&self.tables, gfn).block().is_none() {
            return true;
        }
        if ram.policy().keep_blocks {
            self.stay::<()>(gfn, Why::KeptBlock);
            return false;
        }
        self.split(gfn);
        true
    }

    /// The debt is paid: shows the page, unless it got something else since; whether what it had
    /// goes back.
    fn settle(
        &mut self,
        gfn: Gfn,
        gets: &Gets,
        (before, is_last): (&Backing, bool),
        frames: &impl Frames,
    ) -> bool {
        match gets {
            Gets::Frame(frame) => {
                self.events.exchanged += 1;
                if is_last {
                    let rights = self.pmap.made(Entry::shared(*frame)).rights();
                    self.show_page(gfn, *frame, rights);
                }
                true
            }
            Gets::Zeroes => {
                self.events.zeroed += 1;
                true
            }
            Gets::Own => {
                self.events.entered += 1;
                if let Backing::Private(frame) = before {
                    frames.enlist(*frame);
                }
                false
            }
            Gets::Alone(_) => false,
        }
    }

    /// Notes that a page is never to be shared, or may be again; `false` where others may use its frame
    /// now, or there is no memory to note it.
    pub fn set_never_share(&mut self, gfn: Gfn, never: bool) -> bool {
        if never
            && !matches!(
                self.entry(gfn).backing,
                Backing::Private(_) | Backing::Absent
            )
        {
            return false;
        }
        self.has_secrets |= never;
        let marked = self.pmap.set_never_share(&mut self.tables, gfn, 1, never);
        marked.is_ok()
    }

    /// A page stays as it is: notes why, where it is the guest's alone.
    fn stay<R>(&mut self, gfn: Gfn, why: Why) -> Option<R> {
        let _ = self.pmap.set_why(&mut self.tables, gfn, why);
        None
    }

    /// Maps the pages of the block around `gfn` one by one, so that one of them can change.
    pub(crate) fn split(&mut self, gfn: Gfn) {
        // Where it is no block any more, or there is no table, faults fill what is taken out.
        if let Ok(broken) = self.stage2.begin_split(&mut self.tables, gfn.address()) {
            let ready = broken.pay(&mut self.tables, T::invalidate);
            let _ = self.stage2.make(&mut self.tables, ready);
        }
        let ipa = gfn.address();
        let debt = self.in_own_roots(|stage2, tables| stage2.unmap(tables, ipa, 1));
        debt.pay(|what| self.tables.invalidate(what));
    }

    /// Takes away what is behind `count` guest frames from `gfn` on, which the guest does not need:
    /// they read as zeroes when they are touched again. How many had something; those that are no
    /// RAM, or held, are passed over. The work is proportional to those that are RAM.
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
            } else if self.may_hold && self.is_held(at) {
                (1, 0)
            } else {
                let most = if self.may_hold {
                    1
                } else {
                    EXCHANGE_MAX as u64
                };
                let piece = left.min(most);
                (piece, self.release_pages(ram.vm, at, piece, frames))
            };
            released += had;
            at = at.add(taken);
        }
        self.events.released += released;
        released
    }

    /// Whether the region of `gfn` is one block.
    pub fn is_block(&self, gfn: Gfn) -> bool {
        self.pmap.region(&self.tables, gfn).block().is_some()
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
        if self.is_block(first) {
            self.split(first);
        }
        let mut before = [Entry::default(); EXCHANGE_MAX];
        for (n, entry) in (0..count).zip(&mut before) {
            self.collapse(first.add(n), frames);
            *entry = self.entry(first.add(n));
        }
        if self.pmap.clear(&mut self.tables, first, count).is_err() {
            return 0;
        }
        self.take_out(first, count);
        let mut had = 0;
        let mut freed = heapless::Vec::<Mfn, EXCHANGE_MAX>::new();
        for (n, entry) in (0..count).zip(&before) {
            had += u64::from(entry.frame().is_some());
            match entry.backing {
                Backing::Private(frame) => {
                    let _ = freed.push(frame);
                }
                _ => give_back(frames, vm, first.add(n), entry.backing),
            }
        }
        frames.free_each(&freed);
        had
    }

    fn take_out(&mut self, first: Gfn, count: u64) {
        let debt = self.unmap(first.address(), count);
        if !debt.is_none() {
            self.events.flushes += 1;
        }
        debt.pay(|what| self.tables.invalidate(what));
    }
}

/// Whoever decides where pages are hears of one that got a frame of another node.
#[cold]
fn tell_if_far<B: AsRef<[u8]>>(
    ram: &GuestRam<B>,
    gfn: Gfn,
    (frame, home): (Mfn, NodeId),
    frames: &impl Frames,
) {
    let node = frames.map().node_of(frame);
    if node.is_some_and(|node| node != home) && !ram.policy().hide {
        frames.touched(frame, Owner { vm: ram.vm, gfn }, (home, Access::Read));
    }
}

/// A page that stays as it is leaves the frame that it had joined.
fn abandon(vm: VmId, gfn: Gfn, gets: &Gets, frames: &impl Frames) {
    if let Gets::Frame(frame) = gets {
        frames.leave(*frame, Owner { vm, gfn });
    }
}
