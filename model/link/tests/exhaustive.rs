//! Every order of few events: the join with restarts and replays, and few messages with losses, repetitions and restarts.

#![allow(clippy::unwrap_used)]

mod world;

use abi::link::{Prefix, SEALED, piece_bytes};
use model_link::{Counters, Dropped, Event, Lane, NEVER};
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use world::{Pair, Toy};
use zerocopy::FromBytes;

/// Frames in which a piece of either lane has four bytes.
const FRAME_BYTES: usize = 138;
const SLOTS: usize = 4;

/// How often each event may happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Left {
    restarts: [u8; 2],
    repeats: u8,
    timers: [u8; 2],
    sends: [u8; 2],
    refusals: u8,
}

/// Two hosts, the frames under way, and what can still happen.
#[derive(Clone)]
struct State {
    pair: Pair<Toy, SLOTS>,
    now: [u64; 2],
    flight: Vec<(usize, Vec<u8>)>,
    /// Whether a frame that came stays under way: then it may come again at any time, whatever happens in between.
    is_kept: bool,
    left: Left,
}

/// Sealed frames of one host that may be under way in a session, so that there is an end.
const SEALED_MAX: usize = 1;

impl State {
    fn step(&mut self, host: usize, event: Event<'_>) {
        let frames = self.pair.step(host, self.now[host], event);
        self.hold(host, frames);
    }

    fn hold(&mut self, host: usize, frames: Vec<Vec<u8>>) {
        for frame in frames {
            self.flight.push((1 - host, frame));
        }
        self.flight.sort();
        if self.is_kept {
            self.flight.dedup();
        }
    }

    /// Whether a host has sealed so many frames in a session that nothing new comes of more.
    fn is_over(&self) -> bool {
        let mut sealed = BTreeMap::new();
        for (to, frame) in self.flight.iter().filter(|_| self.is_kept) {
            let (prefix, rest) = Prefix::ref_from_prefix(frame).unwrap();
            if prefix.kind == SEALED {
                *sealed.entry((to, &rest[..4])).or_insert(0) += 1;
            }
        }
        sealed.into_values().any(|frames| frames > SEALED_MAX)
    }

    /// What happened is followed by a tick, as owners do.
    fn then_tick(mut self, host: usize) -> Self {
        self.step(host, Event::Tick);
        let counters = &mut self.pair.hosts[host].link.counters;
        let unopened = counters.dropped[Dropped::Unopened as usize];
        assert_eq!(unopened, 0, "budgets are not what is searched");
        *counters = Counters::default();
        self
    }

    fn receive(mut self, (to, mut frame): (usize, Vec<u8>)) -> Self {
        self.step(to, Event::Frame(&mut frame));
        self.then_tick(to)
    }

    fn fingerprint(&self) -> [u64; 2] {
        [0, 1].map(|half: u64| {
            let mut hasher = DefaultHasher::new();
            half.hash(&mut hasher);
            for host in &self.pair.hosts {
                host.link.hash(&mut hasher);
                (host.owner.nonces, host.owner.refuses, host.starts).hash(&mut hasher);
            }
            self.pair.histories.hash(&mut hasher);
            (&self.now, &self.flight, self.left).hash(&mut hasher);
            hasher.finish()
        })
    }

    /// All that can happen next.
    fn successors(&self) -> Vec<Self> {
        let mut all = Vec::new();
        for n in 0..self.flight.len() {
            if n > 0 && self.flight[n] == self.flight[n - 1] {
                continue;
            }
            let mut next = self.clone();
            let frame = self.flight[n].clone();
            if !self.is_kept {
                next.flight.remove(n);
            }
            all.push(next.receive(frame.clone()));
            if self.left.repeats > 0 {
                let mut again = self.clone();
                again.left.repeats -= 1;
                all.push(again.receive(frame));
            }
        }
        for host in 0..2 {
            self.at_host(host, &mut all);
        }
        all
    }

    fn at_host(&self, host: usize, all: &mut Vec<Self>) {
        if self.left.restarts[host] > 0 {
            let mut next = self.clone();
            next.left.restarts[host] -= 1;
            next.pair.restart(host);
            next.now[host] = 0;
            all.push(next.then_tick(host));
        }
        let deadline = self.pair.hosts[host].link.deadline();
        if self.left.timers[host] > 0 && deadline != NEVER {
            let mut next = self.clone();
            next.left.timers[host] -= 1;
            next.now[host] = next.now[host].max(deadline);
            all.push(next.then_tick(host));
        }
        if self.left.sends[host] > 0 && self.pair.hosts[host].link.session().is_some() {
            let mut next = self.clone();
            let n = self.left.sends[host];
            next.left.sends[host] -= 1;
            // An urgent one of one piece, then bulk ones of two and of one.
            let (lane, bytes) =
                [(Lane::Bulk, 2), (Lane::Bulk, 6), (Lane::Urgent, 3)][usize::from(n % 3)];
            next.step(host, Event::Send(lane, [&vec![n; bytes], &[host as u8]]));
            all.push(next.then_tick(host));
        }
        if self.left.refusals > 0 {
            let mut next = self.clone();
            next.left.refusals -= 1;
            next.pair.hosts[host].owner.refuses ^= true;
            all.push(next.then_tick(host));
        }
    }

    /// From here, if all that is under way is lost or if it comes, both end in one session and all messages come.
    fn check_future(&self) {
        let now = self.now[0].max(self.now[1]);
        self.clone().pair.settle(now, Vec::new());
        if !self.flight.is_empty() {
            self.clone().pair.settle(now, self.flight.clone());
        }
    }
}

/// Looks at every state that can be reached; gives how many there are.
fn explore(first: State) -> usize {
    let mut seen = HashSet::from([first.fingerprint()]);
    let mut waiting = VecDeque::from([first]);
    while let Some(state) = waiting.pop_front() {
        state.check_future();
        let next = state.successors().into_iter();
        waiting.extend(next.filter(|state| !state.is_over() && seen.insert(state.fingerprint())));
    }
    seen.len()
}

fn start(left: Left) -> State {
    assert_eq!(piece_bytes(0, FRAME_BYTES), 4);
    let mut pair = Pair::new(FRAME_BYTES);
    pair.checks_numbers = false;
    let state = State {
        pair,
        now: [0; 2],
        flight: Vec::new(),
        is_kept: false,
        left,
    };
    state.then_tick(0).then_tick(1)
}

fn joined(left: Left) -> State {
    let mut state = start(left);
    let now = state.pair.settle(0, std::mem::take(&mut state.flight));
    state.now = [now; 2];
    for host in &mut state.pair.hosts {
        host.link.counters = Counters::default();
    }
    state
}

/// Explores a join in which all frames may come at any time, as often as may be, and so be lost, late or replayed.
fn join(restarts: [u8; 2], timers: [u8; 2]) -> usize {
    let mut state = start(Left {
        restarts,
        timers,
        ..Left::default()
    });
    state.is_kept = true;
    explore(state)
}

#[test]
fn every_join() {
    let states = join([1, 0], [1, 1]);
    println!("join, a restart, timers: {states} states");
    assert!(states > 5_000);
}

/// Explores few messages between hosts that have joined.
fn messages(left: Left) -> usize {
    let states = explore(joined(left));
    println!("{left:?}: {states} states");
    states
}

#[test]
fn messages_lost_and_repeated() {
    let states = messages(Left {
        sends: [3, 0],
        timers: [1, 1],
        repeats: 1,
        ..Left::default()
    });
    assert!(states > 5_000);
}

#[test]
fn messages_both_ways() {
    let states = messages(Left {
        sends: [2, 1],
        timers: [1, 1],
        ..Left::default()
    });
    assert!(states > 2_000);
}

#[test]
fn messages_refused() {
    let states = messages(Left {
        sends: [2, 0],
        timers: [1, 1],
        refusals: 2,
        ..Left::default()
    });
    assert!(states > 1_000);
}

#[test]
fn messages_and_a_restart() {
    let states = messages(Left {
        sends: [1, 0],
        timers: [1, 1],
        restarts: [0, 1],
        ..Left::default()
    });
    assert!(states > 1_000);
}
