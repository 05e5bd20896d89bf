//! Whole hosts by seeds: real links over a network that loses, repeats, delays and cuts, clocks that drift, restarts.

#![allow(clippy::unwrap_used, clippy::panic)]

mod world;

use abi::link::FRAME_STANDARD;
use model_link::{Aes128Gcm, Down, Lane, Link, NEVER, Nonce, Secret};
use model_membership::{Change, Event, Membership, Settings, View};
use proptest::prelude::*;
use std::collections::BinaryHeap;
use world::description;

const HOSTS: usize = 3;
const SLOTS: usize = 16;
const MS: u64 = 1_000_000;

type Wire = Link<Aes128Gcm, Vec<u8>, SLOTS>;

/// Owner of a link: what it sends, and what it brings.
#[derive(Default)]
struct End {
    nonces: u64,
    frames: Vec<Vec<u8>>,
    events: Vec<Came>,
}

enum Came {
    Up,
    Down,
    Message(Vec<u8>),
}

impl model_link::Actions for End {
    fn transmit(&mut self, fill: impl FnOnce(&mut [u8]) -> usize) -> bool {
        let mut frame = vec![0; FRAME_STANDARD];
        let bytes = fill(&mut frame);
        frame.truncate(bytes);
        self.frames.push(frame);
        true
    }

    fn deliver(&mut self, _: Lane, message: &[u8]) -> bool {
        self.events.push(Came::Message(message.to_vec()));
        true
    }

    fn nonce(&mut self) -> Nonce {
        self.nonces += 1;
        u128::from(self.nonces).to_le_bytes()
    }

    fn up(&mut self) {
        self.events.push(Came::Up);
    }

    fn down(&mut self, _: Down) {
        self.events.push(Came::Down);
    }
}

/// What a membership says; messages go straight to the links.
struct Owner<'a> {
    now: u64,
    wires: &'a mut [Option<(Wire, End)>],
    changes: &'a mut Vec<Change>,
}

impl model_membership::Actions for Owner<'_> {
    fn send(&mut self, host: u8, message: &[u8]) -> bool {
        let (wire, end) = self.wires[usize::from(host)].as_mut().unwrap();
        wire.step(
            self.now,
            model_link::Event::Send(Lane::Urgent, [message, &[]]),
            end,
        )
        .is_ok()
    }

    fn changed(&mut self, change: Change) {
        self.changes.push(change);
    }
}

/// One end of a link; a host has none to itself.
fn wire(host: usize, peer: usize, nonces: u64) -> Option<(Wire, End)> {
    let settings = model_link::Settings {
        host: host as u8,
        peer: peer as u8,
        macs: [[host as u8; 6], [peer as u8; 6]],
        epoch: 0,
        frame_bytes: FRAME_STANDARD,
        timeout_floor_ns: 5 * MS,
        delay_ns: MS,
        hello_ns: 10 * MS,
    };
    let bytes = |lane: Lane| vec![0; lane.buffer_bytes(SLOTS, FRAME_STANDARD)];
    let buffers = [(); 2].map(|()| Lane::ALL.map(bytes));
    let mut end = End {
        nonces,
        ..End::default()
    };
    let first = model_link::Actions::nonce(&mut end);
    let link = Link::new(settings, Secret([5; 32]), buffers, first)?;
    Some((link, end))
}

struct Host {
    membership: Membership<HOSTS>,
    wires: Vec<Option<(Wire, End)>>,
    changes: Vec<Change>,
    past: Vec<View<HOSTS>>,
    /// Drift of its clock in ppm, and what it showed at the start of the world.
    drift: i64,
}

impl Host {
    fn new(host: usize, start: u64, drift: i64) -> Self {
        let wire = |peer: usize| {
            let nonces = (start << 8 | (host * HOSTS + peer) as u64) << 32;
            wire(host, peer, nonces)
        };
        let life = (start + 1) << 32 | (host as u64) << 24 | 1;
        Self {
            membership: Membership::new(Settings::new(host as u8), description(life)).unwrap(),
            wires: (0..HOSTS).map(wire).collect(),
            changes: Vec::new(),
            past: Vec::new(),
            drift,
        }
    }

    fn clock(&self, now: u64) -> u64 {
        (i128::from(now) * i128::from(1_000_000 + self.drift) / 1_000_000) as u64
    }

    /// Lets the host work until nothing is due; gives the frames by receiver.
    fn work(&mut self, now: u64) -> Vec<(usize, Vec<u8>)> {
        let clock = self.clock(now);
        for _ in 0..4 {
            for peer in 0..HOSTS {
                let Some((wire, end)) = &mut self.wires[peer] else {
                    continue;
                };
                wire.step(clock, model_link::Event::Tick, end).unwrap();
                let came: Vec<Came> = end.events.drain(..).collect();
                for event in came {
                    let host = peer as u8;
                    match event {
                        Came::Up => self.step(clock, Event::Up(host)),
                        Came::Down => self.step(clock, Event::Down(host)),
                        Came::Message(message) => self.step(clock, Event::Message(host, &message)),
                    }
                }
            }
            self.step(clock, Event::Tick);
            let has_left = |change: Change| matches!(change, Change::Lost(_));
            if self.changes.drain(..).any(has_left) {
                self.connect_anew(clock);
            }
        }
        let wires = self.wires.iter_mut().enumerate();
        let frames = wires.filter_map(|(to, wire)| Some((to, &mut wire.as_mut()?.1.frames)));
        frames
            .flat_map(|(to, frames)| frames.drain(..).map(move |frame| (to, frame)))
            .collect()
    }

    /// Makes all links anew, so that no frame of the membership that was left opens.
    fn connect_anew(&mut self, clock: u64) {
        let host = self.membership.host();
        for peer in 0..HOSTS {
            if let Some((_, end)) = &self.wires[peer] {
                self.wires[peer] = wire(usize::from(host), peer, end.nonces);
                self.step(clock, Event::Down(peer as u8));
            }
        }
    }

    fn step(&mut self, clock: u64, event: Event<'_>) {
        let mut owner = Owner {
            now: clock,
            wires: &mut self.wires,
            changes: &mut self.changes,
        };
        self.membership.step(clock, event, &mut owner);
        let view = *self.membership.view();
        if view.id != 0 && self.past.last() != Some(&view) {
            self.past.push(view);
        }
    }

    fn runs(&self, now: u64) -> bool {
        self.clock(now) < self.membership.runs_until()
    }
}

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

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Flying(std::cmp::Reverse<u64>, usize, usize, Vec<u8>);

fn check(hosts: &[Host], now: u64) {
    for (h, host) in hosts.iter().enumerate().filter(|(_, host)| host.runs(now)) {
        let view = host.membership.view();
        for (g, other) in hosts
            .iter()
            .enumerate()
            .filter(|(g, _)| *g != h && view.lives[*g] != 0)
        {
            let has = other.membership.view();
            if other.past.contains(view) && has.lives[h] != view.lives[h] {
                let is_owed = other.clock(now) < other.membership.owes_until();
                assert!(
                    is_owed && has.id == 0,
                    "host {h} runs, and host {g} has given it up"
                );
            }
        }
    }
}

/// Runs a world of faults for 20 s; the hosts must then come to be one membership within 20 s.
fn run(seed: u64, loss_percent: u64) {
    let mut bits = Bits(seed);
    let mut drift = || bits.below(201) as i64 - 100;
    let drifts = [drift(), drift(), drift()];
    let mut hosts: Vec<Host> = (0..HOSTS)
        .map(|host| Host::new(host, 0, drifts[host]))
        .collect();
    let mut flying = BinaryHeap::new();
    let mut is_cut = [[false; HOSTS]; HOSTS];
    let (mut now, mut starts) = (0, 0);
    let faults_end = 20_000 * MS;
    let mut next_fault = 3_000 * MS;
    loop {
        for from in 0..HOSTS {
            for (to, frame) in hosts[from].work(now) {
                for _ in 0..=u64::from(bits.below(20) == 0) {
                    let is_lost = bits.below(100) < loss_percent;
                    if !is_cut[from][to] && !is_lost {
                        let at = now + 50_000 + bits.below(MS);
                        flying.push(Flying(std::cmp::Reverse(at), from, to, frame.clone()));
                    }
                }
            }
        }
        check(&hosts, now);
        if now >= next_fault && now < faults_end {
            next_fault = now + bits.below(4_000) * MS;
            let (a, b) = (bits.below(3) as usize, bits.below(3) as usize);
            match bits.below(4) {
                0 => is_cut[a][b] ^= true,
                1 => is_cut = [[false; HOSTS]; HOSTS],
                2 => is_cut[a] = [true; HOSTS],
                _ => {
                    starts += 1;
                    hosts[a] = Host::new(a, starts, drifts[a]);
                }
            }
        }
        if now >= faults_end {
            is_cut = [[false; HOSTS]; HOSTS];
            let one = hosts[0].membership.view();
            let is_one = one.lives.iter().all(|life| *life != 0);
            if is_one
                && hosts
                    .iter()
                    .all(|host| host.membership.view() == one && host.runs(now))
            {
                return;
            }
            assert!(
                now < faults_end + 20_000 * MS,
                "seed {seed}: the hosts stay apart"
            );
        }
        let due = flying.peek().map_or(NEVER, |first: &Flying| first.0.0);
        now = due.min(now + 5 * MS).max(now);
        while flying.peek().is_some_and(|first| first.0.0 <= now) {
            let Flying(_, from, to, mut frame) = flying.pop().unwrap();
            let clock = hosts[to].clock(now);
            let (wire, end) = hosts[to].wires[from].as_mut().unwrap();
            wire.step(clock, model_link::Event::Frame(&mut frame), end)
                .unwrap();
        }
    }
}

proptest! {
    // 64 in the gate, and 5,000 in a round of `make soak`.
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases / 4,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    #[test]
    fn hosts_with_real_links_come_together_again(seed: u64, loss_percent in 0_u64..20) {
        run(seed, loss_percent);
    }
}
