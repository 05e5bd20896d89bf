//! Times one kind of step of a VM over two hosts or three, which has a vCPU on each.
//!
//! Command line: `step=NAME count=N`. The first vCPU says `steps: ns=N` of all N steps; then all compute until the VM is
//! ended, so that no host's time passes idly.
#![no_std]
#![no_main]
#![forbid(unsafe_code)]

use core::hint::spin_loop;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use machine_bare::machine::Machine;
use machine_bare::memory::{PAGE_SIZE, Scratch};
use machine_bare::mmu::Window;
use machine_bare::timer;
use machine_bare::verdict::{Verdict, check, fail};
use machine_bare::{boot, cpu, gic, image, println};

image!("span_steps", main);

/// Pages of the first host that steps are about; a power of two.
const PAGES: u64 = 4096;
/// They are used in an order in which none follows another: odd, and large.
const STRIDE: u64 = 1_237;
/// Additions of a vCPU in one step.
const ADDITIONS: u64 = 1_000;
/// The SGI that goes to and fro.
const BALL: u32 = 1;
/// Words in a page.
const WORDS: usize = 512;

/// A page of its own.
#[repr(align(4096))]
struct Alone([AtomicU64; WORDS]);

impl Alone {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
    }
}

/// How often the vCPUs have met, and what they write in turns or at the same time.
static MEETINGS: Alone = Alone::new();
static TURN: Alone = Alone::new();
static COUNTERS: Alone = Alone::new();

/// What a vCPU does before the time that is taken, and within it: with its number and the count.
struct Step {
    name: &'static str,
    before: fn(usize, u64),
    work: fn(usize, u64),
}

const STEPS: [Step; 10] = [
    Step {
        name: "read",
        before: |vcpu, _| on(0, vcpu, || write(0..PAGES)),
        work: |vcpu, count| on(1, vcpu, || read(0..count)),
    },
    Step {
        name: "write",
        before: |vcpu, _| on(0, vcpu, || write(0..PAGES)),
        work: |vcpu, count| on(1, vcpu, || write(0..count)),
    },
    Step {
        name: "upgrade",
        before: |vcpu, _| {
            on(0, vcpu, || write(0..PAGES));
            meet();
            on(1, vcpu, || read(0..PAGES));
        },
        work: |vcpu, count| on(0, vcpu, || write(0..count)),
    },
    Step {
        name: "turn",
        before: |_, _| {},
        work: take_turns,
    },
    Step {
        name: "pair",
        before: |_, _| {},
        work: |vcpu, count| {
            for _ in 0..count * ADDITIONS {
                let own = &COUNTERS.0[vcpu];
                own.store(own.load(Relaxed) + 1, Relaxed);
            }
        },
    },
    Step {
        name: "barrier",
        before: |_, _| {},
        work: |_, count| (0..count).for_each(|_| meet()),
    },
    Step {
        name: "sgi",
        before: |_, _| {
            gic::init_cpu();
            gic::Line::new(BALL).enable();
        },
        work: throw,
    },
    Step {
        name: "tlbi",
        before: |vcpu, _| on(0, vcpu, || write(0..PAGES)),
        work: |vcpu, count| {
            on(1, vcpu, || {
                let window = Window::open(boot::machine().scratch().part(0, PAGE_SIZE), 1);
                for page in 0..count {
                    window.map(0, 0, true);
                    write(page..page + 1);
                }
            });
        },
    },
    Step {
        name: "third-read",
        before: |vcpu, _| on(1, vcpu, || write(0..PAGES)),
        work: |vcpu, count| on(2, vcpu, || read(0..count)),
    },
    Step {
        name: "third-write",
        before: |vcpu, _| on(1, vcpu, || write(0..PAGES)),
        work: |vcpu, count| on(2, vcpu, || write(0..count)),
    },
];

fn main(machine: &'static Machine) -> Verdict {
    gic::init_distributor();
    let count = machine.number("count", 100);
    check(count <= PAGES, "the count is beyond the pages")?;
    let Some(step) = chosen(machine) else {
        return fail("no step has that name");
    };
    check(cpu::start_others(other).is_ok(), "CPU_ON is refused")?;
    let start = run(step, 0, count);
    let ns = u128::from(timer::now() - start) * 1_000_000_000 / u128::from(timer::frequency());
    println!("steps: ns={ns}");
    compute()
}

fn other(vcpu: usize) {
    let machine = boot::machine();
    if let Some(step) = chosen(machine) {
        run(step, vcpu, machine.number("count", 100));
    }
    compute()
}

/// The step that the command line names.
fn chosen(machine: &Machine) -> Option<&'static Step> {
    let name = machine.option("step")?;
    STEPS.iter().find(|step| step.name == name)
}

/// Does one vCPU's part of the steps; gives when they began.
fn run(step: &Step, vcpu: usize, count: u64) -> u64 {
    meet();
    (step.before)(vcpu, count);
    meet();
    let start = timer::now();
    (step.work)(vcpu, count);
    meet();
    start
}

fn compute() -> ! {
    loop {
        cpu::spin(1_000_000);
    }
}

fn on(wanted: usize, vcpu: usize, work: impl FnOnce()) {
    if wanted == vcpu {
        work();
    }
}

/// Waits until all vCPUs are here.
fn meet() {
    let all = boot::machine().cpus().len() as u64;
    let target = (MEETINGS.0[0].fetch_add(1, AcqRel) / all + 1) * all;
    while MEETINGS.0[0].load(Acquire) < target {
        spin_loop();
    }
}

/// Each vCPU adds to one word when it is its turn.
fn take_turns(vcpu: usize, count: u64) {
    for turn in 0..count {
        while TURN.0[0].load(Acquire) != 2 * turn + vcpu as u64 {
            spin_loop();
        }
        TURN.0[0].store(2 * turn + vcpu as u64 + 1, Release);
    }
}

/// An SGI goes to and fro, and finds its vCPU asleep.
fn throw(vcpu: usize, count: u64) {
    let other = boot::machine().cpus()[1 - vcpu];
    for _ in 0..count {
        if vcpu == 0 {
            gic::send(BALL, other);
        }
        loop {
            cpu::wait_for_interrupt();
            let intid = gic::acknowledge();
            if intid != gic::SPURIOUS {
                gic::end(intid);
                break;
            }
        }
        if vcpu == 1 {
            gic::send(BALL, other);
        }
    }
}

/// The first host's pages, behind one that has a use of its own, and where in them one of these is.
fn place(page: u64) -> (Scratch, u64) {
    let at = (1 + page * STRIDE % PAGES) * PAGE_SIZE;
    (boot::machine().scratch(), at)
}

fn read(pages: core::ops::Range<u64>) {
    for (scratch, at) in pages.map(place) {
        scratch.read(at);
    }
}

fn write(pages: core::ops::Range<u64>) {
    for (scratch, at) in pages.map(place) {
        scratch.write(at, at);
    }
}
