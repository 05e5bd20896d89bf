//! Giving a disk's memory back, a little at a time.

use crate::{ENTRIES, Entry, MAX_LEVELS, OverlayMemory, index, span};
use model_addr::Mfn;

/// An overlay that is being freed. Nobody can look into it any more.
#[derive(Debug)]
#[must_use]
pub struct Teardown {
    root: Entry,
    levels: u32,
    /// The first block whose entry was not visited; tables wholly before it are freed.
    next: u64,
}

impl Teardown {
    pub(crate) fn new(root: Entry, levels: u32) -> Self {
        Self {
            root,
            levels,
            next: 0,
        }
    }

    /// Visits at most `budget` entries; `true` when all is freed.
    pub fn step(&mut self, memory: &mut impl OverlayMemory, budget: u32) -> bool {
        for _ in 0..budget {
            if self.root == Entry::BASE {
                break;
            }
            self.visit(memory);
        }
        self.root == Entry::BASE
    }

    /// Frees the entry at `next`, and every table whose last entry it was.
    fn visit(&mut self, memory: &mut impl OverlayMemory) {
        let mut path = [Mfn(0); MAX_LEVELS];
        let mut entry = self.root;
        let mut level = self.levels;
        while let Some(table) = entry.as_table() {
            level -= 1;
            path[level as usize] = table;
            entry = Entry(memory.read(table, index(self.next, level)));
        }
        if let Some(frame) = entry.as_data() {
            memory.free_frame(frame);
        }
        let here = self.next;
        self.next = (here | (span(level) - 1)) + 1;
        while level < self.levels && index(here, level) == ENTRIES - 1 {
            memory.free_table(path[level as usize]);
            level += 1;
        }
        if level == self.levels {
            self.root = Entry::BASE;
        }
    }
}
