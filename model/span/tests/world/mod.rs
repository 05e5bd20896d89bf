//! Hosts of a VM, the messages between them, and what they did.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use model_span::{
    Broken, HOSTS_MAX, Kind, Layout, MEMORY_STEP, Message, Session, State, Stays, Todo,
};
use std::collections::{BTreeMap, VecDeque};
use zerocopy::{IntoBytes, TryFromBytes};

pub const SHAPE: u64 = 0x5a5a;
pub const AHEAD_MAX: u64 = 1000;
pub const LIFE: u32 = 7;

/// Hosts, the messages between them, and what they did.
pub struct World {
    pub hosts: BTreeMap<u8, Session>,
    /// By sender, receiver, and lane of the link: states are on the second.
    pub wires: BTreeMap<(u8, u8, u8), VecDeque<Message>>,
    pub clocks: [u64; HOSTS_MAX],
    /// What hosts were to do, with the host.
    pub done: Vec<(u8, Todo)>,
    /// The register of the only device.
    pub register: u64,
    /// SGIs that came, by the host that had the vCPU, and vCPU: what its state is.
    pub states: BTreeMap<(u8, u8), u32>,
    /// States that follow messages.
    flying: BTreeMap<u8, u32>,
}

impl World {
    pub fn new(hosts: u16, vcpus: u8) -> Self {
        let memory = u64::from(hosts.count_ones()) * MEMORY_STEP;
        let layout = Layout::new(hosts, vcpus, memory).unwrap();
        let session = |host| (host, Session::new(layout, host, SHAPE, AHEAD_MAX));
        Self {
            hosts: layout.hosts().map(session).collect(),
            wires: BTreeMap::new(),
            clocks: [0; HOSTS_MAX],
            done: Vec::new(),
            register: 0,
            states: BTreeMap::new(),
            flying: BTreeMap::new(),
        }
    }

    /// Lets a host do something that sends.
    pub fn act<R>(
        &mut self,
        host: u8,
        act: impl FnOnce(&mut Session, &mut dyn FnMut(u8, Message)) -> R,
    ) -> R {
        let (wires, count) = (&mut self.wires, self.clocks[usize::from(host)]);
        let mut send = |to: u8, mut message: Message| {
            assert_ne!(to, host);
            message.count = count.into();
            let lane = u8::from(message.kind == Kind::State);
            wires
                .entry((host, to, lane))
                .or_default()
                .push_back(message);
        };
        act(self.hosts.get_mut(&host).unwrap(), &mut send)
    }

    pub fn announce(&mut self, host: u8) {
        self.act(host, |session, send| session.announce(LIFE, true, send));
    }

    /// Delivers the first message from one host to another, and not a state; whether one was taken.
    pub fn deliver(&mut self, (from, to): (u8, u8)) -> Result<bool, Broken> {
        self.deliver_of((from, to, 0))
    }

    /// Delivers the first state, which others may overtake.
    pub fn deliver_state(&mut self, (from, to): (u8, u8)) -> Result<bool, Broken> {
        self.deliver_of((from, to, 1))
    }

    fn deliver_of(&mut self, wire: (u8, u8, u8)) -> Result<bool, Broken> {
        let (from, to, _) = wire;
        let first = self.wires.get_mut(&wire).and_then(VecDeque::pop_front);
        let Some(message) = first else {
            return Ok(false);
        };
        let (bytes, clock) = (message.as_bytes(), self.clocks[usize::from(to)]);
        let behind = self.hosts[&to].behind(from, bytes, clock)?;
        if let Some(count) = behind {
            let is_start = message.kind == Kind::Start;
            assert!(count > clock || is_start, "a clock goes back");
            self.clocks[usize::from(to)] = count;
        }
        let todo = self.act(to, |session, send| session.receive(from, bytes, send))?;
        if todo == Todo::Later {
            self.wires.entry(wire).or_default().push_front(message);
            return Ok(false);
        }
        if self.hosts[&to].state() == State::Running && message.life.get() == LIFE {
            assert!(
                self.clocks[usize::from(to)] >= message.count.get(),
                "{message:?}"
            );
        }
        match todo {
            Todo::Asked(asked) => {
                let value = self.serve(to, &asked);
                self.act(to, |session, send| session.reply(&asked, value, send));
            }
            Todo::Arrives(vcpu) => {
                let state = self.flying.remove(&vcpu).expect("its state follows");
                self.states.insert((to, vcpu), state);
                self.hosts.get_mut(&to).unwrap().arrived(vcpu);
            }
            _ => {}
        }
        self.done.push((to, todo));
        Ok(true)
    }

    fn serve(&mut self, host: u8, asked: &Message) -> u64 {
        match asked.kind {
            Kind::Load => self.register,
            Kind::Store => {
                self.register = asked.value.get();
                0
            }
            Kind::Sgi => {
                let all = asked.at.get();
                self.interrupt(host, all);
                0
            }
            _ => u64::from(asked.detail) << 8 | asked.value.get(),
        }
    }

    /// SGIs come to vCPUs of a host, a bit each.
    pub fn interrupt(&mut self, host: u8, vcpus: u64) {
        for vcpu in (0..64_u8).filter(|vcpu| vcpus >> vcpu & 1 != 0) {
            assert_eq!(self.hosts[&host].host_of(vcpu), Some(host));
            *self.states.entry((host, vcpu)).or_default() += 1;
        }
    }

    /// SGIs that have come to a vCPU, wherever it is.
    pub fn sgis(&self, vcpu: u8) -> u32 {
        let its = self.states.iter().filter(|((_, it), _)| *it == vcpu);
        its.map(|(_, count)| count).sum()
    }

    /// The host that runs a vCPU; none while it is on its way.
    pub fn runs_at(&self, vcpu: u8) -> Option<u8> {
        let has = |(host, session): (&u8, &Session)| {
            let is_its = session.host_of(vcpu) == Some(*host);
            is_its.then_some(*host)
        };
        let mut hosts = self.hosts.iter().filter_map(has);
        let host = hosts.next();
        assert_eq!(hosts.next(), None, "two hosts have vCPU {vcpu}");
        host
    }

    pub fn ask(&mut self, host: u8, vcpu: u8, what: (Kind, u8, u64, u64)) {
        self.act(host, |session, send| session.ask(vcpu, what, send));
    }

    /// Lets a vCPU begin to leave its host.
    pub fn move_vcpu(&mut self, host: u8, vcpu: u8, to: u8) -> Result<(), Stays> {
        self.act(host, |session, send| session.move_vcpu(vcpu, to, send))
    }

    /// Lets the vCPU go that leaves a host, if it has nothing under way; whether one went.
    pub fn leave(&mut self, host: u8) -> bool {
        let session = &self.hosts[&host];
        let Some((vcpu, _)) = session.leaves().filter(|it| session.is_idle(it.0)) else {
            return false;
        };
        let state = self.states.remove(&(host, vcpu)).unwrap_or_default();
        assert_eq!(self.flying.insert(vcpu, state), None);
        self.act(host, |session, send| session.left(send));
        true
    }

    pub fn settle(&mut self) {
        loop {
            let wires: Vec<_> = self.wires.keys().copied().collect();
            let taken = wires.into_iter().map(|wire| self.deliver_of(wire).unwrap());
            let any = taken.fold(false, |any, taken| any | taken);
            let hosts: Vec<u8> = self.hosts.keys().copied().collect();
            let left = hosts.into_iter().filter(|host| self.leave(*host)).count();
            if !any && left == 0 {
                break;
            }
        }
        assert!(
            self.wires.values().all(VecDeque::is_empty),
            "a message is held for ever"
        );
    }

    pub fn started(hosts: u16, vcpus: u8) -> Self {
        let mut world = Self::new(hosts, vcpus);
        let all: Vec<u8> = world.hosts.keys().copied().collect();
        for host in all {
            world.announce(host);
        }
        world.settle();
        assert!(world.hosts.values().all(|it| it.state() == State::Running));
        world
    }

    /// Sends a message as if that host had; what the receiver says.
    pub fn forge(
        &mut self,
        from: u8,
        to: u8,
        change: impl FnOnce(&mut Message),
    ) -> Result<Todo, Broken> {
        let zeroes = [0_u8; size_of::<Message>() - 1];
        let bytes: Vec<u8> = [Kind::Sgi as u8].into_iter().chain(zeroes).collect();
        let mut message = Message::try_read_from_bytes(&bytes).unwrap();
        message.life = LIFE.into();
        change(&mut message);
        self.act(to, |session, send| {
            session.receive(from, message.as_bytes(), send)
        })
    }
}
