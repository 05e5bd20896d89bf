//! Every order of few accesses: what the vCPUs see is what a single machine could show, and every access completes.

#![allow(clippy::unwrap_used)]

mod world;

use model_coherence::{Broken, Event, Kind, Message, NEVER, State as PageState, Switches};
use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;
use tests_explorer::{Fingerprint, Found, State, explore};
use world::line::IVY;
use world::reference::{Outcome, outcomes};
use world::{Doing, LEASE_NS, Op, Scenario, WORDS, Word, World, entry_to, is_bulk};

/// How often a thing may happen that no script asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Left {
    /// A vCPU loses its CPU.
    aways: u8,
    /// Leases end by time.
    ticks: u8,
    /// A host dies.
    deaths: u8,
    /// Owners have done with a page.
    quiets: u8,
}

#[derive(Clone)]
struct Net<const HOSTS: usize, const SLOTS: usize> {
    world: World<HOSTS, SLOTS>,
    /// Messages under way, by sender, receiver and lane.
    lanes: Vec<VecDeque<Vec<u8>>>,
    now: Vec<u64>,
    left: Left,
    dead: Option<usize>,
    /// Which vCPUs' instructions are older than others'.
    ages: Rc<Vec<u64>>,
    seen: Rc<RefCell<HashSet<Outcome>>>,
}

#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "fields are printed")]
enum Label {
    Run(usize),
    Retire(usize),
    Deliver { from: usize, to: usize, kind: Kind },
    Away(usize),
    Tick(usize),
    Quiet(usize),
    Dies(usize),
    Lost(usize),
}

impl<const HOSTS: usize, const SLOTS: usize> Net<HOSTS, SLOTS> {
    fn new(scenario: &Scenario, ages: &[u64], left: Left) -> Self {
        Self {
            world: World::new(scenario),
            lanes: vec![VecDeque::new(); HOSTS * HOSTS * 2],
            now: vec![0; HOSTS],
            left,
            dead: None,
            ages: Rc::new(ages.to_vec()),
            seen: Rc::default(),
        }
    }

    fn hold(mut self, from: usize, sent: Vec<(u8, Vec<u8>)>) -> Self {
        for (to, bytes) in sent {
            if self.dead != Some(usize::from(to)) {
                let lane = (from * HOSTS + usize::from(to)) * 2 + usize::from(is_bulk(&bytes));
                self.lanes[lane].push_back(bytes);
            }
        }
        let broken = self.world.nodes.iter().filter_map(|node| node.broken);
        for why in broken {
            let is_known = matches!(why, Broken::Lost(_)) && self.dead.is_some();
            assert!(is_known, "{why}");
        }
        self
    }

    fn is_stopped(&self, host: usize) -> bool {
        self.dead == Some(host) || self.world.nodes[host].broken.is_some()
    }

    fn of_vcpu(&self, n: usize, all: &mut Vec<(Label, Self)>) {
        let vcpu = &self.world.vcpus[n];
        let host = vcpu.host;
        if self.is_stopped(host) {
            return;
        }
        let mut next = self.clone();
        match vcpu.doing {
            Doing::Runs if vcpu.is_done() => {}
            Doing::Runs => {
                let sent = next.world.run(n, self.ages[n].max(self.now[host]));
                all.push((Label::Run(n), next.hold(host, sent)));
            }
            Doing::Retires => {
                let sent = next.world.retire(n, self.now[host]);
                all.push((Label::Retire(n), next.hold(host, sent)));
            }
            Doing::Waits => {}
        }
        if self.left.aways > 0 && vcpu.has_faulted {
            let mut next = self.clone();
            next.left.aways -= 1;
            let sent = next
                .world
                .step(host, self.now[host], Event::Away(vcpu.number));
            all.push((Label::Away(n), next.hold(host, sent)));
        }
    }

    fn of_host(&self, host: usize, all: &mut Vec<(Label, Self)>) {
        if self.is_stopped(host) {
            return;
        }
        let deadline = self.world.nodes[host].core.deadline();
        if self.left.ticks > 0 && deadline != NEVER {
            let mut next = self.clone();
            next.left.ticks -= 1;
            next.now[host] = next.now[host].max(deadline);
            let sent = next.world.step(host, deadline, Event::Tick);
            all.push((Label::Tick(host), next.hold(host, sent)));
        }
        for page in (0..self.world.truth.len() as u32).filter(|_| self.left.quiets > 0) {
            let core = &self.world.nodes[host].core;
            let is_home = core.home(page) == core.host();
            if is_home || core.state(page) == PageState::Modified {
                let mut next = self.clone();
                next.left.quiets -= 1;
                let sent = next.world.step(host, self.now[host], Event::Quiet(page));
                all.push((Label::Quiet(host), next.hold(host, sent)));
            }
        }
        if self.left.deaths > 0 {
            let mut next = self.clone();
            next.left.deaths -= 1;
            next.dead = Some(host);
            for from in 0..HOSTS {
                (0..2).for_each(|lane| next.lanes[(from * HOSTS + host) * 2 + lane].clear());
            }
            all.push((Label::Dies(host), next));
        }
        if let Some(dead) = self.dead {
            let mut next = self.clone();
            let sent = next
                .world
                .step(host, self.now[host], Event::Lost(dead as u8));
            all.push((Label::Lost(host), next.hold(host, sent)));
        }
    }
}

impl<const HOSTS: usize, const SLOTS: usize> State for Net<HOSTS, SLOTS> {
    type Label = Label;

    fn fingerprint(&self) -> u128 {
        Fingerprint::of(&(&self.world, &self.lanes, &self.now, self.left, self.dead))
    }

    fn successors(&self) -> Vec<(Label, Self)> {
        let mut all = Vec::new();
        for n in 0..self.world.vcpus.len() {
            self.of_vcpu(n, &mut all);
        }
        for (n, lane) in self.lanes.iter().enumerate() {
            let (from, to) = (n / 2 / HOSTS, n / 2 % HOSTS);
            if lane.is_empty() || self.is_stopped(to) {
                continue;
            }
            let mut next = self.clone();
            let bytes = next.lanes[n].pop_front().unwrap();
            let kind = Message::parse(&bytes).unwrap().0.kind;
            let event = Event::Message(from as u8, &bytes);
            let sent = next.world.step(to, self.now[to], event);
            all.push((Label::Deliver { from, to, kind }, next.hold(to, sent)));
        }
        for host in 0..HOSTS {
            self.of_host(host, &mut all);
        }
        let quiet = all
            .iter()
            .all(|(label, _)| matches!(label, Label::Dies(_) | Label::Quiet(_)));
        if quiet {
            let mut vcpus = self.world.vcpus.iter();
            let ends = vcpus.all(|vcpu| vcpu.is_done() || self.is_stopped(vcpu.host));
            assert!(ends, "deadlock: {:?}", self.world);
            if self.dead.is_none() {
                self.world.check_quiet();
                let registers = self.world.vcpus.iter().map(|vcpu| vcpu.registers.clone());
                let outcome = (registers.collect(), self.world.truth.clone());
                self.seen.borrow_mut().insert(outcome);
            }
        }
        all
    }
}

/// Whether there is time for all searches: `make soak` asks property tests for many cases.
fn is_soak() -> bool {
    let cases = std::env::var("PROPTEST_CASES").ok();
    cases.is_some_and(|cases| cases.parse().is_ok_and(|cases: u64| cases >= 10_000))
}

/// States of one search at most, so that a fault does not search for ever.
const STATES_MAX: usize = 20_000_000;

/// Explores a scenario; every way ends, and every outcome is one of a single machine.
fn search<const HOSTS: usize, const SLOTS: usize>(
    name: &str,
    scenario: &Scenario,
    ages: &[u64],
    left: Left,
) -> Found {
    let net = Net::<HOSTS, SLOTS>::new(scenario, ages, left);
    let seen = net.seen.clone();
    let start = std::time::Instant::now();
    let found = explore(net, STATES_MAX);
    let scripts: Vec<Vec<Op>> = scenario.scripts.iter().map(|(_, s)| s.clone()).collect();
    let allowed = outcomes(&scripts, &scenario.initial);
    let seen = seen.borrow();
    println!(
        "{name}: {} states, {} steps, {} of {} outcomes, {:?}",
        found.states,
        found.steps,
        seen.len(),
        allowed.len(),
        start.elapsed()
    );
    assert!(
        !seen.is_empty() && seen.is_subset(&allowed),
        "{name}: {seen:?} of {allowed:?}"
    );
    assert!(found.terminates, "{name}: a way does not end");
    found
}

const X: Word = (0, 0);
const Y: Word = (1, 0);

fn scenario(scripts: &[(usize, &[Op])], homes: &[usize]) -> Scenario {
    Scenario {
        scripts: scripts
            .iter()
            .map(|(host, s)| (*host, s.to_vec()))
            .collect(),
        initial: vec![[0; WORDS]; homes.len()],
        homes: homes.to_vec(),
        switches: BOTH[0],
        lease_ns: LEASE_NS,
    }
}

/// Each litmus test, by name: a script for each vCPU.
fn litmus() -> Vec<(&'static str, Vec<Vec<Op>>)> {
    use Op::{Load, Store};
    vec![
        (
            "MP",
            vec![vec![Store(X, 1), Store(Y, 1)], vec![Load(Y), Load(X)]],
        ),
        (
            "SB",
            vec![vec![Store(X, 1), Load(Y)], vec![Store(Y, 1), Load(X)]],
        ),
        (
            "LB",
            vec![vec![Load(X), Store(Y, 1)], vec![Load(Y), Store(X, 1)]],
        ),
        ("CoRR", vec![vec![Store(X, 1)], vec![Load(X), Load(X)]]),
        (
            "2+2W",
            vec![
                vec![Store(X, 1), Store(Y, 2)],
                vec![Store(Y, 1), Store(X, 2)],
            ],
        ),
        (
            "WRC",
            vec![
                vec![Store(X, 1)],
                vec![Load(X), Store(Y, 1)],
                vec![Load(Y), Load(X)],
            ],
        ),
    ]
}

/// The protocol with all that is beyond IVY's, and without. Pages are not held, as times to hold them would be states.
const BOTH: [Switches; 2] = [
    Switches {
        hold: false,
        ..Switches::ALL
    },
    IVY,
];

#[test]
fn litmus_tests_on_two_and_three_hosts() {
    for (name, scripts) in litmus() {
        let hosts = scripts.len();
        let scripts: Vec<_> = scripts.iter().map(Vec::as_slice).enumerate().collect();
        for (homes, switches) in [([0, 1], BOTH[0]), ([0, 0], BOTH[0]), ([0, 1], BOTH[1])] {
            let scenario = Scenario {
                switches,
                ..scenario(&scripts, &homes)
            };
            let ages = [0, 1, 2];
            match hosts {
                2 => search::<2, 1>(name, &scenario, &ages, Left::default()),
                _ => search::<3, 1>(name, &scenario, &ages, Left::default()),
            };
        }
    }
}

#[test]
fn independent_reads_of_independent_writes() {
    use Op::{Load, Store};
    let readers: [&[Op]; 2] = [&[Load(X), Load(Y)], &[Load(Y), Load(X)]];
    let scripts: [(usize, &[Op]); 4] = [
        (0, &[Store(X, 1)]),
        (0, &[Store(Y, 1)]),
        (1, readers[0]),
        (2, readers[1]),
    ];
    let scenario = scenario(&scripts, &[1, 2]);
    search::<3, 2>("IRIW", &scenario, &[0, 1, 2, 3], Left::default());
}

/// Instructions that need two pages, each of which another wants.
const CROSSED: [&[Op]; 3] = [
    &[Op::Copy(X, Y), Op::Add(X)],
    &[Op::Copy(Y, X), Op::Add(Y)],
    &[Op::Copy(X, Y)],
];

#[test]
fn instructions_that_need_two_pages_complete() {
    let crossed = scenario(&[(0, CROSSED[0]), (1, CROSSED[1])], &[0, 1]);
    for ages in [[0, 1], [1, 0]] {
        let left = Left {
            aways: 1,
            ticks: 1,
            ..Left::default()
        };
        search::<2, 1>("two pages at once", &crossed, &ages, left);
    }
    let three = [(0, CROSSED[2]), (1, CROSSED[1]), (2, CROSSED[2])];
    let three = scenario(&three, &[0, 1]);
    for ages in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let name = "two pages at once, three hosts";
        search::<3, 1>(name, &three, &ages, Left::default());
    }
}

#[test]
fn long_scripts_on_three_hosts() {
    use Op::{Add, Copy, Load, Store};
    let scripts: [(usize, &[Op]); 3] = [
        (0, &[Add(X), Copy(X, Y)]),
        (1, &[Copy(Y, X), Add(Y)]),
        (2, &[Load(X), Store(Y, 9)]),
    ];
    if is_soak() {
        let left = Left {
            aways: 1,
            ..Left::default()
        };
        let scenario = scenario(&scripts, &[0, 1]);
        search::<3, 1>("long scripts", &scenario, &[2, 1, 0], left);
    }
}

#[test]
fn without_leases_two_pages_can_be_missed_for_ever() {
    let mut crossed = scenario(&[(0, CROSSED[0]), (1, CROSSED[1])], &[0, 1]);
    crossed.lease_ns = 0;
    let found = explore(
        Net::<2, 1>::new(&crossed, &[0, 1], Left::default()),
        STATES_MAX,
    );
    println!("without leases: {found:?}");
    assert!(!found.terminates);
}

#[test]
fn vcpus_of_a_host_share_its_pages() {
    let scripts: [(usize, &[Op]); 3] = [
        (0, &[Op::Load(X), Op::Copy(X, Y)]),
        (0, &[Op::Add(X)]),
        (1, &[Op::Add(X), Op::Copy(Y, X)]),
    ];
    let orders = [[0, 1, 2], [2, 1, 0], [1, 2, 0]];
    for ages in &orders[..if is_soak() { 3 } else { 1 }] {
        let left = Left {
            aways: 1,
            ..Left::default()
        };
        search::<2, 2>("several vCPUs", &scenario(&scripts, &[0, 1]), ages, left);
    }
}

#[test]
fn pages_overwritten_with_zeroes() {
    let scripts: [(usize, &[Op]); 3] = [
        (0, &[Op::Store(X, 1), Op::Load(X)]),
        (1, &[Op::Load(X), Op::Zero(0), Op::Load(X)]),
        (2, &[Op::Add(X)]),
    ];
    for home in 0..2 {
        search::<3, 1>(
            "zeroes",
            &scenario(&scripts, &[home]),
            &[0, 1, 2],
            Left::default(),
        );
    }
}

#[test]
fn a_death_stops_all_and_shows_nothing_old() {
    let scripts: [(usize, &[Op]); 3] = [
        (0, &[Op::Store(X, 1), Op::Load(Y)]),
        (1, &[Op::Store(Y, 1), Op::Load(X)]),
        (2, if is_soak() { &[Op::Copy(X, Y)] } else { &[] }),
    ];
    let left = Left {
        deaths: 1,
        ..Left::default()
    };
    let scenario = scenario(&scripts, &[0, 1]);
    search::<3, 1>("a death", &scenario, &[0, 1, 2], left);
}

/// A page-table entry, and the words that it translates to, before and after.
const ENTRY: Word = (1, 0);
const OLD: Word = (0, 0);
const NEW: Word = (0, 1);
const FLAG: Word = (1, 1);
const SEEN: Word = (2, 0);

/// TLB invalidations, by name: a script for each host.
fn invalidations() -> Vec<(&'static str, Vec<Vec<Op>>)> {
    use Op::{Load, LoadVia, Store, StoreVia, Tlbi};
    let change = Store(ENTRY, entry_to(NEW));
    assert_eq!(entry_to(OLD), 0, "what an entry is at first");
    let publish = vec![change, Tlbi(ENTRY), Store(FLAG, 1)];
    let reads = vec![LoadVia(ENTRY), Load(FLAG), LoadVia(ENTRY)];
    let writes = vec![LoadVia(ENTRY), Load(FLAG), StoreVia(ENTRY, 3)];
    let both_publish = vec![
        LoadVia(ENTRY),
        change,
        Tlbi(ENTRY),
        Load(FLAG),
        LoadVia(ENTRY),
    ];
    let tells = vec![Load(FLAG), Store(SEEN, 1)];
    let hears = vec![LoadVia(ENTRY), Load(SEEN), LoadVia(ENTRY)];
    vec![
        ("stale read", vec![publish.clone(), reads]),
        ("stale write", vec![publish.clone(), writes]),
        (
            "mutual",
            vec![
                [publish.clone(), vec![LoadVia(ENTRY)]].concat(),
                both_publish,
            ],
        ),
        ("by a third", vec![publish, tells, hears]),
    ]
}

#[test]
fn lazy_invalidations_are_seen_in_time() {
    for (name, scripts) in invalidations() {
        let scripts: Vec<_> = scripts.iter().map(Vec::as_slice).enumerate().collect();
        for switches in BOTH {
            let scenario = Scenario {
                switches,
                initial: vec![[5, 7], [0; WORDS], [0; WORDS]],
                ..scenario(&scripts, &[0, 1, 1])
            };
            let (ages, left) = ([0, 1, 2], Left::default());
            match scripts.len() {
                2 => search::<2, 1>(name, &scenario, &ages, left),
                _ => search::<3, 1>(name, &scenario, &ages, left),
            };
        }
    }
}

#[test]
fn messages_wait_for_the_batch_that_precedes_them() {
    use Op::{Load, LoadVia, Store, Tlbi};
    // The first vCPU's request is behind its invalidation, and the flag behind that of the second.
    let scripts: [(usize, &[Op]); 3] = [
        (0, &[Tlbi((2, 1)), Load(SEEN)]),
        (
            0,
            &[Store(ENTRY, entry_to(NEW)), Tlbi(ENTRY), Store(FLAG, 1)],
        ),
        (1, &[LoadVia(ENTRY), Load(FLAG), LoadVia(ENTRY)]),
    ];
    let scenario = Scenario {
        initial: vec![[5, 7], [0; WORDS], [0; WORDS]],
        ..scenario(&scripts, &[0, 1, 1])
    };
    search::<2, 2>("two batches", &scenario, &[0, 1, 2], Left::default());
}

#[test]
fn pages_that_come_early() {
    use Op::{Add, Copy, Load, Store};
    const Z: Word = (2, 0);
    // The first vCPU misses in sequence, and then gets what follows before it asks.
    let scripts: [(usize, &[Op]); 2] = [
        (0, &[Load(X), Load(Y), Load(Z)]),
        (1, &[Store(Z, 1), Add(Y), Store(Z, 2)]),
    ];
    search::<2, 2>(
        "burst",
        &scenario(&scripts, &[1, 1, 1]),
        &[0, 1],
        Left::default(),
    );
    // Pages are cleared in sequence, and the next one is not to be.
    let scripts: [(usize, &[Op]); 2] = [
        (0, &[Op::Zero(0), Op::Zero(1), Add(X)]),
        (1, &[Store(Z, 1), Load(Z)]),
    ];
    search::<2, 2>(
        "clearing in sequence",
        &scenario(&scripts, &[1, 1, 1]),
        &[0, 1],
        Left::default(),
    );
    // A lock and what it protects.
    let scripts: [(usize, &[Op]); 2] = [
        (0, &[Add(X), Add(Y), Add(X)]),
        (1, &[Add(X), Add(Y), Copy(X, Y)]),
    ];
    for ages in [[0, 1], [1, 0]] {
        search::<2, 2>(
            "companions",
            &scenario(&scripts, &[0, 1]),
            &ages,
            Left::default(),
        );
    }
}

#[test]
fn pages_pushed_to_readers() {
    use Op::{Load, Store};
    let scripts: [(usize, &[Op]); 3] = [
        (0, &[Store(X, 1), Store(X, 2)]),
        (1, &[Load(X), Load(X)]),
        (2, &[Load(X), Store(X, 3)]),
    ];
    for home in 0..if is_soak() { 2 } else { 1 } {
        let left = Left {
            quiets: 1,
            ..Left::default()
        };
        search::<3, 1>("push", &scenario(&scripts, &[home]), &[0, 1, 2], left);
    }
}
