//! How CPUs arrive: the image's first instructions, and those of CPUs started later.

use crate::cache;
use core::arch::global_asm;
use model_addr::{Pa, PaRange};

global_asm!(include_str!("boot.S"));

unsafe extern "C" {
    static __image_start: u8;
    static __text_end: u8;
    static __rodata_end: u8;
    static __image_end: u8;
    static __boot_stack_guard: u8;
    fn secondary_start();
    pub(crate) fn enable_mmu(root: u64);
}

fn address_of(symbol: &'static u8) -> u64 {
    core::ptr::from_ref(symbol).expose_provenance() as u64
}

fn between(start: &'static u8, end: &'static u8) -> PaRange {
    let start = address_of(start);
    PaRange::of(Pa(start), address_of(end) - start)
}

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

/// Where the image lies. The page between `data` and `stack` guards the first CPU's stack.
pub fn image_parts() -> ImageParts {
    // SAFETY: the linker script defines these symbols; only their addresses are used.
    let (start, text, rodata, end, guard) = unsafe {
        (
            &__image_start,
            &__text_end,
            &__rodata_end,
            &__image_end,
            &__boot_stack_guard,
        )
    };
    let stack = Pa(address_of(guard) + 4096);
    ImageParts {
        code: between(start, text),
        constants: between(text, rodata),
        data: between(rodata, guard),
        stack: PaRange::of(stack, address_of(end) - stack.0),
        whole: between(start, end),
    }
}

/// What a CPU that is started finds by its context argument.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct SecondaryRecord {
    /// The top of its stack.
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
    Pa(secondary_start as *const () as u64)
}
