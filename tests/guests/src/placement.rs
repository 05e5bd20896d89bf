//! vCPUs that use memory in ways that a machine with near and far memory tells apart. Every word is
//! looked at each time it is used, and is always as it was left.
//!
//! Command line: `work=` one of
//! - `take` (also without the word): vCPU 0 fills memory and stays busy; vCPU 1 goes through it again
//!   and again and writes it.
//! - `scene`: vCPU 0 fills memory, and all vCPUs read it, here and there, as a ray tracer reads its
//!   scene. Then the last vCPU writes all of it, and they read on: `rounds=N` (1) times.
//! - `own`: each vCPU fills and uses memory of its own; midway each goes on with the next one's, as
//!   where processes change places; with `still`, they stay.
//! - `turns`: all vCPUs use the same memory one after the other, `passes=N` of writes each, `rounds=N` (1)
//!   times, as where a lock goes round: wherever it is, it is at the wrong place soon. With `uneven`, they
//!   use each eighth line, so that turns change often before a page is hot, and vCPU 0 has three of eight alone.
//! - `alone`: vCPU 0 fills and uses memory, while the others have been on and wait.
//! - `chance`: vCPU 0 fills memory of four kinds of [`Kind`], and all vCPUs use its pages in orders and
//!   with pauses that `seed=N` (1) gives; `rounds=N` (1) times pages change hands. What is there in the
//!   end is the same for all seeds.
//!
//! `kib=N` of memory (2048; of each, with `own`), `passes=N` (8). On a machine that counts misses, the
//! first and the last pass of the last vCPU are regions 0 and 1 of its results, and all of it is 2.
#![no_std]
#![no_main]
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use machine_bare::machine::Machine;
use machine_bare::memory::{PAGE_SIZE, Scratch};
use machine_bare::verdict::{Verdict, check};
use machine_bare::{boot, cpu, image, measure, println, timer};

image!("placement", main);

/// Bytes between two words that are used: each is in a cache line of its own.
const LINE: u64 = 64;
/// Microseconds that the other vCPUs may take.
const PATIENCE: u64 = 600_000_000;
/// Odd, so that its multiples go through all lines of a power of two once each.
const STRIDE: u64 = 40_503;

static DONE: AtomicU64 = AtomicU64::new(0);
static FAILED: AtomicBool = AtomicBool::new(false);
/// How often vCPUs have come to a place where all wait for each other.
static ARRIVED: AtomicU64 = AtomicU64::new(0);

/// Part `n` of the memory.
fn memory(n: u64) -> Scratch {
    let machine = boot::machine();
    let bytes = machine.number("kib", 2048) << 10;
    machine.scratch().part(n * bytes, bytes)
}

fn vcpus() -> u64 {
    boot::machine().cpus().len() as u64
}

/// What a word holds after it was written so often.
fn word(offset: u64, writes: u64) -> u64 {
    offset << 16 | writes
}

fn offsets(memory: &Scratch) -> impl Iterator<Item = u64> + use<> {
    (0..memory.size()).step_by(LINE as usize)
}

fn fill(memory: &Scratch) {
    for offset in offsets(memory) {
        memory.write(offset, word(offset, 0));
    }
}

/// Waits until all vCPUs have come here for the `n`th time.
fn meet(n: u64) {
    ARRIVED.fetch_add(1, Ordering::AcqRel);
    while ARRIVED.load(Ordering::Acquire) < n * vcpus() {
        cpu::spin(50);
    }
}

/// Does `pass` so often; the first and the last time are regions where this is the vCPU to watch.
fn repeat(is_watched: bool, numbers: core::ops::Range<u64>, passes: u64, pass: impl Fn(u64)) {
    for n in numbers {
        let region = match n {
            _ if !is_watched => None,
            0 => Some(0),
            _ if n + 1 == passes => Some(1),
            _ => None,
        };
        region.into_iter().for_each(measure::begin);
        pass(n);
        region.into_iter().for_each(measure::end);
    }
}

fn expect(memory: &Scratch, offset: u64, writes: u64) {
    if memory.read(offset) != word(offset, writes) {
        FAILED.store(true, Ordering::Release);
    }
}

/// Reads all of it and writes it; it was written `writes` times before.
fn change(memory: &Scratch, writes: u64) {
    for offset in offsets(memory) {
        expect(memory, offset, writes);
        memory.write(offset, word(offset, writes + 1));
    }
}

fn main(machine: &'static Machine) -> Verdict {
    check(machine.cpus().len() >= 2, "needs two vCPUs")?;
    let work = machine.option("work").unwrap_or("take");
    if work != "own" {
        fill(&memory(0));
    }
    let others: fn(usize) = match work {
        "scene" => scene,
        "own" => own,
        "alone" => alone,
        "chance" => chance,
        "turns" => turns,
        _ => take,
    };
    measure::begin(2);
    let begun = timer::now();
    check(cpu::start_others(others).is_ok(), "CPU_ON is refused")?;
    if work != "take" {
        others(0);
    }
    let all = || DONE.load(Ordering::Acquire) + 1 >= vcpus();
    let done = timer::wait_until(PATIENCE, all);
    measure::end(2);
    println!("took {} ticks", timer::now() - begun);
    check(done, "the other vCPUs do not come to their end")?;
    if work == "chance" {
        expect_all_of_chance(&memory(0));
    }
    check(!FAILED.load(Ordering::Acquire), "a word was changed")?;
    let parts = if work == "own" { vcpus() } else { 1 };
    let sums = (0..parts).map(|n| sum(&memory(n)));
    println!("sum {:#x}", sums.fold(0, u64::wrapping_add));
    Ok(())
}

/// Of all that was written, each word by its place.
fn sum(memory: &Scratch) -> u64 {
    offsets(memory).fold(0, |sum, at| {
        sum.rotate_left(1).wrapping_add(memory.read(at))
    })
}

fn finish(index: usize) {
    if index != 0 {
        DONE.fetch_add(1, Ordering::AcqRel);
    }
}

fn take(index: usize) {
    let passes = boot::machine().number("passes", 8);
    if index == 1 {
        let memory = memory(0);
        repeat(true, 0..passes, passes, |pass| change(&memory, pass));
    }
    finish(index);
}

fn turns(index: usize) {
    let machine = boot::machine();
    let (passes, rounds) = (machine.number("passes", 8), machine.number("rounds", 1));
    let (memory, is_uneven) = (memory(0), machine.flag("uneven"));
    let use_all = |turn: u64, pass: u64| {
        for (n, at) in (0..).zip(offsets(&memory).step_by(if is_uneven { 8 } else { 1 })) {
            let is_first_ones = is_uneven && n % 8 >= 5;
            if is_first_ones && index != 0 {
                continue;
            }
            let turns = if is_first_ones {
                turn.div_ceil(vcpus())
            } else {
                turn
            };
            let writes = turns * passes + pass;
            expect(&memory, at, writes);
            memory.write(at, word(at, writes + 1));
        }
    };
    for turn in 0..rounds * vcpus() {
        if turn % vcpus() == index as u64 {
            (0..passes).for_each(|pass| use_all(turn, pass));
        }
        meet(turn + 1);
    }
    finish(index);
}

fn alone(index: usize) {
    let passes = boot::machine().number("passes", 8);
    if index == 0 {
        let memory = memory(0);
        repeat(true, 0..passes, passes, |pass| change(&memory, pass));
    }
    finish(index);
}

fn scene(index: usize) {
    let machine = boot::machine();
    let (passes, rounds) = (machine.number("passes", 8), machine.number("rounds", 1));
    let (memory, last) = (memory(0), index as u64 + 1 == vcpus());
    let lines = memory.size() / LINE;
    meet(1);
    for round in 0..rounds {
        let is_watched = last && round == 0;
        repeat(is_watched, 0..passes, passes, |pass| {
            for n in 0..lines {
                let line = (n * STRIDE + pass * 17) % lines;
                expect(&memory, line * LINE, round);
            }
        });
        meet(2 * round + 2);
        if last {
            change(&memory, round);
        }
        meet(2 * round + 3);
    }
    offsets(&memory).for_each(|at| expect(&memory, at, rounds));
    finish(index);
}

fn own(index: usize) {
    let passes = boot::machine().number("passes", 8);
    let n = index as u64;
    let last = n + 1 == vcpus();
    let first = memory(n);
    fill(&first);
    meet(1);
    repeat(last, 0..passes / 2, passes, |pass| change(&first, pass));
    meet(2);
    let moved = !boot::machine().flag("still");
    let second = memory((n + u64::from(moved)) % vcpus());
    repeat(last, passes / 2..passes, passes, |pass| {
        change(&second, pass);
    });
    finish(index);
}

/// Who uses a page of `chance`, by its number.
#[derive(Clone, Copy)]
enum Kind {
    /// Read by all, and written once in a round, by its owner.
    ReadShared,
    /// Used by its owner alone, who changes all of it in each pass.
    Owned,
    /// Read by all; each changes lines of its own in each pass.
    WriteShared,
    /// Read by all, never written.
    Read,
}

impl Kind {
    const fn of(page: u64) -> Self {
        match page % 4 {
            0 => Self::ReadShared,
            1 => Self::Owned,
            2 => Self::WriteShared,
            _ => Self::Read,
        }
    }

    /// How often each of its words is written in a round.
    const fn writes(self, passes: u64) -> u64 {
        match self {
            Self::ReadShared => 1,
            Self::Owned | Self::WriteShared => passes,
            Self::Read => 0,
        }
    }
}

/// Numbers by chance, the same for a seed and a vCPU.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        // Knuth's constants; the upper bits are the better ones.
        let next = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = next.wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }
}

fn chance(index: usize) {
    let machine = boot::machine();
    let (passes, rounds) = (machine.number("passes", 8), machine.number("rounds", 1));
    let me = index as u64;
    let mut chance = Chance(machine.number("seed", 1) << 8 | me);
    let memory = memory(0);
    let pages = memory.size() / PAGE_SIZE;
    meet(1);
    for round in 0..rounds {
        for pass in 0..passes {
            cpu::spin(chance.next() % 5000);
            // An odd number's multiples go through all of a power of two.
            let (first, step) = (chance.next(), chance.next() | 1);
            for n in 0..pages {
                use_page(&memory, (first + n * step) % pages, me, (round, pass));
            }
        }
        meet(round + 2);
    }
    finish(index);
}

/// What a vCPU does with a page in a pass of a round.
fn use_page(memory: &Scratch, page: u64, me: u64, (round, pass): (u64, u64)) {
    let passes = boot::machine().number("passes", 8);
    let kind = Kind::of(page);
    let owner = (page / 4 + round) % vcpus();
    let least = round * kind.writes(passes);
    for line in 0..PAGE_SIZE / LINE {
        let at = page * PAGE_SIZE + line * LINE;
        let (is_mine, done) = match kind {
            Kind::ReadShared if owner == me && pass == passes / 2 => (true, 0),
            Kind::Owned if owner == me => (true, pass),
            Kind::Owned => continue,
            Kind::WriteShared if line % vcpus() == me => (true, pass),
            _ => (false, 0),
        };
        if is_mine {
            expect(memory, at, least + done);
            memory.write(at, word(at, least + done + 1));
        } else {
            let seen = memory.read(at);
            let may_be = word(at, least)..=word(at, least + kind.writes(passes));
            if !may_be.contains(&seen) {
                FAILED.store(true, Ordering::Release);
            }
        }
    }
}

fn expect_all_of_chance(memory: &Scratch) {
    let machine = boot::machine();
    let (passes, rounds) = (machine.number("passes", 8), machine.number("rounds", 1));
    for at in offsets(memory) {
        let writes = Kind::of(at / PAGE_SIZE).writes(passes);
        expect(memory, at, rounds * writes);
    }
}
