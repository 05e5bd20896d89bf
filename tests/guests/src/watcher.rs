//! A VM that does nothing wrong, beside such as do: it looks again and again whether its memory (what it touches first, too), its disks, its time and
//! its share of the CPU are as they should be.
//!
//! Its first disk is copy-on-write over a base whose words [`image_word`] names; a second one, if there is one, is its
//! own. Command line: `seed=N` (1), `seconds=N` (10) of the guest's time; `gap_us=N`: nobody else may have the CPU for
//! longer; `share=N`: so many thousandths of the CPU at least are its own while it wants it. At last it reads the whole base.
#![no_std]
#![no_main]
#![forbid(unsafe_code)]

use machine_bare::machine::Machine;
use machine_bare::memory::{PAGE_SIZE, Scratch};
use machine_bare::verdict::{Failure, Verdict, check, equal};
use machine_bare::{image, println, timer};
use tests_guests::base::image_word;
use tests_guests::disk::{Disk, SECTOR};
use tests_guests::random::Random;
use tests_guests::virtio::{DEVICE_ID, Queue, VERSION_1, devices};

image!("watcher", main);

const SECTORS: u64 = PAGE_SIZE / SECTOR;
const WORDS: u64 = PAGE_SIZE / 8;
/// Pages that one request reads.
const GROUP: u64 = 16;
/// Pages that hold blocks of the base, in groups.
const HELD: u64 = 64;
/// Pages that are only memory.
const KEPT: u64 = 64;
/// Pages that it touches for the first time in a round: what others gave back, zeroed.
const FRESH: u64 = 16;
/// Pages that it fills, gives to its balloon and touches again in a round.
const GIVEN: u64 = 16;
const BALLOON: u32 = 5;
/// Pages that the balloon's queue takes.
const QUEUE_PAGES: u64 = 0x30;
/// Blocks of each disk, its last ones, that it writes.
const WRITTEN: usize = 32;
/// How long it looks at the counter alone, in microseconds.
const WINDOW_US: u64 = 40_000;
/// What is no gap, in microseconds: an exit, or an interrupt.
const SHORT_US: u64 = 100;
const LINE_EVERY: u64 = 3_000_000;

/// What a page holds, and one word that was stored since.
#[derive(Clone, Copy)]
struct Held {
    block: u64,
    stored: Option<(u64, u64)>,
}

/// A disk, and which blocks were written how often.
struct Written {
    disk: Disk,
    name: u64,
    blocks: u64,
    versions: [u64; WRITTEN],
}

struct Watcher {
    random: Random,
    kept: Scratch,
    held: Scratch,
    buffer: Scratch,
    /// What was not touched yet, from this page on.
    fresh: Scratch,
    touched: u64,
    /// What it gives to its balloon, and gets back zeroed.
    given: Scratch,
    balloon: Option<Queue<'static>>,
    salts: [u64; KEPT as usize],
    holds: [Option<Held>; HELD as usize],
    base: Written,
    own: Option<Written>,
    /// In ticks: the longest gap, all of them, and all that was looked at.
    longest: u64,
    lost: u64,
    looked: u64,
    /// The longest request, in ticks.
    slowest: u64,
}

fn main(machine: &'static Machine) -> Verdict {
    let mut watcher = Watcher::new(machine)?;
    let seconds = machine.number("seconds", 10);
    let end = timer::now() + seconds * timer::frequency();
    let (mut rounds, mut line) = (0_u64, 0);
    while timer::now() < end {
        watcher.round()?;
        rounds += 1;
        if timer::now() >= line {
            watcher.tell(rounds);
            line = timer::now() + timer::ticks(LINE_EVERY);
        }
    }
    println!("watcher: the whole base");
    for block in (0..watcher.base.blocks - WRITTEN as u64).step_by(GROUP as usize) {
        watcher.read_group(block, 0)?;
    }
    watcher.tell(rounds);
    watcher.judge(machine)
}

fn micros(ticks: u64) -> u64 {
    (u128::from(ticks) * 1_000_000 / u128::from(timer::frequency())) as u64
}

impl Written {
    fn open(machine: &Machine, number: usize, queue: Scratch) -> Result<Self, Failure> {
        let disk = Disk::open_number(machine, number, queue)?;
        let blocks = disk.capacity() / SECTORS;
        check(blocks >= 2 * WRITTEN as u64, "the disk is too small")?;
        Ok(Self {
            disk,
            name: number as u64,
            blocks,
            versions: [0; WRITTEN],
        })
    }

    fn word(&self, slot: usize, index: u64) -> u64 {
        let salt = self.name << 40 | self.versions[slot] << 16 | slot as u64;
        (salt + 1).wrapping_mul(0xd134_2543_de82_ef95) ^ index
    }

    /// Writes a block, or reads one that was written and compares.
    fn turn(&mut self, random: &mut Random, buffer: &Scratch) -> Verdict {
        let slot = random.below(WRITTEN as u64) as usize;
        let sector = (self.blocks - 1 - slot as u64) * SECTORS;
        let piece = [(buffer.base(), PAGE_SIZE)];
        if random.below(2) == 0 {
            self.versions[slot] += 1;
            for index in 0..WORDS {
                buffer.write(8 * index, self.word(slot, index));
            }
            self.disk.write(sector, &piece)?;
        } else if self.versions[slot] != 0 {
            self.disk.read(sector, &piece)?;
            for index in 0..WORDS {
                let word = buffer.read(8 * index);
                equal(
                    "a word that was written to a disk",
                    word,
                    self.word(slot, index),
                )?;
            }
        }
        Ok(())
    }
}

impl Watcher {
    fn new(machine: &'static Machine) -> Result<Self, Failure> {
        let memory = machine.scratch();
        let page = |number: u64, count: u64| memory.part(number * PAGE_SIZE, count * PAGE_SIZE);
        let given = (3 + KEPT + HELD).next_multiple_of(GIVEN);
        let queue = given + GIVEN;
        let used = queue + QUEUE_PAGES;
        let balloon = devices(machine).find(|device| device.read32(DEVICE_ID) == BALLOON);
        let balloon =
            balloon.map(|it| Queue::start(it, 0, page(queue, QUEUE_PAGES), [0, VERSION_1]));
        let watcher = Self {
            random: Random::new(machine.number("seed", 1)),
            kept: page(3, KEPT),
            held: page(3 + KEPT, HELD),
            buffer: page(2, 1),
            fresh: page(used, memory.size() / PAGE_SIZE - used),
            touched: 0,
            given: page(given, GIVEN),
            balloon: balloon.transpose()?,
            salts: [0; KEPT as usize],
            holds: [None; HELD as usize],
            base: Written::open(machine, 0, page(0, 1))?,
            own: Written::open(machine, 1, page(1, 1)).ok(),
            longest: 0,
            lost: 0,
            looked: 0,
            slowest: 0,
        };
        (0..KEPT).for_each(|page| watcher.keep(page));
        Ok(watcher)
    }

    fn round(&mut self) -> Verdict {
        self.memory()?;
        self.touch()?;
        self.give()?;
        for _ in 0..4 {
            let most = self.base.blocks - WRITTEN as u64 - GROUP;
            let block = match self.random.below(4) {
                0 => self.random.below(most),
                _ => self.random.below(most / GROUP) * GROUP,
            };
            let group = self.random.below(HELD / GROUP);
            self.read_group(block, group)?;
        }
        for _ in 0..4 {
            let start = timer::now();
            self.base.turn(&mut self.random, &self.buffer)?;
            if let Some(own) = &mut self.own {
                own.turn(&mut self.random, &self.buffer)?;
            }
            self.slowest = self.slowest.max(timer::now() - start);
        }
        self.store()?;
        self.look();
        Ok(())
    }

    /// Memory that was never touched is zero. All but its last pages, where a record of stolen time may be.
    fn touch(&mut self) -> Verdict {
        let most = (self.fresh.size() / PAGE_SIZE).saturating_sub(FRESH);
        let end = most.min(self.touched + FRESH);
        for page in self.touched..end {
            for at in (page * PAGE_SIZE..(page + 1) * PAGE_SIZE).step_by(8) {
                equal(
                    "a word of memory that is touched first",
                    self.fresh.read(at),
                    0,
                )?;
            }
        }
        self.touched = end;
        Ok(())
    }

    /// What goes to the balloon is zero when it is touched again, whoever had it meanwhile.
    fn give(&mut self) -> Verdict {
        let Some(balloon) = &mut self.balloon else {
            return Ok(());
        };
        let mut numbers = [0; 4 * GIVEN as usize];
        let first = (self.given.base() / PAGE_SIZE) as u32;
        for (number, page) in numbers.as_chunks_mut().0.iter_mut().zip(first..) {
            *number = page.to_le_bytes();
        }
        for at in (0..GIVEN * PAGE_SIZE).step_by(64) {
            self.given.write(at, u64::MAX);
        }
        balloon.send(&numbers, numbers.len() as u32)?;
        for at in (0..GIVEN * PAGE_SIZE).step_by(64) {
            let word = self.given.read(at);
            equal("a word of memory that was given away", word, 0)?;
        }
        Ok(())
    }

    fn kept_word(&self, page: u64, index: u64) -> u64 {
        (self.salts[page as usize] << 16 | page).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index
    }

    fn keep(&self, page: u64) {
        for index in 0..WORDS {
            let at = page * PAGE_SIZE + 8 * index;
            self.kept.write(at, self.kept_word(page, index));
        }
    }

    /// Compares memory of its own, and fills some of it anew.
    fn memory(&mut self) -> Verdict {
        for page in 0..KEPT {
            for index in (page % 16..WORDS).step_by(16) {
                let word = self.kept.read(page * PAGE_SIZE + 8 * index);
                equal("a word of memory", word, self.kept_word(page, index))?;
            }
        }
        for _ in 0..8 {
            let page = self.random.below(KEPT);
            self.salts[page as usize] += 1;
            self.keep(page);
        }
        Ok(())
    }

    /// Compares what a group of pages holds, and reads blocks from `block` on into it.
    fn read_group(&mut self, block: u64, group: u64) -> Verdict {
        let first = group * GROUP;
        (first..first + GROUP).try_for_each(|page| self.compare(page))?;
        let start = timer::now();
        let to = self.held.base() + first * PAGE_SIZE;
        let read = self
            .base
            .disk
            .read(block * SECTORS, &[(to, GROUP * PAGE_SIZE)]);
        self.slowest = self.slowest.max(timer::now() - start);
        read?;
        for page in first..first + GROUP {
            let block = block + page - first;
            let stored = None;
            self.holds[page as usize] = Some(Held { block, stored });
            self.compare(page)?;
        }
        Ok(())
    }

    fn compare(&self, page: u64) -> Verdict {
        let Some(Held { block, stored }) = self.holds[page as usize] else {
            return Ok(());
        };
        for index in 0..WORDS {
            let word = self.held.read(page * PAGE_SIZE + 8 * index);
            let wanted = match stored {
                Some((at, value)) if at == index => value,
                _ => image_word(block, index),
            };
            if word != wanted {
                println!("watcher: block {block}, word {index}, in page {page}");
                return equal("a word of the base", word, wanted);
            }
        }
        Ok(())
    }

    /// Stores into pages that were read.
    fn store(&mut self) -> Verdict {
        for _ in 0..8 {
            let page = self.random.below(HELD);
            let (index, value) = (self.random.below(WORDS), self.random.number());
            if let Some(held) = &mut self.holds[page as usize]
                && held.stored.is_none()
            {
                held.stored = Some((index, value));
                self.held.write(page * PAGE_SIZE + 8 * index, value);
                self.compare(page)?;
            }
        }
        Ok(())
    }

    /// Looks at the counter: what it skips, somebody else had.
    fn look(&mut self) {
        let short = timer::ticks(SHORT_US);
        let begin = timer::now();
        let (end, mut before) = (begin + timer::ticks(WINDOW_US), begin);
        while before < end {
            let now = timer::now();
            let gap = now - before;
            before = now;
            self.longest = self.longest.max(gap);
            if gap > short {
                self.lost += gap;
            }
        }
        self.looked += before - begin;
    }

    /// Thousandths of the CPU that it had while it looked.
    fn share(&self) -> u64 {
        (self.looked - self.lost) * 1000 / self.looked.max(1)
    }

    fn tell(&self, rounds: u64) {
        println!(
            "watcher: {rounds} rounds, share {} of 1000, longest gap {} us, slowest request {} us",
            self.share(),
            micros(self.longest),
            micros(self.slowest)
        );
    }

    fn judge(&self, machine: &Machine) -> Verdict {
        let most = machine.number("gap_us", u64::MAX);
        if micros(self.longest) > most {
            equal(
                "microseconds of the longest gap",
                micros(self.longest),
                most,
            )?;
        }
        let least = machine.number("share", 0);
        if self.share() < least {
            equal("thousandths of the CPU", self.share(), least)?;
        }
        Ok(())
    }
}
