//! Litmus tests of a memory that CPUs of several hosts share, one a CPU. Each batch runs one test on 128 pairs of words in
//! two pages anywhere in memory, without meeting in between, and each CPU is late by chance.
//!
//! Command line: `rounds=N` in all (1000), `seed=N` (1). Two CPUs run the tests of two threads, three and four the others, too.
#![no_std]
#![no_main]
#![forbid(unsafe_code)]

mod random;

use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use core::sync::atomic::{AtomicU64, fence};

use machine_bare::machine::Machine;
use machine_bare::memory::{PAGE_SIZE, Scratch};
use machine_bare::verdict::{Verdict, check};
use machine_bare::{boot, cpu, flat, gic, println};
use random::Random;

flat!("litmus", main);

/// Rounds in a batch, each with words of its own in both pages.
const BATCH: u64 = 128;
/// Bytes between the words of two rounds.
const STRIDE: u64 = PAGE_SIZE / BATCH;
const CPUS_MAX: usize = 4;
/// How often a CPU looks whether the others have come: some seconds, where a batch takes 0.03.
const SPINS_MAX: u64 = 500_000_000;
/// How late a thread may be in a round, in pairs of instructions.
const LATE: [u64; 4] = [1, 1_000, 10_000, 50_000];

/// What threads see: by thread, two words each.
type Seen = [[u64; 2]; CPUS_MAX];

/// A test. A word is 0 before its round.
struct Test {
    name: &'static str,
    threads: usize,
    /// What a thread does with the words of a round.
    run: fn(thread: usize, words: &Words) -> [u64; 2],
    /// Whether that cannot be: what threads have seen, and both words at the end.
    is_forbidden: fn(&Seen, [u64; 2]) -> bool,
}

/// All, those of two threads first. Between two accesses of a thread is always a barrier, but for CoRR.
const TESTS: [Test; 7] = [
    Test {
        name: "MP",
        threads: 2,
        run: |thread, it| match thread {
            0 => it.store_both(X, Y),
            _ => it.load_both(Y, X),
        },
        is_forbidden: |seen, _| seen[1] == [1, 0],
    },
    Test {
        name: "SB",
        threads: 2,
        run: |thread, it| {
            let [own, other] = [[X, Y], [Y, X]][thread];
            it.store(own, 1);
            fence(SeqCst);
            [it.load(other), 0]
        },
        is_forbidden: |seen, _| seen[0][0] == 0 && seen[1][0] == 0,
    },
    Test {
        name: "LB",
        threads: 2,
        run: |thread, it| {
            let [own, other] = [[X, Y], [Y, X]][thread];
            let seen = it.load(own);
            fence(SeqCst);
            it.store(other, 1);
            [seen, 0]
        },
        is_forbidden: |seen, _| seen[0][0] == 1 && seen[1][0] == 1,
    },
    Test {
        name: "CoRR",
        threads: 2,
        run: |thread, it| match thread {
            0 => it.store_one(X),
            _ => [it.load(X), it.load(X)],
        },
        is_forbidden: |seen, _| seen[1] == [1, 0],
    },
    Test {
        name: "2+2W",
        threads: 2,
        run: |thread, it| {
            let [first, second] = [[X, Y], [Y, X]][thread];
            it.store(first, 1);
            fence(SeqCst);
            it.store(second, 2);
            [0; 2]
        },
        is_forbidden: |_, end| end == [1, 1],
    },
    Test {
        name: "WRC",
        threads: 3,
        run: |thread, it| match thread {
            0 => it.store_one(X),
            1 => {
                let seen = it.load(X);
                fence(SeqCst);
                it.store(Y, 1);
                [seen, 0]
            }
            _ => it.load_both(Y, X),
        },
        is_forbidden: |seen, _| seen[1][0] == 1 && seen[2] == [1, 0],
    },
    Test {
        name: "IRIW",
        threads: 4,
        run: |thread, it| match thread {
            0 => it.store_one(X),
            1 => it.store_one(Y),
            2 => it.load_both(X, Y),
            _ => it.load_both(Y, X),
        },
        is_forbidden: |seen, _| seen[2] == [1, 0] && seen[3] == [1, 0],
    },
];

const X: usize = 0;
const Y: usize = 1;

/// Both words of a round.
struct Words {
    memory: Scratch,
    at: [u64; 2],
    /// What a word of this batch has more than it says, so that what is left of earlier batches is 0.
    base: u64,
}

impl Words {
    fn load(&self, word: usize) -> u64 {
        self.memory.read(self.at[word]).saturating_sub(self.base)
    }

    fn store(&self, word: usize, value: u64) {
        self.memory.write(self.at[word], self.base + value);
    }

    fn store_one(&self, word: usize) -> [u64; 2] {
        self.store(word, 1);
        [0; 2]
    }

    fn store_both(&self, first: usize, second: usize) -> [u64; 2] {
        self.store(first, 1);
        fence(SeqCst);
        self.store_one(second)
    }

    fn load_both(&self, first: usize, second: usize) -> [u64; 2] {
        let seen = self.load(first);
        fence(SeqCst);
        [seen, self.load(second)]
    }
}

/// A page of its own.
#[repr(align(4096))]
struct Alone([AtomicU64; 512]);

impl Alone {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; 512])
    }
}

static STEP: Alone = Alone::new();
/// What each CPU saw in the rounds of a batch.
static SEEN: [Alone; CPUS_MAX] = [const { Alone::new() }; CPUS_MAX];

/// A batch: all CPUs know it by its number.
struct Batch {
    test: &'static Test,
    number: u64,
    pages: [u64; 2],
    late: [u64; CPUS_MAX],
    random: Random,
}

impl Batch {
    fn new(machine: &Machine, number: u64) -> Self {
        let cpus = machine.cpus().len();
        let mut random = Random::new(machine.number("seed", 1) << 32 | number);
        let fit = TESTS.iter().filter(|test| test.threads <= cpus).count();
        let pages = machine.scratch().size() / PAGE_SIZE;
        let first = random.below(pages);
        let second = (first + 1 + random.below(pages - 1)) % pages;
        Self {
            test: &TESTS[number as usize % fit],
            number,
            pages: [first * PAGE_SIZE, second * PAGE_SIZE],
            late: core::array::from_fn(|_| LATE[random.below(LATE.len() as u64) as usize]),
            random,
        }
    }

    fn words(&self, memory: Scratch, round: u64) -> Words {
        Words {
            memory,
            at: self.pages.map(|page| page + round * STRIDE),
            base: 2 * self.number,
        }
    }

    /// Which thread a CPU is: another one from batch to batch.
    fn thread(&self, cpu: usize, cpus: usize) -> usize {
        (cpu + self.number as usize / TESTS.len()) % cpus
    }

    /// Runs this CPU's thread.
    fn run(&mut self, machine: &Machine) {
        let (own, cpus) = (cpu::index(), machine.cpus().len());
        let thread = self.thread(own, cpus);
        if thread >= self.test.threads {
            return;
        }
        // The CPUs' delays have nothing to do with each other.
        self.random = Random::new(self.random.number() ^ (own as u64) << 48);
        for round in 0..BATCH {
            cpu::spin(self.random.below(self.late[thread]));
            let words = self.words(machine.scratch(), round);
            let seen = (self.test.run)(thread, &words);
            for (n, value) in (0..).zip(seen) {
                SEEN[thread].0[2 * round as usize + n].store(value, Relaxed);
            }
        }
    }

    /// Counts rounds, and those whose outcome is forbidden, and notes which outcomes there were.
    fn judge(&self, machine: &Machine, counts: &mut Counts) {
        for round in 0..BATCH {
            let at = 2 * round as usize;
            let seen = SEEN
                .each_ref()
                .map(|it| [0, 1].map(|n| it.0[at + n].load(Relaxed)));
            let words = self.words(machine.scratch(), round);
            let end = [words.load(X), words.load(Y)];
            counts.rounds += 1;
            counts.forbidden += u64::from((self.test.is_forbidden)(&seen, end));
            // Only threads that see nothing leave a 2.
            let bits = seen.iter().flatten().copied();
            let bits = bits.chain(end.map(|it| it >> 1 & 1));
            let outcome = bits.fold(0, |all, bit| all << 1 | bit as usize);
            counts.outcomes[outcome / 64 % 16] |= 1 << (outcome % 64);
        }
    }
}

/// What came of a test.
#[derive(Clone, Copy, Default)]
struct Counts {
    rounds: u64,
    forbidden: u64,
    /// A bit for each outcome that there was.
    outcomes: [u64; 16],
}

fn main(machine: &'static Machine) -> Verdict {
    gic::init_distributor();
    let cpus = machine.cpus().len();
    check((2..=CPUS_MAX).contains(&cpus), "two to four CPUs")?;
    check(
        cpu::start_others(|_| go(boot::machine(), |_| ())).is_ok(),
        "CPU_ON is refused",
    )?;
    let mut counts = [Counts::default(); TESTS.len()];
    go(machine, |batch| {
        let test = TESTS.iter().position(|it| it.name == batch.test.name);
        batch.judge(machine, &mut counts[test.unwrap_or(0)]);
    });
    let mut forbidden = 0;
    for (test, counts) in TESTS.iter().zip(counts) {
        if test.threads > cpus {
            continue;
        }
        let outcomes: u32 = counts.outcomes.iter().map(|it| it.count_ones()).sum();
        println!(
            "litmus: {} {} rounds, {outcomes} outcomes, {} forbidden",
            test.name, counts.rounds, counts.forbidden
        );
        check(outcomes > 1, "threads never met")?;
        forbidden += counts.forbidden;
    }
    println!("litmus: {cpus} CPUs, {forbidden} forbidden");
    check(
        forbidden == 0,
        "an outcome that no order of the accesses has",
    )
}

/// Takes part in all batches; the first CPU judges each.
fn go(machine: &Machine, mut judge: impl FnMut(&Batch)) {
    let cpus = machine.cpus().len() as u64;
    let batches = machine.number("rounds", 1000).div_ceil(BATCH);
    for number in 1..=batches {
        let mut batch = Batch::new(machine, number);
        // What threads do not see, they do not leave from another test.
        for seen in &SEEN[cpu::index()].0 {
            seen.store(0, Relaxed);
        }
        meet(cpus * (3 * number - 2));
        batch.run(machine);
        meet(cpus * (3 * number - 1));
        judge(&batch);
        meet(cpus * 3 * number);
    }
}

/// Waits until CPUs have come here so often.
fn meet(times: u64) {
    STEP.0[0].fetch_add(1, AcqRel);
    let mut spins = 0_u64;
    while STEP.0[0].load(Acquire) < times {
        core::hint::spin_loop();
        spins += 1;
        assert!(spins < SPINS_MAX, "the others do not come");
    }
}
