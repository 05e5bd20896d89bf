//! Copies, comparisons and runs of stores.

use crate::machine;
use core::ptr;
use model_addr::{FRAME_SIZE, Pa};

const FRAME: usize = FRAME_SIZE as usize;
/// Bytes that are copied or compared in a count, and that are zeroed, where work on pages takes time, so that it is cut as it is
/// elsewhere: to copy a frame takes a microsecond.
const COPIED: u64 = 64;
const ZEROED: u64 = 4 * COPIED;

fn pass(counts: u64) {
    machine::with(|machine| {
        if machine.config.works_in_time {
            machine.time += counts;
        }
    });
}

/// Zeroes frames.
///
/// # Safety
/// They are RAM that nobody uses.
pub(crate) unsafe fn frame_zero_clean(start: u64, frames: u64) {
    machine::with(|machine| {
        machine.ram.note_cleaned(Pa(start), frames * FRAME_SIZE);
    });
    pass(frames * FRAME_SIZE / ZEROED);
    let start = ptr::with_exposed_provenance_mut::<u8>(start as usize);
    // SAFETY: the caller's promise: so many frames of RAM that nobody uses.
    unsafe { ptr::write_bytes(start, 0, frames as usize * FRAME) }
}

/// Copies a frame.
///
/// # Safety
/// Both are frames of RAM.
pub(crate) unsafe fn frame_copy(to: *mut u8, from: *const u8) {
    pass(FRAME_SIZE / COPIED);
    // SAFETY: the caller's promise: two frames of RAM.
    unsafe { ptr::copy(from, to, FRAME) }
}

/// Whether two frames hold the same.
///
/// # Safety
/// Both are frames of RAM.
pub(crate) unsafe fn frame_equal(one: *const u8, two: *const u8) -> bool {
    pass(FRAME_SIZE / COPIED);
    // SAFETY: the caller's promise: two frames of RAM, which nothing writes meanwhile, as one CPU runs at a time.
    unsafe { core::slice::from_raw_parts(one, FRAME) == core::slice::from_raw_parts(two, FRAME) }
}

/// Copies bytes.
///
/// # Safety
/// Both are runs of so many bytes.
pub(crate) unsafe fn bytes_copy(to: *mut u8, from: *const u8, bytes: u64) {
    pass(bytes / COPIED);
    // SAFETY: the caller's promise: two runs of so many bytes.
    unsafe { ptr::copy(from, to, bytes as usize) }
}

/// Copies bytes.
///
/// # Safety
/// Both are runs of so many bytes.
pub(crate) unsafe fn bytes_copy_wide(to: *mut u8, from: *const u8, bytes: u64) {
    // SAFETY: as above.
    unsafe { bytes_copy(to, from, bytes) }
}

/// Stores `N` words from `at` on: `first`, and each other one `step` more.
///
/// # Safety
///
/// `at` is a run of `N` words that EL2 may write.
pub(crate) unsafe fn store_pairs<const N: usize>(at: *mut u64, first: u64, step: u64) {
    for n in 0..N {
        // SAFETY: the caller's promise.
        unsafe {
            at.add(n)
                .write_volatile(first.wrapping_add(step.wrapping_mul(n as u64)))
        }
    }
}

/// `N` words from `at` on, ORed.
///
/// # Safety
///
/// `at` is a run of `N` words that EL2 may read.
pub(crate) unsafe fn load_pairs<const N: usize>(at: *mut u64) -> u64 {
    // SAFETY: the caller's promise.
    (0..N).fold(0, |all, n| all | unsafe { at.add(n).read_volatile() })
}
