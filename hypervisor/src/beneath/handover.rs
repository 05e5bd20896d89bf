//! VMs that are parked go over to the image that takes this one's place: what the old one leaves, and how
//! the new one takes it.
//!
//! The old one writes records (`abi::state`) into a block of lent memory, and sets others aside as room.
//! The new one makes its frame table, tables and buffers in that room, from the records; all else stays as
//! it was until it has answered, so that the old one can go on. Then what no record names is free.

use crate::beneath::{get, loans};
use crate::devices::network;
use crate::drivers::{channel, disk, uplink};
use crate::memory::{frames, sharing};
use crate::vcpu::sched;
use crate::{control, life, machine, start, vms};
use abi::state::{self, Reader, Sink, Source as _, Unreadable, Writer, kind};
use abi::{os0::Refusal, served::AREA_BYTES};
use arch::frames::Ram;
use model_addr::{FRAME_SIZE, FrameRange, Mfn, NodeId, Pa, PaRange};
use model_frame_table::{
    MAX_ORDER, MAX_RANGES, MemoryMap, MemoryRange, Origin, Purpose, entries_bytes,
};
use model_loans::{Borrower, LOANS_MAX};
use model_machine_tree::{Machine, Memory};
use model_uplink::Uplink;

/// Bytes of a block.
const BLOCK: u64 = FRAME_SIZE << MAX_ORDER;
/// Blocks that disks need: an area of EL2's own, and buffers.
const FOR_DISKS: u64 = 2;
/// And what else is not counted below: roots of tables, records of users.
const TO_SPARE: u64 = 1 << MAX_ORDER;

type Blocks = heapless::Vec<Mfn, { MAX_RANGES + 64 }>;

/// What is left for the new image; all of it is the old one's.
#[derive(Default)]
pub struct Left {
    /// Where the records are, and how many bytes; nothing: there are none.
    pub records: (u64, u64),
    blocks: Blocks,
}

impl Left {
    /// Nobody took over.
    pub fn take_back(self) {
        for block in self.blocks {
            frames::free(block, MAX_ORDER);
        }
    }
}

/// Leaves all that is made of lent memory, if anything is.
pub fn leave() -> Result<Left, Refusal> {
    let mut left = Left::default();
    if !loans::are_any() {
        return Ok(left);
    }
    if loans::are_scattered() {
        log::warn!("no upgrade: single pages are lent, which no record says");
        return Err(Refusal::NotRecorded);
    }
    match write(&mut left) {
        Ok(()) => Ok(left),
        Err(refusal) => {
            left.take_back();
            Err(refusal)
        }
    }
}

fn write(left: &mut Left) -> Result<(), Refusal> {
    for _ in 0..=blocks_needed() {
        let block = frames::allocate(NodeId(0), MAX_ORDER, Purpose::Hypervisor);
        let block = block.ok_or(Refusal::TooLittle)?;
        left.blocks.push(block).map_err(|_| Refusal::TooLittle)?;
    }
    let (first, room) = left.blocks.split_first().ok_or(Refusal::TooLittle)?;
    let at = first.address().0;
    let start = core::ptr::with_exposed_provenance_mut::<u8>(at as usize);
    // SAFETY: frames of EL2's own, just allocated, that nobody else has.
    let bytes = unsafe {
        core::ptr::write_bytes(start, 0, BLOCK as usize);
        core::slice::from_raw_parts_mut(start, BLOCK as usize)
    };
    let mut to = Writer::new(bytes);
    write_machine(room, &mut to)?;
    life::state::write(&mut to).map_err(|_| Refusal::NotRecorded)?;
    left.records = (at, to.finish().ok_or(Refusal::TooLittle)?);
    Ok(())
}

/// Blocks that the new image fills before it has answered.
fn blocks_needed() -> u64 {
    let tables = |run: &PaRange| (run.size / FRAME_SIZE).div_ceil(FRAMES_PER_BLOCK);
    let tables: u64 = loans::runs().iter().map(tables).sum();
    let usage = |vm: &alloc::sync::Arc<vms::Vm>| vm.instance().map(|vm| vm.space.usage());
    // Tables of as many frames as now, and a record for each user of a shared one.
    let vms = vms::all();
    let frames = vms
        .iter()
        .filter_map(usage)
        .map(|(_, tables)| tables / FRAME_SIZE);
    let frames = frames.sum::<u64>()
        + life::state::overlay_tables(&vms)
        + disk::table_frames()
        + sharing::record_frames()
        + network::frames()
        + TO_SPARE;
    tables + FOR_DISKS + frames.div_ceil(1 << MAX_ORDER)
}

fn write_machine(room: &[Mfn], to: &mut impl Sink) -> Result<(), Refusal> {
    let given =
        |area: Option<(Ram, u32)>| area.map_or([0; 2], |(at, bell)| [at.start().0, bell.into()]);
    let range = |run: PaRange| state::Range {
        start: run.start.0,
        bytes: run.size,
    };
    let none = state::Range { start: 0, bytes: 0 };
    let machine = state::Machine {
        bundle: machine::get().bundle_at.map_or(none, range),
        served: given(disk::served()),
        uplink: uplink::given().unwrap_or_default(),
    };
    to.put(kind::MACHINE, &machine);
    to.begin(kind::LOANS);
    loans::runs()
        .into_iter()
        .for_each(|run| to.add(&range(run)));
    to.begin(kind::ROOM);
    for block in room {
        to.add(&block.0);
    }
    to.begin(kind::SAID);
    let is_quiet = channel::waiting(|bytes| to.add(bytes));
    let is_free = is_quiet && !disk::is_kept();
    is_free.then_some(()).ok_or(Refusal::InUse)
}

/// What was taken over, and is to be settled.
pub struct Taken {
    uplink: ([u64; 2], Uplink),
    /// Frames that are never free.
    aside: u64,
}

/// Takes what an image that writes handovers of `version` has left at `start`: all of it, or nothing, and then
/// nothing was written but the room that it left.
pub fn take(version: u64, (at, bytes): (u64, u64)) -> Result<Option<Taken>, Refusal> {
    if version < 2 || bytes == 0 {
        return Ok(None);
    }
    if bytes > BLOCK || !contains(&get().tree.memory, Pa(at), bytes) {
        return Err(Refusal::Misfit);
    }
    let start = core::ptr::with_exposed_provenance::<u8>(at as usize);
    // SAFETY: OS-0's memory, which is mapped, and which the image before this one has; nobody writes it
    // before this one has answered.
    let records = unsafe { core::slice::from_raw_parts(start, bytes as usize) };
    read(records).map(Some)
}

fn misfit(unreadable: Unreadable) -> Refusal {
    log::warn!("the records of parked VMs: {unreadable:?}");
    Refusal::Misfit
}

fn read(records: &[u8]) -> Result<Taken, Refusal> {
    let mut records = Reader::new(records).map_err(misfit)?;
    let machine: state::Machine = records.one(kind::MACHINE).map_err(misfit)?;
    let mut memory = heapless::Vec::<Memory, LOANS_MAX>::new();
    for run in records.all::<state::Range>(kind::LOANS).map_err(misfit)? {
        let run = loans::take(Borrower::Vms, run.start, run.bytes, true)?;
        memory
            .push(loans::of_node(run))
            .map_err(|_| Refusal::Misfit)?;
    }
    let mut blocks = Blocks::new();
    for block in records.all::<u64>(kind::ROOM).map_err(misfit)? {
        let block = Mfn(block);
        let is_lent = block.is_aligned(1 << MAX_ORDER) && contains(&memory, block.address(), BLOCK);
        if !is_lent || blocks.contains(&block) || blocks.push(block).is_err() {
            return Err(Refusal::Misfit);
        }
    }
    let state::Range { start: at, bytes } = machine.bundle;
    let bundle = (bytes > 0).then_some(PaRange::of(Pa(at), bytes));
    if bundle.is_some_and(|bundle| !contains(&memory, bundle.start, bundle.size)) {
        return Err(Refusal::Misfit);
    }
    let mut rest = blocks.into_iter();
    let aside = use_parked_memory(get().tree, &memory, bundle, &mut rest);
    let aside = aside.ok_or(Refusal::TooLittle)?;
    make_vms(records, &rest.collect::<Blocks>(), machine.served)?;
    let [area, bell, next @ ..] = machine.uplink;
    Ok(Taken {
        uplink: ([area, bell], Uplink::at(next).ok_or(Refusal::Misfit)?),
        aside,
    })
}

/// As [`start::use_memory`] of memory that the image before this one has used for VMs that are parked: the tables
/// lie in `blocks` of 2 MiB, each for as many frames as fit there. Pools have nothing yet; the frames that they
/// never get are counted.
fn use_parked_memory(
    tree: &'static Machine,
    memory: &[Memory],
    bundle_at: Option<PaRange>,
    blocks: &mut impl Iterator<Item = Mfn>,
) -> Option<u64> {
    let mut ranges: heapless::Vec<MemoryRange<'static>, MAX_RANGES> = heapless::Vec::new();
    let mut aside: heapless::Vec<FrameRange, MAX_RANGES> = heapless::Vec::new();
    for memory in memory {
        let mut rest = memory.range.whole_frames();
        while rest.count > 0 {
            let count = rest.count.min(FRAMES_PER_BLOCK);
            let (start, block) = (rest.start, blocks.next()?);
            let frames = FrameRange { start, count };
            rest = FrameRange::of(start.add(count), rest.count - count);
            let node = memory.node;
            let entries = start::entries_at(block.address(), count);
            ranges
                .push(MemoryRange {
                    frames,
                    node,
                    entries,
                })
                .ok()?;
            aside.push(block_of(block)).ok()?;
        }
    }
    let map = MemoryMap::new(&ranges).ok()?;
    let bytes = aside.len() as u64 * BLOCK;
    let bundle = bundle_at.and_then(start::open_bundle);
    start::install(tree, map, (bundle, bundle_at), bytes, None);
    let bundle = bundle_at
        .map(|bundle| FrameRange::of(bundle.start.frame(), bundle.size.div_ceil(FRAME_SIZE)));
    let mut all = aside.into_iter().chain(bundle);
    all.try_fold(0, |sum, frames| {
        machine::get().map.set_aside(frames).ok()?;
        Some(sum + frames.count)
    })
}

/// Frames whose entries fill a block.
const FRAMES_PER_BLOCK: u64 = BLOCK / entries_bytes(FRAME_SIZE) * FRAME_SIZE;

/// The frames of a block.
fn block_of(start: Mfn) -> FrameRange {
    FrameRange::of(start, 1 << MAX_ORDER)
}

fn contains(memory: &[Memory], start: Pa, bytes: u64) -> bool {
    let mut memory = memory.iter();
    memory.any(|memory| memory.range.contains_run(start, bytes))
}

/// Makes VMs anew, in `room`.
fn make_vms(mut records: Reader<'_>, room: &[Mfn], [area, bell]: [u64; 2]) -> Result<(), Refusal> {
    let refused = |refusal: model_control::Refusal| {
        log::warn!("parked VMs: {}", refusal.sentence);
        Refusal::Misfit
    };
    life::state::adopt_frames(records.clone()).map_err(refused)?;
    let map = &machine::get().map;
    for block in room {
        let run: FrameRange = block_of(*block);
        let node = map.node_of(run.start).unwrap_or(NodeId(0));
        let added = frames::with_pool(node, |pool| pool.add(map, run, Origin::Lent));
        added.map_err(|_| Refusal::Misfit)?;
    }
    sched::init();
    control::forget_owed();
    channel::open();
    let is_said = channel::send(0, &[records.bytes(kind::SAID).map_err(misfit)?]);
    sharing::init();
    if area != 0 {
        let (area, bell) = loans::area(loans::hold().loans(), area, AREA_BYTES, bell)?;
        if !disk::serve(area, bell) {
            return Err(Refusal::TooLittle);
        }
    }
    life::state::read(&mut records).map_err(refused)?;
    records.end().map_err(misfit)?;
    is_said.then_some(()).ok_or(Refusal::Misfit)
}

impl Taken {
    /// The image before this one is gone: its frames are free.
    pub fn settle(self) {
        frames::take_over(self.aside);
        start::keep_zeroed();
        life::state::settle();
        let ([area, bell], places) = self.uplink;
        loans::stay_open();
        if area != 0 && loans::open_uplink((area, bell), Some(places)).is_err() {
            log::warn!("OS-0's network device is lost");
        }
    }
}
