//! Physical disks: virtio-blk driven at EL2, divided by a GUID partition table, a partition for
//! one VM at a time.
//!
//! Requests of guests go through buffers of EL2's own, so that a guest's frames are never in a
//! device's hands; a request larger than a buffer goes in turns.

use super::queue::{BufferQueue, Transport, begin};
use crate::device::virtio::Slot;
use crate::{heap, vm};
use alloc::boxed::Box;
use core::sync::atomic::{AtomicBool, Ordering};
use machine_aarch64::frames::Ram;
use machine_contract::GuestMemory;
use machine_locks::{Once, Rank, SpinLock};
use model_addr::VmId;
use model_virtio::blk::{Operation, Request, SECTOR_SIZE, Status};
use virtio_drivers::Error;
use virtio_drivers::transport::Transport as _;

/// Requests under way at a time.
const JOBS: usize = 16;
/// A job's buffer as an order of frames: 128 KiB, for 64 KiB of data, header and status.
const BUFFER_ORDER: u8 = 5;
const DATA_AT_ONCE: u64 = 64 * 1024;
/// `struct virtio_blk_req` before its data: le32 type, le32 reserved, le64 sector.
const HEADER_BYTES: u32 = 16;
const FEATURE_FLUSH: u64 = 1 << 9;
const REQUEST_IN: u32 = 0;
const REQUEST_OUT: u32 = 1;
const REQUEST_FLUSH: u32 = 4;
/// The most physical disks.
const DISKS_MAX: usize = 4;
/// The most partitions of a disk that are offered.
const PARTITIONS_MAX: usize = 16;

/// A guest's request under way.
struct Job {
    vm: VmId,
    /// The VM's virtio window.
    window: usize,
    /// The partition's first sector.
    start: u64,
    request: Request,
    /// Bytes done, and bytes in the device's hands.
    done: u64,
    now: u64,
}

struct Hardware {
    transport: Transport,
    queue: BufferQueue<64, JOBS>,
    jobs: [Option<Box<Job>>; JOBS],
}

/// A partition as it was found.
struct Entry {
    name: heapless::String<108>,
    first: u64,
    sectors: u64,
    taken: AtomicBool,
}

struct Disk {
    hardware: SpinLock<Hardware>,
    partitions: heapless::Vec<Entry, PARTITIONS_MAX>,
}

static DISKS: [Once<Disk>; DISKS_MAX] = [const { Once::new() }; DISKS_MAX];

/// A partition in the hands of one VM; it is free again when this is dropped.
pub struct Partition {
    disk: &'static Disk,
    entry: &'static Entry,
}

/// Why a partition cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unavailable {
    /// No disk has a partition of that name.
    Missing,
    /// Another VM has it.
    Taken,
}

impl Drop for Partition {
    fn drop(&mut self) {
        self.entry.taken.store(false, Ordering::Release);
    }
}

/// Starts a disk and reads its partition table.
pub fn start(number: usize, mut transport: Transport) -> Result<(), Error> {
    begin(&mut transport, FEATURE_FLUSH);
    let queue = BufferQueue::new(&mut transport, 0, BUFFER_ORDER)?;
    transport.finish_init();
    // struct virtio_blk_config begins with the capacity; registers are read by words.
    let [low, high]: [u32; 2] = transport.read_config_space(0)?;
    let sectors = u64::from(high) << 32 | u64::from(low);
    let mut hardware = Hardware {
        transport,
        queue,
        jobs: [const { None }; JOBS],
    };
    let partitions = read_partitions(&mut hardware, sectors);
    for entry in &partitions {
        log::info!(
            "disk {number}: partition {:?}, {} MiB",
            entry.name,
            entry.sectors >> 11
        );
    }
    let disk = Disk {
        hardware: SpinLock::new(Rank::PhysicalDevice, hardware),
        partitions,
    };
    let slot = DISKS.get(number).ok_or(Error::Unsupported)?;
    slot.set(disk).map_err(|_| Error::AlreadyUsed)
}

fn read_partitions(hardware: &mut Hardware, sectors: u64) -> heapless::Vec<Entry, PARTITIONS_MAX> {
    let mut found = heapless::Vec::new();
    let mut buffer = [0; SECTOR_SIZE as usize];
    let table = model_partitions::read(sectors, &mut buffer, |sector, into| {
        hardware.read_now(sector, into)
    });
    match table {
        Ok(table) => {
            for partition in &table.partitions {
                let entry = Entry {
                    name: partition.name.clone(),
                    first: partition.first_lba,
                    sectors: partition.last_lba - partition.first_lba + 1,
                    taken: AtomicBool::new(false),
                };
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

/// Takes the partition of that name for one VM.
pub fn take(name: &str) -> Result<Partition, Unavailable> {
    for disk in DISKS.iter().filter_map(Once::get) {
        if let Some(entry) = disk.partitions.iter().find(|entry| entry.name == name) {
            if entry.taken.swap(true, Ordering::AcqRel) {
                return Err(Unavailable::Taken);
            }
            return Ok(Partition { disk, entry });
        }
    }
    Err(Unavailable::Missing)
}

impl Partition {
    /// Its 512-byte sectors.
    pub fn sectors(&self) -> u64 {
        self.entry.sectors
    }

    /// Whether another request can be begun.
    pub fn has_room(&self) -> bool {
        self.disk.hardware.lock().queue.free() > 0
    }

    /// Begins a guest's request; `window` is the VM's virtio window that hears of its end.
    /// Refused with the status that the guest is to see.
    pub fn submit(
        &self,
        vm: VmId,
        window: usize,
        memory: &impl GuestMemory,
        request: &Request,
    ) -> Result<(), Status> {
        if matches!(
            request.operation(),
            Operation::Discard | Operation::WriteZeroes
        ) {
            return Err(Status::Unsupported);
        }
        if !heap::reserve(size_of::<Job>() as u64) {
            return Err(Status::IoError);
        }
        let (slot, buffer) = self
            .disk
            .hardware
            .lock()
            .queue
            .claim()
            .ok_or(Status::IoError)?;
        let (start, request) = (self.entry.first, request.clone());
        let job = Box::new(Job {
            vm,
            window,
            start,
            request,
            done: 0,
            now: 0,
        });
        self.disk
            .begin(slot, buffer, job, memory)
            .map_err(|(_, status)| status)
    }
}

impl Disk {
    /// Gives the next part of a job to the device. Where that fails the buffer is free again.
    fn begin(
        &self,
        slot: usize,
        buffer: Ram,
        mut job: Box<Job>,
        memory: &impl GuestMemory,
    ) -> Result<(), (Box<Job>, Status)> {
        let total = u64::from(job.request.data_bytes());
        job.now = (total - job.done).min(DATA_AT_ONCE);
        let (kind, sector) = match job.request.operation() {
            Operation::Read { sector } => (REQUEST_IN, job.start + sector),
            Operation::Write { sector } => (REQUEST_OUT, job.start + sector),
            _ => (REQUEST_FLUSH, 0),
        };
        write_header(buffer, kind, sector + job.done / SECTOR_SIZE);
        let data = job.now as u32;
        let (reads, writes) = match kind {
            REQUEST_OUT => (HEADER_BYTES + data, 1),
            _ => (HEADER_BYTES, data + 1),
        };
        let mut filled = Ok(());
        if kind == REQUEST_OUT {
            filled = for_each_piece(&job, |ipa, offset, piece| {
                memory.read(ipa, piece).ok()?;
                buffer.write(u64::from(HEADER_BYTES) + offset, piece);
                Some(())
            });
        }
        let mut hardware = self.hardware.lock();
        let Hardware {
            transport,
            queue,
            jobs,
        } = &mut *hardware;
        let lent = filled.and_then(|()| {
            queue
                .lend(transport, slot, reads, writes)
                .map_err(|_| Status::IoError)
        });
        match lent {
            Ok(()) => {
                jobs[slot] = Some(job);
                Ok(())
            }
            Err(status) => {
                queue.release(slot);
                Err((job, status))
            }
        }
    }

    /// A part of a job has ended: the next part, or the guest hears of it.
    fn end(&self, slot: usize, buffer: Ram, written: u32, mut job: Box<Job>) {
        let Some(vm) = vm::instance(job.vm) else {
            // The VM has ended in the meantime: there is nobody to tell.
            self.hardware.lock().queue.release(slot);
            return;
        };
        let memory = vm.memory();
        let mut status = take_result(buffer, written, &job, &memory);
        job.done += job.now;
        if status == Status::Ok && job.done < u64::from(job.request.data_bytes()) {
            match self.begin(slot, buffer, job, &memory) {
                Ok(()) => return,
                Err((failed, refused)) => (job, status) = (failed, refused),
            }
        } else {
            self.hardware.lock().queue.release(slot);
        }
        if let Some(Slot::Block(block)) = vm.virtio.get(job.window) {
            block.complete(&vm, job.window, &job.request, status);
            // Requests may wait for the buffer that became free.
            vm.put_off_device_work();
        }
    }
}

fn write_header(buffer: Ram, kind: u32, sector: u64) {
    buffer.write(0, &kind.to_le_bytes());
    buffer.write(4, &[0; 4]);
    buffer.write(8, &sector.to_le_bytes());
}

/// Takes what a read brought to the guest, and tells how the part went.
fn take_result(buffer: Ram, written: u32, job: &Job, memory: &impl GuestMemory) -> Status {
    let is_write = matches!(job.request.operation(), Operation::Write { .. });
    let mut status = [0xff];
    buffer.read(u64::from(HEADER_BYTES) + job.now, &mut status);
    if written == 0 || status[0] != 0 {
        return Status::IoError;
    }
    if is_write {
        return Status::Ok;
    }
    let copied = for_each_piece(job, |ipa, offset, piece| {
        buffer.read(u64::from(HEADER_BYTES) + offset, piece);
        memory.write(ipa, piece).ok()
    });
    copied.err().unwrap_or(Status::Ok)
}

impl Hardware {
    /// Reads a sector while nothing else happens: at boot.
    fn read_now(&mut self, sector: u64, into: &mut [u8]) -> Result<(), Error> {
        let Self {
            transport, queue, ..
        } = self;
        let (slot, buffer) = queue.claim().ok_or(Error::QueueFull)?;
        write_header(buffer, REQUEST_IN, sector);
        queue.lend(transport, slot, HEADER_BYTES, into.len() as u32 + 1)?;
        // A device that never answers must not keep the machine from starting.
        for _ in 0..100_000_000_u32 {
            if queue.take_back().is_some() {
                transport.ack_interrupt();
                queue.release(slot);
                buffer.read(HEADER_BYTES.into(), into);
                let mut status = [0xff];
                buffer.read(u64::from(HEADER_BYTES) + into.len() as u64, &mut status);
                return if status[0] == 0 {
                    Ok(())
                } else {
                    Err(Error::IoError)
                };
            }
            core::hint::spin_loop();
        }
        Err(Error::NotReady)
    }
}

/// Goes through the part of a job's data that is in the device's hands, in pieces of at most a
/// frame: the guest's address, the offset in the part, and a buffer of the piece's size.
fn for_each_piece(
    job: &Job,
    mut each: impl FnMut(model_addr::Ipa, u64, &mut [u8]) -> Option<()>,
) -> Result<(), Status> {
    let mut bytes = [0; 512];
    let (first, end) = (job.done, job.done + job.now);
    let mut at = 0;
    for segment in job.request.data() {
        let segment_end = at + u64::from(segment.len);
        let mut from = at.max(first);
        while from < segment_end.min(end) {
            let len = (segment_end.min(end) - from).min(bytes.len() as u64);
            let ipa = model_addr::Ipa(segment.ipa.0 + (from - at));
            each(ipa, from - first, &mut bytes[..len as usize]).ok_or(Status::IoError)?;
            from += len;
        }
        at = segment_end;
    }
    Ok(())
}

/// The disk says that something is done.
pub fn interrupt(number: usize) {
    let Some(disk) = DISKS.get(number).and_then(Once::get) else {
        return;
    };
    disk.hardware.lock().transport.ack_interrupt();
    loop {
        let mut hardware = disk.hardware.lock();
        let Some((slot, buffer, written)) = hardware.queue.take_back() else {
            return;
        };
        let job = hardware.jobs[slot].take();
        drop(hardware);
        match job {
            Some(job) => disk.end(slot, buffer, written, job),
            None => disk.hardware.lock().queue.release(slot),
        }
    }
}
