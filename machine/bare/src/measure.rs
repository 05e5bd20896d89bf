//! Marks for the measuring machine (`sim/`): on any other machine they do nothing.

use core::arch::asm;

/// A region of interest begins; below 64.
#[inline]
pub fn begin(region: u64) {
    // SAFETY: a hint that no architecture defines, which is therefore a NOP.
    unsafe { asm!("hint #96", in("x0") region, options(nostack)) };
}

/// A region of interest ends.
#[inline]
pub fn end(region: u64) {
    // SAFETY: as above.
    unsafe { asm!("hint #97", in("x0") region, options(nostack)) };
}
