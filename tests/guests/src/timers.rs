//! The EL1 physical timer beside the virtual one (Arm ARM D12.2): its registers in both forms, its
//! interrupt, and WFI until it comes.
//!
//! All other CPUs are busy meanwhile: where they share this one's pCPU, its timer fires while they
//! run.
//!
//! Command line: `late=N` microseconds that the most punctual sleep may be late (2000).
#![no_std]
#![no_main]
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use machine_bare::machine::Machine;
use machine_bare::timer::physical::{self, ENABLE, IMASK, ISTATUS};
use machine_bare::timer::{self, PHYSICAL_INTID, VIRTUAL_INTID};
use machine_bare::vectors::{self, Frame};
use machine_bare::verdict::{Verdict, check, equal};
use machine_bare::{boot, cpu, gic, image, println};

image!("timers", main);

/// Microseconds that an interrupt may take where several CPUs share one.
const PATIENCE: u64 = 10_000_000;
/// Microseconds after which an interrupt that must not come is taken to stay away.
const SILENCE: u64 = 2_000;
/// Microseconds of a sleep.
const SLEEP: u64 = 5_000;
/// Sleeps of each kind.
const SLEEPS: u32 = 20;

/// Interrupts of each timer that came; the handler stops it the [`LAST`] time.
static PHYSICAL: AtomicU32 = AtomicU32::new(0);
static VIRTUAL: AtomicU32 = AtomicU32::new(0);
static LAST: AtomicU32 = AtomicU32::new(1);
/// The physical count at which the physical timer's interrupt was last taken.
static TAKEN: AtomicU64 = AtomicU64::new(0);
static STOP: AtomicBool = AtomicBool::new(false);

/// A part of the test: its name, and what it does.
type Part = (&'static str, fn() -> Verdict);

const PARTS: [Part; 7] = [
    ("both counters run alike", counters),
    ("registers", registers),
    ("its line is a level", level),
    ("what is masked or off stays silent", silence),
    ("sleeps by compare value", || sleeps(by_compare)),
    ("sleeps by timer value", || sleeps(by_value)),
    ("both timers at once", both),
];

fn main(_machine: &'static Machine) -> Verdict {
    vectors::set_irq_handler(handle);
    gic::init_distributor();
    gic::init_cpu();
    check(cpu::start_others(busy).is_ok(), "CPU_ON is refused")?;
    gic::Line::new(VIRTUAL_INTID).enable();
    cpu::unmask();
    for (name, part) in PARTS {
        println!("timers: {name}");
        part()?;
    }
    STOP.store(true, Ordering::Release);
    Ok(())
}

/// What the other CPUs do.
fn busy(_index: usize) {
    while !STOP.load(Ordering::Acquire) {
        cpu::spin(1000);
    }
}

fn handle(_frame: &mut Frame) {
    match gic::acknowledge() {
        gic::SPURIOUS => {}
        PHYSICAL_INTID => {
            TAKEN.store(physical::now(), Ordering::Relaxed);
            if PHYSICAL.fetch_add(1, Ordering::AcqRel) + 1 >= LAST.load(Ordering::Relaxed) {
                physical::set_control(0);
            }
            gic::end(PHYSICAL_INTID);
        }
        intid => {
            VIRTUAL.fetch_add(1, Ordering::AcqRel);
            timer::stop();
            gic::end(intid);
        }
    }
}

/// Physical time runs ahead of virtual time by a constant.
fn counters() -> Verdict {
    let mut ahead = (0, u64::MAX);
    for _ in 0..1000 {
        let (before, virtual_now, after) = (physical::now(), timer::now(), physical::now());
        ahead.0 = ahead.0.max(
            before
                .wrapping_sub(virtual_now)
                .cast_signed()
                .max(0)
                .cast_unsigned(),
        );
        ahead.1 = ahead.1.min(after.wrapping_sub(virtual_now));
    }
    check(ahead.0 <= ahead.1, "the counters drift apart")
}

/// What is written reads back, in both forms.
fn registers() -> Verdict {
    equal("CNTP_CTL at start", physical::control() & ENABLE, 0)?;
    let far = physical::now() + timer::ticks(1_000_000_000);
    physical::set_compare(far);
    equal("CNTP_CVAL", physical::compare(), far)?;
    physical::set_control(u64::MAX);
    equal(
        "CNTP_CTL with a time to come",
        physical::control(),
        ENABLE | IMASK,
    )?;
    physical::set_compare(physical::now());
    equal(
        "CNTP_CTL with a time that came",
        physical::control(),
        ENABLE | IMASK | ISTATUS,
    )?;

    // Bits beyond the 32 mean nothing.
    let before = physical::now();
    physical::set_value(0x5555_5555_0001_0000);
    let (compare, after) = (physical::compare(), physical::now());
    check(
        (before + 0x1_0000..=after + 0x1_0000).contains(&compare),
        "CNTP_TVAL does not count from now",
    )?;
    let left = physical::value();
    check(
        left <= 0x1_0000 || left >> 31 == 1,
        "CNTP_TVAL does not count down",
    )?;
    physical::set_value(u64::from((-1000_i32).cast_unsigned()));
    check(
        physical::compare() < physical::now(),
        "a negative CNTP_TVAL is no time past",
    )?;
    let past = physical::value() as u32 as i32;
    check(
        (i32::MIN..=-1000).contains(&past),
        "CNTP_TVAL of a time past is not negative",
    )?;
    equal(
        "CNTP_CTL with a time past",
        physical::control(),
        ENABLE | IMASK | ISTATUS,
    )?;
    physical::set_control(0);
    equal(
        "CNTP_CTL of a timer that is off",
        physical::control() & (ENABLE | IMASK),
        0,
    )
}

/// Pending while the timer fires; comes again until the timer is stopped.
fn level() -> Verdict {
    let line = gic::Line::new(PHYSICAL_INTID);
    line.disable();
    physical::set_compare(physical::now());
    physical::set_control(ENABLE);
    check(
        timer::wait_until(PATIENCE, || line.is_pending()),
        "a timer that fires is not pending",
    )?;
    physical::set_control(ENABLE | IMASK);
    check(
        timer::wait_until(PATIENCE, || !line.is_pending()),
        "a timer that was masked is pending",
    )?;
    LAST.store(3, Ordering::Relaxed);
    physical::set_control(ENABLE);
    line.enable();
    check(came(3), "a level does not come again until it falls")?;
    LAST.store(1, Ordering::Relaxed);
    check(silent(), "a level comes after it fell")
}

/// A deadline that passes does nothing where the timer is masked or off.
fn silence() -> Verdict {
    for control in [0, IMASK, ENABLE | IMASK] {
        PHYSICAL.store(0, Ordering::Release);
        physical::set_control(0);
        physical::set_value(timer::ticks(10));
        physical::set_control(control);
        check(silent(), "a timer that is masked or off interrupts")?;
    }
    // Unmasked after its time, it comes at once.
    physical::set_control(ENABLE);
    check(came(1), "a timer does not come when it is unmasked")
}

fn by_compare(ticks: u64) {
    physical::set_compare(physical::now() + ticks);
}

fn by_value(ticks: u64) {
    physical::set_value(ticks);
}

/// Sleeps in WFI until the timer comes, never too early; masked, so that WFI itself must wake.
fn sleeps(program: fn(u64)) -> Verdict {
    let mut late = (u64::MAX, 0);
    for _ in 0..SLEEPS {
        PHYSICAL.store(0, Ordering::Release);
        cpu::mask();
        program(timer::ticks(SLEEP));
        let deadline = physical::compare();
        physical::set_control(ENABLE);
        while physical::control() & ISTATUS == 0 {
            cpu::wait_for_interrupt();
        }
        check(
            PHYSICAL.load(Ordering::Acquire) == 0,
            "an interrupt comes while masked",
        )?;
        cpu::unmask();
        check(came(1), "the timer's interrupt does not come after WFI")?;
        let taken = TAKEN.load(Ordering::Relaxed);
        check(taken >= deadline, "the timer's interrupt comes too early")?;
        late = (late.0.min(taken - deadline), late.1.max(taken - deadline));
    }
    let microseconds = |ticks: u64| ticks * 1_000_000 / timer::frequency();
    println!(
        "timers: {} to {} us late",
        microseconds(late.0),
        microseconds(late.1)
    );
    check(
        microseconds(late.0) <= boot::machine().number("late", 2000),
        "the timer's interrupt always comes too late",
    )
}

/// Whichever timer is first wakes, and the other still comes.
fn both() -> Verdict {
    for (physical_first, virtual_first) in [(1, 2), (2, 1)] {
        PHYSICAL.store(0, Ordering::Release);
        VIRTUAL.store(0, Ordering::Release);
        cpu::mask();
        physical::set_value(physical_first * timer::ticks(SLEEP));
        physical::set_control(ENABLE);
        timer::fire_at(timer::now() + virtual_first * timer::ticks(SLEEP));
        let both = || PHYSICAL.load(Ordering::Acquire) == 1 && VIRTUAL.load(Ordering::Acquire) == 1;
        let end = timer::now() + timer::ticks(PATIENCE);
        while !both() && timer::now() < end {
            cpu::wait_for_interrupt();
            cpu::unmask();
            cpu::mask();
        }
        cpu::unmask();
        check(both(), "one of two timers does not come")?;
    }
    Ok(())
}

/// Whether the physical timer's interrupt has come `times`, after waiting for it.
fn came(times: u32) -> bool {
    timer::wait_until(PATIENCE, || PHYSICAL.load(Ordering::Acquire) >= times)
        && PHYSICAL.load(Ordering::Acquire) == times
}

/// Whether the physical timer's interrupt stays away.
fn silent() -> bool {
    let before = PHYSICAL.load(Ordering::Acquire);
    !timer::wait_until(SILENCE, || PHYSICAL.load(Ordering::Acquire) != before)
}
