//! The memory that devices are told of, and some that none ever hears of.
//!
//! ```text
//!  | kept | queues | malformed queues | pages in flight | whatever: long requests end here |
//! ```

use core::ops::Range;

use machine_bare::machine::Machine;
use machine_bare::memory::{PAGE_SIZE, Scratch};
use machine_bare::verdict::{Verdict, equal};
use machine_bare::{pages, psci};
use tests_guests::random::Random;
use tests_guests::virtio::{NOWHERE, QUEUE_MEMORY};

use crate::World;

/// Pages that keep what is in them.
pub const KEPT: u64 = 64;
/// Bytes of queues.
const QUEUES: u64 = 1 << 20;
/// Pages that most requests are about.
pub const HOT: u64 = 256;

/// Which memory is what.
pub struct Arena {
    kept: Scratch,
    /// For queues.
    pub queues: Scratch,
    /// For malformed queues.
    pub malformed: Scratch,
    /// [`HOT`] pages.
    pub hot: Scratch,
    /// All that devices may be told of but queues.
    pub all: Scratch,
}

impl Arena {
    /// The arena of a machine.
    pub fn new(machine: &Machine) -> Self {
        let memory = machine.scratch();
        let kept = KEPT * PAGE_SIZE;
        let malformed = kept + QUEUES;
        let hot = malformed + QUEUE_MEMORY;
        Self {
            kept: memory.part(0, kept),
            queues: memory.part(kept, QUEUES),
            malformed: memory.part(malformed, QUEUE_MEMORY),
            hot: memory.part(hot, HOT * PAGE_SIZE),
            all: memory.part(hot, memory.size() - hot),
        }
    }

    /// The address of a hot page.
    pub fn page(&self, number: u64) -> u64 {
        self.hot.base() + number % HOT * PAGE_SIZE
    }

    /// An address that a descriptor may name: mostly in a hot page, and never where this program is.
    pub fn address(&self, random: &mut Random) -> u64 {
        match random.below(32) {
            0 => NOWHERE,
            1 => u64::MAX - random.below(PAGE_SIZE),
            2 => self.all.base() + random.below(self.all.size()),
            3 => self.all.base() + self.all.size() - random.below(PAGE_SIZE),
            4 => self.all.base() + self.all.size() + random.below(1 << 40),
            5..8 => self.hot.base() + random.below(HOT * PAGE_SIZE),
            8..14 => self.hot.base() + random.below(HOT * PAGE_SIZE / 512) * 512,
            _ => self.page(random.number() >> 20),
        }
    }

    /// How long a segment is said to be.
    pub fn length(random: &mut Random) -> u32 {
        let length = match random.below(32) {
            0 => random.below(1 << 32),
            1 => 0,
            2 => 1 << (12 + random.below(12)),
            3 => random.below(1 << 20),
            4..8 => random.below(2 * PAGE_SIZE),
            8..16 => 512 * (1 + random.below(64)),
            16..20 => 16 * PAGE_SIZE,
            _ => PAGE_SIZE,
        };
        length as u32
    }

    /// Changes hot pages: stores, a store to each of many, clears, copies.
    pub fn stir(&self, random: &mut Random) {
        let page = random.below(HOT);
        match random.below(6) {
            0 => self.hot.clear_page(page),
            1 => self
                .hot
                .copy_page(page, (page + 1 + random.below(HOT - 1)) % HOT),
            2 => self.hot.clear_blocks(page, pages::block_size()),
            3 => {
                for page in page..HOT.min(page + 32) {
                    self.hot.write(page * PAGE_SIZE, random.number());
                }
            }
            _ => {
                let word = random.below(PAGE_SIZE / 8);
                self.hot.write(page * PAGE_SIZE + 8 * word, random.number());
            }
        }
    }

    /// Goes on as A32 code of EL0, which ends the VM.
    pub fn to_aarch32(&self) -> ! {
        const WFI_THEN_BACK: u64 = 0xeaff_fffd_e320_f003;
        self.malformed.write(0, WFI_THEN_BACK);
        machine_bare::vectors::go_to_aarch32(self.malformed.base())
    }

    /// Fills pages that keep what is in them.
    pub fn keep(&self, pages: Range<u64>) {
        for at in (pages.start * PAGE_SIZE..pages.end * PAGE_SIZE).step_by(8) {
            self.kept.write(at, Self::kept_word(at));
        }
    }

    fn kept_word(at: u64) -> u64 {
        at.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x6b65_7074
    }
}

/// Changes memory, here and there all over.
pub fn touch(world: &mut World) {
    let random = &mut world.random;
    if random.below(8) == 0 {
        let page = random.below(world.arena.all.size() / PAGE_SIZE);
        world.arena.all.write(page * PAGE_SIZE, random.number());
    } else {
        world.arena.stir(random);
    }
}

/// Marks pages as never to be shared, or as shareable: own ones, and what are none.
pub fn mark(world: &mut World) {
    let random = &mut world.random;
    let address = world.arena.address(random) & !(PAGE_SIZE - 1);
    let pages = match random.below(4) {
        0 => random.number(),
        _ => random.below(2 * psci_pages()),
    };
    // Refused or done: the guest does not care which.
    let _ = psci::never_share(address, pages, random.below(3));
}

/// Pages that one call marks.
const fn psci_pages() -> u64 {
    64
}

/// What is in memory that no device was told of is there still; then some of it is written anew.
pub fn check(world: &mut World) -> Verdict {
    let kept = &world.arena.kept;
    for page in 0..KEPT {
        let words = [0, 8 * (page % 512), PAGE_SIZE - 8];
        for at in words.map(|word| page * PAGE_SIZE + word) {
            let word = kept.read(at);
            equal("kept memory", word, Arena::kept_word(at))?;
        }
    }
    let page = world.random.below(KEPT);
    world.arena.keep(page..page + 1);
    Ok(())
}
