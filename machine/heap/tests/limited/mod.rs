//! A heap that grows by so many runs, and its blocks.

use machine_heap::{Heap, Source};
use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes by which a heap grows.
pub const RUN: usize = 512 << 10;

/// The host's memory, of which so many runs may still be had, and who allocates.
pub struct Limited(pub AtomicUsize, pub AtomicUsize);

impl Limited {
    /// So many runs, for nobody.
    pub const fn of(runs: usize) -> Self {
        Self(AtomicUsize::new(runs), AtomicUsize::new(NOBODY))
    }
}

/// Nobody who could have reserved anything.
pub const NOBODY: usize = usize::MAX;

// SAFETY: the runs are allocated here and never freed.
unsafe impl Source for Limited {
    fn run(&self, bytes: usize) -> Option<(NonNull<u8>, usize)> {
        let left = |left: usize| left.checked_sub(1);
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, left)
            .ok()?;
        let size = (bytes + 4096).next_power_of_two().max(RUN);
        let layout = Layout::from_size_align(size, 4096).ok()?;
        // SAFETY: the layout has a size.
        Some((NonNull::new(unsafe { System.alloc(layout) })?, size))
    }

    fn owner(&self) -> Option<usize> {
        Some(self.1.load(Ordering::Relaxed)).filter(|owner| *owner != NOBODY)
    }
}

/// A block of a heap, as its owner knows it.
pub type Block = (*mut u8, Layout);

/// A block of `size` bytes, if there is memory for it.
pub fn take(heap: &Heap<impl Source>, size: usize) -> Option<Block> {
    let layout = Layout::from_size_align(size, 8).ok()?;
    // SAFETY: the layout has a size.
    let block = unsafe { heap.alloc(layout) };
    (!block.is_null()).then_some((block, layout))
}

/// Gives a block back.
pub fn give(heap: &Heap<impl Source>, (block, layout): Block) {
    // SAFETY: `take` got it from this heap.
    unsafe { heap.dealloc(block, layout) }
}
