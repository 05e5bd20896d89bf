//! Pages that go to the balloon and come back, and such as are reported free; also those of requests under way.

use machine_bare::memory::PAGE_SIZE;
use machine_bare::verdict::Verdict;
use tests_guests::random::Random;
use tests_guests::virtio::WRITE;

use crate::World;
use crate::arena::{Arena, HOT};
use crate::devices::{BALLOON, CHAIN, Devices, Segment};

const INFLATE: usize = 0;
const DEFLATE: usize = 1;
const REPORT: usize = 2;
/// Numbers of pages in one chain.
const NUMBERS: u64 = 256;
const PATIENCE: u64 = 2_000;

/// Gives pages from a hot one on to the balloon, at most 16, and touches them.
///
/// # Errors
/// The balloon does not come up.
pub fn give(devices: &mut Devices, arena: &Arena, random: &mut Random, first: u64) -> Verdict {
    let Some(balloon) = devices.first(BALLOON) else {
        return Ok(());
    };
    let count = 1 + random.below(16);
    let ring = balloon.ring(INFLATE)?;
    let (memory, part) = ring.part();
    for n in 0..count {
        let frame = arena.page(first + n) / PAGE_SIZE;
        memory.write32(part + 4 * n, frame as u32);
    }
    let at = ring.part_address();
    ring.submit(&[(at, (4 * count) as u32, 0)]);
    ring.wait(PATIENCE, || ());
    for n in 0..count {
        arena
            .hot
            .write((first + n) % HOT * PAGE_SIZE + 8, random.number());
    }
    Ok(())
}

/// Numbers of pages, also of none and of the same, into the balloon or out of it.
pub fn inflate(world: &mut World) -> Verdict {
    let World {
        random,
        arena,
        devices,
        ..
    } = world;
    let Some(balloon) = devices.first(BALLOON) else {
        return Ok(());
    };
    let queue = if random.below(4) == 0 {
        DEFLATE
    } else {
        INFLATE
    };
    let ring = balloon.ring(queue)?;
    let (memory, part) = ring.part();
    let count = 1 + random.below(NUMBERS);
    for n in 0..count {
        let frame = match random.below(64) {
            // Beyond all memory, or the first GiB, where no memory is.
            0 => random.number() | 1 << 31,
            1 => random.below(1 << 18),
            2..8 => (arena.all.base() + random.below(arena.all.size())) / PAGE_SIZE,
            _ => arena.page(random.number() >> 20) / PAGE_SIZE,
        };
        memory.write32(part + 4 * n, frame as u32);
    }
    let odd = if random.below(8) == 0 {
        random.below(4)
    } else {
        0
    };
    let at = ring.part_address();
    ring.submit(&[(at, (4 * count - odd) as u32, 0)]);
    if random.below(2) == 0 {
        ring.wait(PATIENCE, || ());
        arena.stir(random);
    }
    Ok(())
}

/// Ranges that are said to be free, and are touched at once.
pub fn report(world: &mut World) -> Verdict {
    let World {
        random,
        arena,
        devices,
        ..
    } = world;
    let Some(balloon) = devices.first(BALLOON) else {
        return Ok(());
    };
    let ring = balloon.ring(REPORT)?;
    let mut chain: [Segment; CHAIN] = [(0, 0, WRITE); CHAIN];
    let count = 1 + random.below(CHAIN as u64) as usize;
    for segment in &mut chain[..count] {
        segment.0 = arena.address(random);
        segment.1 = Arena::length(random);
        if random.below(4) != 0 {
            segment.0 &= !(PAGE_SIZE - 1);
            segment.1 = segment.1.next_multiple_of(PAGE_SIZE as u32);
        }
    }
    ring.submit(&chain[..count]);
    arena.stir(random);
    Ok(())
}
