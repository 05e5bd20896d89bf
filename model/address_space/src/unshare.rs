//! Frames that many VMs use, at the first touch and at the first write.

use crate::paging::SAMPLED;
use crate::{Access, Filled, Frames, GuestRam, Maps, Translation};
use model_addr::{Gfn, Mfn};
use model_frame_table::{CHUNK_FRAMES, Owner};
use model_pmap::{Backing, Entry, Why};
use model_stage2::{Rights, Size};

impl<T: Translation> Maps<T> {
    /// Puts the pages of kernel or initrd behind the chunk of `gfn`, where they are an image's;
    /// whether `gfn` has one now.
    #[cold]
    pub(crate) fn use_images<B: AsRef<[u8]>>(
        &mut self,
        ram: &GuestRam<B>,
        gfn: Gfn,
        frames: &impl Frames,
    ) -> bool {
        let first = gfn.align_down(CHUNK_FRAMES);
        let mut used = false;
        for at in (0..CHUNK_FRAMES).map(|n| first.add(n)) {
            if let Some(frame) = ram.image_behind(at)
                && self.use_image(ram, at, frame, frames)
            {
                used |= at == gfn;
            }
        }
        used
    }

    fn use_image<B: AsRef<[u8]>>(
        &mut self,
        ram: &GuestRam<B>,
        gfn: Gfn,
        frame: Mfn,
        frames: &impl Frames,
    ) -> bool {
        let is_untouched =
            self.pmap.contains(gfn, 1) && self.pmap.untouched(&self.tables, gfn, 1) == 1;
        let user = Owner { vm: ram.vm, gfn };
        let is_secret = || self.has_secrets && self.entry(gfn).never_share;
        if !is_untouched || is_secret() || frames.join(frame, user).is_err() {
            return false;
        }
        let entry = self.pmap.made(Entry::shared(frame));
        if self.pmap.set_run(&mut self.tables, gfn, 1, entry).is_err() {
            frames.leave(frame, user);
            return false;
        }
        self.events.at_boot += 1;
        self.show_page(gfn, frame, entry.rights());
        true
    }

    /// Lets the hardware see a page, as far as its rights go; what it lacks, a fault fills.
    pub(crate) fn show_page(&mut self, gfn: Gfn, frame: Mfn, rights: Option<Rights>) {
        if let Some(rights) = rights {
            let (ipa, pa) = (gfn.address(), frame.address());
            let _ = { &mut self.stage2 }.map(&mut self.tables, ipa, pa, Size::Page, rights);
        }
    }

    /// Makes the frame that `gfn` shares its own where it is the only user; what the page is then.
    pub(crate) fn claim<B: AsRef<[u8]>>(
        &mut self,
        ram: &GuestRam<B>,
        gfn: Gfn,
        frame: Mfn,
        frames: &impl Frames,
    ) -> Option<Entry> {
        // Where nobody is to tell by the time of a write, all writes take the same way.
        if ram.policy().hide || !frames.claim(frame, Owner { vm: ram.vm, gfn }) {
            return None;
        }
        self.events.claims += 1;
        Some(self.set_dirtied(gfn, frame))
    }

    /// Gives the guest `new` instead of the frame that it shares; the last step of a break.
    pub(crate) fn unshare<B: AsRef<[u8]>>(
        &mut self,
        ram: &GuestRam<B>,
        gfn: Gfn,
        access: Access,
        new: Mfn,
        frames: &impl Frames,
    ) -> Filled {
        self.collapse(gfn, frames);
        let entry = self.entry(gfn);
        let is_held = !SAMPLED.contains(entry.reasons);
        let (Backing::Shared(old), false) = (entry.backing, is_held) else {
            // Another vCPU was faster; or it may not be written by now, which the next fault says.
            frames.free(new, 0);
            return Filled::Done;
        };
        if access == Access::Overwrite {
            frames.zero(new, 1);
            frames.drop_code(new, 1);
            self.events.copies_saved += 1;
        } else {
            frames.copy(old, new);
        }
        self.events.breaks += 1;
        let rights = self.set_dirtied(gfn, new).rights();
        let debt = self.unmap(gfn.address(), 1);
        debt.pay(|what| self.tables.invalidate(what));
        self.show_page(gfn, new, rights);
        let user = Owner { vm: ram.vm, gfn };
        if ram.policy().hide {
            frames.leave_hidden(old, user);
        } else {
            frames.leave(old, user);
        }
        Filled::Done
    }

    /// Notes that the guest has `frame` alone since it wrote it; what the page is then. Its entry is there: this
    /// needs no memory.
    #[inline]
    fn set_dirtied(&mut self, gfn: Gfn, frame: Mfn) -> Entry {
        let entry = self.pmap.made(Entry {
            why: Why::Dirtied,
            ..Entry::private(frame)
        });
        let _ = self.pmap.set_run(&mut self.tables, gfn, 1, entry);
        entry
    }
}
