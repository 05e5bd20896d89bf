//! Cache duties: what must happen to bytes that EL2 wrote before somebody else reads them.
//!
//! TCG never punishes a missing duty; hardware does. So every frame that EL2 fills for a guest
//! passes one call that names its duty.

use core::arch::asm;
use model_addr::Pa;

/// Who reads the bytes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// Table walkers and CPUs whose caches are on: nothing to do beyond a barrier.
    Coherent,
    /// A guest, which may have its caches off or fetch instructions: clean to the point of
    /// coherency and drop stale instructions (Arm ARM B2.7).
    Guest,
}

/// Bytes of the smallest data cache line (`CTR_EL0.DminLine`).
pub fn line_size() -> u64 {
    4 << (read_sysreg!("ctr_el0") >> 16 & 0xf)
}

/// Does the duty for `size` bytes from `pa`.
pub fn publish(pa: Pa, size: u64, duty: Duty) {
    if duty == Duty::Guest {
        clean_to_coherency(pa, size);
        // SAFETY: dropping instruction cache lines changes no memory.
        unsafe { asm!("ic ialluis", "dsb ish", "isb", options(nostack)) }
    }
}

/// Cleans and drops the data cache lines of `size` bytes from `pa`.
pub fn clean_to_coherency(pa: Pa, size: u64) {
    let line = line_size();
    let mut at = pa.align_down(line).0;
    while at < pa.0 + size {
        // SAFETY: cleaning a line writes back what was stored already.
        unsafe { asm!("dc civac, {}", in(reg) at, options(nostack)) }
        at += line;
    }
    // SAFETY: a barrier changes nothing.
    unsafe { asm!("dsb sy", options(nostack)) }
}
