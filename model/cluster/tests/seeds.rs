//! Whole hosts by seeds: links and membership as EL2 has them, over a network that loses, repeats, reorders, delays,
//! corrupts and cuts, with clocks that drift and hosts that restart.

mod world;

use proptest::prelude::*;
use world::{Host, MS, Plan, World};

const HOSTS: usize = 3;
/// How long there are faults, and how long it may take until all are one membership after that.
const FAULTS_NS: u64 = 10_000 * MS;
const PEACE_NS: u64 = 20_000 * MS;

/// Bits from a seed (splitmix64).
struct Bits(u64);

impl Bits {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) % n
    }
}

/// The network's faults.
struct Network {
    bits: Bits,
    loss_percent: u64,
    is_cut: [[bool; HOSTS]; HOSTS],
}

impl Network {
    /// Copies of a frame that arrive, and how much later.
    fn copies(&mut self, from: usize, to: usize, frame: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let repeats = u64::from(self.bits.below(20) == 0);
        let mut copies = Vec::new();
        for copy in 0..=repeats {
            if self.is_cut[from][to] || self.bits.below(100) < self.loss_percent {
                continue;
            }
            let mut frame = frame.to_vec();
            if self.bits.below(50) == 0 {
                let at = self.bits.below(frame.len() as u64) as usize;
                // Addresses are the switch's affair.
                frame[at.max(12)] ^= 1 << self.bits.below(8);
            }
            // A copy may come when its session has long ended.
            let late_max = if copy == 0 { MS } else { 3_000 * MS };
            copies.push((self.bits.below(late_max), frame));
        }
        copies
    }

    /// Something goes wrong, or is mended.
    fn fault(&mut self, hosts: &mut [Host], start: u64) {
        let (a, b) = (self.bits.below(3) as usize, self.bits.below(3) as usize);
        match self.bits.below(4) {
            0 => self.is_cut[a][b] ^= true,
            1 => self.is_cut = [[false; HOSTS]; HOSTS],
            2 => self.is_cut[a] = [true; HOSTS],
            _ => {
                let plan = Plan {
                    start,
                    drift: hosts[a].drift,
                    ..Plan::of(HOSTS as u8)
                };
                hosts[a] = plan.make(a as u8);
            }
        }
    }
}

/// No host runs what another has given up, unless that one still waits for it.
fn check(hosts: &[Host], now: u64) {
    for (h, host) in hosts.iter().enumerate().filter(|(_, host)| host.runs(now)) {
        let view = host.node.membership().view();
        let others = hosts.iter().enumerate();
        for (g, other) in others.filter(|(g, _)| *g != h && view.lives[*g] != 0) {
            let has = other.node.membership().view();
            if other.past.contains(view) && has.lives[h] != view.lives[h] {
                let is_owed = other.clock(now) < other.node.membership().owes_until();
                assert!(
                    is_owed && has.id == 0,
                    "host {h} runs, and host {g} has given it up"
                );
            }
        }
    }
}

fn is_one(hosts: &[Host], now: u64) -> bool {
    let one = hosts[0].node.membership().view();
    let is_in = |host: &Host| host.node.membership().view() == one && host.runs(now);
    one.lives[..HOSTS].iter().all(|life| *life != 0) && hosts.iter().all(is_in)
}

fn run(seed: u64, loss_percent: u64) {
    let mut bits = Bits(seed);
    let host = |host: usize| {
        let drift = bits.below(201) as i64 - 100;
        let plan = Plan {
            drift,
            ..Plan::of(HOSTS as u8)
        };
        plan.make(host as u8)
    };
    let mut world = World::new((0..HOSTS).map(host).collect());
    let mut network = Network {
        bits,
        loss_percent,
        is_cut: [[false; HOSTS]; HOSTS],
    };
    let (mut starts, mut next_fault) = (1, 1_000 * MS);
    while world.now < FAULTS_NS {
        if world.now >= next_fault {
            starts += 1;
            network.fault(&mut world.hosts, starts);
            next_fault = world.now + network.bits.below(2_000) * MS;
        }
        let until = next_fault.clamp(world.now + 1, FAULTS_NS);
        world.step(until, &mut |from, to, frame| {
            network.copies(from, to, frame)
        });
        check(&world.hosts, world.now);
    }
    network.is_cut = [[false; HOSTS]; HOSTS];
    while !is_one(&world.hosts, world.now) {
        let end = FAULTS_NS + PEACE_NS;
        assert!(world.now < end, "seed {seed}: the hosts stay apart");
        world.step(end, &mut |from, to, frame| network.copies(from, to, frame));
        check(&world.hosts, world.now);
    }
}

proptest! {
    // 1,000 in the gate, and 100,000 in a round of `make soak`.
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.saturating_mul(5),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    #[test]
    fn hosts_come_together_again(seed: u64, loss_percent in 0_u64..20) {
        run(seed, loss_percent);
    }
}
