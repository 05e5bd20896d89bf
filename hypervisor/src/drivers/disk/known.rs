//! What is known of a partition's blocks: which are taken, for swap or for an overlay, and what they are to
//! hold.

use crate::drivers::disk::Extent;
use crate::memory::sharing;
use model_addr::Mfn;

/// Blocks looked at for a free one.
const BUDGET: u64 = 4096;
/// The hash of no page: of a block that was taken and not written.
const UNREADABLE: u64 = 1;

impl Extent {
    /// Whether a block holds what it held before, as far as that is known; it is from now on.
    pub fn check(&self, block: u64, page: Mfn) -> bool {
        let hash = word_of(page);
        let (words, tables) = &mut *self.entry.known.lock();
        match words.get(tables, block) {
            // What was swapped is known. Without memory for it, a base's block stays unknown, and is
            // not taken from those who read it.
            0 => {
                let _ = words.set(tables, block, hash);
                true
            }
            known => known == hash,
        }
    }

    /// Whether it is known what a block holds.
    pub fn knows(&self, block: u64) -> bool {
        let (words, tables) = &*self.entry.known.lock();
        words.get(tables, block) != 0
    }

    /// A block of the partition, for swap, that is free, and from now on holds `page`.
    pub fn take_block(&self, page: Mfn) -> Option<u64> {
        self.take_with(word_of(page))
    }

    /// A block of the partition that is free, and holds nothing that may be read.
    pub fn reserve_block(&self) -> Option<u64> {
        self.take_with(UNREADABLE)
    }

    fn take_with(&self, word: u64) -> Option<u64> {
        let (words, tables) = &mut *self.entry.known.lock();
        words.take(tables, word, BUDGET).ok()
    }

    /// Notes that a block that somebody has taken is to hold what that word is for.
    pub fn remember(&self, block: u64, word: u64) {
        let (words, tables) = &mut *self.entry.known.lock();
        let _ = words.set(tables, block, word);
    }

    /// Notes that a block is free.
    pub fn forget(&self, block: u64) {
        let (words, tables) = &mut *self.entry.known.lock();
        let _ = words.set(tables, block, 0);
    }

    /// What is known of a block, as records have it: zero where nothing is.
    pub fn word(&self, block: u64) -> u64 {
        let (words, tables) = &*self.entry.known.lock();
        words.get(tables, block)
    }

    /// Notes what was known of a block that nobody knows of now, as a record has it; one that is taken `alone`
    /// is nobody else's. `false` where that makes no sense, or without memory for it.
    pub fn adopt(&self, block: u64, word: u64, alone: bool) -> bool {
        let (words, tables) = &mut *self.entry.known.lock();
        let is_new = words.get(tables, block) == 0 && word != 0;
        let is_same = !alone && (word == 0 || words.get(tables, block) == word);
        is_same || is_new && words.set(tables, block, word).is_ok()
    }

    /// Frames of the tables that say what its blocks hold.
    pub fn tables(&self) -> u64 {
        self.entry.known.lock().1.count()
    }

    /// Forgets what its blocks hold.
    pub(super) fn clear(&self) {
        let (words, tables) = &mut *self.entry.known.lock();
        words.clear(tables);
    }

    /// Blocks that nothing was swapped to.
    pub fn free_blocks(&self) -> u64 {
        self.entry.known.lock().0.free()
    }
}

/// The word for what a page holds.
pub fn word_of(page: Mfn) -> u64 {
    sharing::fingerprint(page).max(UNREADABLE + 1)
}
