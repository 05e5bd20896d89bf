//! Hosts that are started, leave on purpose, crash and are cut off, by seed: nobody runs what another has given up, whoever leaves
//! comes to have left, and in the end all that stay are one.

#![allow(clippy::unwrap_used)]

mod world;

use model_membership::{Change, Event, Membership, Settings};
use std::collections::VecDeque;
use tests_explorer::random::Random;
use world::{Said, description};

const N: usize = 4;
const MS: u64 = 1_000_000;
const S: u64 = 1000 * MS;

/// Messages, with when they come.
type Wire = VecDeque<(u64, Vec<u8>)>;

/// Hosts that are on, and what is under way between them.
struct Net {
    hosts: [Option<Membership<N>>; N],
    said: [Said; N],
    /// By sender and receiver, also whether the sender has a session, and until when nothing comes.
    wires: [[Wire; N]; N],
    up: [[bool; N]; N],
    cut: [[u64; N]; N],
    lives: u64,
    now: u64,
    slow_ns: u64,
    random: Random,
}

fn pairs() -> impl Iterator<Item = (usize, usize)> {
    (0..N).flat_map(|a| (0..N).filter(move |b| *b != a).map(move |b| (a, b)))
}

impl Net {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        Self {
            hosts: [const { None }; N],
            said: core::array::from_fn(|_| Said::default()),
            wires: core::array::from_fn(|_| core::array::from_fn(|_| VecDeque::new())),
            up: [[false; N]; N],
            cut: [[0; N]; N],
            lives: 0,
            now: 1,
            slow_ns: [MS / 5, 20 * MS, 300 * MS][random.below(3)],
            random,
        }
    }

    fn boot(&mut self, host: usize) {
        // Each may lose so many memberships.
        self.lives += 1000;
        self.hosts[host] = Membership::new(Settings::new(host as u8), description(self.lives));
        self.said[host] = Said::default();
    }

    /// It is switched off, or crashes; others notice later.
    fn off(&mut self, host: usize) {
        self.hosts[host] = None;
        for other in 0..N {
            self.wires[host][other].clear();
            self.wires[other][host].clear();
            self.up[host][other] = false;
        }
    }

    fn event(&mut self, host: usize, event: Event<'_>) {
        let Some(membership) = &mut self.hosts[host] else {
            return;
        };
        membership.step(self.now, event, &mut self.said[host]);
        for (to, message) in std::mem::take(&mut self.said[host].messages) {
            if self.up[host][to] && self.up[to][host] {
                let at = self.now + MS / 20 + self.random.within(0, self.slow_ns);
                self.wires[host][to].push_back((at, message));
            }
        }
        let mut changes = std::mem::take(&mut self.said[host].changes).into_iter();
        if changes.any(|change| matches!(change, Change::Lost(_))) {
            (0..N).for_each(|other| self.down(host, other));
        }
        self.check();
    }

    fn down(&mut self, a: usize, b: usize) {
        for (x, y) in [(a, b), (b, a)] {
            self.wires[x][y].clear();
        }
        for (x, y) in [(a, b), (b, a)] {
            if std::mem::take(&mut self.up[x][y]) {
                self.event(x, Event::Down(y as u8));
            }
        }
    }

    fn is_on(&self, host: usize) -> bool {
        self.hosts[host].is_some()
    }

    fn is_cut(&self, a: usize, b: usize) -> bool {
        self.cut[a][b].max(self.cut[b][a]) > self.now
    }

    fn retires(&self, host: usize) -> bool {
        self.hosts[host]
            .as_ref()
            .is_some_and(Membership::is_retired)
    }

    fn has_left(&self, host: usize) -> bool {
        self.hosts[host].as_ref().is_some_and(Membership::has_left)
    }

    fn life(&self, host: usize) -> u64 {
        self.hosts[host]
            .as_ref()
            .map_or(0, |it| it.view().lives[host])
    }

    /// Who runs with another that has begun a new life since is owed that; and those that run agree, but for who has left.
    fn check(&self) {
        for (a, b) in pairs() {
            let (Some(one), Some(other)) = (&self.hosts[a], &self.hosts[b]) else {
                continue;
            };
            let (view, life) = (one.view(), one.view().lives[b]);
            let runs = |it: &Membership<N>| !it.is_retired() && self.now < it.runs_until();
            let is_this_start = life / 1000 == self.life(b) / 1000;
            if !runs(one) || other.is_retired() || life == 0 || !is_this_start {
                continue;
            }
            let is_owed = self.life(b) == life || self.now < other.owes_until();
            assert!(is_owed, "host {a} runs, and host {b} owes it nothing");
            if self.life(b) == life && runs(other) && other.view().id == view.id {
                let mut lives = view.lives.iter().zip(&other.view().lives);
                let agree = lives.all(|(x, y)| x == y || *x == 0 || *y == 0);
                assert!(agree, "views of one id");
            }
        }
    }

    /// Lets time pass; some of what is due happens.
    fn advance(&mut self, is_calm: bool) {
        let most = if is_calm { 5 * MS } else { 20 * MS };
        self.now += MS + self.random.within(0, most);
        let mut ways: Vec<_> = pairs().collect();
        for n in (1..ways.len()).rev() {
            ways.swap(n, self.random.below(n + 1));
        }
        for (a, b) in ways {
            let is_due = |wire: &Wire, now| wire.front().is_some_and(|it| it.0 <= now);
            while !self.is_cut(a, b) && is_due(&self.wires[a][b], self.now) {
                let (_, message) = self.wires[a][b].pop_front().unwrap();
                self.event(b, Event::Message(a as u8, &message));
                if self.random.below(3) == 0 {
                    break;
                }
            }
        }
        for host in 0..N {
            if is_calm || self.random.below(4) != 0 {
                self.event(host, Event::Tick);
            }
        }
        pairs()
            .filter(|(a, b)| a < b)
            .for_each(|(a, b)| self.links(a, b));
    }

    /// Links come up and go down, some time after they can and must.
    fn links(&mut self, a: usize, b: usize) {
        let are_on = self.is_on(a) && self.is_on(b);
        let (is_cut, ups) = (self.is_cut(a, b), (self.up[a][b], self.up[b][a]));
        let is_half = ups.0 != ups.1 || !are_on && ups != (false, false);
        if is_half && self.random.below(30) == 0 {
            self.down(a, b);
        }
        if are_on && !is_cut && ups != (true, true) && self.random.below(30) == 0 {
            self.down(a, b);
            (self.up[a][b], self.up[b][a]) = (true, true);
            self.event(a, Event::Up(b as u8));
            self.event(b, Event::Up(a as u8));
        }
        if are_on && is_cut && ups == (true, true) && self.random.below(300) == 0 {
            self.down(a, b);
        }
    }

    fn fault(&mut self, [crashes, cuts]: [bool; 2]) {
        let [host, other] = [self.random.below(N), self.random.below(N)];
        match self.random.below(400) {
            0..8 if !self.is_on(host) => self.boot(host),
            8..12 => {
                if let Some(membership) = &mut self.hosts[host] {
                    membership.retire();
                }
            }
            12..30 if self.has_left(host) => self.off(host),
            30 | 31 if crashes && self.is_on(host) => self.off(host),
            32..35 if cuts => self.cut[host][other] = self.now + self.random.within(0, 4 * S),
            _ => {}
        }
    }
}

fn run(seed: u64) {
    let mut net = Net::new(seed);
    let faults = [0; 2].map(|_: u8| net.random.below(2) == 0);
    for _ in 0..200 + net.random.below(1500) {
        net.advance(false);
        net.fault(faults);
    }
    (net.cut, net.slow_ns) = ([[0; N]; N], MS / 5);
    let end = net.now + 30 * S;
    while net.now < end {
        net.advance(true);
        for host in 0..N {
            if net.has_left(host) {
                net.off(host);
            }
        }
    }
    let stays = |host: usize| if net.retires(host) { 0 } else { net.life(host) };
    let lives: [u64; N] = core::array::from_fn(stays);
    for (number, host) in net.hosts.iter().enumerate() {
        let Some(host) = host else { continue };
        assert!(
            !host.is_retired(),
            "seed {seed}: host {number} has not left"
        );
        assert_eq!(
            host.view().lives,
            lives,
            "seed {seed}: host {number} in the end"
        );
        assert!(
            host.runs_until() > net.now,
            "seed {seed}: host {number} stands still"
        );
    }
}

/// Seeds: a thousand, or as many as property tests are asked for.
#[test]
fn all_that_stay_are_one_in_the_end() {
    let cases = std::env::var("PROPTEST_CASES").ok();
    let cases = cases.and_then(|cases| cases.parse().ok());
    (0..cases.unwrap_or(1000)).for_each(run);
}
