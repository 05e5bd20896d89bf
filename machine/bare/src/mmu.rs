//! Stage 1: one identity map for all CPUs, and for tests a window per CPU at the same virtual
//! address, by tables of that CPU alone (Arm ARM D8; 4 KiB granule, 39 bits of address).

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::cpu::{self, MAX_CPUS};
use crate::memory::{PAGE_SIZE, Scratch};

/// Virtual address of the window.
pub const WINDOW: u64 = (ENTRIES as u64 - 1) << 30;
/// Pages in the window.
pub const WINDOW_PAGES: usize = ENTRIES;

const ENTRIES: usize = 512;
const TABLE: u64 = 0b11;
const BLOCK: u64 = 0b01;
const PAGE: u64 = 0b11;
const ACCESSED: u64 = 1 << 10;
const INNER_SHAREABLE: u64 = 0b11 << 8;
const NOT_GLOBAL: u64 = 1 << 11;
const EXECUTE_NEVER: u64 = 0b11 << 53;
const DEVICE: u64 = ACCESSED | EXECUTE_NEVER;
const NORMAL: u64 = 1 << 2 | INNER_SHAREABLE | ACCESSED;
/// Attribute 0: Device-nGnRE; attribute 1: Normal, write-back.
const MAIR: u64 = 0xff04;
/// T0SZ 25, write-back inner-shareable walks, nothing in the upper half.
const TCR: u64 = 0x19 | 0b01 << 8 | 0b01 << 10 | 0b11 << 12 | 1 << 23;
/// SCTLR_EL1's RES1 bits of Armv8.0, and M, C, I.
const SCTLR: u64 = 0x30d0_0800 | 1 | 1 << 2 | 1 << 12;

#[repr(align(4096))]
struct Table([AtomicU64; ENTRIES]);

impl Table {
    const fn empty() -> Self {
        Self([const { AtomicU64::new(0) }; ENTRIES])
    }

    fn address(&self) -> u64 {
        (&raw const *self).addr() as u64
    }

    fn set(&self, index: usize, descriptor: u64) {
        self.0[index].store(descriptor, Ordering::Relaxed);
    }
}

struct OwnTables {
    level1: Table,
    level2: Table,
    level3: Table,
}

static IDENTITY: Table = Table::empty();
static OWN: [OwnTables; MAX_CPUS] = [const {
    OwnTables {
        level1: Table::empty(),
        level2: Table::empty(),
        level3: Table::empty(),
    }
}; MAX_CPUS];

/// Maps the first GiB as devices, and memory from there to beyond `memory_end` in blocks of 1 GiB.
pub(crate) fn build_identity(memory_end: u64) {
    let gigabytes = (memory_end / (1 << 30) + 1).clamp(2, ENTRIES as u64 - 1);
    IDENTITY.set(0, DEVICE | BLOCK);
    for index in 1..gigabytes {
        IDENTITY.set(index as usize, index << 30 | NORMAL | BLOCK);
    }
}

/// Turns stage 1 and the caches on, with the identity map.
pub(crate) fn enable() {
    // SAFETY: the identity map covers the image, its stacks and the devices, so that nothing moves.
    unsafe {
        asm!("mrs {size}, id_aa64mmfr0_el1", "and {size}, {size}, #7",
            "orr {tcr}, {tcr}, {size}, lsl #32",
            "msr mair_el1, {mair}", "msr tcr_el1, {tcr}", "msr ttbr0_el1, {table}",
            "dsb ish", "isb", "tlbi vmalle1", "ic iallu", "dsb nsh", "isb",
            "msr sctlr_el1, {sctlr}", "isb",
            size = out(reg) _, mair = in(reg) MAIR, tcr = inout(reg) TCR => _,
            table = in(reg) IDENTITY.address(), sctlr = in(reg) SCTLR);
    }
}

/// The window of one CPU: pages of scratch memory at [`WINDOW`], by tables that no other CPU uses.
pub struct Window {
    own: &'static OwnTables,
    memory: Scratch,
}

impl Window {
    /// Switches this CPU to tables of its own: the identity map and an empty window onto pages of
    /// `memory`. `asid` may be the same on all CPUs.
    pub fn open(memory: Scratch, asid: u16) -> Self {
        let own = &OWN[cpu::index()];
        for (entry, shared) in own.level1.0.iter().zip(&IDENTITY.0) {
            entry.store(shared.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        own.level1.set(ENTRIES - 1, own.level2.address() | TABLE);
        own.level2.set(0, own.level3.address() | TABLE);
        let root = own.level1.address() | u64::from(asid) << 48;
        // SAFETY: the new tables hold the same identity map.
        unsafe {
            asm!("dsb ishst", "msr ttbr0_el1, {}", "isb", "tlbi vmalle1", "dsb nsh", "isb",
                in(reg) root);
        }
        Self { own, memory }
    }

    /// Maps page `index` of the window to page `page` of its memory, by break-before-make with
    /// maintenance of this CPU's TLB alone.
    pub fn map(&self, index: usize, page: u64, global: bool) {
        let target = self.memory.part(page * PAGE_SIZE, PAGE_SIZE);
        let entry = &self.own.level3.0[index];
        entry.store(0, Ordering::Relaxed);
        Self::invalidate(index);
        let scope = if global { 0 } else { NOT_GLOBAL };
        entry.store(
            target.base() | NORMAL | EXECUTE_NEVER | scope | PAGE,
            Ordering::Relaxed,
        );
        // SAFETY: orders the table entry before what uses it.
        unsafe { asm!("dsb ishst", "isb") };
    }

    /// TLBI VAE1: by address and ASID, on this CPU only unless a hypervisor widens it.
    fn invalidate(index: usize) {
        let page = (WINDOW >> 12) + index as u64;
        // SAFETY: drops translations; the page is not in use while it is remapped.
        unsafe {
            asm!("mrs {asid}, ttbr0_el1", "and {asid}, {asid}, #0xffff000000000000",
                "orr {asid}, {asid}, {page}", "dsb ishst", "tlbi vae1, {asid}", "dsb nsh", "isb",
                asid = out(reg) _, page = in(reg) page);
        }
    }

    /// Reads the first word of page `index`, which is mapped.
    pub fn read(&self, index: usize) -> u64 {
        let address = Self::address(index);
        // SAFETY: pages of the window are mapped to scratch memory; an unmapped one is reported.
        unsafe { (address as *const u64).read_volatile() }
    }

    /// Writes the first word of page `index`, which is mapped.
    pub fn write(&self, index: usize, value: u64) {
        let address = Self::address(index);
        // SAFETY: as for `read`.
        unsafe { (address as *mut u64).write_volatile(value) }
    }

    fn address(index: usize) -> u64 {
        assert!(index < WINDOW_PAGES, "beyond the window");
        WINDOW + index as u64 * PAGE_SIZE
    }
}
