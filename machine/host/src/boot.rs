//! How CPUs arrive.

use crate::{cache, machine};
use model_addr::{Pa, PaRange};

/// The parts of the image in memory, each a whole number of frames.
#[derive(Clone, Copy, Debug)]
pub struct ImageParts {
    /// Instructions.
    pub code: PaRange,
    /// Constants.
    pub constants: PaRange,
    /// Data before the guard page of the first stack.
    pub data: PaRange,
    /// The first CPU's stack, and all that lies behind it.
    pub stack: PaRange,
    /// All of it.
    pub whole: PaRange,
}

/// Where the image would lie: the code of EL2 is the process's, but the memory is taken.
pub fn image_parts() -> ImageParts {
    let start = machine::IMAGE.0;
    let part = |number: u64, frames: u64| PaRange {
        start: Pa(start + number * 4096),
        size: frames * 4096,
    };
    ImageParts {
        code: part(0, 2),
        constants: part(2, 2),
        data: part(4, 2),
        stack: part(7, 9),
        whole: part(0, 16),
    }
}

/// What a CPU that is started finds by its context argument.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct SecondaryRecord {
    /// The top of its stack; its coroutine has one of its own.
    pub stack: u64,
    /// `TTBR0_EL2`.
    pub root: u64,
    /// Its per-CPU word.
    pub local_word: u64,
}

impl SecondaryRecord {
    /// Makes the record readable for a CPU whose caches are off.
    pub fn publish(&self) {
        cache::clean_to_coherency(
            Pa(core::ptr::from_ref(self).expose_provenance() as u64),
            size_of::<Self>() as u64,
        );
    }
}

/// Where started CPUs begin: `cpu_on`'s entry.
pub fn secondary_entry() -> Pa {
    Pa(machine::IMAGE.0 + 0x40)
}

/// EL2's memory is the process's: nothing to turn on.
///
/// # Safety
/// As on AArch64.
pub(crate) unsafe fn enable_mmu(_root: u64) {
    machine::step();
}
