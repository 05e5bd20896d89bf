//! A virtio-blk disk (virtio 1.2, sections 4.2 and 5.2), polled, one request at a time.

use core::sync::atomic::{Ordering, fence};

use crate::virtio::{
    self, DEVICE_ID, INTERRUPT_ACKNOWLEDGE, NEXT, QUEUE_NOTIFY, STATUS, VERSION_1, WRITE,
};
use machine_bare::device::Device;
use machine_bare::machine::Machine;
use machine_bare::memory::Scratch;
use machine_bare::timer;
use machine_bare::verdict::{Failure, Verdict, check, equal};

/// Bytes of a sector.
pub const SECTOR: u64 = 512;
/// Features in the lower word: discards, and write-zeroes (virtio 1.2, 5.2.3).
const RANGES: u32 = 1 << 13 | 1 << 14;
/// The kinds of their requests (5.2.6).
pub const DISCARD: u64 = 11;
/// See [`DISCARD`].
pub const WRITE_ZEROES: u64 = 13;
/// Pieces of memory that one request may name.
pub const PIECES: usize = 4;

/// Registers and kinds of device beside those of [`crate::virtio`].
const INTERRUPT_STATUS: usize = 0x060;
const CAPACITY: usize = 0x100;
const BLOCK_DEVICE: u32 = 2;

/// Entries of the queue: a request's header, pieces and status fit.
const ENTRIES: u64 = 8;
/// Offsets in the queue's page.
const TABLE: u64 = 0;
const AVAILABLE: u64 = 0x100;
const USED: u64 = 0x200;
const HEADER: u64 = 0x300;
const STATUS_BYTE: u64 = 0x340;
/// Neither of the states that a device writes.
const UNWRITTEN: u64 = 0xff;

/// Microseconds that a request may take beside another VM.
const PATIENCE: u64 = 60_000_000;

/// One disk of the machine.
pub struct Disk {
    device: Device,
    queue: Scratch,
    requests: u16,
}

impl Disk {
    /// Brings the first disk up, with its queue in the page `queue`.
    ///
    /// # Errors
    /// There is none, or it does not come up.
    pub fn open(machine: &Machine, queue: Scratch) -> Result<Self, Failure> {
        Self::open_number(machine, 0, queue)
    }

    /// Brings a disk up, counted from 0 as in the VM's file.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_number(machine: &Machine, number: usize, queue: Scratch) -> Result<Self, Failure> {
        let mut disks = virtio::devices(machine)
            .copied()
            .filter(|device| device.read32(DEVICE_ID) == BLOCK_DEVICE);
        let found = disks.nth(number);
        check(found.is_some(), "there is no disk")?;
        let device = found.unwrap_or(Device::NONE);
        let [offered, _] = virtio::offered(&device);
        virtio::negotiate(&device, [offered & RANGES, VERSION_1])?;
        queue.write(AVAILABLE, 0);
        queue.write(USED, 0);
        let rings = [TABLE, AVAILABLE, USED].map(|offset| queue.base() + offset);
        virtio::set_queue(&device, 0, ENTRIES as u32, rings);
        device.write32(STATUS, virtio::LIVE);
        equal(
            "device's status",
            device.read32(STATUS).into(),
            virtio::LIVE.into(),
        )?;
        Ok(Self {
            device,
            queue,
            requests: 0,
        })
    }

    /// Whether it takes discards and write-zeroes.
    pub fn takes_ranges(&self) -> bool {
        virtio::offered(&self.device)[0] & RANGES == RANGES
    }

    /// Sectors.
    pub fn capacity(&self) -> u64 {
        u64::from(self.device.read32(CAPACITY)) | u64::from(self.device.read32(CAPACITY + 4)) << 32
    }

    /// Reads sectors from `sector` on into the pieces (address, bytes) of memory.
    ///
    /// # Errors
    /// The disk does not answer, or refuses.
    pub fn read(&mut self, sector: u64, pieces: &[(u64, u64)]) -> Verdict {
        self.request(0, sector, pieces)
    }

    /// Writes the pieces of memory to the sectors from `sector` on.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn write(&mut self, sector: u64, pieces: &[(u64, u64)]) -> Verdict {
        self.request(1, sector, pieces)
    }

    fn request(&mut self, kind: u64, sector: u64, pieces: &[(u64, u64)]) -> Verdict {
        equal("status of a request", self.ask(kind, sector, pieces)?, 0)
    }

    /// Does a request of this kind; its status.
    ///
    /// # Errors
    /// The disk does not answer.
    pub fn ask(&mut self, kind: u64, sector: u64, pieces: &[(u64, u64)]) -> Result<u64, Failure> {
        check(pieces.len() <= PIECES, "a request of too many pieces")?;
        let base = self.queue.base();
        self.queue.write(HEADER, kind);
        self.queue.write(HEADER + 8, sector);
        self.queue.write(STATUS_BYTE, UNWRITTEN);
        self.describe(0, (base + HEADER, 16), NEXT);
        let access = if kind == 0 { WRITE } else { 0 };
        for (place, &piece) in (1..).zip(pieces) {
            self.describe(place, piece, access | NEXT);
        }
        let last = 1 + pieces.len() as u64;
        self.describe(last, (base + STATUS_BYTE, 1), WRITE);
        let slot = u64::from(self.requests) % ENTRIES;
        self.queue.write16(AVAILABLE + 4 + 2 * slot, 0);
        self.requests = self.requests.wrapping_add(1);
        fence(Ordering::SeqCst);
        self.queue.write16(AVAILABLE + 2, self.requests);
        fence(Ordering::SeqCst);
        self.device.write32(QUEUE_NOTIFY, 0);
        let used = || self.queue.read(USED) >> 16 & 0xffff == u64::from(self.requests);
        check(timer::wait_until(PATIENCE, used), "the disk never answers")?;
        fence(Ordering::SeqCst);
        let interrupts = self.device.read32(INTERRUPT_STATUS);
        self.device.write32(INTERRUPT_ACKNOWLEDGE, interrupts);
        Ok(self.queue.read(STATUS_BYTE) & 0xff)
    }

    fn describe(&self, place: u64, (address, bytes): (u64, u64), flags: u16) {
        let descriptor = TABLE + 16 * place;
        self.queue.write(descriptor, address);
        self.queue.write32(descriptor + 8, bytes as u32);
        self.queue.write16(descriptor + 12, flags);
        self.queue.write16(descriptor + 14, place as u16 + 1);
    }
}
