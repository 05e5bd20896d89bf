//! An adversary that never ends: steps chosen by a seed, each of which some guest should not take, on two CPUs.
//!
//! Command line: `seed=N` (1), `seconds=N` (0: for ever). Where a reset or another start begins it anew, it goes on with
//! the next seed: sectors of the last disk count them. A line every few seconds says how far it is. It judges only
//! its own: memory that no device is told of stays, and devices come up again after each reset.
#![no_std]
#![no_main]
#![forbid(unsafe_code)]

mod arena;
mod balloon;
mod block;
mod devices;
mod frames;
mod race;
mod second;
mod system;

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arena::Arena;
use devices::Devices;
use machine_bare::machine::Machine;
use machine_bare::verdict::Verdict;
use machine_bare::{boot, cpu, gic, image, println, psci, timer, vectors};
use tests_guests::random::Random;

image!("adversary", main);

/// A step: its name, how often it is chosen, and what it does.
type Step = (&'static str, u64, Act);

/// What a step does.
#[derive(Clone, Copy)]
enum Act {
    /// Whatever comes of it.
    Does(fn(&mut World)),
    /// And looks whether what must hold holds.
    Judges(fn(&mut World) -> Verdict),
}
use Act::{Does, Judges};

const STEPS: [Step; 20] = [
    ("disk", 24, Judges(block::request)),
    ("race", 10, Judges(race::read)),
    ("balloon", 8, Judges(balloon::inflate)),
    ("report", 6, Judges(balloon::report)),
    ("send", 8, Judges(frames::send)),
    ("receive", 4, Judges(frames::receive)),
    ("chains", 6, Judges(devices::chains)),
    ("malformed", 2, Judges(devices::malformed)),
    ("registers", 1, Judges(devices::registers)),
    ("reset", 4, Judges(devices::reset)),
    ("memory", 10, Does(arena::touch)),
    ("mark", 4, Does(arena::mark)),
    ("keep", 2, Judges(arena::check)),
    ("sysreg", 8, Does(system::register)),
    ("call", 8, Does(system::call)),
    ("access", 8, Does(system::access)),
    ("sgi", 3, Does(system::interrupts)),
    ("timer", 3, Does(system::timer)),
    ("flood", 1, Does(system::flood)),
    ("cpu", 2, Judges(second::turn)),
];
/// In how many steps one is an end: a reset of the VM, or in one of eight of those, AArch32.
const STEPS_TO_AN_END: u64 = 30_000;
/// How many steps a failure tells.
const TOLD: usize = 16;
/// How often a line says how far it is, in microseconds.
const LINE_EVERY: u64 = 3_000_000;

/// The second CPU's numbers begin with the seed, too.
static SEED: AtomicU64 = AtomicU64::new(0);
/// It is over.
static OVER: AtomicBool = AtomicBool::new(false);

/// What the steps work with.
pub struct World {
    machine: &'static Machine,
    random: Random,
    arena: Arena,
    devices: Devices,
    /// The next block of the first disk that nobody has read, maybe.
    fresh: u64,
}

fn main(machine: &'static Machine) -> Verdict {
    vectors::set_irq_handler(system::take);
    vectors::set_fiq_handler(system::take_group0);
    gic::init_distributor();
    gic::init_cpu();
    let generation = block::generation(machine)?;
    let seed = machine.number("seed", 1).wrapping_add(generation);
    println!("adversary: seed {seed} begins, the {generation}. after the first");
    SEED.store(seed, Ordering::SeqCst);
    let mut random = Random::new(seed);
    let fresh = random.number();
    let mut world = World {
        machine,
        random,
        arena: Arena::new(machine),
        devices: Devices::find(machine)?,
        fresh,
    };
    world.arena.keep(0..arena::KEPT);
    second::start()?;
    let outcome = run(&mut world, seed);
    OVER.store(true, Ordering::SeqCst);
    outcome
}

fn run(world: &mut World, seed: u64) -> Verdict {
    let seconds = world.machine.number("seconds", 0);
    let end = match seconds {
        0 => u64::MAX,
        _ => timer::now() + seconds * timer::frequency(),
    };
    let all: u64 = STEPS.iter().map(|(_, often, _)| often).sum();
    let mut told = [""; TOLD];
    let (mut count, mut line) = (0_u64, 0);
    while timer::now() < end {
        count += 1;
        let (name, act) = choose(world.random.below(all));
        told[count as usize % TOLD] = name;
        let outcome = match act {
            Does(step) => {
                step(world);
                Ok(())
            }
            Judges(step) => step(world),
        };
        if let Err(failure) = outcome {
            println!("adversary: seed {seed}, step {count}, the last ones, in a ring: {told:?}");
            return Err(failure);
        }
        if timer::now() >= line {
            let second = second::steps();
            println!("adversary: seed {seed}: {count} steps, {second} on the second CPU");
            line = timer::now() + timer::ticks(LINE_EVERY);
        }
        if world.random.below(STEPS_TO_AN_END) == 0 {
            println!("adversary: seed {seed}: ends at step {count}");
            if world.random.below(8) == 0 {
                world.arena.to_aarch32();
            }
            psci::system_reset();
        }
    }
    println!("adversary: seed {seed}: {count} steps");
    arena::check(world)
}

fn choose(mut place: u64) -> (&'static str, Act) {
    for (name, often, act) in STEPS {
        if place < often {
            return (name, act);
        }
        place -= often;
    }
    ("keep", Judges(arena::check))
}

/// The arena of this VM, for the second CPU.
fn arena() -> Arena {
    Arena::new(boot::machine())
}

/// Whether the second CPU is to stop.
fn is_over() -> bool {
    OVER.load(Ordering::Relaxed)
}

/// The seed of a CPU's numbers.
fn seed_of(index: usize) -> u64 {
    SEED.load(Ordering::SeqCst) ^ (index as u64) << 32 ^ cpu::affinity() << 40
}
