//! Two CPUs on two hosts, in one memory: counts, false sharing, and what the other has written.
//!
//! Command line: `forever`: the CPUs go on counting until the VM ends, each some 200 times a second.
#![no_std]
#![no_main]
#![forbid(unsafe_code)]

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use machine_bare::machine::Machine;
use machine_bare::timer::{self, VIRTUAL_INTID};
use machine_bare::verdict::{Verdict, check, equal};
use machine_bare::{cpu, flat, gic, println};

flat!("spanned", main);

/// Counts of each CPU.
const COUNTS: u64 = 2_000;
/// Words that each CPU writes for the other: 64 KiB.
const WORDS: u64 = 8_192;
/// Words in a page.
const PAGE: usize = 512;

/// A page of its own.
#[repr(align(4096))]
struct Alone([AtomicU64; PAGE]);

impl Alone {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; PAGE])
    }
}

/// Which step both are at.
static STEP: Alone = Alone::new();
static COUNTERS: Alone = Alone::new();
/// What the second CPU saw.
static SEEN: Alone = Alone::new();
static BASE: AtomicU64 = AtomicU64::new(0);

fn main(machine: &'static Machine) -> Verdict {
    gic::init_distributor();
    let scratch = machine.scratch();
    BASE.store(scratch.size() / 2, Relaxed);
    check(cpu::start(1, |_| second()).is_ok(), "CPU_ON is refused")?;
    meet(1);
    println!("spanned: both CPUs are there");
    count();
    meet(2);
    let [plain, mine, others] = [0, 8, 9].map(|n| COUNTERS.0[n].load(Relaxed));
    equal("counts of both", plain, 2 * COUNTS)?;
    equal("own counts beside the other's", mine, COUNTS)?;
    equal("the other's counts", others, COUNTS)?;
    println!("spanned: counted to {plain}");
    for n in 0..WORDS {
        scratch.write(BASE.load(Relaxed) + 8 * n, mixed(n));
    }
    meet(3);
    meet(4);
    let expected = (0..WORDS).fold(0, |sum: u64, n| sum.rotate_left(1) ^ mixed(n));
    equal(
        "the other's sum of what was written here",
        SEEN.0[0].load(Relaxed),
        expected,
    )?;
    println!("spanned: sum {expected:#x}");
    if machine.flag("forever") {
        count_on();
    }
    Ok(())
}

fn second() {
    meet(1);
    count();
    meet(2);
    meet(3);
    let machine = machine_bare::boot::machine();
    let (scratch, base) = (machine.scratch(), BASE.load(Relaxed));
    let read = |n: u64| scratch.read(base + 8 * n);
    let sum = (0..WORDS).fold(0, |sum: u64, n| sum.rotate_left(1) ^ read(n));
    SEEN.0[0].store(sum, Relaxed);
    meet(4);
    if machine.flag("forever") {
        count_on();
    }
}

/// Counts now and then, and sleeps in between.
fn count_on() -> ! {
    gic::init_cpu();
    gic::Line::new(VIRTUAL_INTID).enable();
    loop {
        COUNTERS.0[0].fetch_add(1, AcqRel);
        timer::fire_at(timer::now() + timer::ticks(5_000));
        cpu::wait_for_interrupt();
        timer::stop();
        let intid = gic::acknowledge();
        if intid != gic::SPURIOUS {
            gic::end(intid);
        }
    }
}

/// Waits until both CPUs are at this step.
fn meet(step: u64) {
    STEP.0[0].fetch_add(1, AcqRel);
    while STEP.0[0].load(Acquire) < 2 * step {
        core::hint::spin_loop();
    }
}

/// Both count in one word, and each in one of its own beside the other's.
fn count() {
    let own = 8 + cpu::index();
    for _ in 0..COUNTS {
        COUNTERS.0[0].fetch_add(1, AcqRel);
        COUNTERS.0[own].store(COUNTERS.0[own].load(Relaxed) + 1, Relaxed);
    }
}

fn mixed(n: u64) -> u64 {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ n >> 7
}
