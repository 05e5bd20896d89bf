//! Hosts, what is under way between them, and what must hold whatever that does.

#![allow(dead_code, clippy::unwrap_used, clippy::panic)]

use abi::cluster::{DESCRIPTION, Description, FEATURES_MAX, PROTOCOL};
use model_membership::{Actions, Change, Event, Membership, Settings, View};
use std::collections::VecDeque;
use zerocopy::little_endian::U64;

/// Times of the searches, in units.
pub const BEAT: u64 = 1;
pub const STOP: u64 = 2;
pub const DECLARE: u64 = 4;

pub fn description(life: u64) -> Description {
    let mut features = [U64::ZERO; FEATURES_MAX];
    features[3] = 0x1011_1111_0021_1111.into();
    Description {
        kind: DESCRIPTION,
        protocol: PROTOCOL,
        page_log2: 12,
        zva_log2: 6,
        version: 0x01_0200.into(),
        clock_hz: 62_500_000.into(),
        cache_lines: 0x8444_c004.into(),
        frame_bytes: 1514.into(),
        life: life.into(),
        features,
    }
}

/// What is under way from one host to another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Item {
    /// News of a session.
    Up(u32),
    /// Message of a session.
    Message(u32, Vec<u8>),
}

/// Takes what a host says.
#[derive(Default)]
pub struct Said {
    pub messages: Vec<(usize, Vec<u8>)>,
    pub changes: Vec<Change>,
}

impl Actions for Said {
    fn send(&mut self, host: u8, message: &[u8]) -> bool {
        assert!(message.len() <= abi::link::URGENT_MAX);
        self.messages.push((host.into(), message.to_vec()));
        true
    }

    fn changed(&mut self, change: Change) {
        self.changes.push(change);
    }
}

/// A host's view of one start.
#[derive(Clone, Debug, Hash)]
pub struct Host<const N: usize> {
    pub membership: Membership<N>,
    pub clock: u64,
    pub starts: u64,
    pub is_dead: bool,
    /// Memberships that it has entered since it was started.
    pub past: Vec<View<N>>,
}

#[derive(Clone, Debug, Hash)]
pub struct World<const N: usize> {
    pub hosts: [Host<N>; N],
    /// By sender and receiver.
    pub queues: [[VecDeque<Item>; N]; N],
    /// The session that a host has with another, and the latest of both.
    sessions: [[u32; N]; N],
    latest: [[u32; N]; N],
    /// Lives that hosts have left on purpose.
    left: Vec<u64>,
}

fn settings(host: usize) -> Settings {
    Settings {
        host: host as u8,
        beat_ns: BEAT,
        stop_ns: STOP,
        declare_ns: DECLARE,
    }
}

fn started<const N: usize>(host: usize, starts: u64) -> Membership<N> {
    let life = (host as u64 + 1) << 32 | starts << 16;
    Membership::new(settings(host), description(life)).unwrap()
}

impl<const N: usize> World<N> {
    /// Makes hosts that have just been started.
    pub fn new() -> Self {
        let host = |host| Host {
            membership: started(host, 0),
            clock: 0,
            starts: 0,
            is_dead: false,
            past: Vec::new(),
        };
        let mut world = Self {
            hosts: core::array::from_fn(host),
            queues: core::array::from_fn(|_| core::array::from_fn(|_| VecDeque::new())),
            sessions: [[0; N]; N],
            latest: [[0; N]; N],
            left: Vec::new(),
        };
        for (a, b) in (0..N).flat_map(|a| (0..a).map(move |b| (a, b))) {
            world.connect(a, b);
        }
        world
    }

    /// Begins a session of the link; what was under way is lost.
    fn connect(&mut self, a: usize, b: usize) {
        let number = self.latest[a][b] + 1;
        for (from, to) in [(a, b), (b, a)] {
            self.latest[from][to] = number;
            self.queues[from][to] = VecDeque::from([Item::Up(number)]);
        }
    }

    /// A host loses all it knew.
    pub fn restart(&mut self, host: usize) {
        let at = &mut self.hosts[host];
        at.starts += 1;
        at.membership = started(host, at.starts);
        at.past.clear();
        for other in (0..N).filter(|other| *other != host) {
            self.sessions[host][other] = 0;
            self.connect(host, other);
        }
    }

    /// A host stops for good, and says nothing.
    pub fn crash(&mut self, host: usize) {
        self.hosts[host].is_dead = true;
        for other in 0..N {
            self.queues[host][other].clear();
        }
    }

    /// A host leaves on purpose.
    pub fn retire(&mut self, host: usize) {
        let life = self.hosts[host].membership.view().lives[host];
        if !self.hosts[host].membership.is_retired() {
            self.left.push(life);
        }
        self.hosts[host].membership.retire();
        self.step(host, Event::Tick);
    }

    /// A membership without lives that have been left.
    fn of_those_that_stay(&self, view: &View<N>) -> View<N> {
        let stays = |life: u64| if self.left.contains(&life) { 0 } else { life };
        View {
            lives: view.lives.map(stays),
            ..*view
        }
    }

    pub fn step(&mut self, host: usize, event: Event<'_>) {
        let at = &mut self.hosts[host];
        if at.is_dead {
            return;
        }
        let mut said = Said::default();
        at.membership.step(at.clock, event, &mut said);
        let view = *at.membership.view();
        if view.id != 0 && at.past.last() != Some(&view) {
            at.past.push(view);
        }
        for (to, message) in said.messages {
            let session = self.sessions[host][to];
            if session == self.latest[host][to] && !self.hosts[to].is_dead {
                self.queues[host][to].push_back(Item::Message(session, message));
            }
        }
    }

    /// Takes the next of what is under way; the host then ticks.
    pub fn deliver(&mut self, from: usize, to: usize) {
        self.take(from, to);
        self.step(to, Event::Tick);
    }

    fn take(&mut self, from: usize, to: usize) {
        let Some(item) = self.queues[from][to].pop_front() else {
            return;
        };
        match item {
            Item::Up(number) => {
                if self.sessions[to][from] != 0 {
                    self.step(to, Event::Down(from as u8));
                }
                self.sessions[to][from] = number;
                self.step(to, Event::Up(from as u8));
            }
            Item::Message(session, message) => {
                assert_eq!(session, self.sessions[to][from]);
                self.step(to, Event::Message(from as u8, &message));
            }
        }
    }

    /// Lets a unit of time pass, but not on the clock of `slow`.
    pub fn advance(&mut self, slow: Option<usize>) {
        for host in 0..N {
            let at = &mut self.hosts[host];
            at.clock += u64::from(slow != Some(host));
            if at.membership.deadline() <= at.clock {
                self.step(host, Event::Tick);
            }
        }
    }

    /// Lets all through that is not cut, until nothing moves.
    pub fn deliver_all(&mut self, is_cut: impl Fn(usize, usize) -> bool) {
        for round in 0.. {
            assert!(round < 200, "the hosts never fall silent");
            let mut moved = false;
            for (from, to) in (0..N).flat_map(|from| (0..N).map(move |to| (from, to))) {
                if !is_cut(from, to) && !self.queues[from][to].is_empty() {
                    self.deliver(from, to);
                    moved = true;
                }
            }
            if !moved {
                return;
            }
        }
    }

    /// As [`Self::deliver_all`], but a host takes all that is under way to it before it ticks.
    pub fn deliver_batches(&mut self, is_cut: impl Fn(usize, usize) -> bool) {
        for round in 0.. {
            assert!(round < 200, "the hosts never fall silent");
            let mut moved = false;
            for to in 0..N {
                for from in (0..N).filter(|from| !is_cut(*from, to)) {
                    while !self.queues[from][to].is_empty() {
                        self.take(from, to);
                        moved = true;
                    }
                }
                self.step(to, Event::Tick);
            }
            if !moved {
                return;
            }
        }
    }

    fn runs(host: &Host<N>) -> bool {
        !host.is_dead && host.clock < host.membership.runs_until()
    }

    /// Checks that hosts agree, and that no host runs what others have given up.
    pub fn check(&self) {
        let all = || {
            let past = self.hosts.iter().flat_map(|host| &host.past);
            past.map(|view| self.of_those_that_stay(view))
        };
        for (a, b) in all().flat_map(|a| all().map(move |b| (a, b))) {
            let mut pairs = a.lives.iter().zip(&b.lives);
            let have_one_in_common = pairs.any(|(a, b)| *a != 0 && a == b);
            if a.id == b.id && have_one_in_common {
                assert_eq!(a, b, "one id, two memberships");
            }
        }
        for (h, host) in self
            .hosts
            .iter()
            .enumerate()
            .filter(|(_, host)| Self::runs(host))
        {
            let view = self.of_those_that_stay(host.membership.view());
            let others = self.hosts.iter().enumerate();
            for (g, other) in others.filter(|(g, _)| *g != h && view.lives[*g] != 0) {
                let has = other.membership.view();
                let mut past = other.past.iter();
                let was_in = past.any(|it| self.of_those_that_stay(it) == view);
                let has_left = was_in && has.lives[h] != view.lives[h];
                if !has_left || other.is_dead {
                    continue;
                }
                let is_owed = other.clock < other.membership.owes_until();
                assert!(is_owed, "host {h} runs, and host {g} has given it up");
                assert_eq!(
                    has.id, 0,
                    "host {h} runs, and host {g} has another membership"
                );
            }
        }
    }

    /// Returns whether all hosts that live are in one membership, and run.
    pub fn is_one(&self) -> bool {
        let is_there = |host: &Host<N>| !host.is_dead && !host.membership.is_retired();
        let mut living = self.hosts.iter().filter(|host| is_there(host));
        let life = |host: &Host<N>| {
            let own = usize::from(host.membership.host());
            let life = host.membership.view().lives[own];
            if is_there(host) { life } else { 0 }
        };
        let lives = self.hosts.each_ref().map(life);
        living.all(|host| Self::runs(host) && host.membership.view().lives == lives)
    }

    /// From here, if nothing more goes wrong, all that live come to be in one membership.
    pub fn check_future(&self) {
        let mut world = self.clone();
        let is_there = |host: &&Host<N>| !host.is_dead && !host.membership.is_retired();
        let living = world.hosts.iter().filter(is_there).count();
        for _ in 0..4 * DECLARE {
            world.deliver_all(|_, _| false);
            world.check();
            let has_left = |host: &Host<N>| {
                !host.membership.is_retired() || host.is_dead || host.membership.has_left()
            };
            if (world.is_one() || living <= 1) && world.hosts.iter().all(has_left) {
                return;
            }
            world.advance(None);
        }
        let views = world.hosts.each_ref().map(|host| *host.membership.view());
        panic!("the hosts stay apart: {views:?} {:?}", world.hosts);
    }
}
