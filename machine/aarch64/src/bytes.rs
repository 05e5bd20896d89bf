//! Copies, comparisons and runs of stores, as instructions.

use core::arch::{asm, global_asm};

global_asm!(include_str!("frames.S"));

unsafe extern "C" {
    pub(crate) fn frame_zero_clean(start: u64, frames: u64);
    pub(crate) fn frame_copy(to: *mut u8, from: *const u8);
    pub(crate) fn frame_equal(one: *const u8, two: *const u8) -> bool;
    pub(crate) fn bytes_copy(to: *mut u8, from: *const u8, bytes: u64);
    pub(crate) fn bytes_copy_wide(to: *mut u8, from: *const u8, bytes: u64);
}

/// Stores `N` words (even) from `at` on, two at a time: `first`, and each other one `step` more.
///
/// # Safety
///
/// `at` is a run of `N` words that EL2 may write.
#[inline]
pub(crate) unsafe fn store_pairs<const N: usize>(at: *mut u64, first: u64, step: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            ".rept {pairs} / 2",
            "stp {even}, {odd}, [{at}], #16",
            "add {even}, {even}, {both}",
            "add {odd}, {odd}, {both}",
            ".endr",
            pairs = const N,
            even = inout(reg) first => _,
            odd = inout(reg) first.wrapping_add(step) => _,
            at = inout(reg) at => _,
            both = in(reg) step.wrapping_mul(2),
            options(nostack, preserves_flags),
        );
    }
}

/// `N` words (even) from `at` on, ORed: two are loaded at a time.
///
/// # Safety
///
/// `at` is a run of `N` words that EL2 may read.
#[inline]
pub(crate) unsafe fn load_pairs<const N: usize>(mut at: *mut u64) -> u64 {
    let mut all = 0;
    for _ in 0..N / 2 {
        let (even, odd): (u64, u64);
        // SAFETY: the caller's promise.
        unsafe {
            asm!(
                "ldp {even}, {odd}, [{at}], #16",
                even = out(reg) even,
                odd = out(reg) odd,
                at = inout(reg) at,
                options(nostack, readonly, preserves_flags),
            );
        }
        all |= even | odd;
    }
    all
}
