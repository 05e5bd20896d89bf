//! A copy-on-write disk: a base image of the bundle, and what the VM wrote over it, in frames.

use crate::frames::{self, Tables};
use machine_contract::{FrameSource, TableMemory};
use model_addr::{FRAME_SIZE, Mfn, NodeId};
use model_disk_overlay::{Block, Fill, Overlay, OverlayError, Teardown, WritePlan};
use model_frame_table::Purpose;

/// Frames and tables of an overlay.
struct Memory {
    node: NodeId,
    tables: Tables,
}

impl TableMemory for Memory {
    fn allocate_table(&mut self) -> Option<Mfn> {
        self.tables.allocate_table()
    }
    fn free_table(&mut self, table: Mfn) {
        self.tables.free_table(table);
    }
    fn read(&self, table: Mfn, index: usize) -> u64 {
        self.tables.read(table, index)
    }
    fn write(&mut self, table: Mfn, index: usize, value: u64) {
        self.tables.write(table, index, value);
    }
}

impl FrameSource for Memory {
    fn allocate_frame(&mut self) -> Option<Mfn> {
        frames::allocate(self.node, 0, Purpose::Hypervisor)
    }
    fn free_frame(&mut self, frame: Mfn) {
        frames::free(frame, 0);
    }
}

/// Where a piece of a block is.
pub enum Piece {
    /// In the base, from this byte on; what is beyond its end reads as zero.
    Base(u64),
    /// In a frame, from this byte on.
    Frame(Mfn, u64),
    /// Nowhere: zeroes.
    Zero,
}

/// A base and an overlay.
pub struct CowDisk {
    /// The base image.
    pub base: &'static [u8],
    overlay: Overlay,
    memory: Memory,
}

impl CowDisk {
    /// A disk of `size` bytes over `base`, that may keep `limit` bytes of its own near `node`.
    pub fn new(
        base: &'static [u8],
        size: u64,
        limit: u64,
        node: NodeId,
    ) -> Result<Self, OverlayError> {
        let blocks = size.div_ceil(FRAME_SIZE);
        let base_blocks = (base.len() as u64).div_ceil(FRAME_SIZE);
        let overlay = Overlay::new(blocks, base_blocks.min(blocks), limit / FRAME_SIZE)?;
        Ok(Self {
            base,
            overlay,
            memory: Memory {
                node,
                tables: Tables::new(node, 0),
            },
        })
    }

    /// Bytes of frames it holds.
    pub fn usage(&self) -> u64 {
        (self.overlay.data_blocks() + self.memory.tables.count()) * FRAME_SIZE
    }

    /// Where the byte at `at` is. The piece goes on to the end of its 4 KiB block.
    pub fn locate(&self, at: u64) -> Piece {
        match self.overlay.lookup(&self.memory, at / FRAME_SIZE) {
            Block::Base => Piece::Base(at),
            Block::Data(frame) => Piece::Frame(frame, at % FRAME_SIZE),
            Block::Zero => Piece::Zero,
        }
    }

    /// Writes `len` bytes at `at`, all in one 4 KiB block. `copy` puts them into the frame, from
    /// that byte on.
    pub fn write(
        &mut self,
        at: u64,
        len: u64,
        copy: impl FnOnce(Mfn, u64) -> Result<(), OverlayError>,
    ) -> Result<(), OverlayError> {
        let offset = at % FRAME_SIZE;
        let block = at / FRAME_SIZE;
        match self
            .overlay
            .prepare_write(&mut self.memory, block, len == FRAME_SIZE)?
        {
            WritePlan::InPlace(frame) => copy(frame, offset),
            WritePlan::New(new) => {
                let ram = frames::ram(new.frame(), 1);
                if new.fill() != Fill::Nothing {
                    ram.zero(0, FRAME_SIZE as usize);
                }
                if new.fill() == Fill::Base {
                    let start = (block * FRAME_SIZE) as usize;
                    let end = (start + FRAME_SIZE as usize).min(self.base.len());
                    ram.write(0, self.base.get(start..end).unwrap_or_default());
                }
                match copy(new.frame(), offset) {
                    Ok(()) => self.overlay.commit(&mut self.memory, new),
                    Err(error) => {
                        self.overlay.abandon(&mut self.memory, new);
                        Err(error)
                    }
                }
            }
        }
    }

    /// Makes whole blocks among `len` bytes from `at` read as zeroes, looking at `budget` entries;
    /// how many bytes it came.
    pub fn zero(&mut self, at: u64, len: u64, budget: u32) -> Result<u64, OverlayError> {
        let (first, end) = (at / FRAME_SIZE, (at + len) / FRAME_SIZE);
        let reached = self.overlay.zero(&mut self.memory, first..end, budget)?;
        Ok((reached - first) * FRAME_SIZE)
    }

    /// Begins to give all frames back.
    pub fn dismantle(self) -> Remains {
        Remains {
            teardown: self.overlay.into_teardown(),
            memory: self.memory,
        }
    }
}

/// A disk on its way back to the pools.
pub struct Remains {
    teardown: Teardown,
    memory: Memory,
}

impl Remains {
    /// Gives back some more; `true` when all is back.
    pub fn step(&mut self, budget: u32) -> bool {
        self.teardown.step(&mut self.memory, budget)
    }
}
