//! Pages whose contents are on a disk: which ones go there, and their way out and back.
//!
//! ```text
//!           age: touched since?                 written to swap meanwhile
//!  Private ──────────────────────► sampled ──────────────────────────► Discarded
//!  Shared    no right to touch it     │   clean: nothing to write      │  fault: Away
//!     ▲                               │ touched                        ▼
//!     └───────────────────────────────┴────────────────────────────── restore
//! ```

use crate::replicas::{GUARDED, NO_NODE};
use crate::{ENDED, Frames, GuestRam, Maps, Translation};
use heapless::Vec;
use model_addr::{Gfn, Mfn};
use model_frame_table::Owner;
use model_pmap::{Backing, Entry, REGION_FRAMES, Reasons};
use model_stage2::FlushDebt;

/// The most guest frames that one call of [`Maps::age`] looks at.
pub const AGE_AT_ONCE: usize = 64;

/// What a page has that was not touched since it was looked at.
pub(crate) const SAMPLED: Reasons = Reasons::ACCESS_SAMPLE.union(Reasons::LEAVING);

impl<T: Translation> Maps<T> {
    /// A turn of the clock (Corbató 1968): looks at some guest frames from `from` on, of those that
    /// `may` go. Who was touched since the last turn may not be touched unnoticed from now on; the
    /// others are added to `old`. Where to go on, `None` at the end.
    pub fn age(
        &mut self,
        from: Gfn,
        mut may: impl FnMut(Gfn, Entry) -> bool,
        old: &mut Vec<(Gfn, Entry), AGE_AT_ONCE>,
    ) -> Option<Gfn> {
        let mut young: Vec<Gfn, AGE_AT_ONCE> = Vec::new();
        let next = self.visit(from, AGE_AT_ONCE, |gfn, entry| {
            let is_guarded = entry.reasons.intersects(GUARDED);
            // Copies go first: then the page is looked at, too.
            if entry.frame().is_none() || is_guarded || !may(gfn, entry) {
                return;
            }
            let is_sampled = entry.reasons.contains(Reasons::ACCESS_SAMPLE);
            let is_leaving = entry.reasons.contains(Reasons::LEAVING);
            // Neither is full: each has room for all that are looked at.
            if is_sampled && !is_leaving {
                let _ = old.push((gfn, entry));
            } else if !is_leaving {
                let _ = young.push(gfn);
            }
        });
        self.restrict(&young, Reasons::ACCESS_SAMPLE);
        next
    }

    /// Who touches these pages next is told ([`Frames::touched`]); those that are copied, on their way
    /// or in a block that is to stay whole are passed over.
    pub fn sample<B: AsRef<[u8]>>(&mut self, ram: &GuestRam<B>, pages: &[Gfn]) {
        let mut plain: Vec<Gfn, AGE_AT_ONCE> = Vec::new();
        for gfn in pages {
            let entry = self.entry(*gfn);
            let is_whole = || {
                ram.policy().keep_blocks && self.pmap.region(&self.tables, *gfn).block().is_some()
            };
            let is_plain = self.pmap.standing().contains(entry.reasons);
            if entry.frame().is_some() && is_plain && !is_whole() {
                // More than fit are passed over, too.
                let _ = plain.push(*gfn);
            }
        }
        self.restrict(&plain, Reasons::ACCESS_SAMPLE);
    }

    /// Gives pages reasons, those that have a frame, and takes them out of the tables until they are touched. No
    /// fault ends other reasons than [`ENDED`]: it ends as [`Filled::Held`] until somebody does ([`Self::lift`]).
    ///
    /// [`ENDED`]: crate::ENDED
    /// [`Filled::Held`]: crate::Filled::Held
    pub fn restrict(&mut self, pages: &[Gfn], reasons: Reasons) {
        self.may_hold |= !ENDED.contains(reasons);
        let mut debt = FlushDebt::none();
        for gfn in pages {
            if self.pmap.region(&self.tables, *gfn).block().is_some() {
                self.split(*gfn);
            }
            if self.set_reasons(*gfn, reasons, Reasons::empty()) {
                debt = debt.and(self.unmap(gfn.address(), 1));
            }
        }
        debt.pay(|what| self.tables.invalidate(what));
    }

    pub(crate) fn set_reasons(&mut self, gfn: Gfn, add: Reasons, remove: Reasons) -> bool {
        let changed = self
            .pmap
            .change_reasons(&mut self.tables, gfn, 1, add, remove);
        changed.is_ok()
    }

    /// Takes reasons from a page; the next fault shows it with the rights that are left.
    pub fn lift(&mut self, gfn: Gfn, reasons: Reasons) {
        self.set_reasons(gfn, Reasons::empty(), reasons);
    }

    /// The reasons of every page that has a frame from now on, but those that faults end ([`ENDED`]): to be set before
    /// any has one. Who lifts them does so page by page; a page that gets another frame has them again.
    ///
    /// [`ENDED`]: crate::ENDED
    pub fn set_standing(&mut self, reasons: Reasons) {
        self.pmap.set_standing(reasons.difference(ENDED));
        self.may_hold = true;
    }

    /// Whether the contents of a page may not change, for a reason that no fault ends.
    #[cold]
    pub(crate) fn is_held(&self, gfn: Gfn) -> bool {
        let entry = self.entry(gfn);
        let reasons = match entry.frame() {
            Some(_) => entry.reasons,
            None => self.pmap.standing(),
        };
        !ENDED.contains(reasons)
    }

    /// Begins to write out a private page that was not touched: `copy` takes what its frame holds.
    /// `false` where it was touched since. It ends with [`Self::discard`] or [`Self::cancel_out`],
    /// and until then is not begun again, even where the page was touched meanwhile.
    pub fn begin_out(&mut self, gfn: Gfn, copy: impl FnOnce(Mfn)) -> bool {
        let entry = self.entry(gfn);
        match entry.backing {
            Backing::Private(frame)
                if entry.reasons.intersection(SAMPLED) == Reasons::ACCESS_SAMPLE =>
            {
                copy(frame);
                self.set_reasons(gfn, Reasons::LEAVING, Reasons::empty())
            }
            _ => false,
        }
    }

    /// The page could not be written: it stays.
    pub fn cancel_out(&mut self, gfn: Gfn) {
        self.lift(gfn, Reasons::LEAVING);
    }

    /// Takes `frame` from a page whose contents are where `token` says: a private one that
    /// was written out and not touched since, or a shared one. `false` where it is not so.
    pub fn discard<B: AsRef<[u8]>>(
        &mut self,
        ram: &GuestRam<B>,
        gfn: Gfn,
        frame: Mfn,
        token: u64,
        frames: &impl Frames,
    ) -> bool {
        self.collapse(gfn, frames);
        let old = self.entry(gfn);
        // Other reasons than standing ones would be forgotten.
        let keeps = ENDED.union(self.pmap.standing()).contains(old.reasons);
        let may = match old.backing {
            Backing::Private(own) => own == frame && old.reasons.contains(SAMPLED) && keeps,
            Backing::Shared(shared) => shared == frame && keeps,
            Backing::Absent | Backing::Discarded(_) => false,
        };
        let new = Entry {
            backing: Backing::Discarded(token),
            never_share: old.never_share,
            ..Entry::default()
        };
        if !may || self.pmap.set_run(&mut self.tables, gfn, 1, new).is_err() {
            return false;
        }
        let debt = self.unmap(gfn.address(), 1);
        debt.pay(|what| self.tables.invalidate(what));
        if matches!(old.backing, Backing::Private(_)) {
            self.events.swapped += 1;
            frames.free(frame, 0);
        } else {
            self.events.discarded += 1;
            frames.leave(frame, Owner { vm: ram.vm, gfn });
        }
        true
    }

    /// Puts a frame behind a page again that holds what `token` names; `false`, and nothing
    /// changed, where the page is not there any more.
    pub fn restore(&mut self, gfn: Gfn, token: u64, new: Entry) -> bool {
        let old = self.entry(gfn);
        let new = Entry {
            never_share: old.never_share,
            ..new
        };
        if old.backing != Backing::Discarded(token) || new.frame().is_none() {
            return false;
        }
        let entry = self.pmap.made(new);
        if self.pmap.set_run(&mut self.tables, gfn, 1, entry).is_err() {
            return false;
        }
        self.events.refaults += 1;
        let region = self.pmap.region(&self.tables, gfn);
        // What stage 2 lacks, a fault fills.
        if let (Some(frame), Some(rights)) = (entry.frame(), entry.rights()) {
            let _ = self.show_again(NO_NODE, gfn, (frame, rights), region);
        }
        true
    }

    /// What is on a disk of a page is not needed any more: nothing is behind it.
    pub(crate) fn forget(&mut self, gfn: Gfn, token: u64, frames: &impl Frames) {
        if self.pmap.clear(&mut self.tables, gfn, 1).is_ok() {
            frames.forget(token);
        }
    }

    /// Readies a page for a device: it counts as touched, and one that is on a disk and of which the
    /// device `overwrites` all is forgotten. What names it where it must be read first.
    pub fn ready(&mut self, gfn: Gfn, overwrites: bool, frames: &impl Frames) -> Option<u64> {
        let entry = self.entry(gfn);
        match entry.backing {
            Backing::Discarded(token) if overwrites && self.pmap.standing().is_empty() => {
                self.forget(gfn, token, frames);
            }
            Backing::Discarded(token) => return Some(token),
            _ if entry.reasons.intersects(SAMPLED) => self.lift(gfn, SAMPLED),
            _ => {}
        }
        None
    }
}

const _: () = assert!(AGE_AT_ONCE as u64 <= REGION_FRAMES);
