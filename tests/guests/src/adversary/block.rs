//! Requests of disks, of every kind, place, length and alignment.

use machine_bare::device::Device;
use machine_bare::machine::Machine;
use machine_bare::memory::PAGE_SIZE;
use machine_bare::verdict::{Failure, Verdict};
use tests_guests::disk::{Disk, SECTOR};
use tests_guests::random::Random;
use tests_guests::virtio::{DEVICE_ID, QUEUE_READY, QUEUE_SELECT, STATUS, WRITE, devices};

use crate::World;
use crate::arena::Arena;
use crate::devices::{CHAIN, DISK, Segment};

/// Kinds of request: read, write, flush, identification, discard, write zeroes.
const KINDS: [u64; 16] = [0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 4, 8, 11, 13, 13];
const CAPACITY: usize = 0x100;
/// Where in the memory of a chain its status is, and its ranges.
const STATUS_BYTE: u64 = 0x20;
const RANGES: u64 = 0x100;

/// Sectors that count starts, and what tells one of those.
const CELLS: u64 = 16;
const MARK: u64 = 0x7374_6172_7473_2121;

/// How often it was started before, as far as sectors of the last disk tell: steps write there, too, but not everywhere.
///
/// # Errors
/// The disk does not answer.
pub fn generation(machine: &Machine) -> Result<u64, Failure> {
    let arena = Arena::new(machine);
    let queue = arena.queues.part(0, PAGE_SIZE);
    let page = arena.queues.part(PAGE_SIZE, PAGE_SIZE);
    let is_disk = |device: &&Device| device.read32(DEVICE_ID) == DISK;
    let Some(last) = devices(machine).filter(is_disk).count().checked_sub(1) else {
        return Ok(0);
    };
    let mut disk = Disk::open_number(machine, last, queue)?;
    let apart = disk.capacity() / CELLS;
    let cell = [(page.base(), SECTOR)];
    let mut generation = 0;
    for number in 0..CELLS {
        disk.read(number * apart, &cell)?;
        if page.read(8) == MARK ^ page.read(0) {
            generation = page.read(0).max(generation);
        }
    }
    page.write(0, generation + 1);
    page.write(8, MARK ^ (generation + 1));
    for number in 0..CELLS {
        disk.write(number * apart, &cell)?;
    }
    Ok(generation)
}

/// A sector: mostly one of the disk's, and mostly where a block begins.
fn sector(random: &mut Random, capacity: u64) -> u64 {
    match random.below(16) {
        0 => random.number(),
        1 => capacity.wrapping_sub(random.below(16)),
        2..5 => random.below(capacity),
        5..9 => random.below(capacity.min(1024)) & !7,
        _ => random.below(capacity) & !7,
    }
}

/// Ranges of a discard or of zeroes, in the memory of the chain: how many bytes.
fn ranges(random: &mut Random, capacity: u64, mut write: impl FnMut(u64, u64)) -> u32 {
    let count = 1 + random.below(20);
    for range in 0..count {
        write(RANGES + 16 * range, sector(random, capacity));
        let sectors = match random.below(8) {
            0 => random.number() as u32 as u64,
            1 => random.below(1 << 21),
            2..5 => 8 * random.below(64),
            _ => random.below(64),
        };
        // The upper word: flags, of which the lowest is one.
        let flags = if random.below(8) == 0 {
            random.number() << 32
        } else {
            0
        };
        write(RANGES + 16 * range + 8, sectors | flags);
    }
    (16 * count) as u32
}

/// One request or some at once; then it waits, changes memory meanwhile, goes on, or takes the device away.
pub fn request(world: &mut World) -> Verdict {
    let World {
        random,
        arena,
        devices,
        ..
    } = world;
    let Some(driver) = devices.of(DISK, random) else {
        return Ok(());
    };
    let device = *driver.device();
    let capacity =
        u64::from(device.read32(CAPACITY)) | u64::from(device.read32(CAPACITY + 4)) << 32;
    let capacity = capacity.max(1);
    let ring = driver.ring(0)?;
    for _ in 0..=random.below(3) {
        let (memory, part) = ring.part();
        let at = ring.part_address();
        let kind = match random.below(32) {
            0 => random.number() & 0xffff_ffff,
            choice => KINDS[choice as usize % KINDS.len()],
        };
        memory.write(part, kind);
        memory.write(part + 8, sector(random, capacity));
        let mut chain: [Segment; CHAIN] = [(at, 16, 0); CHAIN];
        let mut count = 1;
        if kind == 11 || kind == 13 {
            let bytes = ranges(random, capacity, |offset, value| {
                memory.write(part + offset, value);
            });
            chain[1] = (at + RANGES, bytes, 0);
            count = 2;
        } else if kind != 4 {
            let flags = if kind == 0 || kind == 8 { WRITE } else { 0 };
            count += 1 + random.below(6) as usize;
            for segment in &mut chain[1..count] {
                *segment = (arena.address(random), Arena::length(random), flags);
            }
            whole_sectors(random, &mut chain[1..count]);
        }
        chain[count] = (at + STATUS_BYTE, 1, WRITE);
        ring.submit(&chain[..=count]);
    }
    match random.below(16) {
        0 => device.write32(STATUS, 0),
        1 => {
            device.write32(QUEUE_SELECT, 0);
            device.write32(QUEUE_READY, 0);
        }
        2..6 => {}
        6..10 => {
            ring.wait(20_000, || arena.stir(random));
        }
        _ => {
            ring.wait(20_000, || ());
        }
    }
    Ok(())
}

/// Makes the sum of lengths one of sectors, mostly.
fn whole_sectors(random: &mut Random, segments: &mut [Segment]) {
    let sum: u64 = segments.iter().map(|segment| u64::from(segment.1)).sum();
    let rest = (sum % SECTOR) as u32;
    if let (Some(last), true) = (segments.last_mut(), random.below(8) != 0) {
        last.1 = last.1.saturating_add((512 - rest) % 512);
    }
}
