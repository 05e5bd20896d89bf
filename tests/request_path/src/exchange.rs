//! A disk read as an exchange of frames.

use crate::Guest;
use machine_contract::GuestMemory;
use model_addr::{FRAME_SIZE, Gfn, Ipa, Mfn};
use model_address_space::{EXCHANGE_MAX, Frames, Gets};
use model_pmap::Why;
use model_sharing::Expect;

/// Where a block is.
#[derive(Clone, Copy)]
pub(crate) enum Block {
    /// In a page of the image.
    Image(Mfn),
    /// In a frame of the disk's own.
    Own(Mfn),
    /// Nowhere: zeroes.
    Zero,
}

/// Pages that a request has read, and what they get in exchange.
pub(crate) struct Pages<'a> {
    guest: &'a Guest<'a>,
    list: Vec<(Gfn, Gets, Block)>,
}

impl<'a> Pages<'a> {
    pub(crate) fn new(guest: &'a Guest<'a>) -> Self {
        Self {
            guest,
            list: Vec::new(),
        }
    }

    /// Reads `len` bytes of a block, from `offset` on, to `ipa`.
    pub(crate) fn read(&mut self, block: Block, offset: u64, ipa: Ipa, len: usize) -> Option<()> {
        // A page that is listed gets what was read first, first.
        let last = Ipa(ipa.0 + len as u64 - 1).frame();
        let mut listed = self.list.iter().map(|(gfn, ..)| *gfn);
        if listed.any(|gfn| gfn == ipa.frame() || gfn == last) {
            self.finish()?;
        }
        let is_page = len as u64 == FRAME_SIZE && ipa.is_aligned(FRAME_SIZE);
        let gets = if is_page && self.guest.policy().share {
            self.find(block, ipa.frame())
        } else {
            Gets::Alone(Why::Unaligned)
        };
        if let Gets::Alone(_) = gets {
            self.copy(block, offset, ipa, len)?;
        }
        self.list.push((ipa.frame(), gets, block));
        if self.list.len() == EXCHANGE_MAX {
            self.finish()?;
        }
        Some(())
    }

    fn find(&self, block: Block, gfn: Gfn) -> Gets {
        let (frames, user) = (self.guest.frames(), self.guest.user(gfn));
        let joined = match block {
            Block::Zero => return Gets::Zeroes,
            Block::Image(frame) => frames.join(frame, user).map(|()| frame),
            Block::Own(frame) => {
                let joined = model_sharing::join(frames, frame, user, Expect::Group(0));
                joined.map(|_| frame).map_err(|_| Why::Full)
            }
        };
        joined.map_or_else(Gets::Alone, Gets::Frame)
    }

    /// Gives all pages what they get; whether all hold what was read.
    pub(crate) fn finish(&mut self) -> Option<()> {
        let list = std::mem::take(&mut self.list);
        let pages: Vec<_> = list.iter().map(|(gfn, gets, _)| (*gfn, *gets)).collect();
        let done = self.guest.exchange(&pages);
        for (n, (gfn, gets, block)) in list.into_iter().enumerate() {
            if done & 1 << n == 0 && !matches!(gets, Gets::Alone(_)) {
                self.copy(block, 0, gfn.address(), FRAME_SIZE as usize)?;
            }
        }
        Some(())
    }

    fn copy(&self, block: Block, offset: u64, ipa: Ipa, len: usize) -> Option<()> {
        let mut bytes = vec![0; len];
        match block {
            Block::Image(frame) | Block::Own(frame) => {
                self.guest.frames().load(frame, offset, &mut bytes);
            }
            Block::Zero => {}
        }
        self.guest.write(ipa, &bytes).ok()
    }
}
