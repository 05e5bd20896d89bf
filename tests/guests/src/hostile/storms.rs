//! Doing one costly thing without pause.

use core::sync::atomic::{AtomicU64, Ordering};

use machine_bare::machine::Machine;
use machine_bare::memory::PAGE_SIZE;
use machine_bare::psci;
use machine_bare::vectors::{self, Frame};
use machine_bare::verdict::{Verdict, check, equal};
use machine_bare::{boot, console, cpu, gic, println, timer};

static TAKEN: AtomicU64 = AtomicU64::new(0);
static TIMER_END: AtomicU64 = AtomicU64::new(0);

/// When a storm that begins now ends, in ticks of the counter.
fn end() -> u64 {
    let seconds = boot::machine().number("seconds", 1).min(1 << 20);
    timer::now().saturating_add(seconds * timer::frequency())
}

/// Repeats `act` for `seconds=` of the command line.
fn storm(what: &str, mut act: impl FnMut()) -> u64 {
    let end = end();
    let mut times = 0;
    while timer::now() < end {
        act();
        times += 1;
    }
    println!("hostile: cpu {}: {times} times {what}", cpu::index());
    times
}

fn handle(_frame: &mut Frame) {
    let intid = gic::acknowledge();
    if intid == timer::VIRTUAL_INTID {
        // Nothing but this handler runs until then: its deadline has passed before it returns.
        match timer::now() {
            now if now < TIMER_END.load(Ordering::Relaxed) => timer::fire_at(now),
            _ => timer::stop(),
        }
    }
    TAKEN.fetch_add(1, Ordering::Relaxed);
    gic::end(intid);
}

/// Lines on the UART as fast as it takes them.
pub fn console(_machine: &'static Machine) -> Verdict {
    let uart = console::uart();
    let lines = storm("a line", || {
        for byte in *b"all work and no play makes a dull guest\r\n" {
            console::transmit(&uart, byte);
        }
    });
    check(lines != 0, "no line was sent")
}

/// SGIs from every CPU to itself and all others.
pub fn sgis(_machine: &'static Machine) -> Verdict {
    vectors::set_irq_handler(handle);
    gic::init_distributor();
    check(cpu::start_others(send_sgis).is_ok(), "CPU_ON is refused")?;
    send_sgis(0);
    check(TAKEN.load(Ordering::Relaxed) != 0, "no SGI came")
}

fn send_sgis(_index: usize) {
    gic::init_cpu();
    for intid in 0..16 {
        gic::Line::new(intid).enable();
    }
    cpu::unmask();
    let mut intid = 0;
    let own = cpu::affinity();
    storm("an SGI to all", || {
        intid += 1;
        gic::send_to_others(intid);
        gic::send(intid, own);
    });
    cpu::mask();
}

/// WFI with an interrupt pending, so that it returns at once.
pub fn wfi(_machine: &'static Machine) -> Verdict {
    gic::init_distributor();
    gic::init_cpu();
    let line = gic::Line::new(0);
    line.enable();
    line.set_pending(true);
    let times = storm("WFI", cpu::wait_for_interrupt);
    check(times != 0, "WFI does not return")
}

/// Hypercalls that do not exist.
pub fn hvc(_machine: &'static Machine) -> Verdict {
    let mut supported = 0;
    storm("an unknown HVC", || {
        supported += u64::from(psci::query(0xc300_beef) != psci::NOT_SUPPORTED);
    });
    equal("unknown functions that are supported", supported, 0)
}

/// A timer whose next deadline has always passed.
pub fn timer(_machine: &'static Machine) -> Verdict {
    vectors::set_irq_handler(handle);
    gic::init_distributor();
    gic::init_cpu();
    gic::Line::new(timer::VIRTUAL_INTID).enable();
    TIMER_END.store(end(), Ordering::Relaxed);
    timer::fire_at(timer::now());
    cpu::unmask();
    while timer::now() < TIMER_END.load(Ordering::Relaxed) {
        cpu::yield_now();
    }
    cpu::mask();
    timer::stop();
    let taken = TAKEN.load(Ordering::Relaxed);
    println!("hostile: {taken} timer interrupts");
    check(taken != 0, "no timer interrupt came")
}

/// Every page of memory: written, then read back.
pub fn touch_all(machine: &'static Machine) -> Verdict {
    let memory = machine.scratch();
    let pages = memory.size() / PAGE_SIZE;
    for page in 0..pages {
        memory.write(page * PAGE_SIZE, !page);
    }
    for page in 0..pages {
        equal("a page read back", memory.read(page * PAGE_SIZE), !page)?;
    }
    println!("hostile: {pages} pages");
    Ok(())
}

/// All CPUs busy with themselves.
pub fn spin(_machine: &'static Machine) -> Verdict {
    check(cpu::start_others(spin_here).is_ok(), "CPU_ON is refused")?;
    spin_here(0);
    Ok(())
}

fn spin_here(_index: usize) {
    storm("a thousand turns", || cpu::spin(1000));
}

/// Watches the counter: nobody else has the CPU for longer than a slice and a millisecond.
pub fn gaps(machine: &'static Machine) -> Verdict {
    let (end, mut before, mut longest) = (end(), timer::now(), 0);
    while before < end {
        let now = timer::now();
        longest = (now - before).max(longest);
        before = now;
    }
    println!("hostile: the longest gap was {longest} ticks");
    let most = timer::ticks(machine.number("most_us", 11_000));
    check(longest <= most, "a gap was longer than a slice and 1 ms")
}
