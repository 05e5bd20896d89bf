//! Physical disks: virtio-blk driven at EL2, divided by a GUID partition table. A partition is in
//! the hands of one VM at a time, or the base of the disks of many.
//!
//! Requests go through buffers of EL2's own, so that a guest's frames are never in a device's
//! hands; one that is larger than a buffer goes in turns. In a buffer the data begin with a frame,
//! so that whole blocks of the disk are whole frames of the buffer.

mod known;
mod virtio;

use crate::drivers::jobs::{ENDS, Job, Move, Part};
use crate::drivers::queue::Transport;
use crate::drivers::served::{self, Ring};
use crate::machine::{Kind, stretch};
use crate::memory::{Tables, sharing};
use abi::served::FOR_OVERLAYS;
use alloc::boxed::Box;
use arch::frames::Ram;
use core::any::Any;
use core::ops::Deref;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use machine_locks::{Once, Rank, SpinLock};
use model_addr::{FRAME_SIZE, Gfn, Mfn, NodeId, Pa, VmId};
use model_disk::{Budget, Jobs, Lane, Lent, Place, Store as _};
pub use model_disk::{Io, Transfer as Operation};
use model_paging::Words;
use model_virtio::blk::SECTOR_SIZE;
use virtio::Virtio;
use virtio_drivers::Error;

/// Requests under way at a time.
const JOBS: usize = 16;
/// Of them, those that wait for no guest's requests: pages that vCPUs wait for.
pub const JOBS_FOR_PAGES: usize = 4;
/// A job's buffer as an order of frames: 128 KiB, for header, 64 KiB of data, and status.
const BUFFER_ORDER: u8 = 5;
/// Where data are in a buffer: what a lane has before them, and behind, is its own affair.
pub const DATA_AT: u64 = FRAME_SIZE;
/// The most physical disks.
pub const DISKS_MAX: usize = 4;
/// The most partitions of a disk that are offered.
const PARTITIONS_MAX: usize = 16;

struct Hardware {
    lane: Box<dyn Lane<Buffer = Ram> + Send>,
    jobs: Jobs<Box<Part>, Move, JOBS>,
}

/// A partition as it was found.
struct Entry {
    /// Numbered from 1 on, over all disks.
    place: Place,
    name: heapless::String<108>,
    /// Overlays and what VMs swap may be on it: somebody said that what it holds may be overwritten.
    is_scratch: bool,
    /// How many VMs have it as a base; -1 where one has it alone.
    takers: AtomicI32,
    /// Blocks of it may be in the cache.
    was_base: AtomicBool,
    /// What its blocks must hold, as far as it is known: [`sharing::fingerprint`], 0 where not.
    known: SpinLock<(Words, Tables)>,
    /// Bytes read of it.
    reads: AtomicU64,
}

struct Disk {
    hardware: SpinLock<Hardware>,
    partitions: heapless::Vec<Entry, PARTITIONS_MAX>,
}

static DISKS: [Once<Disk>; DISKS_MAX] = [const { Once::new() }; DISKS_MAX];
/// Bit n: of disk n more transfers may have ended than one pass dealt with.
static LEFT: AtomicU32 = AtomicU32::new(0);

/// A partition, for those who know that a VM has it.
#[derive(Clone, Copy)]
pub struct Extent {
    disk: &'static Disk,
    entry: &'static Entry,
}

/// A partition in the hands of a VM; it is given back when this is dropped.
pub struct Partition {
    extent: Extent,
    is_base: bool,
}

impl Deref for Partition {
    type Target = Extent;

    fn deref(&self) -> &Extent {
        &self.extent
    }
}

/// Why a partition cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// No disk has a partition of that name.
    Missing,
    /// Another VM has it.
    Taken,
}

/// A buffer of a disk, for one transfer after the other; free again when this is dropped.
pub struct Buffer {
    disk: &'static Disk,
    slot: usize,
    ram: Ram,
}

impl Drop for Partition {
    fn drop(&mut self) {
        let left = i32::from(self.is_base);
        let Entry {
            name,
            takers,
            reads,
            ..
        } = self.extent.entry;
        if self.is_base {
            let read = reads.load(Ordering::Relaxed);
            log::info!("partition {name:?}: {} KiB read so far", read >> 10);
        } else {
            self.extent.clear();
        }
        let _ = takers.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |now| {
            Some((now - left).max(0))
        });
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.disk.hardware.lock().lane.release(self.slot);
    }
}

impl Buffer {
    /// The first of the frames of its data.
    pub fn data(&self) -> Mfn {
        Pa(self.ram.start().0 + DATA_AT).frame()
    }
}

/// Starts a disk and reads its partition table.
#[inline(never)]
pub fn start(number: usize, transport: Transport) -> Result<(), Error> {
    let (mut lane, sectors) = Virtio::start(transport)?;
    let partitions = read_partitions(number, &mut lane, sectors);
    for Entry { name, place, .. } in &partitions {
        log::info!(
            "disk {number}: partition {name:?}, {} MiB",
            place.sectors >> 11
        );
    }
    let slot = DISKS.get(number).ok_or(Error::Unsupported)?;
    let disk = Disk::new(lane, partitions);
    slot.set(disk).map_err(|_| Error::AlreadyUsed)
}

/// The place of the disk that OS-0 serves; beside OS-0 there are no others.
const SERVED: usize = 0;

/// Starts the disk whose partitions OS-0 offers in an area of its memory, until [`forget_served`]; what is
/// asked is told by the interrupt `bell`.
pub fn serve(area: Ram, bell: u32) -> bool {
    let mut partitions = heapless::Vec::new();
    for offer in served::offers(area) {
        let name = offer.name.as_str().unwrap_or_default();
        log::info!("OS-0 serves {name:?}, {} MiB", offer.sectors >> 11);
        let place = Place::new(partitions.len() + 1, 0, offer.sectors);
        // There is room for as many as can be offered.
        let name = heapless::String::try_from(name).unwrap_or_default();
        let is_scratch = offer.uses & FOR_OVERLAYS != 0;
        let _ = partitions.push(Entry::new(place, name, is_scratch));
    }
    let ring = Ring::new(area, bell, BUFFER_ORDER);
    let disk = ring.map(|ring| Disk::new(ring, partitions));
    disk.is_some_and(|disk| DISKS[SERVED].set(disk).is_ok())
}

/// Nobody serves any more: what was asked, and what is asked from now on, waits in EL2's own memory.
pub fn keep_area() {
    with_ring(Ring::keep);
}

/// Whether nobody serves a disk that was served.
pub fn is_kept() -> bool {
    with_ring(|ring| ring.given().is_none()).unwrap_or(false)
}

/// Another system serves, from `area`; `false` where none could be served, or still does.
pub fn serve_again(area: Ram, bell: u32) -> bool {
    with_ring(|ring| ring.go_on(area, bell)).unwrap_or(false)
}

/// The area that OS-0 gave, and the interrupt that tells it; `None` where nobody serves.
pub fn served() -> Option<(Ram, u32)> {
    with_ring(|ring| ring.given()).flatten()
}

fn with_ring<T>(action: impl FnOnce(&mut Ring) -> T) -> Option<T> {
    let mut hardware = DISKS[SERVED].get()?.hardware.lock();
    let lane: &mut dyn Any = &mut *hardware.lane;
    lane.downcast_mut().map(action)
}

/// Forgets the disk that OS-0 serves, and what VMs that have ended asked of it last.
///
/// # Safety
/// No VM is left, and no CPU uses any disk.
pub unsafe fn forget_served() {
    for extent in partitions() {
        extent.clear();
        if extent.entry.was_base.load(Ordering::Relaxed) {
            sharing::forget_disk(extent.number());
        }
    }
    // SAFETY: the caller's promise.
    unsafe { DISKS[SERVED].clear() }
}

impl Disk {
    fn new(
        lane: impl Lane<Buffer = Ram> + Send,
        partitions: heapless::Vec<Entry, PARTITIONS_MAX>,
    ) -> Self {
        let (lane, jobs) = (Box::new(lane), Jobs::default());
        let hardware = Hardware { lane, jobs };
        Self {
            hardware: SpinLock::new(Rank::PhysicalDevice, hardware),
            partitions,
        }
    }
}

impl Entry {
    fn new(place: Place, name: heapless::String<108>, is_scratch: bool) -> Self {
        let words = Words::new(place.sectors * SECTOR_SIZE / FRAME_SIZE);
        Self {
            place,
            name,
            is_scratch,
            takers: AtomicI32::new(0),
            was_base: AtomicBool::new(false),
            known: SpinLock::new(Rank::Blocks, (words, Tables::new(NodeId(0), 0))),
            reads: AtomicU64::new(0),
        }
    }
}

fn read_partitions(
    disk: usize,
    lane: &mut dyn Lane<Buffer = Ram>,
    sectors: u64,
) -> heapless::Vec<Entry, PARTITIONS_MAX> {
    let mut found = heapless::Vec::new();
    let mut buffer = [0; SECTOR_SIZE as usize];
    let table = model_partitions::read(sectors, &mut buffer, |sector, into| {
        read_now(lane, sector, into)
    });
    match table {
        Ok(table) => {
            for partition in &table.partitions {
                let (first, last) = (partition.first_lba, partition.last_lba);
                let number = disk * PARTITIONS_MAX + found.len() + 1;
                let place = Place::new(number, first, last - first + 1);
                let name = partition.name.clone();
                let entry = Entry::new(place, name, partition.type_guid.is_scratch());
                if found.push(entry).is_err() {
                    log::warn!("only the first {PARTITIONS_MAX} partitions are used");
                    break;
                }
            }
        }
        Err(error) => log::warn!("a physical disk without a usable partition table: {error}"),
    }
    found
}

fn partitions() -> impl Iterator<Item = Extent> {
    let disks = DISKS.iter().filter_map(Once::get);
    let all = disks.flat_map(|disk| disk.partitions.iter().map(move |entry| (disk, entry)));
    all.map(|(disk, entry)| Extent { disk, entry })
}

/// Takes the partition of that name: for one VM alone, or as a base that others may have too.
pub fn take(name: &str, is_base: bool) -> Result<Partition, Unavailable> {
    let extent = named(name).ok_or(Unavailable::Missing)?;
    let Extent { disk, entry } = extent;
    // What a VM that has ended asked for last may still be on its way.
    if disk.hardware.lock().jobs.has_of(extent.number()) && !is_base {
        return Err(Unavailable::Taken);
    }
    let one_more = |now| match (is_base, now) {
        (true, 0..) => Some(now + 1),
        (false, 0) => Some(-1),
        _ => None,
    };
    let takers = &entry.takers;
    takers
        .fetch_update(Ordering::AcqRel, Ordering::Relaxed, one_more)
        .map_err(|_| Unavailable::Taken)?;
    if is_base {
        entry.was_base.store(true, Ordering::Relaxed);
    } else {
        if entry.was_base.swap(false, Ordering::Relaxed) {
            sharing::forget_disk(extent.number());
        }
        extent.clear();
    }
    Ok(Partition { extent, is_base })
}

/// A partition by its number.
pub fn extent(number: u8) -> Option<Extent> {
    partitions().find(|extent| extent.number() == number)
}

/// A partition by its name.
pub fn named(name: &str) -> Option<Extent> {
    partitions().find(|extent| extent.name() == name)
}

/// Frames of tables that say what blocks hold.
pub fn table_frames() -> u64 {
    partitions().map(|extent| extent.tables()).sum()
}

/// Notes that a block of a partition is free of what was swapped to it.
pub fn forget(number: u8, block: u64) {
    if let Some(extent) = extent(number) {
        extent.forget(block);
    }
}

/// Whether nothing is asked of any disk.
pub fn are_idle() -> bool {
    let mut disks = DISKS.iter().filter_map(Once::get);
    disks.all(|disk| disk.hardware.lock().jobs.is_empty())
}

/// Whether a request of a VM that is under way uses a guest frame.
pub fn is_in_use(vm: VmId, gfn: Gfn) -> bool {
    let mut disks = DISKS.iter().filter_map(Once::get);
    disks.any(|disk| disk.hardware.lock().jobs.uses(vm, gfn))
}

/// Calls `join` with pages that are on their way, until it says so; whether it did.
pub fn any_page(mut join: impl FnMut(&mut Move) -> bool) -> bool {
    let mut disks = DISKS.iter().filter_map(Once::get);
    disks.any(|disk| disk.hardware.lock().jobs.pages().any(&mut join))
}

impl Extent {
    /// Its 512-byte sectors.
    pub fn sectors(&self) -> u64 {
        self.entry.place.sectors
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        &self.entry.name
    }

    /// Whether somebody said that what it holds may be overwritten, by overlays and what VMs swap.
    pub fn is_scratch(&self) -> bool {
        self.entry.is_scratch
    }

    /// A free buffer, where so many are `kept` for others; `None` while others have them.
    pub fn buffer(&self, kept: usize) -> Option<Buffer> {
        let disk = self.disk;
        let (slot, ram) = disk.hardware.lock().lane.claim(kept)?;
        Some(Buffer { disk, slot, ram })
    }

    /// Begins a transfer to or from `buffer`, which is of this partition's disk. Gives the job back
    /// where the device does not take it; nobody hears of that.
    pub fn begin(&self, buffer: Buffer, io: Io, job: Job) -> Result<(), Job> {
        let begun = {
            let Hardware { lane, jobs } = &mut *self.disk.hardware.lock();
            jobs.begin(&mut **lane, (buffer.slot, &self.entry.place), io, job)
        };
        begun?;
        if io.operation == Operation::Read {
            self.entry.reads.fetch_add(io.bytes, Ordering::Relaxed);
        }
        // It is the device's; it comes back in `interrupt`.
        core::mem::forget(buffer);
        Ok(())
    }

    /// Whether a buffer is of its disk.
    pub fn fits(&self, buffer: &Buffer) -> bool {
        core::ptr::eq(self.disk, buffer.disk)
    }
}

/// Reads a sector while nothing else happens: at boot.
fn read_now(lane: &mut dyn Lane<Buffer = Ram>, sector: u64, into: &mut [u8]) -> Result<(), Error> {
    let io = Io {
        operation: Operation::Read,
        sector,
        bytes: into.len() as u64,
    };
    let (slot, buffer) = lane.claim(0).ok_or(Error::QueueFull)?;
    if !lane.ask(slot, &Place::new(1, 0, u64::MAX), io) {
        return Err(Error::IoError);
    }
    // A device that never answers must not keep the machine from starting.
    for _ in 0..100_000_000_u32 {
        if let Some((slot, _, done)) = lane.take_back(&|_| Some(io)) {
            lane.acknowledge();
            lane.release(slot);
            buffer.read(DATA_AT, into);
            return done.then_some(()).ok_or(Error::IoError);
        }
        arch::cpu::relax();
    }
    Err(Error::NotReady)
}

/// The disk says that something is done; whether more is left for [`go_on`] than one pass deals with.
pub fn interrupt(number: usize) -> bool {
    let Some(disk) = DISKS.get(number).and_then(Once::get) else {
        return false;
    };
    disk.hardware.lock().lane.acknowledge();
    end_some(number, disk)
}

/// Deals with transfers that were left, a pass for each disk; whether there are more.
pub fn go_on() -> bool {
    let left = LEFT.swap(0, Ordering::Relaxed);
    for (number, disk) in DISKS.iter().enumerate() {
        if left & 1 << number != 0
            && let Some(disk) = disk.get()
        {
            stretch::look(Kind::Device);
            end_some(number, disk);
        }
    }
    LEFT.load(Ordering::Relaxed) != 0
}

/// Ends jobs that have come back, as many as one pass allows: those who had them begin new ones, which may come
/// back before the last is dealt with, for ever.
fn end_some(number: usize, disk: &'static Disk) -> bool {
    let mut budget = Budget::until(stretch::is_past);
    while !budget.is_spent() {
        if !end_one(disk, &mut budget) {
            return false;
        }
    }
    LEFT.fetch_or(1 << number, Ordering::Relaxed);
    true
}

/// OS-0 says that something is done: one request ends, and more may.
pub fn answered() -> bool {
    let disk = DISKS[SERVED].get();
    stretch::begin_access();
    disk.is_some_and(|disk| end_one(disk, &mut Budget::until(stretch::is_past)))
}

/// Ends a job that has come back; whether there was one.
fn end_one(disk: &'static Disk, budget: &mut Budget) -> bool {
    let mut hardware = disk.hardware.lock();
    let Hardware { lane, jobs } = &mut *hardware;
    let Some((slot, ram, done)) = lane.take_back(&|slot| jobs.io(slot)) else {
        return false;
    };
    let lent = jobs.take(slot);
    drop(hardware);
    let buffer = Buffer { disk, slot, ram };
    budget.began();
    if let (Some(Lent { io, job, .. }), Some(ends)) = (lent, ENDS.get()) {
        match job {
            Job::Request(part) => (ends.request)(part, (buffer, io), done, budget),
            Job::Page(page) => (ends.page)(&page, buffer, done),
        }
    }
    true
}
