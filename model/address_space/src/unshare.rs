//! Frames that many VMs use, at the first touch and at the first write.

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
        let is_secret = self.entry(gfn).never_share;
        if !is_untouched || is_secret || frames.join(frame, user).is_err() {
            return false;
        }
        let entry = Entry::shared(frame);
        if self.pmap.set_run(&mut self.tables, gfn, 1, entry).is_err() {
            frames.leave(frame, user);
            return false;
        }
        self.events.at_boot += 1;
        self.show_shared(gfn, frame);
        true
    }

    /// Lets the hardware see a frame that nobody may write; what it lacks, a fault fills.
    pub(crate) fn show_shared(&mut self, gfn: Gfn, frame: Mfn) {
        let (ipa, pa) = (gfn.address(), frame.address());
        let rights = Rights::READ_EXECUTE;
        let _ = self
            .stage2
            .map(&mut self.tables, ipa, pa, Size::Page, rights);
    }

    /// Makes the frame that `gfn` shares its own where it is the only user; whether it did.
    pub(crate) fn claim<B: AsRef<[u8]>>(
        &mut self,
        ram: &GuestRam<B>,
        gfn: Gfn,
        frame: Mfn,
        frames: &impl Frames,
    ) -> bool {
        // Where nobody is to tell by the time of a write, all writes take the same way.
        if ram.policy().hide || !frames.claim(frame, Owner { vm: ram.vm, gfn }) {
            return false;
        }
        self.events.claims += 1;
        self.set_dirtied(gfn, frame);
        true
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
        let Backing::Shared(old) = self.entry(gfn).backing else {
            // Another vCPU was faster.
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
        self.set_dirtied(gfn, new);
        let debt = self.unmap(gfn.address(), 1);
        debt.pay(|what| self.tables.invalidate(what));
        let (ipa, pa) = (gfn.address(), new.address());
        let _ = self
            .stage2
            .map(&mut self.tables, ipa, pa, Size::Page, Rights::ALL);
        let user = Owner { vm: ram.vm, gfn };
        if ram.policy().hide {
            frames.leave_hidden(old, user);
        } else {
            frames.leave(old, user);
        }
        Filled::Done
    }

    /// Notes that the guest has `frame` alone since it wrote it. Its entry is there: this needs no
    /// memory.
    fn set_dirtied(&mut self, gfn: Gfn, frame: Mfn) {
        let entry = Entry {
            why: Why::Dirtied,
            ..Entry::private(frame)
        };
        let _ = self.pmap.set_run(&mut self.tables, gfn, 1, entry);
    }
}
