//! Requests of a disk that ask for as much as one can: one read of 500 MiB into the same 4 MiB again and again,
//! and one discard of all that was written. They are served; meanwhile others run.

use machine_bare::device::Device;
use machine_bare::machine::Machine;
use machine_bare::memory::{PAGE_SIZE, Scratch};
use machine_bare::println;
use machine_bare::verdict::{Verdict, check, equal};

use crate::virtio::{Piece, Queue, devices, id};

const BLOCK_DEVICE: u32 = 2;
const DISCARD_FEATURE: u32 = 1 << 13;
const READ: u64 = 0;
const WRITE: u64 = 1;
const DISCARD: u64 = 11;
const SECTOR: u64 = 512;

/// The disk's bytes, those that are written before the discard, and those of one segment.
const DISK: u64 = 512 << 20;
const WRITTEN: u64 = 64 << 20;
const SEGMENT: u64 = 4 << 20;
/// Segments of a request: what a chain holds beside header and status.
const SEGMENTS: u64 = 125;
/// Where the data are, behind the queue.
const DATA: u64 = 1 << 20;
/// In the queue's buffers: a request's header, ranges and status.
const HEADER: u64 = 0;
const RANGE: u64 = 64;
const STATUS: u64 = 128;

struct Disk<'a> {
    queue: Queue<'a>,
    memory: Scratch,
    data: u64,
}

/// All of them.
pub fn requests(machine: &'static Machine) -> Verdict {
    let memory = machine.scratch();
    let Some(device) = devices(machine).find(|device| id(device) == BLOCK_DEVICE) else {
        return check(false, "there is no disk");
    };
    let mut disk = Disk::open(device, memory)?;
    println!("hostile: a long read");
    disk.request(READ, 0, SEGMENTS)?;
    println!("hostile: writes");
    for part in 0..WRITTEN / SEGMENT {
        for page in (0..SEGMENT).step_by(PAGE_SIZE as usize) {
            memory.write(DATA + page, part << 32 | page | 1);
        }
        disk.request(WRITE, part * SEGMENT, 1)?;
    }
    println!("hostile: a long discard");
    disk.request(DISCARD, 0, 0)?;
    disk.request(READ, WRITTEN - SEGMENT, 1)?;
    for page in (0..SEGMENT).step_by(PAGE_SIZE as usize) {
        equal("a word that was discarded", memory.read(DATA + page), 0)?;
    }
    Ok(())
}

impl<'a> Disk<'a> {
    fn open(device: &'a Device, memory: Scratch) -> Result<Self, machine_bare::verdict::Failure> {
        let queue = Queue::start(device, 0, memory, [DISCARD_FEATURE, 1])?;
        let data = memory.base() + DATA;
        Ok(Self {
            queue,
            memory,
            data,
        })
    }

    /// Reads or writes so many segments from byte `at` of the disk on, or discards all of it.
    fn request(&mut self, kind: u64, at: u64, segments: u64) -> Verdict {
        let buffers = self.queue.buffers();
        let put = |offset, word| self.memory.write(buffers + offset, word);
        put(HEADER, kind);
        put(HEADER + 8, at / SECTOR);
        put(RANGE, 0);
        put(RANGE + 8, DISK / SECTOR);
        put(STATUS, 0xff);
        let place = |offset, bytes, device_writes| Piece {
            address: self.memory.base() + buffers + offset,
            bytes,
            device_writes,
        };
        let data = Piece {
            address: self.data,
            bytes: SEGMENT as u32,
            device_writes: kind == READ,
        };
        let range = (kind == DISCARD).then(|| place(RANGE, 16, false));
        let pieces = [place(HEADER, 16, false)]
            .into_iter()
            .chain(range)
            .chain((0..segments).map(|_| data))
            .chain([place(STATUS, 1, true)]);
        self.queue.chain(pieces)?;
        let status = self.memory.read(buffers + STATUS) & 0xff;
        equal("status of a request", status, 0)
    }
}
