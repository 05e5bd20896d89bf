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
//! - `alone`: vCPU 0 fills and uses memory, while the others have been on and wait.
//!
//! `kib=N` of memory (2048; of each, with `own`), `passes=N` (8). On a machine that counts misses, the
//! first and the last pass of the last vCPU are regions 0 and 1 of its results, and all of it is 2.
#![no_std]
#![no_main]
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use machine_bare::machine::Machine;
use machine_bare::memory::Scratch;
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
