//! The interrupt controller as GICv3 has it (Arm IHI 0069), in one security state with affinity
//! routing: SGIs, PPIs, SPIs, priorities, groups, both ways to end an interrupt, and what reads
//! as zero.
//!
//! With several CPUs it also sends SGIs and routes SPIs to the others.
#![no_std]
#![no_main]
#![forbid(unsafe_code)]

mod lines;
mod log;
mod priorities;
mod registers;
mod sgis;

use core::sync::atomic::{AtomicBool, Ordering};

use machine_bare::machine::Machine;
use machine_bare::verdict::{Verdict, check};
use machine_bare::{boot, cpu, gic, image, println, timer, vectors};

image!("gic", main);

/// Microseconds that an interrupt may take where several CPUs share one.
const PATIENCE: u64 = 10_000_000;
/// Microseconds after which an interrupt that must not come is taken to stay away.
const SILENCE: u64 = 2_000;
/// SPIs that no device of the machine uses.
const SPI: u32 = 96;

static STOP: AtomicBool = AtomicBool::new(false);

/// A part of the test: its name, and what it does.
type Part = (&'static str, fn(&'static Machine) -> Verdict);

const PARTS: [Part; 16] = [
    (
        "identification and reserved registers",
        registers::identification,
    ),
    ("configuration reads back", registers::configuration),
    ("SGIs to this CPU", sgis::to_self),
    ("SGIs to others", sgis::to_others),
    ("a disabled SGI stays pending", sgis::disabled),
    ("PPIs", lines::ppis),
    ("SPIs", lines::spis),
    ("SPI routing", lines::routing),
    ("the active state", lines::active),
    ("the virtual timer's level", lines::timer_level),
    ("order of priorities", priorities::order),
    ("preemption", priorities::preemption),
    ("the priority mask", priorities::mask),
    ("EOImode 1", priorities::split_end),
    ("groups", priorities::groups),
    ("nothing pending", priorities::spurious),
];

fn main(machine: &'static Machine) -> Verdict {
    vectors::set_irq_handler(log::handle);
    vectors::set_fiq_handler(log::handle_group0);
    gic::init_distributor();
    gic::init_cpu();
    check(cpu::start_others(listen).is_ok(), "CPU_ON is refused")?;
    let all = timer::wait_until(PATIENCE, || log::listening() + 1 == machine.cpus().len());
    check(all, "the others do not start")?;
    cpu::unmask();
    for (name, part) in PARTS {
        println!("gic: {name}");
        part(machine)?;
    }
    STOP.store(true, Ordering::Release);
    Ok(())
}

/// What the other CPUs do: they take interrupts.
fn listen(_index: usize) {
    gic::init_cpu();
    for intid in 0..16 {
        gic::Line::new(intid).enable();
    }
    cpu::unmask();
    log::count_listener();
    while !STOP.load(Ordering::Acquire) {
        cpu::wait_for_interrupt();
    }
}

/// Whether `intid` has come `times` on the CPU `index`, after waiting for it.
fn came(index: usize, intid: u32, times: u32) -> bool {
    timer::wait_until(PATIENCE, || log::count(index, intid) >= times)
        && log::count(index, intid) == times
}

/// Whether `intid` stays away from this CPU.
fn silent(intid: u32) -> bool {
    let before = log::count(cpu::index(), intid);
    !timer::wait_until(SILENCE, || log::count(cpu::index(), intid) != before)
}

/// Affinity of the last CPU, and its index.
fn last_cpu() -> (usize, u64) {
    let cpus = boot::machine().cpus();
    let index = cpus.len() - 1;
    (index, cpus[index])
}
