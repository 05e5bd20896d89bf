//! Reads and writes from and to any sector of each disk, in any number of pieces at any address and of any length,
//! discards and write-zeroes of any sectors, against what the disk must hold.

use machine_bare::machine::Machine;
use machine_bare::memory::{PAGE_SIZE, Scratch};
use machine_bare::println;
use machine_bare::verdict::{Failure, Verdict, check, equal};
use tests_guests::disk::{DISCARD, Disk, PIECES, SECTOR, WRITE_ZEROES};
use tests_guests::random::Random;
use tests_guests::virtio::{self, DEVICE_ID};

const DISK: u32 = 2;
/// `VIRTIO_BLK_F_RO`.
const READ_ONLY: u32 = 1 << 5;
/// Bytes of a disk's beginning that are used.
const SPAN: u64 = 512 << 10;
/// Memory for each piece, which begins in its first half.
const ROOM: u64 = 256 << 10;
/// Bytes around a piece that must stay.
const EDGE: u64 = 64;
/// Where the ranges of discards and write-zeroes are, behind the queue, the bytes of each, and how many a request has.
const RANGES: u64 = PAGE_SIZE;
const RANGE: u64 = 16;
const RANGES_MAX: u64 = 3;
/// The status of what a disk does not do, and does not begin with.
const UNSUPPORTED: u64 = 2;
/// The most bytes of a piece, and of most pieces.
const LARGEST: u64 = 100 << 10;
const LARGE: u64 = 9 << 10;

/// Bytes of memory, read and written one by one.
struct Bytes(Scratch);

impl Bytes {
    fn get(&self, at: u64) -> u8 {
        (self.0.read(at & !7) >> (8 * (at & 7))) as u8
    }

    fn put(&self, at: u64, byte: u8) {
        let (word, shift) = (at & !7, 8 * (at & 7));
        let others = self.0.read(word) & !(0xff << shift);
        self.0.write(word, others | u64::from(byte) << shift);
    }
}

struct World {
    disk: Disk,
    random: Random,
    /// The ranges of a request.
    ranges: Scratch,
    /// What the disk holds.
    holds: Bytes,
    /// Where pieces are.
    arena: Bytes,
}

/// `rounds=N` (150) requests on each disk, of the numbers that follow from `seed=N` (1).
pub fn any(machine: &'static Machine) -> Verdict {
    let scratch = machine.scratch();
    let disks = virtio::devices(machine).filter(|device| device.read32(DEVICE_ID) == DISK);
    let mut count = 0;
    for (number, device) in disks.enumerate() {
        let writable = virtio::offered(device)[0] & READ_ONLY == 0;
        let mut world = World {
            disk: Disk::open_number(machine, number, scratch.part(0, PAGE_SIZE))?,
            random: Random::new(machine.number("seed", 1) + number as u64),
            ranges: scratch.part(RANGES, PAGE_SIZE),
            holds: Bytes(scratch.part(1 << 20, SPAN)),
            arena: Bytes(scratch.part(2 << 20, PIECES as u64 * ROOM)),
        };
        check(world.disk.capacity() * SECTOR >= SPAN, "a small disk")?;
        world.learn()?;
        let takes_ranges = world.disk.takes_ranges();
        for round in 0..machine.number("rounds", 150) {
            if takes_ranges && round % 5 == 4 {
                world.zero()?;
            } else {
                world.request(writable)?;
            }
        }
        world.look_again()?;
        println!("hostile: disk {number} holds what was written");
        count += 1;
    }
    check(count != 0, "no disk")
}

impl World {
    /// Reads all of it, a page at a time.
    fn learn(&mut self) -> Verdict {
        for at in (0..SPAN).step_by(PAGE_SIZE as usize) {
            let page = [(self.holds.0.base() + at, PAGE_SIZE)];
            self.disk.read(at / SECTOR, &page)?;
        }
        Ok(())
    }

    /// The same, and it is what it should be.
    fn look_again(&mut self) -> Verdict {
        for at in (0..SPAN).step_by(PAGE_SIZE as usize) {
            self.disk
                .read(at / SECTOR, &[(self.arena.0.base(), PAGE_SIZE)])?;
            for byte in (0..PAGE_SIZE).step_by(8) {
                let wanted = self.holds.0.read(at + byte);
                equal("word of a disk", self.arena.0.read(byte), wanted)?;
            }
        }
        Ok(())
    }

    /// Where a piece begins in its room: at a page, a sector or any byte.
    fn place(&mut self) -> u64 {
        let unit = [PAGE_SIZE, PAGE_SIZE, SECTOR, 4, 1][self.random.below(5) as usize];
        EDGE + self.random.below(ROOM / 2 - PAGE_SIZE) / unit * unit
    }

    /// Pieces, in whole sectors together, each in a room of its own: where in the arena, and how many bytes.
    fn pieces(&mut self) -> ([(u64, u64); PIECES], usize) {
        let count = 1 + self.random.below(PIECES as u64) as usize;
        let mut pieces = [(0, 0); PIECES];
        let mut all = 0;
        for (room, piece) in (0..).zip(&mut pieces[..count]) {
            let most = if self.random.below(8) == 0 {
                LARGEST
            } else {
                LARGE
            };
            let unit = [PAGE_SIZE, SECTOR, SECTOR, 1][self.random.below(4) as usize];
            let bytes = (1 + self.random.below(most)).next_multiple_of(unit);
            let mut at = self.place();
            if unit == PAGE_SIZE {
                // Whole pages at a page, of which some get their frames from the disk.
                at = at.next_multiple_of(PAGE_SIZE);
            }
            *piece = (room * ROOM + at, bytes);
            all += bytes;
        }
        pieces[count - 1].1 += all.next_multiple_of(SECTOR) - all;
        (pieces, count)
    }

    fn request(&mut self, writable: bool) -> Verdict {
        let (pieces, count) = self.pieces();
        let pieces = &pieces[..count];
        let bytes: u64 = pieces.iter().map(|(_, bytes)| bytes).sum();
        let sector = self.random.below((SPAN - bytes) / SECTOR + 1);
        let sector = [sector, sector & !7][self.random.below(2) as usize];
        let writes = writable && self.random.below(2) == 0;
        let fill = self.random.number();
        for &(at, bytes) in pieces {
            for byte in at - EDGE..at + bytes + EDGE {
                self.arena
                    .put(byte, (fill >> (byte % 7)) as u8 ^ byte as u8);
            }
        }
        let mut chain = [(0, 0); PIECES];
        for (to, &(at, bytes)) in chain.iter_mut().zip(pieces) {
            *to = (self.arena.0.base() + at, bytes);
        }
        if writes {
            self.disk.write(sector, &chain[..count])?;
        } else {
            self.disk.read(sector, &chain[..count])?;
        }
        let mut on_disk = sector * SECTOR;
        for &(at, bytes) in pieces {
            for byte in at - EDGE..at + bytes + EDGE {
                let (found, own) = (
                    self.arena.get(byte),
                    (fill >> (byte % 7)) as u8 ^ byte as u8,
                );
                let is_inside = (at..at + bytes).contains(&byte);
                let place = on_disk + byte.wrapping_sub(at);
                if is_inside && writes {
                    self.holds.put(place, own);
                }
                let wanted = if is_inside && !writes {
                    self.holds.get(place)
                } else {
                    own
                };
                equal("byte of memory", found.into(), wanted.into())?;
            }
            on_disk += bytes;
        }
        Ok(())
    }

    /// Lets sectors be discarded, or zeroes written: by whole blocks, or any.
    fn zero(&mut self) -> Verdict {
        let count = 1 + self.random.below(RANGES_MAX);
        let unit = [SECTOR, PAGE_SIZE][self.random.below(2) as usize];
        let mut ranges = [(0, 0); RANGES_MAX as usize];
        for (n, range) in (0..count).zip(&mut ranges) {
            let bytes = unit * (1 + self.random.below(LARGEST / unit));
            let first = self.random.below((SPAN - bytes) / unit + 1) * unit;
            *range = (first, bytes);
            self.ranges.write(RANGE * n, first / SECTOR);
            self.ranges.write(RANGE * n + 8, bytes / SECTOR);
        }
        let kind = [DISCARD, WRITE_ZEROES][self.random.below(2) as usize];
        let list = [(self.ranges.base(), RANGE * count)];
        let status = self.disk.ask(kind, 0, &list)?;
        let may_refuse = kind == WRITE_ZEROES && unit == SECTOR;
        check(
            status == 0 || may_refuse && status == UNSUPPORTED,
            "ranges are refused",
        )?;
        for (first, bytes) in ranges {
            for at in (first..first + bytes).step_by(SECTOR as usize) {
                if status == 0 && (kind == WRITE_ZEROES || self.is_zero(at)?) {
                    (at..at + SECTOR)
                        .step_by(8)
                        .for_each(|word| self.holds.0.write(word, 0));
                }
            }
        }
        Ok(())
    }

    /// Whether a sector holds zeroes: what is discarded may, or may stay as it was.
    fn is_zero(&mut self, at: u64) -> Result<bool, Failure> {
        let to = [(self.arena.0.base(), SECTOR)];
        self.disk.read(at / SECTOR, &to)?;
        let mut words = (0..SECTOR).step_by(8);
        Ok(words.all(|word| self.arena.0.read(word) == 0))
    }
}
