//! vCPUs that share a pCPU, and move, must not notice. Every vCPU has page tables of its own that
//! map one virtual address to pages of its own, under the same ASID; it remaps them with
//! maintenance of its own TLB alone. Meanwhile its FP and SIMD registers hold a pattern, its
//! virtual timer ticks with a period of its own, and its neighbour sends it SGIs one at a time.
//!
//! Command line: `rounds=N` (300). Run it with 2 to 4 vCPUs on fewer pCPUs.
#![no_std]
#![no_main]
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use machine_bare::cpu::{self, MAX_CPUS};
use machine_bare::machine::Machine;
use machine_bare::memory::PAGE_SIZE;
use machine_bare::mmu::Window;
use machine_bare::timer;
use machine_bare::vectors::{self, Frame};
use machine_bare::verdict::{Failure, Verdict, check, equal};
use machine_bare::{boot, gic, image, println, simd};

image!("tlb_hygiene", main);

/// The ASID of every vCPU.
const ASID: u16 = 1;
/// Pages that a window shows at a time.
const SHOWN: usize = 32;
/// Pages of one vCPU: those it shows first, and those it remaps them to.
const OWN_PAGES: u64 = 2 * SHOWN as u64;
/// The SGI that a neighbour sends.
const GREETING: u32 = 3;
/// Microseconds between two ticks of vCPU 0; each further vCPU ticks that much slower.
const PERIOD: u64 = 700;
/// Microseconds that anything may take.
const PATIENCE: u64 = 60_000_000;

/// What one vCPU has counted and reached.
struct Vcpu {
    ticks: AtomicU64,
    early: AtomicU64,
    greetings: AtomicU64,
    sent: AtomicU64,
    ready: AtomicBool,
    done: AtomicBool,
    failed: AtomicBool,
}

static VCPUS: [Vcpu; MAX_CPUS] = [const {
    Vcpu {
        ticks: AtomicU64::new(0),
        early: AtomicU64::new(0),
        greetings: AtomicU64::new(0),
        sent: AtomicU64::new(0),
        ready: AtomicBool::new(false),
        done: AtomicBool::new(false),
        failed: AtomicBool::new(false),
    }
}; MAX_CPUS];

fn period(index: usize) -> u64 {
    timer::ticks(PERIOD * (index as u64 + 1))
}

fn wanted_rounds() -> u64 {
    boot::machine().number("rounds", 300)
}

fn handle(_frame: &mut Frame) {
    let vcpu = &VCPUS[cpu::index()];
    let intid = gic::acknowledge();
    match intid {
        timer::VIRTUAL_INTID if timer::is_firing() => {
            vcpu.ticks.fetch_add(1, Ordering::Relaxed);
            timer::fire_at(timer::deadline() + period(cpu::index()));
        }
        timer::VIRTUAL_INTID => {
            vcpu.early.fetch_add(1, Ordering::Relaxed);
        }
        GREETING => {
            vcpu.greetings.fetch_add(1, Ordering::Release);
        }
        _ => return,
    }
    gic::end(intid);
}

fn main(machine: &'static Machine) -> Verdict {
    let count = machine.cpus().len();
    check(count > 1, "needs two vCPUs or more")?;
    vectors::set_irq_handler(handle);
    gic::init_distributor();
    check(cpu::start_others(work).is_ok(), "CPU_ON is refused")?;
    work(0);
    let all = &VCPUS[..count];
    let finished = timer::wait_until(PATIENCE, || {
        all.iter().all(|vcpu| vcpu.done.load(Ordering::Acquire))
    });
    check(finished, "a vCPU does not come to its end")?;
    let failed = all.iter().any(|vcpu| vcpu.failed.load(Ordering::Acquire));
    check(!failed, "a vCPU failed, see above")
}

fn work(index: usize) {
    let verdict = prepare(index).and_then(|window| {
        let verdict = rounds(index, &window);
        cpu::mask();
        verdict
    });
    if let Err(failure) = verdict {
        println!("tlb_hygiene: vCPU {index}: {failure}");
        VCPUS[index].failed.store(true, Ordering::Release);
    }
    VCPUS[index].done.store(true, Ordering::Release);
}

/// The words of this vCPU's pages: which vCPU, which page.
fn word(index: usize, page: u64) -> u64 {
    0xc0de_0000_0000_0000 | (index as u64) << 32 | page
}

fn prepare(index: usize) -> Result<Window, Failure> {
    let bytes = OWN_PAGES * PAGE_SIZE;
    let memory = boot::machine().scratch().part(index as u64 * bytes, bytes);
    for page in 0..OWN_PAGES {
        memory.write(page * PAGE_SIZE, word(index, page));
    }
    let window = Window::open(memory, ASID);
    for shown in 0..SHOWN {
        window.map(shown, shown as u64, is_global(shown));
    }
    gic::init_cpu();
    gic::Line::new(GREETING).enable();
    gic::Line::new(timer::VIRTUAL_INTID).enable();
    VCPUS[index].ready.store(true, Ordering::Release);
    let count = boot::machine().cpus().len();
    let all_ready = timer::wait_until(PATIENCE, || {
        VCPUS[..count]
            .iter()
            .all(|vcpu| vcpu.ready.load(Ordering::Acquire))
    });
    check(all_ready, "the others do not start")?;
    Ok(window)
}

/// Every third page is mapped for all ASIDs.
fn is_global(shown: usize) -> bool {
    shown.is_multiple_of(3)
}

fn rounds(index: usize, window: &Window) -> Verdict {
    let vcpu = &VCPUS[index];
    let count = boot::machine().cpus().len();
    let neighbour = (index + 1) % count;
    let start = timer::now();
    timer::fire_at(start + period(index));
    cpu::unmask();
    for round in 0..wanted_rounds() {
        let pattern = word(index, round + 7 * index as u64);
        simd::fill(pattern);
        greet(vcpu, neighbour)?;
        // The others run meanwhile: one way or the other.
        match round % 3 {
            0 => cpu::wait_for_interrupt(),
            1 => cpu::yield_now(),
            _ => cpu::spin(20_000),
        }
        equal("lost FP and SIMD registers", simd::lost(pattern), 0)?;
        let shown = round as usize % SHOWN;
        let turn = round / SHOWN as u64;
        look(index, window, shown, turn)?;
        let next = shown as u64 + (turn + 1) % 2 * SHOWN as u64;
        window.map(shown, next, is_global(shown));
        look(index, window, shown + 1, turn)?;
    }
    settle(index, start, count)?;
    println!(
        "tlb_hygiene: vCPU {index}: {} pages remapped, {} ticks, {} greetings",
        wanted_rounds(),
        vcpu.ticks.load(Ordering::Relaxed),
        vcpu.greetings.load(Ordering::Relaxed)
    );
    Ok(())
}

/// Reads all pages when those before `remapped` have been remapped `turn + 1` times, the others
/// `turn` times.
fn look(index: usize, window: &Window, remapped: usize, turn: u64) -> Verdict {
    for shown in 0..SHOWN {
        let times = turn + u64::from(shown < remapped);
        let page = shown as u64 + times % 2 * SHOWN as u64;
        equal(
            "a word at the shared virtual address",
            window.read(shown),
            word(index, page),
        )?;
    }
    Ok(())
}

/// Sends the neighbour one SGI and waits for it to arrive, once.
fn greet(vcpu: &Vcpu, neighbour: usize) -> Verdict {
    let other = &VCPUS[neighbour];
    let sent = vcpu.sent.load(Ordering::Relaxed) + 1;
    gic::send(GREETING, boot::machine().cpus()[neighbour]);
    vcpu.sent.store(sent, Ordering::Relaxed);
    timer::wait_until(PATIENCE, || other.greetings.load(Ordering::Acquire) >= sent);
    equal(
        "SGIs that arrived",
        other.greetings.load(Ordering::Acquire),
        sent,
    )
}

/// Waits until the neighbours are through, then compares the ticks with the time that passed.
fn settle(index: usize, start: u64, count: usize) -> Verdict {
    let vcpu = &VCPUS[index];
    let sender = &VCPUS[(index + count - 1) % count];
    let wanted = wanted_rounds();
    let all = timer::wait_until(PATIENCE, || {
        vcpu.greetings.load(Ordering::Acquire) >= wanted || sender.failed.load(Ordering::Acquire)
    });
    check(all, "the neighbour does not finish")?;
    // What is due by now is delivered before the count is taken.
    let due = (timer::now() - start) / period(index);
    timer::wait_until(1_000_000, || vcpu.ticks.load(Ordering::Relaxed) >= due);
    cpu::mask();
    timer::stop();
    let ticks = vcpu.ticks.load(Ordering::Relaxed);
    let possible = (timer::now() - start) / period(index);
    let greetings = vcpu.greetings.load(Ordering::Acquire);
    equal("SGIs that came", greetings, wanted)?;
    check(ticks >= due, "timer ticks were lost")?;
    check(ticks <= possible, "timer ticks were doubled")?;
    equal(
        "timer interrupts before their time",
        vcpu.early.load(Ordering::Relaxed),
        0,
    )
}
