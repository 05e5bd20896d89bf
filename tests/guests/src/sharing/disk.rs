//! A virtio-blk disk (virtio 1.2, sections 4.2 and 5.2), polled, one request at a time.

use core::sync::atomic::{Ordering, fence};

use machine_bare::device::Device;
use machine_bare::machine::Machine;
use machine_bare::memory::Scratch;
use machine_bare::timer;
use machine_bare::verdict::{Failure, Verdict, check, equal};

/// Bytes of a sector.
pub const SECTOR: u64 = 512;
/// Pieces of memory that one request may name.
pub const PIECES: usize = 4;

const MAGIC: usize = 0x000;
const DEVICE_ID: usize = 0x008;
const DRIVER_FEATURES: usize = 0x020;
const DRIVER_FEATURES_SELECT: usize = 0x024;
const QUEUE_SELECT: usize = 0x030;
const QUEUE_SIZE: usize = 0x038;
const QUEUE_READY: usize = 0x044;
const QUEUE_NOTIFY: usize = 0x050;
const INTERRUPT_STATUS: usize = 0x060;
const INTERRUPT_ACKNOWLEDGE: usize = 0x064;
const STATUS: usize = 0x070;
const QUEUE_TABLE: usize = 0x080;
const QUEUE_DRIVER: usize = 0x090;
const QUEUE_DEVICE: usize = 0x0a0;
const CAPACITY: usize = 0x100;
const MAGIC_VALUE: u32 = 0x7472_6976;
const BLOCK_DEVICE: u32 = 2;
/// Feature bit 32: VERSION_1.
const VERSION_1: (u32, u32) = (1, 1);

const NEXT: u16 = 1;
const WRITE: u16 = 2;

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

/// The first disk of the machine.
pub struct Disk {
    device: Device,
    queue: Scratch,
    requests: u16,
}

impl Disk {
    /// Brings it up, with its queue in the page `queue`.
    pub fn open(machine: &Machine, queue: Scratch) -> Result<Self, Failure> {
        let found = machine.virtio().iter().copied().find(|device| {
            device.read32(MAGIC) == MAGIC_VALUE && device.read32(DEVICE_ID) == BLOCK_DEVICE
        });
        check(found.is_some(), "there is no disk")?;
        let device = found.unwrap_or(Device::NONE);
        device.write32(STATUS, 0);
        device.write32(STATUS, 1 | 2);
        for (select, features) in [(0, 0), VERSION_1] {
            device.write32(DRIVER_FEATURES_SELECT, select);
            device.write32(DRIVER_FEATURES, features);
        }
        device.write32(STATUS, 1 | 2 | 8);
        equal("features taken", u64::from(device.read32(STATUS) & 8), 8)?;
        device.write32(QUEUE_SELECT, 0);
        device.write32(QUEUE_SIZE, ENTRIES as u32);
        queue.write(AVAILABLE, 0);
        queue.write(USED, 0);
        for (register, offset) in [
            (QUEUE_TABLE, TABLE),
            (QUEUE_DRIVER, AVAILABLE),
            (QUEUE_DEVICE, USED),
        ] {
            let address = queue.base() + offset;
            device.write32(register, address as u32);
            device.write32(register + 4, (address >> 32) as u32);
        }
        device.write32(QUEUE_READY, 1);
        device.write32(STATUS, 1 | 2 | 4 | 8);
        Ok(Self {
            device,
            queue,
            requests: 0,
        })
    }

    /// Sectors.
    pub fn capacity(&self) -> u64 {
        u64::from(self.device.read32(CAPACITY)) | u64::from(self.device.read32(CAPACITY + 4)) << 32
    }

    /// Reads sectors from `sector` on into the pieces (address, bytes) of memory.
    pub fn read(&mut self, sector: u64, pieces: &[(u64, u64)]) -> Verdict {
        self.request(0, sector, pieces)
    }

    /// Writes the pieces of memory to the sectors from `sector` on.
    pub fn write(&mut self, sector: u64, pieces: &[(u64, u64)]) -> Verdict {
        self.request(1, sector, pieces)
    }

    fn request(&mut self, kind: u64, sector: u64, pieces: &[(u64, u64)]) -> Verdict {
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
        equal(
            "status of a request",
            self.queue.read(STATUS_BYTE) & 0xff,
            0,
        )
    }

    fn describe(&self, place: u64, (address, bytes): (u64, u64), flags: u16) {
        let descriptor = TABLE + 16 * place;
        self.queue.write(descriptor, address);
        self.queue.write32(descriptor + 8, bytes as u32);
        self.queue.write16(descriptor + 12, flags);
        self.queue.write16(descriptor + 14, place as u16 + 1);
    }
}
