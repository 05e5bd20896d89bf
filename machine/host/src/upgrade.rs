//! From one image of EL2 to the next, which no process can be.

use crate::cpu;
use model_addr::Pa;

/// Enters another image: there is none here that could answer.
///
/// # Safety
/// As on AArch64.
pub unsafe fn enter(_handover: Pa, _image: Pa, _mark: u64) -> u64 {
    u64::MAX
}

/// Goes back to the image that left `handover`.
///
/// # Safety
/// As on AArch64.
pub unsafe fn refuse(_handover: Pa, _answer: u64) -> ! {
    cpu::halt()
}

/// Leaves this image for the new one.
///
/// # Safety
/// As on AArch64.
pub unsafe fn follow(_entry: u64, _record: u64) -> ! {
    cpu::halt()
}
