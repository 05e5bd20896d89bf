//! A VM's disk: requests of its virtio-blk device, served from a base image and an overlay, or
//! from a partition of a physical disk.

use super::overlay::{CowDisk, Piece};
use super::virtio::{register, update_line};
use crate::frames;
use crate::physical::disk::Partition;
use crate::vm::Instance;
use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering};
use machine_contract::GuestMemory;
use machine_locks::{Rank, SpinLock};
use model_addr::{FRAME_SIZE, Ipa};
use model_disk_overlay::OverlayError;
use model_virtio::Transport;
use model_virtio::blk::{Blk, Next, Operation, Request, SECTOR_SIZE, SectorRange, Status};

/// Bytes moved, and requests served, in one go.
const BYTES_AT_ONCE: u64 = 256 * 1024;
const REQUESTS_AT_ONCE: u32 = 64;
/// Table entries that one go of a discard looks at.
const ZERO_BUDGET: u32 = 4096;

/// What holds a disk's data.
pub enum Backing {
    /// A base image and a private overlay.
    Cow(CowDisk),
    /// A base image that cannot be written.
    ReadOnly(&'static [u8]),
    /// A partition of a physical disk.
    Partition(Partition),
}

struct State {
    transport: Transport<Blk>,
    backing: Backing,
    request: Box<Request>,
}

/// Counters of a disk.
#[derive(Default)]
pub struct Counts {
    reads: AtomicU64,
    writes: AtomicU64,
    flushes: AtomicU64,
    refused: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
}

/// A disk.
pub struct Block {
    state: SpinLock<State>,
    counts: Counts,
}

impl Block {
    /// A disk that looks like `device` and keeps its data in `backing`.
    pub fn new(device: Blk, backing: Backing) -> Self {
        let state = State {
            transport: Transport::new(device),
            backing,
            request: Box::default(),
        };
        Self {
            state: SpinLock::new(Rank::Device, state),
            counts: Counts::default(),
        }
    }

    /// The guest reads the register at `offset`, or writes it.
    pub fn access(
        &self,
        vm: &Instance,
        n: usize,
        offset: u64,
        size: usize,
        value: Option<u64>,
    ) -> u64 {
        let mut state = self.state.lock();
        let State {
            transport,
            backing,
            request,
        } = &mut *state;
        register(transport, vm, n, offset, size, value, |transport, vm| {
            self.serve(transport, backing, request, vm, n);
        })
    }

    /// Goes on with requests that were put off.
    pub fn proceed(&self, vm: &Instance, n: usize) {
        let mut state = self.state.lock();
        let State {
            transport,
            backing,
            request,
        } = &mut *state;
        self.serve(transport, backing, request, vm, n);
        update_line(transport, vm, n);
    }

    /// A request to the physical disk has ended.
    pub fn complete(&self, vm: &Instance, n: usize, request: &Request, status: Status) {
        let mut state = self.state.lock();
        state.transport.complete(&vm.memory(), request, status);
        update_line(&state.transport, vm, n);
    }

    /// Queues that the driver broke, since the start.
    pub fn errors(&self) -> u64 {
        self.state.lock().transport.errors().0.into()
    }

    /// Bytes of frames in the overlay.
    pub fn overlay_usage(&self) -> u64 {
        match &self.state.lock().backing {
            Backing::Cow(disk) => disk.usage(),
            _ => 0,
        }
    }

    /// Requests: reads, writes, flushes, refused; bytes read and written.
    pub fn counts(&self) -> ([u64; 4], [u64; 2]) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counts {
            reads,
            writes,
            flushes,
            refused,
            bytes_read,
            bytes_written,
        } = &self.counts;
        (
            [load(reads), load(writes), load(flushes), load(refused)],
            [load(bytes_read), load(bytes_written)],
        )
    }

    /// Takes the disk's data from it: the VM has ended.
    pub fn into_backing(self) -> Backing {
        self.state.into_inner().backing
    }

    /// Serves requests, as many as one go allows; vCPU 0 comes back for the rest.
    fn serve(
        &self,
        transport: &mut Transport<Blk>,
        backing: &mut Backing,
        request: &mut Request,
        vm: &Instance,
        n: usize,
    ) {
        let memory = vm.memory();
        let mut bytes = 0;
        for _ in 0..REQUESTS_AT_ONCE {
            if bytes >= BYTES_AT_ONCE {
                break;
            }
            if let Backing::Partition(partition) = backing
                && !partition.has_room()
            {
                // The end of a request under way comes back to this.
                return;
            }
            match transport.next_request(&memory, request) {
                Next::Empty => return,
                Next::Answered => count(&self.counts.refused, 1),
                Next::Request => {
                    bytes += u64::from(request.data_bytes());
                    self.count_request(request);
                    if let Backing::Partition(partition) = backing {
                        match partition.submit(vm.id, n, &memory, request) {
                            Ok(()) => {}
                            Err(status) => transport.complete(&memory, request, status),
                        }
                    } else {
                        let status = execute(backing, request, vm);
                        transport.complete(&memory, request, status);
                    }
                }
            }
        }
        vm.put_off_device_work();
    }

    fn count_request(&self, request: &Request) {
        let bytes = u64::from(request.data_bytes());
        match request.operation() {
            Operation::Read { .. } => {
                count(&self.counts.reads, 1);
                count(&self.counts.bytes_read, bytes);
            }
            Operation::Write { .. } => {
                count(&self.counts.writes, 1);
                count(&self.counts.bytes_written, bytes);
            }
            Operation::Flush => count(&self.counts.flushes, 1),
            Operation::Discard | Operation::WriteZeroes => {}
        }
    }
}

fn count(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

/// Does a request whose data are in memory.
fn execute(backing: &mut Backing, request: &Request, vm: &Instance) -> Status {
    let done = match (request.operation(), backing) {
        (Operation::Read { sector }, Backing::Cow(disk)) => {
            transfer(request, sector, |at, ipa, len| {
                read_piece(disk, vm, at, ipa, len)
            })
        }
        (Operation::Read { sector }, Backing::ReadOnly(image)) => {
            transfer(request, sector, |at, ipa, len| {
                read_base(image, vm, at, ipa, len)
            })
        }
        (Operation::Write { sector }, Backing::Cow(disk)) => {
            transfer(request, sector, |at, ipa, len| {
                write_piece(disk, vm, at, ipa, len)
            })
        }
        (Operation::Discard | Operation::WriteZeroes, Backing::Cow(disk)) => request
            .ranges()
            .iter()
            .all(|range| zero_range(disk, *range)),
        // What is written lives as long as the VM: there is nothing to make durable.
        (Operation::Flush, _) => true,
        _ => false,
    };
    if done { Status::Ok } else { Status::IoError }
}

/// Goes through a request's segments in pieces that lie in one 4 KiB block of the disk.
fn transfer(request: &Request, sector: u64, mut each: impl FnMut(u64, Ipa, usize) -> bool) -> bool {
    let mut at = sector * SECTOR_SIZE;
    for segment in request.data() {
        let mut done = 0;
        while done < u64::from(segment.len) {
            let piece = (u64::from(segment.len) - done).min(FRAME_SIZE - at % FRAME_SIZE);
            if !each(at, Ipa(segment.ipa.0 + done), piece as usize) {
                return false;
            }
            done += piece;
            at += piece;
        }
    }
    true
}

fn read_piece(disk: &CowDisk, vm: &Instance, at: u64, ipa: Ipa, len: usize) -> bool {
    match disk.locate(at) {
        Piece::Base(from) => read_base(disk.base, vm, from, ipa, len),
        Piece::Zero => read_base(&[], vm, 0, ipa, len),
        Piece::Frame(source, offset) => {
            let source = frames::ram(source, 1);
            let copied = vm.memory().pieces(ipa, len, |frame, to, part| {
                let from = offset + part.start as u64;
                frames::ram(frame, 1).copy_from(to, source, from, part.len());
            });
            copied.is_ok()
        }
    }
}

/// Copies from a base image; beyond its end there are zeroes.
fn read_base(base: &[u8], vm: &Instance, at: u64, ipa: Ipa, len: usize) -> bool {
    let start = (at as usize).min(base.len());
    let there = (base.len() - start).min(len);
    let rest = vm
        .memory()
        .pieces(Ipa(ipa.0 + there as u64), len - there, |frame, to, part| {
            frames::ram(frame, 1).zero(to, part.len());
        });
    vm.memory()
        .write(ipa, &base[start..start + there])
        .and(rest)
        .is_ok()
}

fn write_piece(disk: &mut CowDisk, vm: &Instance, at: u64, ipa: Ipa, len: usize) -> bool {
    let written = disk.write(at, len as u64, |frame, offset| {
        let to = frames::ram(frame, 1);
        let copied = vm.memory().pieces(ipa, len, |from, from_offset, part| {
            let source = frames::ram(from, 1);
            to.copy_from(offset + part.start as u64, source, from_offset, part.len());
        });
        copied.map_err(|_| OverlayError::NoMemory)
    });
    if let Err(error) = written {
        log::warn!(
            "{}: write at byte {at:#x} of a disk refused: {error}",
            vm.name()
        );
    }
    written.is_ok()
}

/// Zeroes a range of sectors: whole blocks by leaving them out, the rest by writing.
fn zero_range(disk: &mut CowDisk, range: SectorRange) -> bool {
    let (mut at, end) = (
        range.sector * SECTOR_SIZE,
        (range.sector + u64::from(range.count)) * SECTOR_SIZE,
    );
    while at < end {
        let offset = at % FRAME_SIZE;
        let advanced = if offset == 0 && end - at >= FRAME_SIZE {
            disk.zero(at, (end - at) & !(FRAME_SIZE - 1), ZERO_BUDGET)
        } else {
            let len = (end - at).min(FRAME_SIZE - offset);
            let zero = |frame, offset| {
                frames::ram(frame, 1).zero(offset, len as usize);
                Ok(())
            };
            disk.write(at, len, zero).map(|()| len)
        };
        match advanced {
            Ok(bytes) if bytes > 0 => at += bytes,
            _ => return false,
        }
    }
    true
}
