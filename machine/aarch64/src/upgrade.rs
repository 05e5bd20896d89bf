//! From one image of EL2 to the next, and back.

use core::arch::global_asm;
use model_addr::Pa;

global_asm!(include_str!("upgrade.S"));

unsafe extern "C" {
    fn hand_over(handover: u64, image: u64, mark: u64) -> u64;
    fn go_back(handover: u64, answer: u64) -> !;
    fn leave_image(x0: u64, x1: u64, to: u64) -> !;
}

/// Enters the image at `image` by its first instruction, with X0 `handover` and X1 `mark`. What begins at
/// `handover` has room for a line of the cache, in which the way back is kept. Comes back, with what it
/// says, if that image does not take over; then EL2's registers are those of a CPU that was just started,
/// but for what makes this image run.
///
/// # Safety
///
/// An image of Underpin lies there, readable with caches off, as is the handover, which is in memory of
/// this image's that nobody else writes.
pub unsafe fn enter(handover: Pa, image: Pa, mark: u64) -> u64 {
    // SAFETY: the routine keeps what a call keeps; the caller's promise.
    unsafe { hand_over(handover.0, image.0, mark) }
}

/// Goes back to the image that left `handover`.
///
/// # Safety
///
/// It came from there on this CPU, and no other CPU has left it.
pub unsafe fn refuse(handover: Pa, answer: u64) -> ! {
    // SAFETY: the caller's promise.
    unsafe { go_back(handover.0, answer) }
}

/// Leaves this image for the new one, which waits for this CPU at `entry` with `record`.
///
/// # Safety
///
/// That image has taken over.
pub unsafe fn follow(entry: u64, record: u64) -> ! {
    // SAFETY: the caller's promise; nothing of this image is needed any more.
    unsafe { leave_image(record, 0, entry) }
}
