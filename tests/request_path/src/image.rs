//! A disk image in the machine's memory.

use machine_fake::FakeFrames;
use model_addr::{FRAME_SIZE, FrameRange, Mfn};

/// A disk image as a bundle keeps it: equal pages once, and those of zeroes not at all.
pub struct Image {
    first: Mfn,
    pages: Vec<Vec<u8>>,
    /// Which page each block is.
    blocks: Vec<Option<usize>>,
}

impl Image {
    /// The image with these bytes, whole blocks, in frames from `first` on.
    pub fn new(first: Mfn, bytes: &[u8]) -> Self {
        let mut pages: Vec<Vec<u8>> = Vec::new();
        let blocks = bytes.chunks(FRAME_SIZE as usize).map(|block| {
            if block.iter().all(|byte| *byte == 0) {
                return None;
            }
            let known = pages.iter().position(|page| page == block);
            Some(known.unwrap_or_else(|| {
                pages.push(block.to_vec());
                pages.len() - 1
            }))
        });
        let blocks = blocks.collect();
        Self {
            first,
            pages,
            blocks,
        }
    }

    /// A machine with these frames and the image.
    pub fn machine(&self, nodes: &[FrameRange]) -> FakeFrames {
        FakeFrames::with_image(nodes, self.first, &self.pages)
    }

    /// How many blocks it has.
    pub fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// How many frames it has.
    pub fn pages(&self) -> u64 {
        self.pages.len() as u64
    }

    /// The frame of a block; `None` where it is zeroes.
    pub fn frame(&self, block: u64) -> Option<Mfn> {
        let page = self.blocks.get(block as usize)?;
        page.map(|page| self.first.add(page as u64))
    }
}
