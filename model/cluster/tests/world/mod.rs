//! Hosts on one wire in virtual time, as EL2 has them.

#![allow(dead_code, clippy::unwrap_used)]

use abi::cluster::{DESCRIPTION, Description, FEATURES_MAX, HOSTS_MAX, PROTOCOL};
use abi::link::FRAME_STANDARD;
use model_cluster::{Cluster, News, Owner, Peer, Probes};
use model_link::{ChaCha, Lane, Link, NEVER, Nonce, Secret, Suite};
use model_membership::{Settings, Standing, View};
use std::collections::BTreeMap;
use zerocopy::little_endian::U64;

pub const SLOTS: usize = 32;
pub const MS: u64 = 1_000_000;
const LATENCY_NS: u64 = 10_000;

pub type Node = Cluster<'static, ChaCha, Vec<u8>, SLOTS>;

/// Owner of a host: its card, its random numbers, and what it was told.
#[derive(Default)]
pub struct Said {
    pub nonces: u64,
    pub frames: Vec<Vec<u8>>,
    pub news: Vec<News>,
    pub has_no_room: bool,
    pub is_late: bool,
    pub messages: Vec<(u8, Vec<u8>)>,
    pub takes_nothing: bool,
}

impl Owner for Said {
    fn transmit(&mut self, fill: impl FnOnce(&mut [u8]) -> usize) -> bool {
        if self.has_no_room {
            return false;
        }
        let mut frame = vec![0; FRAME_STANDARD];
        let bytes = fill(&mut frame);
        frame.truncate(bytes);
        self.frames.push(frame);
        true
    }

    fn nonce(&mut self) -> Nonce {
        self.nonces += 1;
        u128::from(self.nonces).to_le_bytes()
    }

    fn is_late(&self) -> bool {
        self.is_late
    }

    fn told(&mut self, news: News) {
        self.news.push(news);
    }

    fn message(&mut self, from: u8, message: &[u8]) -> bool {
        if !self.takes_nothing {
            self.messages.push((from, message.to_vec()));
        }
        !self.takes_nothing
    }
}

fn description(life: u64) -> Description {
    Description {
        kind: DESCRIPTION,
        protocol: PROTOCOL,
        page_log2: 12,
        zva_log2: 6,
        version: 0x100.into(),
        clock_hz: 62_500_000.into(),
        cache_lines: 0x8444_c004.into(),
        frame_bytes: 1514.into(),
        life: life.into(),
        features: [U64::ZERO; FEATURES_MAX],
    }
}

/// One end of the link between a host and its peer. Links of host 2 have no AES.
pub fn link([host, peer]: [u8; 2], key: u8, nonce: Nonce) -> Link<ChaCha, Vec<u8>, SLOTS> {
    let settings = model_link::Settings {
        host,
        peer,
        macs: [[host; 6], [peer; 6]],
        epoch: 7,
        frame_bytes: FRAME_STANDARD,
        timeout_floor_ns: 2 * MS,
        delay_ns: MS / 2,
        hello_ns: 20 * MS,
        is_open: false,
        suite: [Suite::Aes, Suite::ChaCha][usize::from(host.max(peer) == 2)],
    };
    let bytes = |lane: Lane| vec![0; lane.buffer_bytes(SLOTS, FRAME_STANDARD)];
    let buffers = [(); 2].map(|()| Lane::ALL.map(bytes));
    Link::new(settings, Secret([key; 32]), buffers, nonce).unwrap()
}

/// What a host is made of.
#[derive(Clone, Copy)]
pub struct Plan {
    pub hosts: u8,
    pub key: u8,
    pub start: u64,
    pub version: u32,
    pub protocol: u8,
    pub page_log2: u8,
    /// Drift of its clock, in ppm.
    pub drift: i64,
}

impl Plan {
    pub const fn of(hosts: u8) -> Self {
        Self {
            hosts,
            key: 5,
            start: 1,
            version: 0x100,
            protocol: PROTOCOL,
            page_log2: 12,
            drift: 0,
        }
    }

    pub fn make(self, host: u8) -> Host {
        let mut said = Said {
            nonces: self.start << 40 | u64::from(host) << 32,
            ..Said::default()
        };
        let mut peer = |peer: u8| {
            let link = link([host, peer], self.key, said.nonce());
            Peer {
                host: peer,
                link,
                bytes: [0; 2],
                probes: Probes::default(),
            }
        };
        let others = (0..self.hosts).filter(|other| *other != host);
        let peers: Vec<_> = others.map(&mut peer).collect();
        let mut own = description(self.start << 32 | u64::from(host + 1) << 24);
        own.version = self.version.into();
        (own.protocol, own.page_log2) = (self.protocol, self.page_log2);
        Host {
            node: Cluster::new(Settings::new(host), own, peers.leak()).unwrap(),
            said,
            drift: self.drift,
            past: Vec::new(),
        }
    }
}

pub struct Host {
    pub node: Node,
    pub said: Said,
    pub drift: i64,
    /// Memberships that it has entered since it was started.
    pub past: Vec<View<HOSTS_MAX>>,
}

impl Host {
    /// What its clock shows.
    pub fn clock(&self, now: u64) -> u64 {
        (i128::from(now) * i128::from(1_000_000 + self.drift) / 1_000_000) as u64
    }

    /// When it has something to do.
    fn due(&self) -> u64 {
        let at = self.node.deadline();
        let rate = i128::from(1_000_000 + self.drift);
        u64::try_from((i128::from(at) * 1_000_000 + rate - 1) / rate).unwrap_or(NEVER)
    }

    /// Whether it may run what it shares.
    pub fn runs(&self, now: u64) -> bool {
        self.clock(now) < self.node.membership().runs_until()
    }

    fn note_view(&mut self) {
        let view = *self.node.membership().view();
        if view.id != 0 && self.past.last() != Some(&view) {
            self.past.push(view);
        }
    }
}

/// What becomes of a frame: its copies, by how many nanoseconds after the line's latency each arrives.
pub type Fate<'a> = dyn FnMut(usize, usize, &[u8]) -> Vec<(u64, Vec<u8>)> + 'a;

/// Hosts on one wire.
pub struct World {
    pub now: u64,
    pub hosts: Vec<Host>,
    flying: BTreeMap<(u64, u64), (usize, Vec<u8>)>,
    sent: u64,
    pub dead: Option<usize>,
    /// The most messages that a frame or a piece of work has brought an owner.
    pub most_at_once: usize,
    /// Frames that found no token.
    pub unread: u64,
    /// Pieces of work that each host does at a time, and how long they take.
    pub pace: (usize, u64),
}

impl World {
    pub fn new(hosts: Vec<Host>) -> Self {
        Self {
            now: 0,
            hosts,
            flying: BTreeMap::new(),
            sent: 0,
            dead: None,
            most_at_once: 0,
            unread: 0,
            pace: (usize::MAX, 1),
        }
    }

    pub fn of(hosts: u8) -> Self {
        Self::new((0..hosts).map(|host| Plan::of(hosts).make(host)).collect())
    }

    /// Lets so much time pass, in which no frame is lost.
    pub fn run(&mut self, ns: u64) {
        let end = self.now + ns;
        while self.now < end {
            self.step(end, &mut |_, _, frame| vec![(0, frame.to_vec())]);
        }
    }

    /// Lets hosts work, and time pass until something happens or it is `end`.
    pub fn step(&mut self, end: u64, fate: &mut Fate<'_>) {
        for host in 0..self.hosts.len() {
            self.work(host, fate);
        }
        let due = self.hosts.iter().map(Host::due).min().unwrap();
        let arrives = self.flying.keys().next().map_or(end, |(at, _)| *at);
        self.now = arrives.min(due).clamp(self.now + self.pace.1, end);
        while let Some(first) = self.flying.first_entry() {
            if first.key().0 > self.now {
                break;
            }
            let (to, mut frame) = first.remove();
            if self.dead != Some(to) {
                let host = &mut self.hosts[to];
                let clock = host.clock(self.now);
                let before = host.said.messages.len();
                let [is_kept, is_worth] = host.node.admit(clock, &frame);
                self.unread += u64::from(!is_worth);
                if !is_kept {
                    continue;
                }
                host.node.frame(clock, &mut frame, &mut host.said);
                host.note_view();
                let brought = host.said.messages.len() - before;
                self.most_at_once = self.most_at_once.max(brought);
            }
        }
    }

    fn work(&mut self, number: usize, fate: &mut Fate<'_>) {
        let host = &mut self.hosts[number];
        let clock = host.clock(self.now);
        let mut pieces = 0;
        let mut before = host.said.messages.len();
        while pieces < self.pace.0 && host.node.work(clock, &mut host.said) {
            host.note_view();
            let brought = host.said.messages.len() - before;
            before += brought;
            self.most_at_once = self.most_at_once.max(brought);
            pieces += 1;
            assert!(pieces < 100, "the host never falls silent");
        }
        for frame in host.said.frames.drain(..) {
            if self.dead == Some(number) {
                continue;
            }
            let to = usize::from(frame[17]);
            for (late, frame) in fate(number, to, &frame) {
                self.sent += 1;
                let at = (self.now + LATENCY_NS + late, self.sent);
                self.flying.insert(at, (to, frame));
            }
        }
    }

    pub fn is_in(&self, host: usize, other: u8) -> bool {
        self.hosts[host].node.standing(other) == (Standing::Fit, true)
    }

    pub fn news(&self, host: usize) -> &[News] {
        &self.hosts[host].said.news
    }
}
