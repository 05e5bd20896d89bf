//! A guest's driver of its disk: virtio-blk over virtio-mmio (virtio 1.2, 4.2 and 5.2), one request at a time.

use crate::disk;
use crate::program::{Program, RAM};
use machine_host::instruction::{Instruction as I, Operation};
use machine_host::rng::Rng;
use std::ops::Range;

/// The device, which is the first of the VM's.
const DEVICE: u64 = 0x0a00_0000;
/// Descriptors, the driver's ring, the device's ring, header and status: a page each.
const RINGS: u64 = RAM + (3 << 20);
const AVAILABLE: u64 = RINGS + 0x1000;
const USED: u64 = RINGS + 0x2000;
const HEADER: u64 = RINGS + 0x3000;
const STATUS: u64 = RINGS + 0x4000;
/// What the device writes beside data.
pub const ANSWERS: Range<u64> = USED..STATUS + 0x1000;
/// Where data are read to.
pub const BUFFER: u64 = RINGS + 0x1_0000;
/// Pages of it: more than one transfer of the hypervisor's.
const BUFFER_PAGES: u64 = 20;
/// Pages of it to which most requests read, and where all vCPUs store, too.
pub const CROWDED_PAGES: u64 = 6;
/// Where data are written from; only vCPU 0 stores there.
const SOURCE: u64 = BUFFER + BUFFER_PAGES * 0x1000;
const SOURCE_PAGES: u64 = 20;
const FEW_PAGES: u64 = 4;
const PAGE: u64 = 4096;
const SECTOR: u64 = 512;
const NEXT: u64 = 1 << 32;
const WRITES: u64 = 2 << 32;

/// What `HLT` says: a read or a write begins or has ended, of x12 bytes at x10 from sector x11, with status x13.
pub const READ_BEGINS: u16 = 3;
/// See [`READ_BEGINS`].
pub const READ_ENDS: u16 = 4;
/// See [`READ_BEGINS`].
pub const WRITE_ENDS: u16 = 5;
/// See [`READ_BEGINS`].
pub const WRITE_BEGINS: u16 = 9;
/// What `HLT` says: the device was reset, whatever it was at.
pub const RESET: u16 = 10;

impl Program {
    /// Finds the device and sets its queue up.
    pub fn open_disk(&mut self) {
        let mut set = |register: u64, value: u64| self.store(2, DEVICE + register, value);
        for (register, value) in [
            (0x70, 1),
            (0x70, 3),
            (0x24, 1),
            (0x20, 1),
            (0x70, 0xb),
            (0x38, 8),
            (0x80, RINGS),
            (0x90, AVAILABLE),
            (0xa0, USED),
            (0x44, 1),
            (0x70, 0xf),
        ] {
            set(register, value);
        }
    }

    /// Reads or writes blocks that `rng` names, as request `number`, and waits for the end.
    pub fn use_disk(&mut self, rng: &mut Rng, number: u16) {
        let is_write = rng.below(3) == 0;
        let most = match rng.below(4) {
            0 if is_write => SOURCE_PAGES,
            _ if is_write => FEW_PAGES,
            0 => BUFFER_PAGES,
            _ => CROWDED_PAGES,
        };
        let pages = 1 + rng.below(most);
        let place = rng.below(most - pages + 1) * PAGE;
        let block = rng.below(disk::SIZE / PAGE - pages);
        // Most requests are of whole blocks, which change hands; others are copied.
        let odd = if rng.below(4) == 0 {
            SECTOR * rng.below(8)
        } else {
            0
        };
        // Or their data begin anywhere in a page.
        let (skip, less) = match rng.below(4) {
            0 => (8 * rng.below(512), SECTOR * 8),
            _ => (0, 0),
        };
        let bytes = (pages * PAGE - odd).saturating_sub(less).max(SECTOR);
        let sector = (block * PAGE + odd) / SECTOR;
        let buffer = if is_write { SOURCE } else { BUFFER } + place + skip;
        if is_write {
            for _ in 0..4 {
                self.store(3, buffer + rng.below(bytes / 8) * 8, rng.next());
            }
        }
        let verb = if is_write { "writes" } else { "reads" };
        self.note(format!(
            "{verb} {bytes} bytes from sector {sector} at {buffer:#x}"
        ));
        let waits = rng.below(3) == 0;
        self.request((number, waits), (is_write, sector), (buffer, bytes));
    }

    /// Begins to read as request `number`, resets the device after a while, and sets it up again: from then on nobody
    /// else may write where it was to read to.
    pub fn reset_disk(&mut self, rng: &mut Rng, number: u16) {
        let pages = 1 + rng.below(CROWDED_PAGES);
        let sector = 8 * rng.below(disk::SIZE / PAGE - pages);
        let bytes = pages * PAGE;
        self.note(format!(
            "resets its disk while it reads {bytes} bytes from sector {sector}"
        ));
        self.ask(number, (false, sector), (BUFFER, bytes));
        if rng.below(2) == 0 {
            self.sleep(rng.below(4000) as u32);
        }
        self.store(2, DEVICE + 0x70, 0);
        self.add([I::Ask(RESET)]);
        let places: Vec<u64> = (0..4).map(|_| BUFFER + 8 * rng.below(bytes / 8)).collect();
        for place in &places {
            self.store(3, *place, rng.next());
        }
        self.store(1, AVAILABLE + 2, 0);
        self.store(1, USED + 2, 0);
        self.open_disk();
        self.sleep(4095);
        for place in places {
            self.load(3, place);
        }
    }

    /// Lets the device begin with a request.
    fn ask(&mut self, number: u16, (is_write, sector): (bool, u64), (at, bytes): (u64, u64)) {
        self.store(3, HEADER, is_write.into());
        self.store(3, HEADER + 8, sector);
        let direction = if is_write { 0 } else { WRITES };
        let descriptors = [
            (HEADER, 16 | NEXT | 1 << 48),
            (at, bytes | NEXT | direction | 2 << 48),
            (STATUS, 1 | WRITES),
        ];
        for (n, (address, word)) in (0..).zip(descriptors) {
            self.store(3, RINGS + 16 * n, address);
            self.store(3, RINGS + 16 * n + 8, word);
        }
        self.store(1, AVAILABLE + 4 + 2 * (u64::from(number) % 8), 0);
        self.put(10, at);
        self.put(11, sector);
        self.put(12, bytes);
        let begin = if is_write { WRITE_BEGINS } else { READ_BEGINS };
        self.add([I::Ask(begin)]);
        // From here on the device may take it, also before it is told.
        self.store(1, AVAILABLE + 2, u64::from(number) + 1);
        self.store(2, DEVICE + 0x50, 0);
    }

    /// As [`Self::ask`], and waits for the end: for an interrupt, or by looking now and then.
    fn request(&mut self, (number, waits): (u16, bool), what: (bool, u64), place: (u64, u64)) {
        if waits {
            self.enable_disk_interrupt(true);
        }
        self.ask(number, what, place);
        let is_write = what.0;
        if waits {
            self.wait_for_disk(|program| program.store(2, DEVICE + 0x64, 1));
            self.enable_disk_interrupt(false);
        }
        let start = self.len();
        self.load(1, USED + 2);
        self.add([I::CalculateWith(Operation::Subtract, 3, 3, number + 1)]);
        self.repeat_until_zero(start, 500);
        self.store(2, DEVICE + 0x64, 1);
        self.load(0, STATUS);
        let end = if is_write { WRITE_ENDS } else { READ_ENDS };
        self.add([I::Calculate(Operation::Or, 13, 3, 31), I::Ask(end)]);
    }
}
