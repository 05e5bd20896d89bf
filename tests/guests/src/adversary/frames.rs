//! Frames of every length and header, in one segment and in many, to others and to itself.

use machine_bare::verdict::Verdict;
use tests_guests::random::Random;
use tests_guests::virtio::WRITE;

use crate::World;
use crate::arena::Arena;
use crate::devices::{CHAIN, NETWORK, Segment};

const RECEIVE: usize = 0;
const TRANSMIT: usize = 1;
const CONFIG: usize = 0x100;
/// Bytes of the header of virtio, and of what follows in the same memory.
const HEADER: u64 = 12;
const FRONT: usize = 96;

/// A header with flags, kind of segments, sizes and places that are possible or not.
fn front(random: &mut Random, mac: [u8; 6]) -> [u8; FRONT] {
    let mut all = [0; FRONT];
    let odd = |random: &mut Random, good: u16| match random.below(6) {
        0 => random.number() as u16,
        _ => good,
    };
    if random.below(3) != 0 {
        all[0] = if random.below(8) == 0 {
            random.number() as u8
        } else {
            1
        };
        all[1] = [0, 1, 4, 5, 0x81, 0x7f][random.below(6) as usize];
        let words = [(4, 256 << random.below(4)), (6, 34), (8, 16)];
        for (at, good) in words {
            all[at..at + 2].copy_from_slice(&odd(random, good).to_le_bytes());
        }
    }
    let frame = &mut all[HEADER as usize..];
    if random.below(4) != 0 {
        frame[..6].fill(0xff);
    } else {
        frame[..6].copy_from_slice(&mac);
        frame[5] ^= random.below(8) as u8;
    }
    frame[6..12].copy_from_slice(&mac);
    // IPv4, a header of 20 bytes, TCP.
    frame[12..=14].copy_from_slice(&[8, 0, 0x45]);
    frame[14 + 9] = if random.below(4) == 0 { 17 } else { 6 };
    frame[34 + 12] = if random.below(8) == 0 {
        random.number() as u8
    } else {
        0x50
    };
    all
}

/// Some frames.
pub fn send(world: &mut World) -> Verdict {
    let World {
        random,
        arena,
        devices,
        ..
    } = world;
    let Some(card) = devices.of(NETWORK, random) else {
        return Ok(());
    };
    let mac = core::array::from_fn(|n| card.device().read8(CONFIG + n));
    let ring = card.ring(TRANSMIT)?;
    for _ in 0..=random.below(4) {
        let front = front(random, mac);
        let (memory, part) = ring.part();
        for (place, word) in (0..).zip(front.as_chunks().0) {
            memory.write(part + 8 * place, u64::from_le_bytes(*word));
        }
        let mut chain: [Segment; CHAIN] = [(ring.part_address(), FRONT as u32, 0); CHAIN];
        if random.below(8) == 0 {
            chain[0].1 = random.below(FRONT as u64) as u32;
        }
        let count = 1 + random.below(CHAIN as u64) as usize;
        for segment in &mut chain[1..count] {
            let length = match random.below(4) {
                0 => Arena::length(random),
                1 => random.below(9000) as u32,
                _ => random.below(1400) as u32,
            };
            *segment = (arena.address(random), length, 0);
        }
        ring.submit(&chain[..count]);
    }
    ring.wait(1000, || arena.stir(random));
    Ok(())
}

/// Room for some frames, of every size.
pub fn receive(world: &mut World) -> Verdict {
    let World {
        random,
        arena,
        devices,
        ..
    } = world;
    let Some(card) = devices.of(NETWORK, random) else {
        return Ok(());
    };
    let ring = card.ring(RECEIVE)?;
    for _ in 0..=random.below(3) {
        let mut chain: [Segment; CHAIN] = [(0, 0, WRITE); CHAIN];
        let count = 1 + random.below(4) as usize;
        for segment in &mut chain[..count] {
            *segment = (arena.address(random), Arena::length(random), WRITE);
        }
        ring.submit(&chain[..count]);
    }
    Ok(())
}
