//! Hosts without a network between them.

use super::{Doing, LEASE_NS, Op, Scenario, WORDS, World};
use abi::coherence::{Kind, Message};
use model_coherence::{Event, Switches};
use std::collections::VecDeque;

/// Hosts whose messages come at once, in order; what was sent is kept.
pub struct Line<const HOSTS: usize> {
    pub world: World<HOSTS, 10>,
    pub sent: Vec<Message>,
    pub now: u64,
}

impl<const HOSTS: usize> Line<HOSTS> {
    pub fn new(scripts: &[(usize, &[Op])], homes: &[usize], switches: Switches) -> Self {
        Self::with(1, scripts, homes, switches)
    }

    /// As [`Self::new`], where all words are `word` at first.
    pub fn with(word: u8, scripts: &[(usize, &[Op])], homes: &[usize], switches: Switches) -> Self {
        let scripts = scripts.iter().map(|(host, s)| (*host, s.to_vec()));
        let scenario = Scenario {
            scripts: scripts.collect(),
            initial: vec![[word; WORDS]; homes.len()],
            homes: homes.to_vec(),
            switches,
            lease_ns: LEASE_NS,
        };
        Self {
            world: World::new(&scenario),
            sent: Vec::new(),
            now: 0,
        }
    }

    pub fn carry(&mut self, from: usize, sent: Vec<(u8, Vec<u8>)>) {
        let with_sender = |from: usize| move |(to, bytes): (u8, Vec<u8>)| (from, to, bytes);
        let mut under_way: VecDeque<_> = sent.into_iter().map(with_sender(from)).collect();
        while let Some((from, to, bytes)) = under_way.pop_front() {
            self.sent.push(Message::parse(&bytes).unwrap().0);
            let to = usize::from(to);
            let event = Event::Message(from as u8, &bytes);
            let sent = self.world.step(to, self.now, event);
            under_way.extend(sent.into_iter().map(with_sender(to)));
        }
    }

    pub fn event(&mut self, host: usize, event: Event<'_>) {
        let sent = self.world.step(host, self.now, event);
        self.carry(host, sent);
    }

    /// Runs the next instruction of a vCPU, until it waits or has retired.
    pub fn run(&mut self, n: usize) {
        let at = self.world.vcpus[n].at;
        while self.world.vcpus[n].at == at && self.world.vcpus[n].doing == Doing::Runs {
            let host = self.world.vcpus[n].host;
            let sent = self.world.run(n, self.now);
            self.carry(host, sent);
        }
        if self.world.vcpus[n].doing == Doing::Retires {
            let sent = self.world.retire(n, self.now);
            self.carry(self.world.vcpus[n].host, sent);
        }
    }

    /// Runs a whole script; returns the messages of that kind meanwhile.
    pub fn run_all(&mut self, n: usize, kind: Kind) -> Vec<Message> {
        self.sent.clear();
        while !self.world.vcpus[n].is_done() {
            self.run(n);
            let mut nodes = self.world.nodes.iter();
            assert_eq!(nodes.find_map(|node| node.broken), None);
        }
        let sent = self.sent.iter().copied();
        sent.filter(|message| message.kind == kind).collect()
    }
}

/// The protocol without all that is beyond IVY's.
pub const IVY: Switches = Switches {
    versions: false,
    zero: false,
    lazy_tlbi: false,
    burst: false,
    companions: false,
    hold: false,
    push: false,
    changes: false,
    migratory: false,
};
