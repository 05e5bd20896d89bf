//! Pages that move to another node while their guest runs.

use crate::{Frames, GuestRam, Maps, Translation};
use model_addr::{Gfn, Mfn};
use model_pmap::{Backing, Entry};
use model_stage2::Size;

/// What became of a page that was to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// Its contents are in the new frame, and the old one is free.
    Done,
    /// The frame is not the guest's alone, or no longer behind that page.
    Gone,
    /// It is on its way to a disk, watched, or in a block that is kept whole.
    Held,
}

impl<T: Translation> Maps<T> {
    /// Moves the private page `gfn` from the frame `old` to `new`, which is the guest's already and
    /// which nobody sees yet; unless it is done, `new` is given back.
    ///
    /// Nobody can write the page from the moment its translation is gone from all TLBs until the
    /// new one is made: vCPUs that touch it fault and wait for the lock, as do devices.
    pub fn migrate<B: AsRef<[u8]>>(
        &mut self,
        ram: &GuestRam<B>,
        gfn: Gfn,
        (old, new): (Mfn, Mfn),
        frames: &impl Frames,
    ) -> Moved {
        let moved = self.try_migrate(ram, gfn, (old, new), frames);
        match moved {
            Moved::Done => {
                self.events.moved += 1;
                frames.free(old, 0);
            }
            Moved::Gone | Moved::Held => frames.free(new, 0),
        }
        moved
    }

    fn try_migrate<B: AsRef<[u8]>>(
        &mut self,
        ram: &GuestRam<B>,
        gfn: Gfn,
        (old, new): (Mfn, Mfn),
        frames: &impl Frames,
    ) -> Moved {
        let entry = self.entry(gfn);
        if entry.backing != Backing::Private(old) {
            return Moved::Gone;
        }
        let Some(rights) = entry.rights().filter(|_| entry.reasons.is_empty()) else {
            return Moved::Held;
        };
        if self.pmap.region(&self.tables, gfn).block().is_some() {
            if ram.policy().keep_blocks {
                return Moved::Held;
            }
            self.split(gfn);
        }
        let debt = self.unmap(gfn.address(), 1);
        debt.pay(|what| self.tables.invalidate(what));
        frames.relocate(old, new);
        let moved = Entry {
            backing: Backing::Private(new),
            ..entry
        };
        // Its entry is there: this needs no memory. What stage 2 lacks, a fault fills.
        if self.pmap.set_run(&mut self.tables, gfn, 1, moved).is_err() {
            return Moved::Held;
        }
        let (ipa, pa) = (gfn.address(), new.address());
        let _ = self
            .stage2
            .map(&mut self.tables, ipa, pa, Size::Page, rights);
        Moved::Done
    }
}
