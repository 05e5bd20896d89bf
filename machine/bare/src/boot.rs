//! From the first instruction to the guest's main function.
//!
//! Entry is as Linux's arm64 boot protocol has it: EL1, MMU off, interrupts masked, x0 the
//! physical address of the device tree.

use core::arch::global_asm;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::machine::Machine;
use crate::verdict::{self, Verdict};
use crate::{cpu, mmu};

/// What a guest tells the runtime about itself; made by [`crate::image!`] and [`crate::flat!`].
pub struct Guest {
    /// The name in its result line.
    pub name: &'static str,
    /// Runs on the boot CPU with the MMU on and interrupts masked.
    pub main: fn(&'static Machine) -> Verdict,
}

/// The arm64 Image header (Linux, Documentation/arch/arm64/booting.rst).
#[repr(C)]
pub struct ImageHeader {
    code: [u32; 2],
    text_offset: u64,
    image_size: u64,
    flags: u64,
    reserved: [u64; 3],
    magic: u32,
    reserved_pe: u32,
}

impl ImageHeader {
    /// A header that branches over itself; little-endian, 4 KiB pages, loadable anywhere.
    #[allow(clippy::new_without_default)] // A static needs `const`.
    pub const fn new() -> Self {
        Self {
            code: [0x1400_0010, 0], // b . + 64
            text_offset: 0,
            image_size: 0x10_0000, // link.ld checks it
            flags: 0xa,
            reserved: [0; 3],
            magic: 0x644d_5241, // "ARM\x64"
            reserved_pe: 0,
        }
    }
}

/// The state the guest was entered in, as found.
#[derive(Clone, Copy, Debug)]
pub struct EntryState {
    /// SCTLR_EL1.M: whether stage 1 was on.
    pub mmu_on: bool,
    /// CurrentEL: 1 is expected.
    pub exception_level: u64,
    /// DAIF, bits 9 to 6: all set is expected.
    pub masks: u64,
    /// The physical address of the device tree.
    pub device_tree: u64,
    /// Where byte 0 of the image was loaded.
    pub image: u64,
    /// The first byte behind the image.
    pub image_end: u64,
}

global_asm!(
    r#"
    .section .text.entry, "ax"
    .global bare_entry
bare_entry:
    mov     x19, x0
    mrs     x20, sctlr_el1
    mrs     x21, CurrentEL
    mrs     x22, daif
    // R_AARCH64_RELATIVE is all that a static position-independent image holds.
    adrp    x1, __image_start
    adrp    x2, __rela_start
    add     x2, x2, :lo12:__rela_start
    adrp    x3, __rela_end
    add     x3, x3, :lo12:__rela_end
1:  cmp     x2, x3
    b.hs    2f
    ldp     x4, x5, [x2], #16
    ldr     x6, [x2], #8
    cmp     w5, #1027
    b.ne    1b
    add     x6, x6, x1
    str     x6, [x1, x4]
    b       1b
2:  mov     x0, xzr
    bl      bare_cpu_state
    mov     x0, x19
    mov     x1, x20
    mov     x2, x21
    mov     x3, x22
    bl      bare_first_cpu
    b       .

    // PSCI CPU_ON enters here; x0 = index of the CPU.
    .global bare_secondary_entry
bare_secondary_entry:
    mov     x19, x0
    bl      bare_cpu_state
    mov     x0, x19
    bl      bare_secondary_cpu
    b       .

    // Stack, index, vectors, and FP access without traps. x0 = index of the CPU.
bare_cpu_state:
    msr     spsel, #1
    msr     tpidr_el1, x0
    adrp    x1, __stacks
    add     x1, x1, :lo12:__stacks
    add     x0, x0, #1
    add     x1, x1, x0, lsl #14
    mov     sp, x1
    adrp    x1, bare_vectors
    add     x1, x1, :lo12:bare_vectors
    msr     vbar_el1, x1
    mov     x1, #(3 << 20)
    msr     cpacr_el1, x1
    isb
    ret
"#
);

unsafe extern "C" {
    static __image_start: u8;
    static __image_end: u8;
}

unsafe extern "Rust" {
    fn bare_guest() -> Guest;
}

static MACHINE: AtomicPtr<Machine> = AtomicPtr::new(core::ptr::null_mut());

/// The machine the guest runs on, as its device tree describes it.
///
/// # Panics
/// Before the guest's main function.
pub fn machine() -> &'static Machine {
    let machine = discovered();
    assert!(machine.is_some(), "no machine yet");
    machine.unwrap_or(&Machine::EMPTY)
}

/// The machine, once the device tree has been read.
pub(crate) fn discovered() -> Option<&'static Machine> {
    let machine = MACHINE.load(Ordering::Acquire);
    // SAFETY: null, or a static that nothing writes after it was published here.
    unsafe { machine.as_ref() }
}

#[unsafe(no_mangle)]
extern "C" fn bare_first_cpu(device_tree: u64, sctlr: u64, current_el: u64, daif: u64) -> ! {
    static mut STORAGE: Machine = Machine::EMPTY;
    let entry = EntryState {
        mmu_on: sctlr & 1 != 0,
        exception_level: current_el >> 2 & 3,
        masks: daif >> 6 & 0xf,
        device_tree,
        image: (&raw const __image_start).addr() as u64,
        image_end: (&raw const __image_end).addr() as u64,
    };
    // SAFETY: defined once, by the macros of this crate.
    let guest = unsafe { bare_guest() };
    verdict::set_name(guest.name);
    let storage = &raw mut STORAGE;
    // SAFETY: one CPU runs and this function is entered once, so the reference is the only one;
    // it becomes shared when it is published.
    let storage = unsafe { &mut *storage };
    storage.discover(entry);
    mmu::build_identity(storage.memory.end());
    mmu::enable();
    MACHINE.store(storage, Ordering::Release);
    verdict::finish((guest.main)(machine()));
}

#[unsafe(no_mangle)]
extern "C" fn bare_secondary_cpu(index: usize) -> ! {
    mmu::enable();
    cpu::run_started(index);
}
