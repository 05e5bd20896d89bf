//! Hosts with links over a network that loses, repeats, reorders and delays frames, in virtual time.

pub mod plan;

use crate::world::{Doing, Op, World, is_bulk};
use abi::coherence::{Kind, Message};
use abi::link::{LANES, TAG_BYTES};
use model_coherence::{Broken, Event as CoreEvent, NEVER};
use model_link::{
    Actions, Cipher, Down, Event as LinkEvent, Iv, KEY_BYTES, Lane, Link, Nonce, Refused, Secret,
    Settings, Suite, Tag,
};
use plan::Plan;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use tests_explorer::random::Random;

/// A cipher that hides nothing: this network does not forge.
#[derive(Clone, Copy, Debug)]
pub struct Open;

impl Cipher for Open {
    const FRAMES_PER_KEY_LOG2: u32 = 24;

    fn new(_: Suite, _: &[u8; KEY_BYTES]) -> Self {
        Self
    }

    fn seal(&self, _: &Iv, _: &[u8], _: &mut [u8]) -> Tag {
        [0; TAG_BYTES]
    }

    fn open(&self, _: &Iv, _: &[u8], _: &mut [u8], _: &Tag) -> bool {
        true
    }
}

/// Frames whose pieces hold the longest urgent message in three.
const FRAME_BYTES: usize = 320;
const LINK_SLOTS: usize = 32;
/// Messages that a host holds at most.
/// vCPUs of a host at most.
pub const SLOTS: usize = 4;

#[derive(Default)]
struct Owner {
    frames: Vec<Vec<u8>>,
    came: Vec<(Lane, Vec<u8>)>,
    nonces: u8,
}

impl Actions for Owner {
    fn transmit(&mut self, fill: impl FnOnce(&mut [u8]) -> usize) -> bool {
        let mut frame = vec![0; FRAME_BYTES];
        let bytes = fill(&mut frame);
        frame.truncate(bytes);
        self.frames.push(frame);
        true
    }

    fn deliver(&mut self, lane: Lane, message: &[u8]) -> bool {
        self.came.push((lane, message.to_vec()));
        true
    }

    fn nonce(&mut self) -> Nonce {
        self.nonces += 1;
        [self.nonces; 16]
    }

    fn up(&mut self) {}

    fn down(&mut self, why: Down) {
        panic!("a session ended: {why:?}");
    }
}

/// How often each host has invalidated, as far as somebody knows.
type Clocks = Vec<u64>;

/// One end of a link, and the messages that its lanes have no room for.
struct End {
    link: Link<Open, Vec<u8>, LINK_SLOTS>,
    owner: Owner,
    waiting: [VecDeque<Vec<u8>>; LANES],
    /// What the senders of messages under way to this end knew.
    knew: [VecDeque<Clocks>; LANES],
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Frame {
        from: usize,
        to: usize,
        bytes: Vec<u8>,
    },
    LinkTick(usize, usize),
    CoreTick(usize),
    Run(usize),
    Retire(usize),
    Die(usize),
    Lost(usize, usize),
}

/// What a run counted.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    pub messages: BTreeMap<String, u64>,
    pub bytes: u64,
    pub frames: u64,
    pub lost: u64,
    pub instructions: u64,
    pub ns: u64,
}

pub struct Cluster<const HOSTS: usize> {
    plan: Plan,
    world: World<HOSTS, SLOTS>,
    ends: Vec<Option<End>>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    serial: u64,
    random: Random,
    now: u64,
    is_dead: Vec<bool>,
    /// A host has died.
    is_lost: bool,
    /// What each host knows, by host; and which invalidations of others it has done.
    knows: Vec<Clocks>,
    executed: Vec<Clocks>,
    /// Of each host, its invalidations that it has sent.
    announced: Clocks,
    scheduled: Vec<bool>,
    pub counts: Counts,
    pub prints: bool,
}

impl<const HOSTS: usize> Cluster<HOSTS> {
    pub fn new(plan: &Plan, prints: bool) -> Self {
        let end = |n: usize| {
            let (host, peer) = (n / HOSTS, n % HOSTS);
            let settings = Settings {
                host: host as u8,
                peer: peer as u8,
                macs: [[2; 6]; 2],
                epoch: 1,
                frame_bytes: FRAME_BYTES,
                timeout_floor_ns: 50_000,
                delay_ns: 5_000,
                hello_ns: 100_000,
                is_open: false,
                suite: Suite::Aes,
            };
            let bytes = |lane: Lane| vec![0; lane.buffer_bytes(LINK_SLOTS, FRAME_BYTES)];
            let buffers = [(); 2].map(|()| Lane::ALL.map(bytes));
            let nonce = [0x80 | n as u8; 16];
            (host != peer).then(|| End {
                link: Link::new(settings, Secret([1; 32]), buffers, nonce).unwrap(),
                owner: Owner::default(),
                waiting: Default::default(),
                knew: Default::default(),
            })
        };
        let mut cluster = Self {
            world: World::new(&plan.scenario),
            ends: (0..HOSTS * HOSTS).map(end).collect(),
            events: BinaryHeap::new(),
            serial: 0,
            random: Random(plan.seed),
            now: 0,
            is_dead: vec![false; HOSTS],
            is_lost: false,
            knows: vec![vec![0; HOSTS]; HOSTS],
            executed: vec![vec![0; HOSTS]; HOSTS],
            announced: vec![0; HOSTS],
            scheduled: vec![false; plan.scenario.scripts.len()],
            counts: Counts::default(),
            plan: plan.clone(),
            prints,
        };
        for n in (0..HOSTS * HOSTS).filter(|n| n / HOSTS != n % HOSTS) {
            cluster.at(0, Event::LinkTick(n / HOSTS, n % HOSTS));
        }
        if let Some((host, ns)) = plan.death {
            cluster.at(ns, Event::Die(host));
        }
        (0..HOSTS).for_each(|host| cluster.schedule(host));
        cluster
    }

    fn at(&mut self, ns: u64, event: Event) {
        self.serial += 1;
        self.events.push(Reverse((ns, self.serial, event)));
    }

    fn stops(&self, host: usize) -> bool {
        self.is_dead[host] || self.world.nodes[host].broken.is_some()
    }

    /// Runs until all scripts are done.
    ///
    /// # Panics
    /// Something is wrong, or the scripts take too long.
    pub fn run(&mut self) {
        for _ in 0..3_000_000 {
            let mut vcpus = self.world.vcpus.iter();
            let are_done = vcpus.all(|vcpu| vcpu.is_done() || self.stops(vcpu.host));
            let mut leavers = self.plan.leavers.iter();
            let has_lost =
                self.is_lost || (0..HOSTS).any(|host| self.world.nodes[host].broken.is_some());
            if are_done && (has_lost || leavers.all(|host| self.is_off(*host))) {
                self.counts.ns = self.now;
                return;
            }
            let Some(Reverse((ns, _, event))) = self.events.pop() else {
                break;
            };
            self.now = ns;
            if self.prints && !matches!(event, Event::Frame { .. } | Event::LinkTick(..)) {
                println!("{:>9} {event:?}", self.now);
            }
            self.handle(event);
            for host in self.plan.leavers.clone() {
                self.leave(host);
                self.is_dead[host] |= self.is_off(host);
            }
        }
        panic!(
            "not all complete after {} ns: {:?}",
            self.now, self.world.vcpus
        );
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Frame {
                from,
                to,
                mut bytes,
            } => {
                self.link(to, from, LinkEvent::Frame(&mut bytes));
                self.link(to, from, LinkEvent::Tick);
            }
            Event::LinkTick(host, peer) => {
                let end = self.ends[host * HOSTS + peer].as_ref().unwrap();
                if end.link.deadline() <= self.now {
                    self.link(host, peer, LinkEvent::Tick);
                }
            }
            Event::CoreTick(host) => {
                if self.world.nodes[host].core.deadline() <= self.now {
                    self.core(host, CoreEvent::Tick, false);
                }
            }
            Event::Run(n) => self.run_vcpu(n),
            Event::Retire(n) => {
                let host = self.world.vcpus[n].host;
                if !self.stops(host) {
                    let sent = self.world.retire(n, self.now);
                    self.scheduled[n] = false;
                    self.after(host, sent, false);
                }
            }
            Event::Die(host) if self.is_dead[host] => {}
            Event::Die(host) => {
                (self.is_dead[host], self.is_lost) = (true, true);
                for peer in (0..HOSTS).filter(|peer| *peer != host) {
                    let later = self.random.within(100_000, 3_000_000);
                    self.at(self.now + later, Event::Lost(peer, host));
                }
            }
            Event::Lost(host, dead) => {
                self.core(host, CoreEvent::Lost(dead as u8), false);
            }
        }
    }

    /// Lets a host leave whose scripts are done.
    fn leave(&mut self, host: usize) {
        let mut vcpus = self.world.vcpus.iter();
        let are_done = vcpus.all(|vcpu| vcpu.host != host || vcpu.is_done());
        let core = &self.world.nodes[host].core;
        if self.plan.leavers.contains(&host) && are_done && !core.leaves() && !self.stops(host) {
            self.core(host, CoreEvent::Leave, false);
        }
    }

    /// Whether a host has left, and its last urgent message has come: it is switched off then.
    fn is_off(&self, host: usize) -> bool {
        let is_idle = |peer: usize| {
            let end = self.ends[host * HOSTS + peer].as_ref().unwrap();
            let urgent = Lane::Urgent;
            end.link.room(urgent) == LINK_SLOTS && end.waiting[urgent as usize].is_empty()
        };
        let mut others = (0..HOSTS).filter(|peer| *peer != host && !self.is_dead[*peer]);
        self.is_dead[host] || self.world.nodes[host].core.has_left() && others.all(is_idle)
    }

    fn run_vcpu(&mut self, n: usize) {
        let vcpu = &self.world.vcpus[n];
        let host = vcpu.host;
        self.scheduled[n] = false;
        if self.stops(host) || vcpu.doing != Doing::Runs || vcpu.is_done() {
            return;
        }
        if self.random.permille(self.plan.away_permille) && vcpu.has_faulted {
            let number = vcpu.number;
            self.scheduled[n] = true;
            let later = self.random.within(10_000, 3_000_000);
            self.at(self.now + later, Event::Run(n));
            self.core(host, CoreEvent::Away(number), false);
            return;
        }
        if let Op::Tlbi(_) = vcpu.script[vcpu.at] {
            self.knows[host][host] += 1;
        }
        self.counts.instructions += 1;
        let sent = self.world.run(n, self.now);
        self.after(host, sent, false);
        if self.random.permille(100) {
            let page = self.random.below(self.plan.scenario.homes.len()) as u32;
            self.core(host, CoreEvent::Quiet(page), false);
        }
    }

    /// Steps a core, unless its host has stopped.
    fn core(&mut self, host: usize, event: CoreEvent<'_>, is_answer: bool) {
        if !self.stops(host) {
            let sent = self.world.step(host, self.now, event);
            self.after(host, sent, is_answer);
        }
    }

    /// Sends what a core wants sent. What an answer lets go was held before the invalidations that are not sent.
    fn after(&mut self, host: usize, sent: Vec<(u8, Vec<u8>)>, is_answer: bool) {
        if let Some(why) = self.world.nodes[host].broken {
            assert!(matches!(why, Broken::Lost(_)), "{why}");
        }
        let mut knew = self.knows[host].clone();
        if is_answer {
            knew[host] = self.announced[host];
        }
        for (to, bytes) in sent {
            let (message, _) = Message::parse(&bytes).unwrap();
            *self
                .counts
                .messages
                .entry(format!("{:?}", message.kind))
                .or_default() += 1;
            self.counts.bytes += bytes.len() as u64;
            if self.prints {
                println!("{:>9}   {host} to {to}: {message:?}", self.now);
            }
            let is_tlbi = message.kind == Kind::Tlbi;
            if is_tlbi {
                self.announced[host] = self.knows[host][host];
            }
            let knew = if is_tlbi { &self.knows[host] } else { &knew };
            let (to, lane) = (usize::from(to), usize::from(is_bulk(&bytes)));
            let other = self.ends[to * HOSTS + host].as_mut().unwrap();
            other.knew[lane].push_back(knew.clone());
            let end = self.ends[host * HOSTS + to].as_mut().unwrap();
            end.waiting[lane].push_back(bytes);
            self.at(self.now, Event::LinkTick(host, to));
            self.link(host, to, LinkEvent::Tick);
        }
        let deadline = self.world.nodes[host].core.deadline();
        if deadline != NEVER {
            self.at(deadline, Event::CoreTick(host));
        }
        self.schedule(host);
    }

    /// Lets vCPUs that can go on do so, after some time.
    fn schedule(&mut self, host: usize) {
        for n in 0..self.world.vcpus.len() {
            let vcpu = &self.world.vcpus[n];
            if vcpu.host != host || self.scheduled[n] || vcpu.is_done() {
                continue;
            }
            let (event, least, most) = match vcpu.doing {
                Doing::Runs => (Event::Run(n), 50, 3000),
                Doing::Retires => (Event::Retire(n), 50, 5000),
                Doing::Waits => continue,
            };
            self.scheduled[n] = true;
            let later = self.random.within(least, most);
            self.at(self.now + later, event);
        }
    }

    /// Steps one end of a link, puts its frames on the network, and gives what came to the core.
    fn link(&mut self, host: usize, peer: usize, event: LinkEvent<'_>) {
        if self.is_dead[host] {
            return;
        }
        let end = self.ends[host * HOSTS + peer].as_mut().unwrap();
        let _ = end.link.step(self.now, event, &mut end.owner);
        let mut is_queued = false;
        for lane in Lane::ALL {
            while let Some(message) = end.waiting[lane as usize].front() {
                let send = LinkEvent::Send(lane, [message, &[]]);
                match end.link.step(self.now, send, &mut end.owner) {
                    Ok(()) => is_queued = end.waiting[lane as usize].pop_front().is_some(),
                    Err(Refused::Full | Refused::NoSession) => break,
                    Err(why) => panic!("{why}"),
                }
            }
        }
        if is_queued {
            let _ = end.link.step(self.now, LinkEvent::Tick, &mut end.owner);
        }
        let deadline = end.link.deadline();
        let frames = std::mem::take(&mut end.owner.frames);
        let came = std::mem::take(&mut end.owner.came);
        if deadline != NEVER {
            self.at(deadline.max(self.now + 1), Event::LinkTick(host, peer));
        }
        for bytes in frames {
            self.transmit(host, peer, &bytes);
        }
        for (lane, message) in came {
            self.deliver(host, peer, lane, &message);
        }
    }

    fn deliver(&mut self, host: usize, peer: usize, lane: Lane, bytes: &[u8]) {
        let end = self.ends[host * HOSTS + peer].as_mut().unwrap();
        let knew = end.knew[lane as usize].pop_front().unwrap();
        let (message, _) = Message::parse(bytes).unwrap();
        self.core(
            host,
            CoreEvent::Message(peer as u8, bytes),
            message.kind == Kind::TlbiDone,
        );
        match message.kind {
            Kind::Tlbi => return self.executed[host][peer] = knew[peer],
            // Says nothing about pages.
            Kind::TlbiDone => return,
            _ => {}
        }
        for other in (0..HOSTS).filter(|other| *other != host) {
            // Who leaves has no vCPU that could use an entry.
            assert!(
                knew[other] <= self.executed[host][other] || self.world.nodes[host].core.leaves(),
                "host {host} hears from {peer} of what followed an invalidation of {other}"
            );
            let known = &mut self.knows[host][other];
            *known = (*known).max(knew[other]);
        }
    }

    fn transmit(&mut self, from: usize, to: usize, bytes: &[u8]) {
        self.counts.frames += 1;
        let times = 1 + usize::from(self.random.permille(self.plan.repeat_permille));
        for _ in 0..times {
            let is_cut = self.plan.cut.is_some_and(|(host, begin, end)| {
                [from, to].contains(&host) && (begin..end).contains(&self.now)
            });
            if is_cut || self.random.permille(self.plan.loss_permille) {
                self.counts.lost += 1;
                continue;
            }
            let latency = self.random.within(5_000, 5_001 + self.plan.jitter_ns);
            let bytes = bytes.to_vec();
            self.at(self.now + latency, Event::Frame { from, to, bytes });
        }
    }
}
