//! The second CPU: it stores into pages of reads under way, reads registers, calls, sleeps, and goes off and on.

use core::sync::atomic::{AtomicU64, Ordering};

use machine_bare::verdict::{Verdict, fail};
use machine_bare::{boot, cpu, gic, psci, timer};
use tests_guests::random::Random;

use crate::{World, race, system};

const INDEX: usize = 1;
/// Offsets in a redistributor: its SGI frame, and the register that enables SGIs and PPIs.
const ENABLE: usize = 0x1_0000 + 0x100;

static STEPS: AtomicU64 = AtomicU64::new(0);

/// How many steps it has taken.
pub fn steps() -> u64 {
    STEPS.load(Ordering::Relaxed)
}

/// Starts it.
///
/// # Errors
/// It stays off.
pub fn start() -> Verdict {
    if boot::machine().cpus().len() <= INDEX {
        return Ok(());
    }
    match cpu::start(INDEX, work) {
        Ok(()) | Err(psci::Error::ALREADY_ON | psci::Error::ON_PENDING) => Ok(()),
        Err(_) => fail("the second CPU stays off"),
    }
}

/// Starts it again where it has turned itself off.
pub fn turn(world: &mut World) -> Verdict {
    let Some(&affinity) = world.machine.cpus().get(INDEX) else {
        return Ok(());
    };
    if psci::affinity_info(affinity, 0) == psci::OFF {
        start()?;
    }
    let_wake();
    Ok(())
}

/// Enables the timer's interrupt of the second CPU, so that it wakes whatever was done to its redistributor.
pub fn let_wake() {
    let affinity = boot::machine().cpus().get(INDEX);
    if let Some(frame) = affinity.and_then(|&affinity| gic::redistributor_of(affinity)) {
        frame.write32(ENABLE, 1 << timer::VIRTUAL_INTID);
    }
}

fn work(index: usize) {
    let mut random = Random::new(crate::seed_of(index) ^ steps());
    let arena = crate::arena();
    gic::init_cpu();
    loop {
        STEPS.fetch_add(1, Ordering::Relaxed);
        match random.below(256) {
            0 => return,
            1..12 => system::sleep(&mut random),
            12..40 => system::any_system(&mut random, &arena.hot),
            40..70 => {
                let address = arena.address(&mut random);
                system::any_call(&mut random, address);
            }
            70..80 => {
                gic::send(random.below(16) as u32, random.below(3));
                gic::send_to_others(random.below(16) as u32);
            }
            80..110 => arena.stir(&mut random),
            _ => race::join(&arena.hot, 2000),
        }
        if crate::is_over() {
            return;
        }
    }
}
