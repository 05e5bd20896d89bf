//! What a seed stands for: scripts, network and accidents; and how a failing one becomes small.

use crate::cluster::{Cluster, Counts, SLOTS};
use crate::world::{LEASE_NS, Op, Scenario, WORDS, Word, entry_to};
use model_coherence::Switches;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tests_explorer::random::Random;

/// A run, without chance but that of its seed.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub hosts: usize,
    pub scenario: Scenario,
    pub loss_permille: u64,
    pub repeat_permille: u64,
    pub jitter_ns: u64,
    pub away_permille: u64,
    /// A host that nothing comes to or from, and when.
    pub cut: Option<(usize, u64, u64)>,
    pub death: Option<(usize, u64)>,
    /// Hosts that leave when their scripts are done, and are switched off.
    pub leavers: Vec<usize>,
}

impl Plan {
    pub fn new(seed: u64) -> Self {
        let random = &mut Random(seed);
        let hosts = 2 + random.below(7);
        let pages = 2 + random.below(5);
        let mut homes: Vec<usize> = (0..pages).map(|_| random.below(hosts)).collect();
        homes.sort_unstable();
        let vcpus = (0..hosts).flat_map(|host| (0..=host % 2).map(move |_| host));
        let scripts: Vec<usize> = vcpus.collect();
        let most = 10 + random.below(25);
        let scripts = scripts.into_iter();
        let scripts = scripts.map(|host| (host, script(random, pages, most)));
        let scripts = scripts.collect();
        let initial = (0..pages).map(|_| [random.below(9) as u8, 0]).collect();
        let mut switch = || random.permille(700);
        let switches = Switches {
            versions: switch(),
            zero: switch(),
            lazy_tlbi: switch(),
            burst: switch(),
            companions: switch(),
            hold: switch(),
            push: switch(),
            changes: switch(),
            migratory: switch(),
        };
        let bad = random.below(4) as u64;
        let at = random.within(0, 3_000_000);
        let leave = [0, 0, 300, 700][random.below(4)];
        Self {
            seed,
            hosts,
            scenario: Scenario {
                scripts,
                homes,
                initial,
                switches,
                lease_ns: 1000 * LEASE_NS,
            },
            loss_permille: bad * random.within(0, 68),
            repeat_permille: bad * random.within(0, 30),
            jitter_ns: random.within(0, 100_000),
            away_permille: random.within(0, 100),
            cut: random
                .permille(100)
                .then(|| (random.below(hosts), at, at + 20_000_000)),
            death: random.permille(100).then(|| (random.below(hosts), at)),
            leavers: (1..hosts).filter(|_| random.permille(leave)).collect(),
        }
    }

    /// Runs it.
    ///
    /// # Panics
    /// Something is wrong.
    pub fn run(&self, prints: bool) -> Counts {
        match self.hosts {
            2 => run::<2>(self, prints),
            3 => run::<3>(self, prints),
            4 => run::<4>(self, prints),
            5 => run::<5>(self, prints),
            6 => run::<6>(self, prints),
            7 => run::<7>(self, prints),
            _ => run::<8>(self, prints),
        }
    }

    /// Whether it goes wrong.
    pub fn fails(&self) -> bool {
        catch_unwind(AssertUnwindSafe(|| self.run(false))).is_err()
    }

    /// Plans that have less in them, the smallest first.
    fn smaller(&self) -> Vec<Self> {
        let mut all = Vec::new();
        let mut with = |change: &dyn Fn(&mut Self)| {
            let mut plan = self.clone();
            change(&mut plan);
            all.push(plan);
        };
        for n in 0..self.scenario.scripts.len() {
            if !self.scenario.scripts[n].1.is_empty() {
                with(&|plan| plan.scenario.scripts[n].1.clear());
            }
        }
        for (n, (_, script)) in self.scenario.scripts.iter().enumerate() {
            for part in [2, 4, 8] {
                let ops = script.len() / part;
                if ops > 0 {
                    with(&|plan| drop(plan.scenario.scripts[n].1.drain(..ops)));
                    with(&|plan| plan.scenario.scripts[n].1.truncate(script.len() - ops));
                }
            }
        }
        for (n, (_, script)) in self.scenario.scripts.iter().enumerate() {
            for at in 0..script.len().min(24) {
                with(&|plan| _ = plan.scenario.scripts[n].1.remove(at));
            }
        }
        let is_noisy = self.loss_permille + self.repeat_permille + self.away_permille > 0;
        if is_noisy || self.cut.is_some() || self.death.is_some() {
            with(&|plan| plan.loss_permille = 0);
            with(&|plan| plan.repeat_permille = 0);
            with(&|plan| plan.away_permille = 0);
            with(&|plan| plan.cut = None);
            with(&|plan| plan.death = None);
        }
        for n in 0..self.leavers.len() {
            with(&|plan| _ = plan.leavers.remove(n));
        }
        all
    }

    fn size(&self) -> u64 {
        let scripts = self.scenario.scripts.iter();
        let ops: usize = scripts.map(|(_, script)| script.len()).sum();
        let accidents = u64::from(self.cut.is_some()) + u64::from(self.death.is_some());
        let noise = [self.loss_permille, self.repeat_permille, self.away_permille];
        let noises = noise.iter().filter(|n| **n > 0).count() as u64;
        10 * ops as u64 + self.leavers.len() as u64 + accidents + noises
    }

    /// Makes a plan smaller as long as `fails` says that it still does, with at most so many tries.
    pub fn shrink(mut self, fails: impl Fn(&Self) -> bool, mut tries: u32) -> Self {
        'smaller: loop {
            for plan in self.smaller() {
                if plan.size() >= self.size() {
                    continue;
                }
                tries = tries.saturating_sub(1);
                if tries == 0 {
                    return self;
                }
                if fails(&plan) {
                    self = plan;
                    continue 'smaller;
                }
            }
            return self;
        }
    }
}

fn run<const HOSTS: usize>(plan: &Plan, prints: bool) -> Counts {
    let mut cluster = Cluster::<HOSTS>::new(plan, prints);
    cluster.run();
    cluster.counts
}

/// Instructions on few pages; the second word of each page is a page-table entry.
fn script(random: &mut Random, pages: usize, most: usize) -> Vec<Op> {
    const { assert!(SLOTS >= 2 && WORDS == 2) };
    let ops = random.below(most);
    let op = |_| {
        // One page is hotter than the others.
        let mut page = || random.below(pages).min(random.below(pages)) as u32;
        let (a, b): (Word, Word) = ((page(), 0), (page(), 0));
        let entry = (page(), 1);
        let value = random.below(200) as u8;
        match random.below(20) {
            0..5 => Op::Load(a),
            5..8 => Op::Store(a, value),
            8..11 => Op::Add(a),
            11..13 => Op::Copy(a, b),
            13 => Op::Zero(a.0),
            14 => Op::Store(entry, entry_to(b)),
            15 | 16 => Op::LoadVia(entry),
            17 => Op::StoreVia(entry, 0),
            _ => Op::Tlbi(entry),
        }
    };
    (0..ops).map(op).collect()
}
