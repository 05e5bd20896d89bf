//! What is known of a partition's blocks: which are taken, for swap or for an overlay, and what they are to
//! hold.

use crate::drivers::disk::Extent;
use crate::memory::sharing;
use model_addr::{FRAME_SIZE, Mfn};
use model_disk::Store;
use model_virtio::blk::SECTOR_SIZE;

/// Blocks looked at for a free one.
const BUDGET: u64 = 4096;
/// The hash of no page: of a block that was taken and not written.
const UNREADABLE: u64 = 1;

impl Extent {
    /// Whether it is known what a block holds.
    pub fn knows(&self, block: u64) -> bool {
        let (words, tables) = &*self.entry.known.lock();
        words.get(tables, block) != 0
    }

    /// A block of the partition, for swap, that is free, and from now on holds `page`.
    pub fn take_block(&self, page: Mfn) -> Option<u64> {
        self.take_with(self.word_of(page))
    }

    fn take_with(&self, word: u64) -> Option<u64> {
        let (words, tables) = &mut *self.entry.known.lock();
        words.take(tables, word, BUDGET).ok()
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

impl Store for Extent {
    fn number(&self) -> u8 {
        self.entry.place.number
    }

    fn size(&self) -> u64 {
        (self.sectors() * SECTOR_SIZE) & !(FRAME_SIZE - 1)
    }

    fn check(&self, block: u64, page: Mfn) -> bool {
        let hash = self.word_of(page);
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

    fn reserve(&self) -> Option<u64> {
        self.take_with(UNREADABLE)
    }

    fn word_of(&self, page: Mfn) -> u64 {
        sharing::fingerprint(page).max(UNREADABLE + 1)
    }

    fn remember(&self, block: u64, word: u64) {
        let (words, tables) = &mut *self.entry.known.lock();
        let _ = words.set(tables, block, word);
    }

    fn forget(&self, block: u64) {
        let (words, tables) = &mut *self.entry.known.lock();
        let _ = words.set(tables, block, 0);
    }

    fn word(&self, block: u64) -> u64 {
        let (words, tables) = &*self.entry.known.lock();
        words.get(tables, block)
    }

    fn adopt(&self, block: u64, word: u64, alone: bool) -> bool {
        let (words, tables) = &mut *self.entry.known.lock();
        let is_new = words.get(tables, block) == 0 && word != 0;
        let is_same = !alone && (word == 0 || words.get(tables, block) == word);
        is_same || is_new && words.set(tables, block, word).is_ok()
    }

    fn tables(&self) -> u64 {
        self.entry.known.lock().1.count()
    }
}
