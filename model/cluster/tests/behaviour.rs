//! Hosts that join, do not fit, do not know the key, die and come back; strangers that flood them.

#![allow(clippy::unwrap_used)]

use abi::cluster::{DESCRIPTION, Description, FEATURES_MAX, PROTOCOL};
use abi::link::{BULK_MAX, ETHERTYPE, FRAME_STANDARD, HELLO, Prefix, URGENT_MAX, VERSION};
use model_cluster::{Change, Cluster, News, Owner, Peer, STRANGE_EVERY_NS, STRANGE_MAX};
use model_link::{Aes128Gcm, Lane, Link, Nonce, Refused, Secret};
use model_membership::{Settings, Standing, Unfit};
use std::collections::BTreeMap;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

const SLOTS: usize = 8;
const MS: u64 = 1_000_000;
const LATENCY_NS: u64 = 10_000;

type Node = Cluster<'static, Aes128Gcm, Vec<u8>, SLOTS>;

/// Owner of a host: its card, its random numbers, and what it was told.
#[derive(Default)]
struct Said {
    nonces: u64,
    frames: Vec<Vec<u8>>,
    news: Vec<News>,
    has_no_room: bool,
    messages: Vec<(u8, Vec<u8>)>,
    takes_nothing: bool,
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
        life: life.into(),
        features: [U64::ZERO; FEATURES_MAX],
    }
}

/// What a host is made of.
#[derive(Clone, Copy)]
struct Plan {
    hosts: u8,
    key: u8,
    start: u64,
    version: u32,
}

impl Plan {
    const fn of(hosts: u8) -> Self {
        Self {
            hosts,
            key: 5,
            start: 1,
            version: 0x100,
        }
    }

    fn make(self, host: u8) -> (Node, Said) {
        let mut said = Said {
            nonces: self.start << 40 | u64::from(host) << 32,
            ..Said::default()
        };
        let mut peer = |peer: u8| {
            let settings = model_link::Settings {
                host,
                peer,
                macs: [[host; 6], [peer; 6]],
                epoch: 7,
                frame_bytes: FRAME_STANDARD,
                timeout_floor_ns: 2 * MS,
                delay_ns: MS / 2,
                hello_ns: 20 * MS,
            };
            let bytes = |lane: Lane| vec![0; lane.buffer_bytes(SLOTS, FRAME_STANDARD)];
            let buffers = [(); 2].map(|()| Lane::ALL.map(bytes));
            let link = Link::new(settings, Secret([self.key; 32]), buffers, said.nonce()).unwrap();
            Peer {
                host: peer,
                link,
                bytes: [0; 2],
                described: None,
            }
        };
        let others = (0..self.hosts).filter(|other| *other != host);
        let peers: Vec<_> = others.map(&mut peer).collect();
        let mut own = description(self.start << 8 | u64::from(host + 1));
        own.version = self.version.into();
        let node = Cluster::new(Settings::new(host), own, peers.leak()).unwrap();
        (node, said)
    }
}

/// Hosts on one wire.
struct World {
    now: u64,
    hosts: Vec<(Node, Said)>,
    flying: BTreeMap<(u64, u64), (usize, Vec<u8>)>,
    sent: u64,
    dead: Option<usize>,
}

impl World {
    fn new(hosts: Vec<(Node, Said)>) -> Self {
        Self {
            now: 0,
            hosts,
            flying: BTreeMap::new(),
            sent: 0,
            dead: None,
        }
    }

    fn of(hosts: u8) -> Self {
        Self::new((0..hosts).map(|host| Plan::of(hosts).make(host)).collect())
    }

    /// Lets so much time pass.
    fn run(&mut self, ns: u64) {
        let end = self.now + ns;
        while self.now < end {
            for host in 0..self.hosts.len() {
                self.work(host);
            }
            let due = self.hosts.iter().map(|(node, _)| node.deadline()).min();
            let arrives = self.flying.keys().next().map_or(end, |(at, _)| *at);
            self.now = arrives.min(due.unwrap()).clamp(self.now + 1, end);
            while let Some(first) = self.flying.first_entry() {
                if first.key().0 > self.now {
                    break;
                }
                let (to, mut frame) = first.remove();
                if self.dead != Some(to) {
                    let (node, said) = &mut self.hosts[to];
                    node.frame(self.now, &mut frame, said);
                }
            }
        }
    }

    fn work(&mut self, host: usize) {
        let (node, said) = &mut self.hosts[host];
        let mut pieces = 0;
        while node.work(self.now, said) {
            pieces += 1;
            assert!(pieces < 100, "the host never falls silent");
        }
        for frame in said.frames.drain(..) {
            let to = usize::from(frame[17]);
            self.sent += 1;
            if self.dead != Some(host) {
                let at = (self.now + LATENCY_NS, self.sent);
                self.flying.insert(at, (to, frame));
            }
        }
    }

    fn is_in(&self, host: usize, other: u8) -> bool {
        self.hosts[host].0.standing(other) == (Standing::Fit, true)
    }

    fn news(&self, host: usize) -> &[News] {
        &self.hosts[host].1.news
    }
}

#[test]
fn hosts_join() {
    for hosts in [2, 3, 4] {
        let mut world = World::of(hosts);
        world.run(500 * MS);
        for host in 0..hosts {
            let others = (0..hosts).filter(|other| *other != host);
            for other in others {
                assert!(world.is_in(usize::from(host), other), "{host} and {other}");
            }
            let node = &world.hosts[usize::from(host)].0;
            assert!(node.membership().runs_until() > world.now);
            assert!(node.peers().iter().all(|peer| peer.described.is_some()));
            assert!(
                node.peers()
                    .iter()
                    .all(|peer| peer.bytes[0] > 0 && peer.bytes[1] > 0)
            );
        }
    }
}

#[test]
fn a_host_with_another_key_stays_out() {
    let other = Plan {
        key: 6,
        ..Plan::of(2)
    };
    let mut world = World::new(vec![Plan::of(2).make(0), other.make(1)]);
    world.run(2_000 * MS);
    assert!(!world.is_in(0, 1) && !world.is_in(1, 0));
    assert!(world.news(0).is_empty() && world.news(1).is_empty());
    let counters = &world.hosts[0].0.peers()[0].link.counters;
    assert!(counters.dropped[model_link::Dropped::Forged as usize] > 0);
}

#[test]
fn a_host_of_another_version_is_named_once() {
    let other = Plan {
        version: 0x101,
        ..Plan::of(2)
    };
    let mut world = World::new(vec![Plan::of(2).make(0), other.make(1)]);
    world.run(2_000 * MS);
    let unfit = News::Unfit(1, Unfit::Version(0x101, 0x100));
    assert_eq!(world.news(0), [News::Up(1), unfit]);
    assert!(!world.is_in(0, 1));
    assert_eq!(world.send(0, 1, 40, 0), Err(Refused::NoSession));
}

#[test]
fn a_dead_host_is_declared_and_comes_back_as_a_new_one() {
    let mut world = World::of(3);
    world.run(500 * MS);
    world.dead = Some(2);
    world.run(1_000 * MS);
    assert!(world.is_in(0, 2), "declared dead too early");
    world.run(1_700 * MS);
    // The survivors leave that membership, restart their links, and have one of their own.
    for host in [0, 1] {
        assert!(!world.is_in(host, 2) && world.is_in(host, 1 - host as u8));
        let news = world.news(host);
        let stopped = news
            .iter()
            .position(|it| *it == News::Changed(Change::Stopped));
        let lost = |it: &News| matches!(it, News::Changed(Change::Lost(_)));
        assert!(stopped.unwrap() < news.iter().position(lost).unwrap());
        let sessions = world.hosts[host].0.peers().iter();
        assert!(sessions.map(|peer| peer.link.counters.sessions).max() >= Some(2));
    }
    world.dead = None;
    let again = Plan {
        start: 2,
        ..Plan::of(3)
    };
    world.hosts[2] = again.make(2);
    world.run(3_000 * MS);
    assert!(world.is_in(0, 2) && world.is_in(1, 2) && world.is_in(2, 0));
}

#[test]
fn a_flood_makes_a_host_deaf_for_a_while() {
    let mut world = World::of(2);
    world.run(500 * MS);
    let prefix = Prefix {
        macs: [[0; 6], [1; 6]],
        ethertype: ETHERTYPE,
        version: VERSION,
        kind: HELLO,
        from: 1,
        to: 0,
        epoch: 7.into(),
    };
    let now = world.now;
    let (node, said) = &mut world.hosts[0];
    assert!(!node.is_deaf(now));
    for from in [1, 9] {
        let prefix = Prefix { from, ..prefix };
        let mut frame = prefix.as_bytes().to_vec();
        frame.resize(80, 0);
        for _ in 0..STRANGE_MAX {
            node.frame(now, &mut frame, said);
        }
        assert!(node.is_deaf(now));
        assert!(!node.is_deaf(now + STRANGE_EVERY_NS));
    }
    assert!(world.is_in(0, 1));
    world.run(500 * MS);
    assert!(world.is_in(0, 1) && world.is_in(1, 0));
}

#[test]
fn a_full_card_is_tried_again_later() {
    let mut world = World::of(2);
    world.hosts[0].1.has_no_room = true;
    world.run(300 * MS);
    assert!(!world.is_in(0, 1));
    let (node, said) = &mut world.hosts[0];
    while node.work(world.now, said) {}
    assert!(node.deadline() > world.now);
    said.has_no_room = false;
    world.run(1_500 * MS);
    assert!(world.is_in(0, 1) && world.is_in(1, 0));
}

/// Kind of a message that is nobody's here.
const KIND: u8 = 0x50;

impl World {
    fn send(&mut self, from: usize, to: u8, bytes: usize, number: u8) -> Result<(), Refused> {
        let message = vec![number; bytes - 1];
        let node = &mut self.hosts[from].0;
        node.send(self.now, to, [&[KIND], &message])
    }

    /// Bytes and number of each message that a host has taken of another.
    fn taken(&self, host: usize, of: u8) -> Vec<(usize, u8)> {
        let all = self.hosts[host].1.messages.iter();
        let of = all.filter(|(from, message)| *from == of && message[0] == KIND);
        of.map(|(_, message)| (message.len(), message[1])).collect()
    }
}

#[test]
fn members_get_each_message_once_in_the_order_of_its_lane() {
    let mut world = World::of(3);
    assert_eq!(world.send(0, 1, 40, 0), Err(Refused::NoSession));
    world.run(500 * MS);
    let sent = [(URGENT_MAX, 1), (BULK_MAX, 2), (URGENT_MAX + 1, 3), (2, 4)];
    for (bytes, number) in sent {
        assert_eq!(world.send(0, 1, bytes, number), Ok(()));
        assert_eq!(world.send(1, 2, bytes, number), Ok(()));
    }
    let too_long = Refused::TooLong(BULK_MAX + 1, BULK_MAX);
    assert_eq!(world.send(0, 1, BULK_MAX + 1, 0), Err(too_long));
    assert_eq!(world.send(0, 9, 40, 0), Err(Refused::NoSession));
    // One that is refused is offered again, and nothing behind it is lost.
    world.hosts[2].1.takes_nothing = true;
    world.run(100 * MS);
    assert!(world.taken(2, 1).is_empty());
    world.hosts[2].1.takes_nothing = false;
    world.run(MS);
    for (host, of) in [(1, 0), (2, 1)] {
        let mut taken = world.taken(host, of);
        let order: Vec<u8> = taken.iter().map(|it| it.1).collect();
        let place = |number| order.iter().position(|it| *it == number);
        assert!(place(1) < place(4) && place(2) < place(3), "{order:?}");
        taken.sort_by_key(|it| it.1);
        assert_eq!(taken, sent);
    }
    assert!(world.taken(0, 1).is_empty() && world.taken(2, 0).is_empty());
}

#[test]
fn no_message_of_a_membership_that_has_ended_comes() {
    let mut world = World::of(3);
    world.run(500 * MS);
    assert_eq!(world.send(0, 1, 40, 1), Ok(()));
    assert_eq!(world.send(0, 1, 4000, 2), Ok(()));
    (world.dead, world.hosts[1].1.takes_nothing) = (Some(2), true);
    world.run(2_200 * MS);
    assert_eq!(world.send(0, 2, 40, 3), Err(Refused::NoSession));
    world.hosts[1].1.takes_nothing = false;
    world.run(1_500 * MS);
    assert!(world.is_in(0, 1) && world.is_in(1, 0));
    assert!(world.hosts[1].1.messages.is_empty());
    assert_eq!(world.send(0, 1, 40, 4), Ok(()));
    world.run(MS);
    assert_eq!(world.taken(1, 0), [(40, 4)]);
}
