//! A VM over two hosts, with a vCPU on each: PSCI, SGIs, the console, the distributor and the counter reach across.
//!
//! Command line: `rounds=N` (100) of turns taken and of SGIs; `end=N` (0): the vCPU that powers off; `stay`: it says so and
//! invalidates TLB entries until somebody ends it.
#![no_std]
#![no_main]
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use machine_bare::gic::Line;
use machine_bare::machine::Machine;
use machine_bare::memory::PAGE_SIZE;
use machine_bare::mmu::Window;
use machine_bare::psci::{self, Error};
use machine_bare::vectors::{self, Frame};
use machine_bare::verdict::{self, Verdict, check, equal};
use machine_bare::{boot, cpu, gic, image, println, timer};

image!("span", main);

/// Microseconds that something may take on two hosts.
const PATIENCE: u64 = 20_000_000;
/// An SGI, and its answer.
const ASK: u32 = 3;
const ANSWER: u32 = 4;
/// An SPI that no device of the machine uses.
const SPI: u32 = 60;

/// Whose turn it is, and the count that the other has read last.
static TURN: AtomicU64 = AtomicU64::new(0);
static COUNT: AtomicU64 = AtomicU64::new(0);
/// Counts less than one that was read before.
static BACK: AtomicU64 = AtomicU64::new(0);
static SGIS: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];
static LISTENS: AtomicU32 = AtomicU32::new(0);
static ENDS: AtomicU32 = AtomicU32::new(0);

fn main(machine: &'static Machine) -> Verdict {
    equal("vCPUs", machine.cpus().len() as u64, 2)?;
    vectors::set_irq_handler(handle);
    gic::init_distributor();
    gic::init_cpu();
    Line::new(ANSWER).enable();
    cpu::unmask();
    power(machine)?;
    println!("span: the other vCPU runs");
    let rounds = machine.number("rounds", 100);
    take_turns(0, rounds);
    equal("counts that went back", BACK.load(Ordering::Acquire), 0)?;
    println!("span: {rounds} turns");
    check(
        timer::wait_until(PATIENCE, || LISTENS.load(Ordering::Acquire) == 1),
        "the other vCPU does not listen",
    )?;
    for round in 1..=rounds as u32 {
        gic::send(ASK, machine.cpus()[1]);
        let came = || SGIS[0].load(Ordering::Acquire) == round;
        check(timer::wait_until(PATIENCE, came), "an SGI is not answered")?;
    }
    let [answers, asked] = [0, 1].map(|n| SGIS[n].load(Ordering::Acquire));
    equal("SGIs", asked.into(), rounds)?;
    equal("answers", answers.into(), rounds)?;
    println!("span: {rounds} SGIs each way");
    if machine.flag("stay") {
        println!("span: stays");
        let window = Window::open(machine.scratch().part(0, PAGE_SIZE), 1);
        loop {
            window.map(0, 0, true);
        }
    }
    ENDS.store(1, Ordering::Release);
    gic::send(ASK, machine.cpus()[1]);
    while machine.number("end", 0) != 0 {
        cpu::wait_for_interrupt();
    }
    Ok(())
}

/// PSCI of the other vCPU, which is started.
fn power(machine: &Machine) -> Verdict {
    let other = machine.cpus()[1];
    let entry = cpu::secondary_entry();
    let is = |state| psci::affinity_info(other, 0) == state;
    check(is(psci::OFF), "the other vCPU is not OFF")?;
    check(
        psci::cpu_on(other, 0x3000_0000, 0) == Err(Error::INVALID_ADDRESS),
        "CPU_ON to no memory is not INVALID_ADDRESS",
    )?;
    check(cpu::start(1, second).is_ok(), "CPU_ON is refused")?;
    check(
        timer::wait_until(PATIENCE, || is(psci::ON)),
        "the other vCPU is not ON",
    )?;
    check(
        psci::cpu_on(other, entry, 1) == Err(Error::ALREADY_ON),
        "a second CPU_ON is not ALREADY_ON",
    )
}

/// What the other vCPU does.
fn second(index: usize) {
    let machine = boot::machine();
    gic::init_cpu();
    Line::new(ASK).enable();
    println!("span: vCPU {index} has the console");
    let line = Line::new(SPI);
    for enable in [true, false] {
        if enable {
            line.enable();
        } else {
            line.disable();
        }
        if line.is_enabled() != enable {
            verdict::finish(verdict::fail(
                "the distributor does not keep what another host writes",
            ));
        }
    }
    take_turns(1, machine.number("rounds", 100));
    cpu::unmask();
    LISTENS.store(1, Ordering::Release);
    while !may_end(machine) {}
    verdict::finish(Ok(()));
}

/// Whether this vCPU is to power off, after a wait for an interrupt.
fn may_end(machine: &Machine) -> bool {
    cpu::mask();
    let may = ENDS.load(Ordering::Acquire) != 0 && machine.number("end", 0) != 0;
    if !may {
        cpu::wait_for_interrupt();
    }
    cpu::unmask();
    may
}

/// Takes turns with the other vCPU; no count is less than the one that it has read before.
fn take_turns(own: u64, rounds: u64) {
    for round in 0..rounds {
        while TURN.load(Ordering::Acquire) != 2 * round + own {
            cpu::yield_now();
        }
        let count = timer::counter();
        if count < COUNT.swap(count, Ordering::AcqRel) {
            BACK.fetch_add(1, Ordering::AcqRel);
        }
        TURN.store(2 * round + own + 1, Ordering::Release);
    }
}

/// Counts an SGI; the other vCPU answers.
fn handle(_frame: &mut Frame) {
    let intid = gic::acknowledge();
    if intid == gic::SPURIOUS {
        return;
    }
    SGIS[cpu::index()].fetch_add(1, Ordering::AcqRel);
    gic::end(intid);
    if intid == ASK {
        gic::send(ANSWER, boot::machine().cpus()[0]);
    }
}
