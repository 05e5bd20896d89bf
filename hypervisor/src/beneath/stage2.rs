//! OS-0's stage 2: every address means itself, but EL2's memory, the pages of the interrupt controller
//! that EL2 looks at ([`crate::beneath::filter`]) and what is lent are nothing. Made at
//! boot, memory in blocks of 2 MiB, so that a switch costs nothing for memory, and a loan takes out
//! entries and changes no table. A block of which pages are lent has a table of its own as long: OS-0 faults
//! where it uses the block in the middle of that change, and tries again ([`is_mapped`]).

use crate::beneath::boot::Arena;
use crate::machine::give_up;
use crate::memory::Vmid;
use crate::start::vmid_bits;
use arch::tlb::{self, Reaches};
use arch::{features, guest};
use machine_contract::TableMemory;
use machine_locks::{Once, Rank, SpinLock};
use model_addr::{FRAME_SIZE, Ipa, Mfn, Pa, PaRange};
use model_loans::{SCATTERED_MAX, Scattered};
use model_machine_tree::Machine;
use model_stage2::{Broken, FlushDebt, IpaSize, MapError, Rights, Size, Stage2, vtcr};

/// The most bits that a start at level 1 reaches: 8 TiB.
const BITS_MAX: u32 = 43;
static IDENTITY: SpinLock<Option<Identity>> = SpinLock::new(Rank::VmMemory, None);
/// The VMID of OS-0, attached or not, on all CPUs: its broadcast TLB maintenance then reaches all
/// entries of its own.
static VMID: Once<Vmid> = Once::new();
const WORDS: usize = 512;

/// Tables for blocks of which pages are lent.
type Spare = heapless::Vec<Mfn, SCATTERED_MAX>;

struct Identity {
    stage2: Stage2,
    spare: Spare,
}

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
pub fn room(tree: &Machine) -> u64 {
    let gib = Size::Block1G.bytes();
    let tables = |range: PaRange| range.size.div_ceil(gib) + 1;
    let tables: u64 = tree.memory.iter().map(|memory| tables(memory.range)).sum();
    // Pages of the interrupt controller: one table of 2 MiB blocks for each region, and those of pages.
    let blocks = |range: &PaRange| range.size.div_ceil(Size::Block2M.bytes()) + 2;
    let of_gic: u64 = tree.gic.redistributors.iter().map(blocks).sum();
    let tables = tables + of_gic + 2 + SCATTERED_MAX as u64;
    // A root is aligned to its size.
    (ipa_size().root_tables() * 2 + tables) * FRAME_SIZE
}

/// Makes the tables; gives `VTCR_EL2` and `VTTBR_EL2`.
pub fn identity(
    arena: &mut Arena,
    tree: &Machine,
    hidden: PaRange,
    pages: &[PaRange],
) -> (u64, u64) {
    let size = ipa_size();
    let bytes = size.root_tables() * FRAME_SIZE;
    let root = zeroed(arena, bytes, bytes);
    let mut stage2 = Stage2::new(root.frame(), size);
    let spare = (0..SCATTERED_MAX).map(|_| zeroed(arena, FRAME_SIZE, FRAME_SIZE).frame());
    let spare = spare.collect();
    let mut tables = Tables::Boot(arena);
    for start in (0..size.bytes()).step_by(Size::Block1G.bytes() as usize) {
        let block = block_at(start, Size::Block1G);
        let has_memory = tree
            .memory
            .iter()
            .any(|memory| memory.range.overlaps(block));
        if !has_memory && !has_any(pages, block) {
            map(&mut stage2, &mut tables, block, Size::Block1G);
            continue;
        }
        for start in (start..block.end().0).step_by(Size::Block2M.bytes() as usize) {
            let block = block_at(start, Size::Block2M);
            if has_any(pages, block) {
                map_around(&mut stage2, &mut tables, block, pages);
            } else if !block.overlaps(hidden) {
                map(&mut stage2, &mut tables, block, Size::Block2M);
            }
        }
    }
    *IDENTITY.lock() = Some(Identity { stage2, spare });
    let vmid = VMID.get().map_or(0, Vmid::number);
    let vtcr = vtcr(size, features::physical_address_bits(), vmid_bits());
    (vtcr, u64::from(vmid) << 48 | root.0)
}

fn has_any(pages: &[PaRange], block: PaRange) -> bool {
    pages.iter().any(|page| page.overlaps(block))
}

/// Maps a block page by page, but for those of `pages`.
fn map_around(stage2: &mut Stage2, tables: &mut Tables<'_>, block: PaRange, pages: &[PaRange]) {
    for start in (block.start.0..block.end().0).step_by(FRAME_SIZE as usize) {
        let page = block_at(start, Size::Page);
        if !has_any(pages, page) {
            map(stage2, tables, page, Size::Page);
        }
    }
}

/// Takes OS-0's VMID before any VM has one.
pub fn take_vmid() {
    if let Some(vmid) = Vmid::take() {
        let _ = VMID.set(vmid);
    }
}

const fn block_at(start: u64, size: Size) -> PaRange {
    PaRange::of(Pa(start), size.bytes())
}

fn map(stage2: &mut Stage2, tables: &mut Tables<'_>, block: PaRange, size: Size) {
    let mapped = stage2.map(tables, Ipa(block.start.0), block.start, size, Rights::ALL);
    if let Err(error) = mapped {
        give_up(format_args!("OS-0's tables: {error:?}"));
    }
}

/// Does something with the tables, if there are any.
fn change(action: impl FnOnce(&mut Stage2, &mut Tables<'_>)) {
    let mut identity = IDENTITY.lock();
    if let Some(Identity { stage2, spare }) = &mut *identity {
        action(stage2, &mut Tables::Spare(spare));
    }
}

/// Whole blocks of memory are nothing to OS-0 from here on, on any CPU.
pub fn withdraw(run: PaRange) {
    change(|stage2, tables| {
        let debt = stage2.unmap(tables, Ipa(run.start.0), run.size / FRAME_SIZE);
        debt.pay(|_| forget_translations());
    });
}

/// Pages of a block are nothing to OS-0 from here on, on any CPU.
pub fn withdraw_pages(pages: &Scattered) {
    change(|stage2, tables| {
        let begun = stage2.begin_split(tables, Ipa(pages.start.0));
        replace(stage2, tables, begun);
        let mut debt = FlushDebt::none();
        for run in pages.lent() {
            debt = debt.and(stage2.unmap(tables, Ipa(run.start.0), run.size / FRAME_SIZE));
        }
        debt.pay(|_| forget_translations());
    });
}

/// Does what was begun: while the tables are locked, a CPU that faults waits for it.
fn replace(stage2: &mut Stage2, tables: &mut Tables<'_>, begun: Result<Broken, MapError>) {
    let made = begun.map(|broken| {
        let ready = broken.pay(tables, |_, _| forget_translations());
        stage2.make(tables, ready)
    });
    if !matches!(made, Ok(Ok(()))) {
        give_up(format_args!("OS-0's tables: {made:?}"));
    }
}

/// Whether OS-0 may use that address, at which it faulted: it met a change, which is over now.
pub fn is_mapped(ipa: Ipa) -> bool {
    let mut is_there = false;
    change(|stage2, tables| is_there = stage2.translate(tables, ipa).is_some());
    is_there
}

/// No CPU's TLB has anything of OS-0's.
pub fn forget_translations() {
    guest::with_vmid(VMID.get().map_or(0, Vmid::number), || {
        tlb::flush_vmid(Reaches::AllCpus);
    });
}

/// A block of memory is OS-0's again.
pub fn give_back(block: PaRange) {
    // Its table is there: it was mapped before.
    change(|stage2, tables| map(stage2, tables, block, Size::Block2M));
}

/// All pages of a block are OS-0's again.
pub fn give_back_pages(block: PaRange) {
    let (ipa, size) = (Ipa(block.start.0), Size::Block2M);
    change(|stage2, tables| {
        let begun = stage2.begin_merge(tables, ipa, block.start, size, Rights::ALL);
        replace(stage2, tables, begun);
    });
}

fn zeroed(arena: &mut Arena, size: u64, align: u64) -> Pa {
    let start = arena.take(size, align);
    let pointer = core::ptr::with_exposed_provenance_mut::<u8>(start.0 as usize);
    // SAFETY: memory of EL2's own that nobody else has.
    unsafe { core::ptr::write_bytes(pointer, 0, size as usize) }
    start
}

/// Where tables come from: at boot from the arena, which gets none back.
enum Tables<'a> {
    Boot(&'a mut Arena),
    Spare(&'a mut Spare),
}

impl Tables<'_> {
    fn word(table: Mfn, index: usize) -> *mut u64 {
        let address = table.address().0 as usize + index % WORDS * size_of::<u64>();
        core::ptr::with_exposed_provenance_mut(address)
    }
}

impl TableMemory for Tables<'_> {
    fn allocate_table(&mut self) -> Option<Mfn> {
        match self {
            Self::Boot(arena) => Some(zeroed(arena, FRAME_SIZE, FRAME_SIZE).frame()),
            // Whoever splits a block fills it.
            Self::Spare(spare) => spare.pop(),
        }
    }

    fn free_table(&mut self, table: Mfn) {
        if let Self::Spare(spare) = self {
            // There is room: it came from there.
            let _ = spare.push(table);
        }
    }

    fn read(&self, table: Mfn, index: usize) -> u64 {
        // SAFETY: a word of a table that came from the arena.
        unsafe { Self::word(table, index).read_volatile() }
    }

    fn write(&mut self, table: Mfn, index: usize, value: u64) {
        // SAFETY: as above, under the lock of the tables.
        unsafe { Self::word(table, index).write_volatile(value) }
    }
}
