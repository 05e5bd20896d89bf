//! EL2's small heap: for objects that live as long as a VM or the machine. Hot paths never come here.
//!
//! A failed allocation of Rust's own stops the machine. So code that allocates on behalf of a request or a guest first
//! takes a [`Reservation`], or allocates by [`try_box`], which fails softly. A reservation is a block that others cannot
//! get; where memory is short, its owner's allocations are cut from its end. The heap is not of EL2 alone, so that tests
//! can run it out of memory on a host.
//!
//! # Soundness
//! The allocator gives out each byte once, as talc does under its lock; runs of memory are the heap's for ever, by the
//! contract of [`Source`] and [`Heap::claim`]. The block of a reservation is nobody's until it is cut or given back.
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

    /// Who allocates now: a CPU, by its number; `None` for whoever does it at a time of somebody else's.
    fn owner(&self) -> Option<usize>;
}

/// The most reservations at a time: one request has two, one within the other, and one CPU does requests.
const RESERVATIONS_MAX: usize = 4;
/// By what talc rounds blocks up.
const UNIT: usize = 32;

struct Held {
    owner: Option<usize>,
    block: NonNull<u8>,
    bytes: usize,
}

struct State {
    talc: Talc<Manual, DefaultBinning>,
    held: [Option<Held>; RESERVATIONS_MAX],
}

// SAFETY: what is held is memory of the heap's, which is any thread's.
unsafe impl Send for State {}

impl State {
    fn allocate(&mut self, layout: Layout, source: &impl Source) -> Option<NonNull<u8>> {
        // SAFETY: the layout has a size.
        let block = unsafe { self.talc.try_allocate(layout) };
        block.or_else(|| self.cut(layout, source.owner()))
    }

    /// Cuts a block from the end of what the owner has reserved last, or before.
    #[cold]
    fn cut(&mut self, layout: Layout, owner: Option<usize>) -> Option<NonNull<u8>> {
        let held = self.held.iter_mut().rev().flatten();
        for own in held.filter(|held| owner.is_some() && held.owner == owner) {
            let mut bytes = (layout.size() + 1).next_multiple_of(UNIT);
            // More than once only for the sake of a large alignment.
            while bytes < own.bytes {
                let (start, whole) = (own.block.as_ptr(), block_of(own.bytes));
                own.bytes -= bytes;
                // SAFETY: the block was allocated so, and is smaller now; the layout has a size.
                let block = unsafe {
                    self.talc.shrink(start, whole, own.bytes);
                    self.talc.try_allocate(layout)
                };
                if block.is_some() {
                    return block;
                }
                bytes = UNIT;
            }
        }
        None
    }
}

/// Bytes for whoever reserved them.
const fn block_of(bytes: usize) -> Layout {
    // SAFETY: an alignment of one fits any size that was allocated.
    unsafe { Layout::from_size_align_unchecked(bytes, 1) }
}

/// Memory for whoever has reserved it ([`Heap::reserve`]), as long as this is there.
pub struct Reservation<'a, S: Source> {
    heap: &'a Heap<S>,
    place: usize,
}

impl<S: Source> Drop for Reservation<'_, S> {
    fn drop(&mut self) {
        let mut state = self.heap.state.lock();
        if let Some(Held { block, bytes, .. }) = state.held[self.place].take() {
            // SAFETY: it was allocated, and is so large now.
            unsafe { state.talc.deallocate(block.as_ptr(), block_of(bytes)) }
        }
    }
}

/// A heap that grows by runs of `S`.
pub struct Heap<S> {
    state: SpinLock<State>,
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
            state: SpinLock::new(
                Rank::Heap,
                State {
                    talc: Talc::new(Manual),
                    held: [const { None }; RESERVATIONS_MAX],
                },
            ),
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
        let claimed = unsafe { self.state.lock().talc.claim(start, size) };
        self.claimed.fetch_add(size as u64, Ordering::Relaxed);
        claimed.is_some()
    }
}

impl<S: Source> Heap<S> {
    /// Sets `bytes` aside for whoever asks ([`Source::owner`]), in one run with a quarter to spare for the heap's own
    /// words: so much it can allocate, whatever others do meanwhile. `None` where the source has no memory for them.
    pub fn reserve(&self, bytes: usize) -> Option<Reservation<'_, S>> {
        let layout = Layout::array::<u8>(bytes.max(4) / 4 * 5).ok()?;
        loop {
            let mut state = self.state.lock();
            let place = state.held.iter().position(Option::is_none)?;
            // SAFETY: the layout has a size.
            if let Some(block) = unsafe { state.talc.try_allocate(layout) } {
                let (owner, bytes) = (self.source.owner(), layout.size());
                state.held[place] = Some(Held {
                    owner,
                    block,
                    bytes,
                });
                return Some(Reservation { heap: self, place });
            }
            drop(state);
            if !self.grow(layout.size()) {
                return None;
            }
        }
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
            let block = self.state.lock().allocate(layout, &self.source);
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
        unsafe { self.state.lock().talc.deallocate(block, layout) }
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
