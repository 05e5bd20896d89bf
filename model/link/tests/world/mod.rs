//! Two hosts, what is between them, and what must hold whatever that does.

#![allow(dead_code, clippy::unwrap_used, clippy::panic)]

pub mod clear;

use abi::link::{Hello, LANES, Prefix, SEALED, Sealed};
use model_link::{
    Actions, Cipher, Down, Event, Iv, KEY_BYTES, Lane, Link, NEVER, Nonce, Refused, Secret,
    Settings, Suite, Tag,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use zerocopy::FromBytes;

/// A cipher that is quick and keeps no secret: its tag depends on every bit, and its keys last for 32 frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Toy([u64; 2]);

fn mix(state: u64, word: u64) -> u64 {
    let wide = u128::from(state ^ 0x9e37_79b9_7f4a_7c15) * u128::from(word ^ 0xd6e8_feb8_6659_fd93);
    (wide as u64) ^ (wide >> 64) as u64 ^ state.rotate_left(23)
}

fn fold(mut state: u64, bytes: &[u8]) -> u64 {
    for chunk in bytes.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        state = mix(state, u64::from_le_bytes(word));
    }
    mix(state, bytes.len() as u64)
}

impl Toy {
    fn tag(&self, nonce: &Iv, head: &[u8], body: &[u8]) -> Tag {
        let half = |n: usize| fold(fold(fold(self.0[n], nonce), head), body).to_le_bytes();
        [half(0), half(1)].concat().try_into().unwrap()
    }

    fn flip(&self, body: &mut [u8]) {
        for byte in body {
            *byte ^= self.0[0] as u8;
        }
    }
}

impl Cipher for Toy {
    const FRAMES_PER_KEY_LOG2: u32 = 5;

    /// Hosts with different suites have different keys.
    fn new(suite: Suite, key: &[u8; KEY_BYTES]) -> Self {
        let part = |n: usize| u64::from_le_bytes(key[8 * n..][..8].try_into().unwrap());
        Self([part(0) ^ suite as u64, part(1)])
    }

    fn seal(&self, nonce: &Iv, head: &[u8], body: &mut [u8]) -> Tag {
        self.flip(body);
        self.tag(nonce, head, body)
    }

    fn open(&self, nonce: &Iv, head: &[u8], body: &mut [u8], tag: &Tag) -> bool {
        let is_right = self.tag(nonce, head, body) == *tag;
        if is_right {
            self.flip(body);
        }
        is_right
    }
}

thread_local! {
    /// Keys and nonces that sealed a frame since [`forget_nonces`].
    static NONCES: RefCell<HashSet<(Toy, Iv)>> = RefCell::default();
}

/// Begins a run whose keys may be those of the one before.
pub fn forget_nonces() {
    NONCES.take();
}

/// [`Toy`], with a look at its nonces: none is used twice with one key, by either host.
#[derive(Clone, Copy, Debug)]
pub struct Watched(Toy);

impl Cipher for Watched {
    const FRAMES_PER_KEY_LOG2: u32 = Toy::FRAMES_PER_KEY_LOG2;

    fn new(suite: Suite, key: &[u8; KEY_BYTES]) -> Self {
        Self(Toy::new(suite, key))
    }

    fn seal(&self, nonce: &Iv, head: &[u8], body: &mut [u8]) -> Tag {
        let is_new = NONCES.with_borrow_mut(|nonces| nonces.insert((self.0, *nonce)));
        assert!(is_new, "a nonce is used twice");
        self.0.seal(nonce, head, body)
    }

    fn open(&self, nonce: &Iv, head: &[u8], body: &mut [u8], tag: &Tag) -> bool {
        self.0.open(nonce, head, body, tag)
    }
}

/// What a step of a link asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    Up,
    Down(Down),
    Deliver(Lane, Vec<u8>),
}

/// A host's side of its link.
#[derive(Clone, Debug, Default)]
pub struct Owner {
    pub frame_bytes: usize,
    pub host: u64,
    pub nonces: u64,
    pub refuses: bool,
    pub sent: Vec<Vec<u8>>,
    pub said: Vec<Said>,
}

impl Owner {
    pub fn new(host: u64, frame_bytes: usize) -> Self {
        Self {
            frame_bytes,
            host,
            ..Self::default()
        }
    }
}

impl Actions for Owner {
    fn transmit(&mut self, fill: impl FnOnce(&mut [u8]) -> usize) -> bool {
        let mut frame = vec![0; self.frame_bytes];
        let bytes = fill(&mut frame);
        frame.truncate(bytes);
        self.sent.push(frame);
        true
    }

    fn deliver(&mut self, lane: Lane, message: &[u8]) -> bool {
        if !self.refuses {
            self.said.push(Said::Deliver(lane, message.to_vec()));
        }
        !self.refuses
    }

    fn nonce(&mut self) -> Nonce {
        self.nonces += 1;
        let half = mix(self.host + 1, self.nonces).to_le_bytes();
        [half, half].concat().try_into().unwrap()
    }

    fn up(&mut self) {
        self.said.push(Said::Up);
    }

    fn down(&mut self, why: Down) {
        self.said.push(Said::Down(why));
    }
}

pub const KEY: Secret = Secret([7; 32]);

pub fn settings(host: u8, frame_bytes: usize) -> Settings {
    let mac = |host| [2, 0, 0, 0, 0, host];
    Settings {
        host,
        peer: 1 - host,
        macs: [mac(host), mac(1 - host)],
        epoch: 3,
        frame_bytes,
        timeout_floor_ns: 20_000,
        delay_ns: 5_000,
        hello_ns: 1_000_000,
        is_open: false,
        suite: Suite::Aes,
    }
}

/// What a host has at its start of that number: another than at the one before.
pub fn suite(start: u32) -> Suite {
    [Suite::ChaCha, Suite::Aes][start as usize % 2]
}

/// One end, and what is known of it.
#[derive(Clone, Debug)]
pub struct Host<C, const SLOTS: usize> {
    pub link: Link<C, Vec<u8>, SLOTS>,
    pub owner: Owner,
    /// How often it was started.
    pub starts: u32,
}

pub fn link<C: Cipher, const SLOTS: usize>(
    settings: Settings,
    key: Secret,
    owner: &mut Owner,
) -> Link<C, Vec<u8>, SLOTS> {
    let bytes = |lane: Lane| vec![0; lane.buffer_bytes(SLOTS, settings.frame_bytes)];
    let buffers = [(); 2].map(|()| Lane::ALL.map(bytes));
    Link::new(settings, key, buffers, owner.nonce()).unwrap()
}

/// What was sent and came in one session: by sender and lane.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct History {
    pub sent: [[Vec<Vec<u8>>; LANES]; 2],
    pub came: [[usize; LANES]; 2],
}

/// Both hosts, and all that they have said in each session.
#[derive(Clone, Debug)]
pub struct Pair<C, const SLOTS: usize> {
    pub hosts: [Host<C, SLOTS>; 2],
    pub frame_bytes: usize,
    pub histories: BTreeMap<u32, History>,
    /// Which start of a host sealed frames of a session.
    sealed_by: BTreeMap<(u8, u32), u32>,
    /// Numbers of frames that were sealed: by sender, session and counter.
    sealed: HashSet<(u8, u32, u64)>,
    /// Whether numbers are looked at; not where states that share a past are explored.
    pub checks_numbers: bool,
}

impl<C: Cipher + Clone, const SLOTS: usize> Pair<C, SLOTS> {
    pub fn new(frame_bytes: usize) -> Self {
        let hosts = [0, 1].map(|host: u8| {
            let mut owner = Owner::new(host.into(), frame_bytes);
            let link = link(settings(host, frame_bytes), KEY, &mut owner);
            Host {
                link,
                owner,
                starts: 1,
            }
        });
        Self {
            hosts,
            frame_bytes,
            histories: BTreeMap::new(),
            sealed_by: BTreeMap::new(),
            sealed: HashSet::new(),
            checks_numbers: true,
        }
    }

    /// A host loses all it knew.
    pub fn restart(&mut self, host: usize) {
        let at = &mut self.hosts[host];
        at.starts += 1;
        let settings = Settings {
            suite: suite(at.starts),
            ..settings(host as u8, self.frame_bytes)
        };
        at.link = link(settings, KEY, &mut at.owner);
    }

    /// Steps a host, checks what it says; gives the frames that it sent.
    pub fn step(&mut self, host: usize, now: u64, event: Event<'_>) -> Vec<Vec<u8>> {
        let session = self.hosts[host].link.session();
        let sent = match event {
            Event::Send(lane, message) => Some((lane, message.concat())),
            _ => None,
        };
        let at = &mut self.hosts[host];
        let done = at.link.step(now, event, &mut at.owner);
        let said = std::mem::take(&mut at.owner.said);
        if let Some((lane, message)) = sent {
            assert_eq!(done == Err(Refused::NoSession), session.is_none());
            if let (Ok(()), Some(session)) = (done, session) {
                let history = self.histories.get_mut(&session).unwrap();
                history.sent[host][lane as usize].push(message);
            }
        }
        self.check_said(host, session, said);
        let frames = std::mem::take(&mut self.hosts[host].owner.sent);
        for frame in &frames {
            self.check_frame(frame);
        }
        frames
    }

    fn check_said(&mut self, host: usize, mut session: Option<u32>, said: Vec<Said>) {
        for what in said {
            match what {
                Said::Up => {
                    assert_eq!(session, None, "a session begins when none is up");
                    session = self.hosts[host].link.session();
                    self.histories.entry(session.unwrap()).or_default();
                }
                Said::Down(why) => {
                    assert_eq!(why, Down::Replaced);
                    let ended = session.take().unwrap();
                    let peer = self.sealed_by[&(1 - host as u8, ended)];
                    let is_gone = peer < self.hosts[1 - host].starts;
                    assert!(is_gone, "a session ends only after the peer's restart");
                }
                Said::Deliver(lane, message) => {
                    let history = self.histories.get_mut(&session.unwrap()).unwrap();
                    let n = &mut history.came[1 - host][lane as usize];
                    let expected = history.sent[1 - host][lane as usize].get(*n);
                    assert_eq!(Some(&message), expected, "lane {lane:?}, message {n}");
                    *n += 1;
                }
            }
        }
        assert_eq!(session, self.hosts[host].link.session());
    }

    fn check_frame(&mut self, frame: &[u8]) {
        let (prefix, _) = Prefix::ref_from_prefix(frame).unwrap();
        if prefix.kind != SEALED {
            assert!(Hello::ref_from_bytes(frame).is_ok());
            return;
        }
        let (sealed, _) = Sealed::ref_from_prefix(frame).unwrap();
        let by = self.hosts[usize::from(prefix.from)].starts;
        let first = self.sealed_by.entry((prefix.from, sealed.session.get()));
        assert_eq!(*first.or_insert(by), by, "a session outlives its host");
        let number = (prefix.from, sealed.session.get(), sealed.counter.get());
        if self.checks_numbers {
            assert!(self.sealed.insert(number), "{number:?} is used twice");
        }
    }

    /// Whether both have the same session.
    pub fn agree(&self) -> bool {
        let [a, b] = [0, 1].map(|host: usize| self.hosts[host].link.session());
        a.is_some() && a == b
    }

    /// Whether all that was sent in the session of both has come.
    pub fn is_done(&self) -> bool {
        let history = self.hosts[0].link.session();
        let history = history.and_then(|session| self.histories.get(&session));
        let has_come = |history: &History| {
            let of_lane = |sent: &[Vec<Vec<u8>>; LANES], came: &[usize; LANES]| {
                (0..LANES).all(|lane| sent[lane].len() == came[lane])
            };
            (0..2).all(|host| of_lane(&history.sent[host], &history.came[host]))
        };
        self.agree() && history.is_some_and(has_come)
    }

    /// Lets all frames through, in order, and time pass, until all is done and both are quiet.
    ///
    /// # Panics
    /// That does not come to be.
    pub fn settle(&mut self, mut now: u64, mut flight: Vec<(usize, Vec<u8>)>) -> u64 {
        for host in &mut self.hosts {
            host.owner.refuses = false;
        }
        for _ in 0..2000 {
            for host in 0..2 {
                let frames = self.step(host, now, Event::Tick);
                flight.extend(frames.into_iter().map(|frame| (1 - host, frame)));
            }
            if flight.is_empty() {
                let next = self.hosts.each_ref().map(|host| host.link.deadline());
                let next = next[0].min(next[1]);
                match next {
                    NEVER if self.is_done() => return now,
                    NEVER => panic!("both are quiet, and not all has come: {:?}", self.histories),
                    _ => now = now.max(next),
                }
            }
            for (to, mut frame) in std::mem::take(&mut flight) {
                now += 100;
                self.step(to, now, Event::Frame(&mut frame));
            }
        }
        panic!(
            "after 2000 rounds: {:?}",
            self.hosts.each_ref().map(|host| host.link.counters)
        );
    }
}

/// Two hosts that have joined, and when.
pub fn joined<C: Cipher + Clone, const SLOTS: usize>(frame_bytes: usize) -> (Pair<C, SLOTS>, u64) {
    let mut pair = Pair::new(frame_bytes);
    let now = pair.settle(0, Vec::new());
    assert!(pair.agree());
    (pair, now)
}

/// Host 0 queues a message.
pub fn send<C: Cipher + Clone, const SLOTS: usize>(
    pair: &mut Pair<C, SLOTS>,
    lane: Lane,
    message: &[u8],
) {
    pair.step(0, 0, Event::Send(lane, [message, &[]]));
}

/// Frames of host 0 go to host 1 and back, for so many rounds; gives how many host 0 sent.
pub fn rounds<C: Cipher + Clone, const SLOTS: usize>(
    pair: &mut Pair<C, SLOTS>,
    now: &mut u64,
    rounds: usize,
) -> usize {
    let mut sent = 0;
    for _ in 0..rounds {
        for host in 0..2 {
            *now += 30_000;
            for mut frame in pair.step(host, *now, Event::Tick) {
                sent += usize::from(host == 0);
                pair.step(1 - host, *now, Event::Frame(&mut frame));
            }
        }
    }
    sent
}
