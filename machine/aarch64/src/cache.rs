//! Cache duties: what must happen to bytes that EL2 wrote before somebody else reads them.
//!
//! TCG never punishes a missing duty; hardware does. So every frame that EL2 fills for a guest
//! passes one call that names its duty, and `machine/fake` keeps what caches and memory hold.

use core::arch::asm;
use model_addr::Pa;

/// Instruction caches see what data caches hold (`CTR_EL0.DIC`): they hold nothing that is stale.
const DIC: u64 = 1 << 29;

/// Lines of instruction caches that are dropped one by one: each is told to all CPUs. KVM draws the line there, too.
const LINES_MAX: u64 = 512;

/// One of the lines of [`each_line`]. They are written out, since the compiler takes a `.rept` for one turn of it where it sees
/// how far its branches reach.
macro_rules! one_line {
    ($operation:literal) => {
        concat!($operation, ", {at}\n", "add {at}, {at}, {line}")
    };
}

/// Goes through lines, eight at a time: never out of a frame, as longer lines are gone through twice.
macro_rules! each_line {
    ($operation:literal, $pa:expr, $size:expr, $line:expr) => {
        let line = u64::min($line, 512);
        let mut at = $pa.align_down(8 * line).0;
        while at < $pa.0 + $size {
            // SAFETY: it writes back what was stored already, or drops what memory has.
            unsafe {
                asm!(
                    one_line!($operation), one_line!($operation), one_line!($operation), one_line!($operation),
                    one_line!($operation), one_line!($operation), one_line!($operation), one_line!($operation),
                    at = inout(reg) at, line = in(reg) line, options(nostack, preserves_flags));
            }
        }
        // SAFETY: a barrier changes nothing.
        unsafe { asm!("dsb sy", options(nostack)) }
    };
}

fn cache_type() -> u64 {
    read_sysreg!("ctr_el0")
}

/// Sizes of cache lines, and what maintenance they need: the lower half of `CTR_EL0`.
pub fn lines() -> u32 {
    cache_type() as u32
}

/// Bytes of the smallest data cache line (`CTR_EL0.DminLine`).
pub fn line_size() -> u64 {
    4 << (cache_type() >> 16 & 0xf)
}

/// Lets a guest see `size` bytes from `pa`, which may have its caches off or fetch instructions: cleans to the
/// point of coherency and drops stale instructions (Arm ARM B2.7).
pub fn publish(pa: Pa, size: u64) {
    clean_to_coherency(pa, size);
    drop_instructions(pa, size);
}

/// Cleans and drops the data cache lines of `size` bytes from `pa`.
pub fn clean_to_coherency(pa: Pa, size: u64) {
    each_line!("dc civac", pa, size, line_size());
}

/// Whether dropping the instructions of `size` bytes drops all: where a line may be in several places, as the cache is
/// not indexed by physical address (`L1Ip`), and where all CPUs would have to be told of more than [`LINES_MAX`] lines.
pub fn drops_all_instructions(size: u64) -> bool {
    let kind = cache_type();
    kind & DIC == 0 && (kind >> 14 & 3 != 3 || size > LINES_MAX << ((kind & 0xf) + 2))
}

/// Drops what instruction caches of all CPUs hold of `size` bytes from `pa`, which nobody fetches from now.
pub fn drop_instructions(pa: Pa, size: u64) {
    let kind = cache_type();
    if drops_all_instructions(size) {
        drop_all_instructions();
    } else if kind & DIC == 0 {
        each_line!("ic ivau", pa, size, 4_u64 << (kind & 0xf));
    }
}

/// Drops all that instruction caches of all CPUs hold, after what this CPU has seen of others.
pub fn drop_all_instructions() {
    if cache_type() & DIC == 0 {
        // SAFETY: dropping instruction cache lines changes no memory.
        unsafe { asm!("dsb ish", "ic ialluis", "dsb ish", "isb", options(nostack)) }
    }
}
