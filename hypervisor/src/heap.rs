//! EL2's small heap: for what lives as long as a VM or the machine. Hot paths never come here.

use alloc::boxed::Box;
use core::alloc::{GlobalAlloc, Layout};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use machine_locks::{Rank, SpinLock};
use model_addr::{FRAME_SIZE, NodeId};
use talc::base::Talc;
use talc::base::binning::DefaultBinning;
use talc::source::Manual;

/// The order of the frame runs by which the heap grows: 512 KiB.
const GROWTH_ORDER: u8 = 7;

struct Heap {
    talc: SpinLock<Talc<Manual, DefaultBinning>>,
    claimed: AtomicU64,
    used: AtomicU64,
    confined: AtomicBool,
}

#[global_allocator]
static HEAP: Heap = Heap {
    talc: SpinLock::new(Rank::Heap, Talc::new(Manual)),
    claimed: AtomicU64::new(0),
    used: AtomicU64::new(0),
    confined: AtomicBool::new(false),
};

/// Gives the heap `size` bytes from `start` on, and nothing else from now on: beneath OS-0, frames are
/// lent and go back.
///
/// # Safety
/// RAM that nobody else has, for ever.
pub unsafe fn confine(start: *mut u8, size: usize) {
    // SAFETY: the caller's promise.
    unsafe { HEAP.talc.lock().claim(start, size) };
    HEAP.claimed.fetch_add(size as u64, Ordering::Relaxed);
    HEAP.confined.store(true, Ordering::Relaxed);
}

/// Bytes in use, and bytes taken from the frame pools for it.
pub fn usage() -> (u64, u64) {
    (
        HEAP.used.load(Ordering::Relaxed),
        HEAP.claimed.load(Ordering::Relaxed),
    )
}

/// Makes sure that `bytes` more can be allocated, in one run with a quarter to spare; `false` where the machine has no
/// frames for them. What is going to allocate on behalf of a request asks here first, since an allocation that fails
/// stops the machine.
#[must_use]
pub fn reserve(bytes: usize) -> bool {
    let Ok(layout) = Layout::array::<u8>(bytes.max(4) / 4 * 5) else {
        return false;
    };
    // SAFETY: the layout has a size. Not by `alloc`, which the compiler may leave out.
    let run = unsafe { HEAP.alloc(layout) };
    if !run.is_null() {
        // SAFETY: it was just allocated, for this layout.
        unsafe { HEAP.dealloc(run, layout) }
    }
    !run.is_null()
}

/// Moves `value` to the heap, or gives it back where the machine has no memory for it. What a request or a guest makes
/// EL2 box comes here, since `Box::new` stops the machine then.
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

/// Takes a run of frames for the heap.
fn grow(order: u8) -> bool {
    if HEAP.confined.load(Ordering::Relaxed) {
        return false;
    }
    let Some(run) = crate::frames::take_for_el2(NodeId(0), order) else {
        return false;
    };
    let size = FRAME_SIZE << order;
    let start = ptr::with_exposed_provenance_mut(run.address().0 as usize);
    // SAFETY: the run is RAM that the pools gave to nobody else.
    let claimed = unsafe { HEAP.talc.lock().claim(start, size as usize) };
    HEAP.claimed.fetch_add(size, Ordering::Relaxed);
    claimed.is_some()
}

// SAFETY: talc is an allocator; the lock gives it one caller at a time.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        loop {
            // SAFETY: the caller's promise: the layout has a size.
            let block = unsafe { self.talc.lock().try_allocate(layout) };
            if let Some(block) = block {
                self.used.fetch_add(layout.size() as u64, Ordering::Relaxed);
                return block.as_ptr();
            }
            let frames = (layout.size() as u64).div_ceil(FRAME_SIZE) + 1;
            let order = (frames.next_power_of_two().ilog2() as u8).max(GROWTH_ORDER);
            if !grow(order) {
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
