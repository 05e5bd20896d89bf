//! One vCPU fills memory and stays busy; the other, which runs elsewhere meanwhile, goes through
//! that memory again and again, and finds every word as it was left. On a machine that counts
//! misses, the first and the last time are regions 0 and 1 of its results.
//!
//! Command line: `kib=N` of memory (2048), `passes=N` (8).
#![no_std]
#![no_main]
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicBool, Ordering};

use machine_bare::machine::Machine;
use machine_bare::memory::Scratch;
use machine_bare::verdict::{Verdict, check};
use machine_bare::{boot, cpu, image, measure, timer};

image!("placement", main);

/// Bytes between two words that are used: each is in a cache line of its own.
const LINE: u64 = 64;
/// Microseconds that the other vCPU may take.
const PATIENCE: u64 = 600_000_000;

static DONE: AtomicBool = AtomicBool::new(false);
static FAILED: AtomicBool = AtomicBool::new(false);

fn memory() -> Scratch {
    let machine = boot::machine();
    machine.scratch().part(0, machine.number("kib", 2048) << 10)
}

/// What a word holds after so many passes.
fn word(offset: u64, passes: u64) -> u64 {
    offset << 16 | passes
}

fn main(machine: &'static Machine) -> Verdict {
    check(machine.cpus().len() == 2, "needs two vCPUs")?;
    let memory = memory();
    for offset in (0..memory.size()).step_by(LINE as usize) {
        memory.write(offset, word(offset, 0));
    }
    check(cpu::start_others(work).is_ok(), "CPU_ON is refused")?;
    let done = timer::wait_until(PATIENCE, || DONE.load(Ordering::Acquire));
    check(done, "the other vCPU does not come to its end")?;
    check(!FAILED.load(Ordering::Acquire), "a word was changed")
}

fn work(_index: usize) {
    let memory = memory();
    let passes = boot::machine().number("passes", 8);
    for pass in 0..passes {
        let region = match pass {
            0 => Some(0),
            _ if pass + 1 == passes => Some(1),
            _ => None,
        };
        region.into_iter().for_each(measure::begin);
        for offset in (0..memory.size()).step_by(LINE as usize) {
            if memory.read(offset) != word(offset, pass) {
                FAILED.store(true, Ordering::Release);
            }
            memory.write(offset, word(offset, pass + 1));
        }
        region.into_iter().for_each(measure::end);
    }
    DONE.store(true, Ordering::Release);
}
