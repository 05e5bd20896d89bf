//! Every order of few accesses on hosts whose messages take any time.

use super::line::IVY;
use super::reference::{Outcome, outcomes};
use super::{Doing, LEASE_NS, Op, Scenario, Vcpu, WORDS, World, is_bulk};
use model_coherence::{Broken, Event, Kind, Message, NEVER, State as PageState, Switches};
use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;
use tests_explorer::{Fingerprint, Found, State, explore};

/// How often a thing may happen that no script asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Left {
    /// A vCPU loses its CPU.
    pub aways: u8,
    /// Leases end by time.
    pub ticks: u8,
    /// A host dies.
    pub deaths: u8,
    /// Owners have done with a page.
    pub quiets: u8,
    /// The last host, or the last two, leave once their scripts are done.
    pub leaves: u8,
}

#[derive(Clone)]
pub struct Net<const HOSTS: usize, const SLOTS: usize> {
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
pub enum Label {
    Run(usize),
    Retire(usize),
    Deliver { from: usize, to: usize, kind: Kind },
    Away(usize),
    Tick(usize),
    Quiet(usize),
    Dies(usize),
    Lost(usize),
    Leave(usize),
}

impl<const HOSTS: usize, const SLOTS: usize> Net<HOSTS, SLOTS> {
    pub fn new(scenario: &Scenario, ages: &[u64], left: Left) -> Self {
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
        let mut own = self.world.vcpus.iter().filter(|vcpu| vcpu.host == host);
        let is_leaver = host + usize::from(self.left.leaves) >= HOSTS;
        if is_leaver && own.all(Vcpu::is_done) && !self.world.nodes[host].core.leaves() {
            let mut next = self.clone();
            let sent = next.world.step(host, self.now[host], Event::Leave);
            all.push((Label::Leave(host), next.hold(host, sent)));
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
                for host in HOSTS - usize::from(self.left.leaves)..HOSTS {
                    self.world.check_left(host);
                }
                let registers = self.world.vcpus.iter().map(|vcpu| vcpu.registers.clone());
                let outcome = (registers.collect(), self.world.truth.clone());
                self.seen.borrow_mut().insert(outcome);
            }
        }
        all
    }
}

/// Whether there is time for all searches: `make soak` asks property tests for many cases.
pub fn is_soak() -> bool {
    let cases = std::env::var("PROPTEST_CASES").ok();
    cases.is_some_and(|cases| cases.parse().is_ok_and(|cases: u64| cases >= 10_000))
}

/// States of one search at most, so that a fault does not search for ever.
pub const STATES_MAX: usize = 20_000_000;

/// Explores a scenario; every way ends, and every outcome is one of a single machine.
pub fn search<const HOSTS: usize, const SLOTS: usize>(
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

pub fn scenario(scripts: &[(usize, &[Op])], homes: &[usize]) -> Scenario {
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

/// The protocol with all that is beyond IVY's, and without. Pages are not held, as times to hold them would be states.
pub const BOTH: [Switches; 2] = [
    Switches {
        hold: false,
        ..Switches::ALL
    },
    IVY,
];
