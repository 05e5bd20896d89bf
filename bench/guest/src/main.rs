//! Times one hypervisor entry at a time, from a bare guest.
//!
//! Each line is `nano: <key> <ns per operation> <instructions per operation>`, the second column
//! being half of the first: it holds where a simulator spends 2 ns of the guest's clock on each
//! instruction (QEMU, `-icount shift=1,sleep=off`). The counter has steps of 16 ns, so all but
//! the worst single store are averages. The two instructions of the loop are included.
//!
//! Command line: `console=N` bytes to transmit (640).
#![no_std]
#![no_main]
#![forbid(unsafe_code)]

use core::hint::black_box;
use core::sync::atomic::{AtomicU64, Ordering};

use machine_bare::machine::Machine;
use machine_bare::memory::{PAGE_SIZE, Scratch};
use machine_bare::timer::{self, VIRTUAL_INTID};
use machine_bare::vectors::{self, Frame};
use machine_bare::verdict::{Verdict, check};
use machine_bare::{boot, console, cpu, gic, image, println, psci};

image!("nano", main);

/// Repetitions of what costs little.
const MANY: u64 = 10_000;
/// Repetitions of what waits.
const FEW: u64 = 100;
/// Microseconds that WFI sleeps.
const SLEEP: u64 = 100;
/// Microseconds in which a hypervisor can do what it does when its CPU is idle.
const REST: u64 = 50_000;
/// Memory that is stored to for the first time, in bytes.
const NEW_MEMORY: u64 = 64 << 20;
/// The SGI to itself, and the one that goes to and fro.
const SELF: u32 = 1;
const BALL: u32 = 2;

static HANDLED: AtomicU64 = AtomicU64::new(0);

fn main(machine: &'static Machine) -> Verdict {
    vectors::set_irq_handler(handle);
    gic::init_distributor();
    gic::init_cpu();
    for intid in [SELF, BALL, VIRTUAL_INTID] {
        gic::Line::new(intid).enable();
    }
    sleep(REST);
    entries();
    interrupts();
    wake();
    first_stores(machine.scratch());
    let bytes = machine.number("console", 640);
    if bytes != 0 {
        transmit(bytes);
    }
    switch(machine)
}

/// Prints `ticks` of the counter, spent on `operations`.
fn report(key: &str, ticks: u64, operations: u64) {
    let tenths_of_ns = u128::from(ticks) * 10_000_000_000
        / u128::from(timer::frequency())
        / u128::from(operations.max(1));
    let ns = tenths_of_ns as u64;
    let instructions = ns / 2;
    println!(
        "nano: {key} {}.{} {}.{}",
        ns / 10,
        ns % 10,
        instructions / 10,
        instructions % 10
    );
}

/// Times `operations` of `operate`.
#[inline]
fn measure(key: &str, operations: u64, mut operate: impl FnMut()) {
    operate();
    let start = timer::now();
    for _ in 0..operations {
        operate();
    }
    report(key, timer::now() - start, operations);
}

/// What traps, and what should not.
fn entries() {
    let gicd = gic::distributor();
    let uart = console::uart();
    measure("loop1000", FEW, || cpu::spin(500));
    measure("null_hypercall", MANY, || {
        black_box(psci::query(psci::VERSION));
    });
    measure("id_register", MANY, || {
        black_box(cpu::read_id_register());
    });
    measure("cntvct", MANY, || {
        black_box(timer::counter());
    });
    measure("timer_program", MANY, || timer::fire_at(u64::MAX));
    timer::stop();
    measure("gicd_typer", MANY, || {
        black_box(gicd.read32(gic::GICD_TYPER));
    });
    measure("uart_flags", MANY, || {
        black_box(uart.read32(console::FLAGS));
    });
}

fn handle(_frame: &mut Frame) {
    let intid = gic::acknowledge();
    if intid == VIRTUAL_INTID {
        timer::stop();
    }
    HANDLED.store(HANDLED.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    gic::end(intid);
}

/// Waits until the interrupt that is on its way has been handled.
#[inline]
#[expect(
    clippy::missing_spin_loop,
    reason = "a hint would be part of the figure"
)]
fn until_handled(cause: impl FnOnce()) {
    let before = HANDLED.load(Ordering::Relaxed);
    cause();
    while HANDLED.load(Ordering::Relaxed) == before {}
}

fn interrupts() {
    let own = cpu::affinity();
    cpu::unmask();
    measure("sgi_self", MANY, || until_handled(|| gic::send(SELF, own)));
    measure("virtual_timer", MANY, || {
        until_handled(|| timer::fire_at(timer::counter()));
    });
    cpu::mask();
}

/// How late WFI wakes for the timer, with the interrupt masked.
fn wake() {
    let late = (0..FEW).map(|_| sleep(SLEEP)).sum();
    report("wfi_wake", late, FEW);
}

/// Sleeps so many microseconds by WFI; gives by how many ticks it woke late.
fn sleep(microseconds: u64) -> u64 {
    let deadline = timer::now() + timer::ticks(microseconds);
    timer::fire_at(deadline);
    while !timer::is_firing() {
        cpu::wait_for_interrupt();
    }
    let late = timer::now() - deadline;
    // Taken and ended by hand: an interrupt that stayed pending would keep the next WFI awake.
    let intid = gic::acknowledge();
    timer::stop();
    gic::end(intid);
    late
}

/// Stores to memory that nobody has touched, one per page: the average over one part, the worst
/// over another.
fn first_stores(memory: Scratch) {
    let bytes = NEW_MEMORY.min(memory.size() / 2) & !(PAGE_SIZE - 1);
    let (first, second) = (memory.part(0, bytes), memory.part(bytes, bytes));
    let pages = bytes / PAGE_SIZE;
    let mut page = 0;
    measure("first_store", pages - 1, || {
        first.write(page * PAGE_SIZE, 1);
        page += 1;
    });
    let mut worst = 0;
    for page in 0..pages {
        let start = timer::now();
        second.write(page * PAGE_SIZE, 1);
        worst = worst.max(timer::now() - start);
    }
    report("first_store_worst", worst, 1);
}

/// Bytes to the UART, each after a look at its flags.
fn transmit(bytes: u64) {
    let uart = console::uart();
    let start = timer::now();
    for byte in 0..bytes {
        let byte = if byte % 64 == 63 { b'\n' } else { b'.' };
        console::transmit(&uart, byte);
    }
    report("uart_transmit", timer::now() - start, bytes);
}

/// A ball of SGIs between two vCPUs that wait by WFI: half a round is one switch, where they share
/// a CPU.
fn switch(machine: &Machine) -> Verdict {
    let Some(&other) = machine.cpus().get(1) else {
        return Ok(());
    };
    check(cpu::start(1, return_ball).is_ok(), "CPU_ON is refused")?;
    receive();
    let start = timer::now();
    for _ in 0..FEW {
        gic::send(BALL, other);
        receive();
    }
    report("vcpu_switch", timer::now() - start, 2 * FEW);
    Ok(())
}

fn return_ball(_index: usize) {
    gic::init_cpu();
    gic::Line::new(BALL).enable();
    let first = boot::machine().cpus()[0];
    loop {
        gic::send(BALL, first);
        receive();
    }
}

/// Waits for the ball with interrupts masked, and takes it.
#[inline]
fn receive() {
    loop {
        cpu::wait_for_interrupt();
        let intid = gic::acknowledge();
        if intid != gic::SPURIOUS {
            gic::end(intid);
            return;
        }
    }
}
