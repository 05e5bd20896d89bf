//! An overlay as records, for images of any version: what was changed, in order. It is made anew by
//! [`Overlay::put`] and [`Overlay::zero`].

use crate::{Block, Entry, Overlay, index, span};
use machine_contract::TableMemory;

/// The most blocks that are told of at once.
const RUN_MAX: u64 = u32::MAX as u64;

impl Overlay {
    /// Tells of all blocks that are not as they were at first, in ascending order: the first of a run, where
    /// its contents are, and how many blocks it has, which is one where they are in a frame.
    pub fn changed(&self, memory: &impl TableMemory, mut tell: impl FnMut(u64, Block, u64)) {
        let mut at = 0;
        while at < self.blocks {
            let (mut entry, mut level) = (self.root, self.levels);
            while let Some(table) = entry.as_table() {
                level -= 1;
                entry = Entry(memory.read(table, index(at, level)));
            }
            let left = (span(level) - at % span(level)).min(self.blocks - at);
            let count = left.min(RUN_MAX);
            match entry.as_data() {
                Some(frame) => tell(at, Block::Data(frame), 1),
                None if entry == Entry::ZERO => tell(at, Block::Zero, count),
                None => {}
            }
            at += count;
        }
    }
}
