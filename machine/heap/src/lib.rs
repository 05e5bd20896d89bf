//! EL2's small heap: for objects that live as long as a VM or the machine. Hot paths never come here.
//!
//! A failed allocation of Rust's own stops the machine. So code that allocates on behalf of a request or a guest first
//! asks [`Heap::reserve`], or allocates by [`try_box`], which fails softly. The heap is not of EL2 alone, so that tests
//! can run it out of memory on a host.
//!
//! # Soundness
//! The allocator gives out each byte once, as talc does under its lock; runs of memory are the heap's for ever, by the
//! contract of [`Source`] and [`Heap::claim`].
#![no_std]
#![allow(unsafe_code)]

extern crate alloc;

use alloc::boxed::Box;
use core::alloc::{GlobalAlloc, Layout};
use core::fmt;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicU64, Ordering};
use machine_locks::{Rank, SpinLock};
use talc::base::Talc;
use talc::base::binning::DefaultBinning;
use talc::source::Manual;

/// Memory by which a heap grows.
///
/// # Safety
/// A run that is given is RAM that nobody else has, for ever.
pub unsafe trait Source: Sync {
    /// A run of at least `bytes`, as its start and its size in bytes; `None` where memory is short.
    fn run(&self, bytes: usize) -> Option<(NonNull<u8>, usize)>;
}

/// A heap that grows by runs of `S`.
pub struct Heap<S> {
    talc: SpinLock<Talc<Manual, DefaultBinning>>,
    claimed: AtomicU64,
    used: AtomicU64,
    source: S,
}

impl<S> fmt::Debug for Heap<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Heap").field(&self.usage()).finish()
    }
}

impl<S> Heap<S> {
    /// A heap without memory yet.
    pub const fn new(source: S) -> Self {
        Self {
            talc: SpinLock::new(Rank::Heap, Talc::new(Manual)),
            claimed: AtomicU64::new(0),
            used: AtomicU64::new(0),
            source,
        }
    }

    /// Where it grows from.
    pub const fn source(&self) -> &S {
        &self.source
    }

    /// Bytes in use, and bytes claimed.
    pub fn usage(&self) -> (u64, u64) {
        let of = |bytes: &AtomicU64| bytes.load(Ordering::Relaxed);
        (of(&self.used), of(&self.claimed))
    }

    /// Adds `size` bytes from `start` on; `false` where they are too few to be of use.
    ///
    /// # Safety
    /// RAM that nobody else has, for ever.
    pub unsafe fn claim(&self, start: *mut u8, size: usize) -> bool {
        // SAFETY: the caller's promise.
        let claimed = unsafe { self.talc.lock().claim(start, size) };
        self.claimed.fetch_add(size as u64, Ordering::Relaxed);
        claimed.is_some()
    }
}

impl<S: Source> Heap<S> {
    /// Makes sure that `bytes` more can be allocated, in one run with a quarter to spare for the heap's own words;
    /// `false` where the source has no memory for them.
    #[must_use]
    pub fn reserve(&self, bytes: usize) -> bool {
        let Ok(layout) = Layout::array::<u8>(bytes.max(4) / 4 * 5) else {
            return false;
        };
        // SAFETY: the layout has a size. Not by the global `alloc`, which the compiler may leave out.
        let run = unsafe { self.alloc(layout) };
        if !run.is_null() {
            // SAFETY: it was just allocated, for this layout.
            unsafe { self.dealloc(run, layout) }
        }
        !run.is_null()
    }

    fn grow(&self, bytes: usize) -> bool {
        let Some((start, size)) = self.source.run(bytes) else {
            return false;
        };
        // SAFETY: the source's promise.
        unsafe { self.claim(start.as_ptr(), size) }
    }
}

// SAFETY: talc is an allocator; the lock gives it one caller at a time.
unsafe impl<S: Source> GlobalAlloc for Heap<S> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        loop {
            // SAFETY: the caller's promise: the layout has a size.
            let block = unsafe { self.talc.lock().try_allocate(layout) };
            if let Some(block) = block {
                self.used.fetch_add(layout.size() as u64, Ordering::Relaxed);
                return block.as_ptr();
            }
            if !self.grow(layout.size()) {
                return ptr::null_mut();
            }
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        self.used.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's promise: `alloc` gave the block for this layout.
        unsafe { self.talc.lock().deallocate(block, layout) }
    }
}

/// Moves `value` to the global heap, or gives it back where there is no memory for it; `Box::new` stops the machine then.
///
/// # Errors
/// No memory: the value.
pub fn try_box<T>(value: T) -> Result<Box<T>, T> {
    const { assert!(size_of::<T>() > 0) };
    // SAFETY: the layout has a size.
    let place = unsafe { alloc::alloc::alloc(Layout::new::<T>()) }.cast::<T>();
    if place.is_null() {
        return Err(value);
    }
    // SAFETY: the global allocator gave the place for a `T`, to nobody else.
    Ok(unsafe {
        place.write(value);
        Box::from_raw(place)
    })
}
