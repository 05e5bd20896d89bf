//! OS-0's stage 2: every address means itself, but EL2's memory is nothing. Made at boot and never
//! changed, so that a switch costs nothing for memory.

use super::boot::Arena;
use crate::epitaph::give_up;
use machine_aarch64::features;
use machine_contract::TableMemory;
use model_addr::{FRAME_SIZE, Ipa, Mfn, Pa, PaRange};
use model_stage2::{IpaSize, Rights, Size, Stage2, VmidBits, vtcr};

/// The VMID of OS-0, attached or not, on all CPUs: its broadcast TLB maintenance then reaches all
/// entries of its own.
const VMID: u64 = 1;
/// The most bits that a start at level 1 reaches: 8 TiB.
const BITS_MAX: u32 = 43;
/// Tables of 2 MiB blocks: EL2's memory lies in one or two GiB.
const TABLES: u64 = 2;
const WORDS: usize = 512;

fn ipa_size() -> IpaSize {
    let bits = features::physical_address_bits().min(BITS_MAX);
    match IpaSize::new(bits) {
        Some(size) => size,
        None => give_up(format_args!("addresses of {bits} bits are not supported")),
    }
}

/// The first address that it does not reach.
pub fn reach() -> Pa {
    Pa(ipa_size().bytes())
}

/// Bytes that [`identity`] takes at most.
pub fn room() -> u64 {
    // A root is aligned to its size.
    (ipa_size().root_tables() * 2 + TABLES) * FRAME_SIZE
}

/// Makes the tables; gives `VTCR_EL2` and `VTTBR_EL2`.
pub fn identity(arena: &mut Arena, hidden: PaRange) -> (u64, u64) {
    let size = ipa_size();
    let bytes = size.root_tables() * FRAME_SIZE;
    let root = zeroed(arena, bytes, bytes);
    let mut stage2 = Stage2::new(root.frame(), size);
    let mut tables = Tables(arena);
    let whole = PaRange {
        start: Pa(0),
        size: size.bytes(),
    };
    map_around(&mut stage2, &mut tables, whole, hidden, Size::Block1G);
    let vmid = if features::has_16_bit_vmid() {
        VmidBits::Sixteen
    } else {
        VmidBits::Eight
    };
    let vtcr = vtcr(size, features::physical_address_bits(), vmid);
    (vtcr, VMID << 48 | root.0)
}

/// Maps `range` in leaves of `leaf`, and what of it lies around `hidden` in smaller ones.
fn map_around(
    stage2: &mut Stage2,
    tables: &mut Tables<'_>,
    range: PaRange,
    hidden: PaRange,
    leaf: Size,
) {
    let mut at = range.start;
    while at < range.end() {
        let block = PaRange {
            start: at,
            size: leaf.bytes(),
        };
        at = block.end();
        if !block.overlaps(hidden) {
            let mapped = stage2.map(tables, Ipa(block.start.0), block.start, leaf, Rights::ALL);
            if let Err(error) = mapped {
                give_up(format_args!("OS-0's tables: {error:?}"));
            }
        } else if leaf == Size::Block1G {
            map_around(stage2, tables, block, hidden, Size::Block2M);
        }
    }
}

fn zeroed(arena: &mut Arena, size: u64, align: u64) -> Pa {
    let start = arena.take(size, align);
    let pointer = core::ptr::with_exposed_provenance_mut::<u8>(start.0 as usize);
    // SAFETY: memory of EL2's own that nobody else has.
    unsafe { core::ptr::write_bytes(pointer, 0, size as usize) }
    start
}

/// Tables in the arena, which are never given back.
struct Tables<'a>(&'a mut Arena);

impl Tables<'_> {
    fn word(table: Mfn, index: usize) -> *mut u64 {
        let address = table.address().0 as usize + index % WORDS * size_of::<u64>();
        core::ptr::with_exposed_provenance_mut(address)
    }
}

impl TableMemory for Tables<'_> {
    fn allocate_table(&mut self) -> Option<Mfn> {
        Some(zeroed(self.0, FRAME_SIZE, FRAME_SIZE).frame())
    }

    fn free_table(&mut self, _: Mfn) {}

    fn read(&self, table: Mfn, index: usize) -> u64 {
        // SAFETY: a word of a table that came from the arena.
        unsafe { Self::word(table, index).read_volatile() }
    }

    fn write(&mut self, table: Mfn, index: usize, value: u64) {
        // SAFETY: as above; one CPU makes the tables, before any walker uses them.
        unsafe { Self::word(table, index).write_volatile(value) }
    }
}
