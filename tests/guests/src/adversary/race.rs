//! Reads of whole blocks that maybe nobody has read, into whole pages which are stored to, given away and taken back
//! meanwhile, by this CPU and by the other.

use core::sync::atomic::{AtomicU64, Ordering};

use machine_bare::memory::{PAGE_SIZE, Scratch};
use machine_bare::verdict::Verdict;
use tests_guests::random::Random;
use tests_guests::virtio::WRITE;

use crate::World;
use crate::arena::{Arena, HOT};
use crate::balloon;
use crate::devices::{DISK, NETWORK};

/// Pages of a read: what one transfer of a physical disk brings.
const PAGES: u64 = 16;
/// What a page begins with before it is read into, and what is stored then.
const MARK: u64 = 0x6d61_726b_6d61_726b;
const FOREIGN: u64 = 0x0bad_0bad_0bad_0bad;
const SECTORS: u64 = PAGE_SIZE / 512;
const CAPACITY: usize = 0x100;
const STATUS_BYTE: u64 = 0x20;
const PATIENCE: u64 = 50_000;

/// Hot page where a read is under way, plus one; 0 while there is none.
static RACE: AtomicU64 = AtomicU64::new(0);

/// One read, and whatever is done meanwhile.
pub fn read(world: &mut World) -> Verdict {
    let World {
        random,
        arena,
        devices,
        ..
    } = world;
    let first = random.below(HOT / PAGES) * PAGES;
    for page in first..first + PAGES {
        arena.hot.write(page * PAGE_SIZE, MARK);
    }
    let blocks = match devices.first(DISK) {
        Some(disk) => u64::from(disk.device().read32(CAPACITY)) / SECTORS,
        None => return Ok(()),
    };
    let block = world.fresh % (blocks / PAGES).max(1) * PAGES;
    world.fresh = world.fresh.wrapping_add(1);
    let way = random.below(8);
    let Some(disk) = devices.first(DISK) else {
        return Ok(());
    };
    let ring = disk.ring(0)?;
    let (memory, part) = ring.part();
    let at = ring.part_address();
    memory.write(part, 0);
    memory.write(part + 8, block * SECTORS);
    let mut chain = [(at, 16, 0); 3];
    chain[1] = (arena.page(first), (PAGES * PAGE_SIZE) as u32, WRITE);
    chain[2] = (at + STATUS_BYTE, 1, WRITE);
    RACE.store(first + 1, Ordering::SeqCst);
    ring.submit(&chain);
    let ring = *ring;
    match way {
        0 | 1 => balloon::give(devices, arena, random, first)?,
        2 => receive_there(devices, arena, random, first)?,
        3 => {
            ring.wait(PATIENCE, || {
                arena.hot.clear_page(first + random.below(PAGES));
            });
        }
        _ => {}
    }
    ring.wait(PATIENCE, || store(&arena.hot, first));
    RACE.store(0, Ordering::SeqCst);
    Ok(())
}

/// Frames are to come into the pages of the read, too.
fn receive_there(
    devices: &mut crate::devices::Devices,
    arena: &Arena,
    random: &mut Random,
    first: u64,
) -> Verdict {
    if let Some(card) = devices.first(NETWORK) {
        let ring = card.ring(0)?;
        let page = arena.page(first + random.below(PAGES));
        ring.submit(&[(page, 2048, WRITE)]);
    }
    Ok(())
}

/// Stores into each page of the read that is filled by now.
fn store(hot: &Scratch, first: u64) {
    for page in first..first + PAGES {
        let at = page * PAGE_SIZE;
        if hot.read(at) != MARK && hot.read(at + 512) != FOREIGN {
            hot.write(at + 512, FOREIGN);
        }
    }
}

/// The other CPU's part: how often it looked.
pub fn join(hot: &Scratch, times: u32) {
    for _ in 0..times {
        match RACE.load(Ordering::Relaxed) {
            0 => return,
            first => store(hot, first - 1),
        }
    }
}
