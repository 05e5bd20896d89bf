//! Cache maintenance. EL2, guests and devices see one memory here, but whether what a guest wrote was cleaned before another
//! guest may read it is kept by frame ([`crate::machine`] looks).

use crate::machine;
use model_addr::Pa;

/// Sizes of cache lines, and what maintenance they need: the lower half of `CTR_EL0`.
pub fn lines() -> u32 {
    read_sysreg!("ctr_el0") as u32
}

/// Bytes of the smallest data cache line (`CTR_EL0.DminLine`).
pub fn line_size() -> u64 {
    4 << (read_sysreg!("ctr_el0") >> 16 & 0xf)
}

/// Lets a guest see `size` bytes from `pa`, which may have its caches off or fetch instructions.
pub fn publish(pa: Pa, size: u64) {
    clean_to_coherency(pa, size);
    drop_instructions(pa, size);
}

/// Cleans and drops the data cache lines of `size` bytes from `pa`.
pub fn clean_to_coherency(pa: Pa, size: u64) {
    machine::step();
    machine::with(|machine| machine.ram.note_cleaned(pa, size));
}

/// Whether dropping the instructions of `size` bytes drops all.
pub fn drops_all_instructions(_size: u64) -> bool {
    false
}

/// Drops what instruction caches of all CPUs hold of `size` bytes from `pa`.
pub fn drop_instructions(_pa: Pa, _size: u64) {
    machine::step();
}

/// Drops all that instruction caches of all CPUs hold.
pub fn drop_all_instructions() {
    machine::step();
}
