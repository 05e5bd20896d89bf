//! The machine side of EL2's small heap: it grows by runs of frames.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use machine_heap::{Heap, Reservation, Source};
use model_addr::{FRAME_SIZE, NodeId};
use model_frame_table::Purpose;

pub use machine_heap::try_box;

/// The order of the frame runs by which the heap grows: 512 KiB.
const GROWTH_ORDER: u8 = 7;

/// Frames of the pools; none once the heap is confined.
pub struct Pools {
    confined: AtomicBool,
}

#[cfg_attr(target_os = "none", global_allocator)]
static HEAP: Heap<Pools> = Heap::new(Pools {
    confined: AtomicBool::new(false),
});

// SAFETY: runs come from the pools, which gave them to nobody else, and are never freed.
unsafe impl Source for Pools {
    fn run(&self, bytes: usize) -> Option<(NonNull<u8>, usize)> {
        if self.confined.load(Ordering::Relaxed) {
            return None;
        }
        let frames = (bytes as u64).div_ceil(FRAME_SIZE) + 1;
        let order = (frames.next_power_of_two().ilog2() as u8).max(GROWTH_ORDER);
        // As it is: zeroing it would be a long stretch, and the heap promises nothing of what it gives.
        let run = crate::memory::frames::allocate(NodeId(0), order, Purpose::Hypervisor)?;
        let start = core::ptr::with_exposed_provenance_mut(run.address().0 as usize);
        Some((NonNull::new(start)?, (FRAME_SIZE << order) as usize))
    }

    fn owner(&self) -> Option<usize> {
        let cpu = crate::machine::cpu::this();
        // Interrupts are taken between pieces of work; what is reserved is the work's.
        (!cpu.stretch.is_interrupt()).then_some(cpu.id.0.into())
    }
}

/// Gives the heap `size` bytes from `start` on, and nothing else from now on: beneath OS-0, frames are
/// lent and go back.
///
/// # Safety
/// RAM that nobody else has, for ever.
pub unsafe fn confine(start: *mut u8, size: usize) {
    // SAFETY: the caller's promise.
    unsafe { HEAP.claim(start, size) };
    HEAP.source().confined.store(true, Ordering::Relaxed);
}

/// Bytes in use, and bytes taken from the frame pools for it.
pub fn usage() -> (u64, u64) {
    HEAP.usage()
}

/// Sets `bytes` aside for this CPU; see [`Heap::reserve`].
pub fn reserve(bytes: usize) -> Option<Reservation<'static, Pools>> {
    HEAP.reserve(bytes)
}
