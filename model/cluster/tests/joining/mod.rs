//! Hosts of which each step is small, what is between them, and what must hold whatever that does.

#![allow(clippy::unwrap_used, clippy::panic)]

use abi::cluster::{DESCRIPTION, Description, FEATURES_MAX, PROTOCOL};
use model_link::{
    Actions, Cipher, Down, Iv, KEY_BYTES, Lane, Link, NEVER, Nonce, Secret, Suite, Tag,
};
use model_membership::{Change, Membership, Standing, View};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::rc::Rc;
use tests_explorer::Fingerprint;
use zerocopy::little_endian::U64;

/// Frames that hold a description in one piece.
const FRAME_BYTES: usize = 320;
const SLOTS: usize = 4;
/// Times of the searches. A membership takes longer to give a host up than a link to begin a session.
const UNIT: u64 = 100_000_000;
const BEAT: u64 = UNIT;
const STOP: u64 = 2 * UNIT;
const DECLARE: u64 = 4 * UNIT;
/// When a search ends that has not joined, because a host was dead for so long.
const END: u64 = 8 * UNIT;

/// A cipher that is quick and keeps no secret: its tag depends on every bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Toy([u8; KEY_BYTES]);

thread_local! {
    /// What was sealed since the last look: key and nonce.
    static SEALED: RefCell<Vec<(Toy, Iv)>> = RefCell::default();
}

impl Toy {
    fn tag(self, nonce: &Iv, head: &[u8], body: &[u8]) -> Tag {
        Fingerprint::of(&(self, nonce, head, body)).to_le_bytes()
    }
}

impl Cipher for Toy {
    const FRAMES_PER_KEY_LOG2: u32 = 10;

    fn new(_: Suite, key: &[u8; KEY_BYTES]) -> Self {
        Self(*key)
    }

    fn seal(&self, nonce: &Iv, head: &[u8], body: &mut [u8]) -> Tag {
        SEALED.with_borrow_mut(|sealed| sealed.push((*self, *nonce)));
        self.tag(nonce, head, body)
    }

    fn open(&self, nonce: &Iv, head: &[u8], body: &mut [u8], tag: &Tag) -> bool {
        self.tag(nonce, head, body) == *tag
    }
}

/// Memory of a lane, which states share until one of them writes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Memory(Rc<Vec<u8>>);

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl AsMut<[u8]> for Memory {
    fn as_mut(&mut self) -> &mut [u8] {
        Rc::<Vec<u8>>::make_mut(&mut self.0)
    }
}

impl Hash for Memory {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&self.0);
    }
}

/// Which host has another key than the cluster's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Impostor {
    None,
    Last,
}

#[derive(Clone, Debug, Hash)]
pub struct Frame {
    /// Sender and receiver.
    pub ends: (usize, usize),
    bytes: Vec<u8>,
}

#[derive(Clone, Debug, Hash)]
pub struct Host<const N: usize> {
    pub is_dead: bool,
    membership: Membership<N>,
    /// To each other host.
    links: Vec<Option<Link<Toy, Memory, SLOTS>>>,
    starts: u64,
    /// Random numbers that were drawn, in all lives.
    nonces: u64,
    /// Memberships since the last start.
    past: Vec<View<N>>,
}

/// Use of a key: by which host, in which of its starts, and the last nonce.
type Use = (usize, u64, Iv);

#[derive(Clone, Debug, Hash)]
pub struct World<const N: usize> {
    pub hosts: [Host<N>; N],
    /// Oldest first.
    pub flight: Vec<Frame>,
    /// Frames that will come again.
    pub kept: Vec<Frame>,
    pub impostor: Impostor,
    /// Frames of different directions come in any order, not in that in which they were sent.
    pub any_order: bool,
    now: u64,
    keys: BTreeMap<Toy, Use>,
}

/// Owner of a link for one step.
struct End<'e, const N: usize> {
    host: usize,
    peer: usize,
    now: u64,
    membership: &'e mut Membership<N>,
    nonces: &'e mut u64,
    sent: Vec<Frame>,
    has_begun: bool,
}

fn nonce(host: usize, nonces: &mut u64) -> Nonce {
    *nonces += 1;
    Fingerprint::of(&(host, *nonces)).to_le_bytes()
}

/// Nothing is said by a membership but at a tick.
struct Silent;

impl model_membership::Actions for Silent {
    fn send(&mut self, _: u8, _: &[u8]) -> bool {
        false
    }

    fn changed(&mut self, change: Change) {
        assert_eq!(change, Change::Grown, "only a tick stops or ends something");
    }
}

impl<const N: usize> End<'_, N> {
    fn tell(&mut self, event: model_membership::Event<'_>) {
        self.membership.step(self.now, event, &mut Silent);
    }
}

impl<const N: usize> Actions for End<'_, N> {
    fn transmit(&mut self, fill: impl FnOnce(&mut [u8]) -> usize) -> bool {
        let mut bytes = vec![0; FRAME_BYTES];
        let length = fill(&mut bytes);
        bytes.truncate(length);
        assert!(self.sent.len() < 64, "a tick sends for ever");
        let ends = (self.host, self.peer);
        self.sent.push(Frame { ends, bytes });
        true
    }

    fn deliver(&mut self, lane: Lane, message: &[u8]) -> bool {
        assert_eq!(lane, Lane::Urgent);
        self.tell(model_membership::Event::Message(self.peer as u8, message));
        true
    }

    fn nonce(&mut self) -> Nonce {
        nonce(self.host, self.nonces)
    }

    fn up(&mut self) {
        self.has_begun = true;
        self.tell(model_membership::Event::Up(self.peer as u8));
    }

    fn down(&mut self, why: Down) {
        assert_eq!(why, Down::Replaced);
        self.tell(model_membership::Event::Down(self.peer as u8));
    }
}

/// Takes what a membership says at a tick.
struct Sender<'e> {
    links: &'e mut Vec<Option<Link<Toy, Memory, SLOTS>>>,
    is_lost: bool,
}

impl model_membership::Actions for Sender<'_> {
    fn send(&mut self, host: u8, message: &[u8]) -> bool {
        let link = self.links[usize::from(host)].as_mut().unwrap();
        link.send(Lane::Urgent, [message, &[]]).is_ok()
    }

    fn changed(&mut self, change: Change) {
        self.is_lost |= matches!(change, Change::Lost(_));
    }
}

impl<const N: usize> Host<N> {
    fn new(host: usize, starts: u64, mut nonces: u64, key: u8) -> Self {
        let settings = model_membership::Settings {
            host: host as u8,
            beat_ns: BEAT,
            stop_ns: STOP,
            declare_ns: DECLARE,
        };
        let own = Description {
            kind: DESCRIPTION,
            protocol: PROTOCOL,
            page_log2: 12,
            zva_log2: 6,
            version: 1.into(),
            clock_hz: 1000.into(),
            cache_lines: 4.into(),
            frame_bytes: 1514.into(),
            life: ((host as u64 + 1) << 32 | starts << 16).into(),
            features: [U64::ZERO; FEATURES_MAX],
        };
        let mut link = |peer: usize| {
            let settings = model_link::Settings {
                host: host as u8,
                peer: peer as u8,
                macs: [[host as u8; 6], [peer as u8; 6]],
                epoch: 7,
                frame_bytes: FRAME_BYTES,
                timeout_floor_ns: UNIT / 8,
                delay_ns: UNIT / 64,
                hello_ns: UNIT / 8,
                is_open: false,
                suite: Suite::Aes,
            };
            let bytes =
                |lane: Lane| Memory(Rc::new(vec![0; lane.buffer_bytes(SLOTS, FRAME_BYTES)]));
            let buffers = [(); 2].map(|()| Lane::ALL.map(bytes));
            let first = nonce(host, &mut nonces);
            Link::new(settings, Secret([key; 32]), buffers, first).unwrap()
        };
        let links = (0..N).map(|peer| (peer != host).then(|| link(peer)));
        Self {
            is_dead: false,
            links: links.collect(),
            membership: Membership::new(settings, own).unwrap(),
            starts,
            nonces,
            past: Vec::new(),
        }
    }

    /// Lets a link handle an event; gives what it sent, and whether a session begins.
    fn step(&mut self, now: u64, peer: usize, event: model_link::Event<'_>) -> (Vec<Frame>, bool) {
        let mut end = End {
            host: usize::from(self.membership.host()),
            peer,
            now,
            membership: &mut self.membership,
            nonces: &mut self.nonces,
            sent: Vec::new(),
            has_begun: false,
        };
        let link = self.links[peer].as_mut().unwrap();
        link.step(now, event, &mut end).unwrap();
        link.counters = model_link::Counters::default();
        (end.sent, end.has_begun)
    }

    /// Does all that is due.
    fn work(&mut self, now: u64) -> Vec<Frame> {
        let host = usize::from(self.membership.host());
        let mut sent = Vec::new();
        let tick = |this: &mut Self, sent: &mut Vec<Frame>| {
            for peer in (0..N).filter(|peer| *peer != host) {
                sent.extend(this.step(now, peer, model_link::Event::Tick).0);
            }
        };
        tick(self, &mut sent);
        let mut sender = Sender {
            links: &mut self.links,
            is_lost: false,
        };
        self.membership
            .step(now, model_membership::Event::Tick, &mut sender);
        if sender.is_lost {
            for peer in (0..N).filter(|peer| *peer != host) {
                let fresh = nonce(host, &mut self.nonces);
                self.links[peer].as_mut().unwrap().restart(fresh);
                let down = model_membership::Event::Down(peer as u8);
                self.membership.step(now, down, &mut Silent);
            }
        }
        tick(self, &mut sent);
        let view = *self.membership.view();
        if view.id != 0 && self.past.last() != Some(&view) {
            self.past.push(view);
        }
        sent
    }

    fn deadline(&self) -> u64 {
        if self.is_dead {
            return NEVER;
        }
        let links = self.links.iter().flatten().map(Link::deadline).min();
        links.unwrap().min(self.membership.deadline())
    }

    fn life(&self) -> u64 {
        let own = usize::from(self.membership.host());
        self.membership.view().lives[own]
    }

    fn runs(&self, now: u64) -> bool {
        !self.is_dead && now < self.membership.runs_until()
    }
}

impl<const N: usize> World<N> {
    /// Makes hosts that have just been started.
    pub fn new(impostor: Impostor, any_order: bool) -> Self {
        let mut world = Self {
            hosts: core::array::from_fn(|host| Host::new(host, 0, 0, 5)),
            flight: Vec::new(),
            kept: Vec::new(),
            impostor,
            any_order,
            now: 0,
            keys: BTreeMap::new(),
        };
        (0..N).for_each(|host| world.start(host));
        world
    }

    pub fn crash(&mut self, host: usize) {
        self.hosts[host].is_dead = true;
    }

    /// Starts a host that has lost all it knew.
    pub fn start(&mut self, host: usize) {
        let Host { starts, nonces, .. } = self.hosts[host];
        let is_other = self.impostor == Impostor::Last && host == N - 1;
        self.hosts[host] = Host::new(host, starts + 1, nonces, if is_other { 6 } else { 5 });
        self.work(host);
    }

    fn work(&mut self, host: usize) {
        if self.hosts[host].is_dead {
            return;
        }
        let sent = self.hosts[host].work(self.now);
        self.flight.extend(sent);
        if self.any_order {
            self.flight.sort_by_key(|frame| frame.ends);
        }
        self.note_keys(host);
    }

    /// A key belongs to one start of one host, and has no nonce twice.
    fn note_keys(&mut self, host: usize) {
        let starts = self.hosts[host].starts;
        for (key, nonce) in SEALED.take() {
            let counter = |nonce: &Iv| {
                u128::from_le_bytes(core::array::from_fn(|n| nonce.get(n).copied().unwrap_or(0)))
            };
            let before = self.keys.insert(key, (host, starts, nonce));
            let is_new = before.is_none_or(|(by, start, last)| {
                (by, start) == (host, starts) && counter(&last) < counter(&nonce)
            });
            assert!(
                is_new,
                "host {host} seals with a key or nonce that was used"
            );
        }
    }

    /// Takes a frame off the wire, and does what follows of it.
    pub fn deliver(&mut self, n: usize) {
        let frame = self.flight.remove(n);
        self.receive(frame);
    }

    pub fn take_kept(&mut self, n: usize) {
        let frame = self.kept.remove(n);
        self.receive(frame);
    }

    fn receive(
        &mut self,
        Frame {
            ends: (from, to),
            mut bytes,
        }: Frame,
    ) {
        if self.hosts[to].is_dead {
            return;
        }
        let event = model_link::Event::Frame(&mut bytes);
        let (sent, has_begun) = self.hosts[to].step(self.now, from, event);
        assert!(sent.is_empty());
        let is_stranger = self.impostor == Impostor::Last && from.max(to) == N - 1;
        assert!(
            !(has_begun && is_stranger),
            "a host without the key has a session"
        );
        self.work(to);
    }

    /// Returns the frames that may come next.
    pub fn next_frames(&self) -> impl Iterator<Item = usize> {
        let is_first = move |n: &usize| {
            let mut before = self.flight[..*n].iter();
            !before.any(|frame| !self.any_order || frame.ends == self.flight[*n].ends)
        };
        (0..self.flight.len()).filter(is_first)
    }

    /// Returns whether time can pass: no frame is under way, and somebody waits for something.
    pub fn can_wait(&self) -> bool {
        self.flight.is_empty() && self.now < END && !self.hosts.iter().all(|host| host.is_dead)
    }

    /// Lets time pass until something is due.
    pub fn advance(&mut self) {
        let next = self.hosts.iter().map(Host::deadline).min().unwrap();
        self.now = next.max(self.now + UNIT / 1024);
        for host in 0..N {
            if self.hosts[host].deadline() <= self.now {
                self.work(host);
            }
        }
    }

    /// Checks that hosts agree, and that no host runs with one that has given it up.
    pub fn check(&self) {
        let all = || self.hosts.iter().flat_map(|host| &host.past);
        for (a, b) in all().flat_map(|a| all().map(move |b| (a, b))) {
            let leader = (a.id & 0xff) as usize;
            if a.id == b.id && a.lives[leader] == b.lives[leader] {
                assert_eq!(a, b, "one id, two memberships");
            }
        }
        for (h, host) in self.hosts.iter().enumerate() {
            let view = host.membership.view();
            for (g, other) in self.hosts.iter().enumerate().filter(|(g, _)| *g != h) {
                if !host.runs(self.now) || !other.runs(self.now) || view.lives[g] != other.life() {
                    continue;
                }
                assert_eq!(host.membership.standing(g as u8), Standing::Fit);
                let its = other.membership.view();
                if its.lives[h] == host.life() {
                    let [low, high] = if view.id < its.id {
                        [view, its]
                    } else {
                        [its, view]
                    };
                    let is_kept = |n: usize| low.lives[n] == 0 || low.lives[n] == high.lives[n];
                    assert!((0..N).all(is_kept), "both are in, with other members");
                } else {
                    assert!(!other.past.contains(view), "one runs, the other has left");
                }
            }
        }
    }

    /// Returns whether all hosts are in one membership, and run.
    pub fn is_one(&self) -> bool {
        let lives = self.hosts.each_ref().map(Host::life);
        let is_in = |host: &Host<N>| host.runs(self.now) && host.membership.view().lives == lives;
        self.hosts.iter().all(is_in)
    }

    /// From here, if nothing more goes wrong and all are started again, they come to be in one membership.
    pub fn check_future(&self) {
        let mut world = self.clone();
        for host in 0..N {
            if world.hosts[host].is_dead {
                world.start(host);
            }
        }
        for _ in 0..2_000 {
            if world.is_one() {
                return;
            }
            world.check();
            if world.flight.is_empty() {
                world.advance();
            } else {
                world.deliver(0);
            }
        }
        panic!(
            "the hosts stay apart: {:?}",
            world.hosts.each_ref().map(|host| *host.membership.view())
        );
    }
}
