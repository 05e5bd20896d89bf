//! An overlay on a partition: its "frames" are slots of 4 KiB there, and what is in them is moved by
//! requests of a disk, each of which goes to slots that follow each other.

use crate::{Block, Overlay, OverlayError, OverlayMemory, WritePlan};
use machine_contract::TableMemory;
use model_addr::{FRAME_SIZE, Mfn};

/// What one request to the partition does of a write: some bytes of one block, or whole blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The first block.
    pub block: u64,
    /// Where in it the bytes begin.
    pub offset: u64,
    /// How many they are.
    pub bytes: u64,
}

impl Turn {
    /// The first turn of a write of the disk's bytes from `at` to `end`, which is behind it, of at most
    /// `most` blocks.
    #[must_use]
    pub fn new(at: u64, end: u64, most: u64) -> Self {
        let (offset, left) = (at % FRAME_SIZE, end - at);
        let bytes = if offset == 0 && left >= FRAME_SIZE {
            (left - left % FRAME_SIZE).min(most * FRAME_SIZE)
        } else {
            left.min(FRAME_SIZE - offset)
        };
        Self {
            block: at / FRAME_SIZE,
            offset,
            bytes,
        }
    }

    /// Whether it leaves nothing of its blocks as it was.
    #[must_use]
    pub const fn is_whole(self) -> bool {
        self.bytes.is_multiple_of(FRAME_SIZE)
    }

    /// The blocks that it writes to.
    #[must_use]
    pub const fn blocks(self) -> u64 {
        self.bytes.div_ceil(FRAME_SIZE)
    }

    /// Bytes that are done when so many of its blocks have been written.
    #[must_use]
    pub fn done(self, blocks: u64) -> u64 {
        self.bytes.min(blocks * FRAME_SIZE)
    }
}

impl Overlay {
    /// How many blocks from `block` on, at most `most`, have slots that follow that of the first, which
    /// is `slot`.
    pub fn run(&self, memory: &impl TableMemory, block: u64, slot: Mfn, most: u64) -> u64 {
        let follows = |n: &u64| self.lookup(memory, block + n) == Block::Data(slot.add(*n));
        (0..most).take_while(follows).count() as u64
    }

    /// Gives the blocks from `block` on, at most `most`, slots that follow each other, or finds that they have
    /// some: the first slot, and how many. All of those blocks is to be written from now on; what is in a
    /// new slot is nobody's.
    ///
    /// # Errors
    /// [`OverlayError`], where not even the first gets one.
    pub fn place(
        &mut self,
        memory: &mut impl OverlayMemory,
        block: u64,
        most: u64,
    ) -> Result<(Mfn, u64), OverlayError> {
        let first = self.place_one(memory, block, None)?;
        let mut placed = 1;
        while placed < most {
            let next = first.add(placed);
            if self.place_one(memory, block + placed, Some(next)) != Ok(next) {
                break;
            }
            placed += 1;
        }
        Ok((first, placed))
    }

    /// Gives a block a slot, where `wanted` says which one no other; or says which one it has.
    fn place_one(
        &mut self,
        memory: &mut impl OverlayMemory,
        block: u64,
        wanted: Option<Mfn>,
    ) -> Result<Mfn, OverlayError> {
        match self.prepare_write(memory, block, true)? {
            WritePlan::InPlace(slot) => Ok(slot),
            WritePlan::New(new) if wanted.is_none_or(|wanted| wanted == new.frame()) => {
                let slot = new.frame();
                self.commit(memory, new)?;
                Ok(slot)
            }
            WritePlan::New(new) => {
                self.abandon(memory, new);
                Err(OverlayError::Conflict)
            }
        }
    }
}
