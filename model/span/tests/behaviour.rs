//! Sessions of two to four hosts, with messages in order between two hosts and in any order else.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use model_span::{
    Broken, GROUP1_TOO, HOSTS_MAX, Kind, Layout, MEMORY_STEP, Message, Session, State, Todo, Unfit,
    end,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};
use zerocopy::{IntoBytes, TryFromBytes};

const SHAPE: u64 = 0x5a5a;
const AHEAD_MAX: u64 = 1000;
const LIFE: u32 = 7;

#[test]
fn shares_cover_all_without_overlap() {
    for hosts in [0b11_u16, 0b1010, 0b111, 0b1011_0001, u16::MAX] {
        let count = hosts.count_ones();
        for vcpus in count as u8..=16 {
            let layout = Layout::new(hosts, vcpus, u64::from(count) * 3 * MEMORY_STEP).unwrap();
            let (mut vcpu, mut byte) = (0, 0);
            for host in layout.hosts() {
                let its = layout.vcpus_of(host);
                assert!(its.start == vcpu && !its.is_empty(), "{hosts:#b} {vcpus}");
                for index in its.clone() {
                    assert_eq!(layout.host_of(index), Some(host));
                    assert_eq!(layout.bits_of(host) >> index & 1, 1);
                }
                let memory = layout.memory_of(host);
                assert!(memory.start == byte && memory.end - byte == 3 * MEMORY_STEP);
                (vcpu, byte) = (its.end, memory.end);
            }
            assert_eq!((vcpu, byte), (vcpus, u64::from(count) * 3 * MEMORY_STEP));
            assert_eq!(layout.host_of(vcpus), None);
            assert_eq!(layout.host_of(0), Some(layout.first()));
        }
    }
}

#[test]
fn shares_that_leave_a_host_with_nothing_are_refused() {
    let (one, two) = (MEMORY_STEP, 2 * MEMORY_STEP);
    assert_eq!(Layout::new(0b100, 4, two), Err(Unfit::Hosts(1)));
    assert_eq!(Layout::new(0, 4, two), Err(Unfit::Hosts(0)));
    assert_eq!(Layout::new(0b111, 2, 3 * one), Err(Unfit::Vcpus(2, 3)));
    assert_eq!(Layout::new(0b11, 17, two), Err(Unfit::Vcpus(17, 2)));
    for memory in [0, one, 3 * one, two + 4096] {
        assert_eq!(Layout::new(0b11, 2, memory), Err(Unfit::Memory(memory, 2)));
    }
}

/// Hosts, the messages between them, and what they did.
struct World {
    hosts: BTreeMap<u8, Session>,
    wires: BTreeMap<(u8, u8), VecDeque<Message>>,
    clocks: [u64; HOSTS_MAX],
    /// What hosts were to do, with the host.
    done: Vec<(u8, Todo)>,
    /// The register of the only device.
    register: u64,
    /// SGIs that came, by vCPU.
    sgis: [u32; 16],
}

impl World {
    fn new(hosts: u16, vcpus: u8) -> Self {
        let memory = u64::from(hosts.count_ones()) * MEMORY_STEP;
        let layout = Layout::new(hosts, vcpus, memory).unwrap();
        let session = |host| (host, Session::new(layout, host, SHAPE, AHEAD_MAX));
        Self {
            hosts: layout.hosts().map(session).collect(),
            wires: BTreeMap::new(),
            clocks: [0; HOSTS_MAX],
            done: Vec::new(),
            register: 0,
            sgis: [0; 16],
        }
    }

    /// Lets a host do something that sends.
    fn act<R>(
        &mut self,
        host: u8,
        act: impl FnOnce(&mut Session, &mut dyn FnMut(u8, Message)) -> R,
    ) -> R {
        let (wires, count) = (&mut self.wires, self.clocks[usize::from(host)]);
        let mut send = |to: u8, mut message: Message| {
            assert_ne!(to, host);
            message.count = count.into();
            wires.entry((host, to)).or_default().push_back(message);
        };
        act(self.hosts.get_mut(&host).unwrap(), &mut send)
    }

    fn announce(&mut self, host: u8) {
        self.act(host, |session, send| session.announce(LIFE, true, send));
    }

    /// Delivers the first message of a wire; whether one was taken.
    fn deliver(&mut self, (from, to): (u8, u8)) -> Result<bool, Broken> {
        let Some(message) = self
            .wires
            .get_mut(&(from, to))
            .and_then(VecDeque::pop_front)
        else {
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
            self.wires
                .entry((from, to))
                .or_default()
                .push_front(message);
            return Ok(false);
        }
        if self.hosts[&to].state() == State::Running && message.life.get() == LIFE {
            assert!(
                self.clocks[usize::from(to)] >= message.count.get(),
                "{message:?}"
            );
        }
        if let Todo::Asked(asked) = todo {
            let value = self.serve(to, &asked);
            self.act(to, |session, send| session.reply(&asked, value, send));
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
                for vcpu in (0..16_u8).filter(|vcpu| all >> vcpu & 1 != 0) {
                    assert!(self.hosts[&host].layout().vcpus_of(host).contains(&vcpu));
                    self.sgis[usize::from(vcpu)] += 1;
                }
                0
            }
            _ => u64::from(asked.detail) << 8 | asked.value.get(),
        }
    }

    fn settle(&mut self) {
        loop {
            let wires: Vec<_> = self.wires.keys().copied().collect();
            let taken = wires.into_iter().map(|wire| self.deliver(wire).unwrap());
            if !taken.fold(false, |any, taken| any | taken) {
                break;
            }
        }
        assert!(
            self.wires.values().all(VecDeque::is_empty),
            "a message is held for ever"
        );
    }

    fn started(hosts: u16, vcpus: u8) -> Self {
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
    fn forge(
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

fn ask(world: &mut World, host: u8, vcpu: u8, to: u8, what: (Kind, u8, u64, u64)) {
    world.act(host, |session, send| session.ask(vcpu, to, what, send));
}

#[test]
fn hosts_begin_together_whoever_comes_first() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [2, 0, 1]] {
        let mut world = World::new(0b111, 3);
        for host in order {
            assert!(world.hosts.values().all(|it| it.state() == State::Waiting));
            // A host without the VM drops what comes for it.
            world.announce(host);
            let is_there =
                |host: u8| order[..=order.iter().position(|it| *it == host).unwrap()].len();
            let now = is_there(host);
            let wires: Vec<_> = world.wires.keys().copied().collect();
            for (from, to) in wires.iter().filter(|(_, to)| is_there(*to) > now) {
                world.wires.remove(&(*from, *to));
            }
            world.settle();
        }
        let starts = world.done.iter().filter(|it| it.1 == Todo::Start).count();
        assert!(starts == 3 && world.hosts.values().all(|it| it.state() == State::Running));
    }
}

#[test]
fn hosts_that_do_not_know_all_others_do_not_begin() {
    for late in [0, 1, 2] {
        let mut world = World::new(0b111, 3);
        for host in [0, 1, 2] {
            let has_all = host != late;
            world.act(host, |session, send| {
                session.announce(LIFE, has_all, send);
            });
        }
        world.settle();
        assert!(world.hosts.values().all(|it| it.state() == State::Waiting));
        world.announce(late);
        world.settle();
        assert!(world.hosts.values().all(|it| it.state() == State::Running));
    }
}

/// Of a host that was ready and comes back, nothing is known.
#[test]
fn hosts_are_ready_anew_where_the_membership_has_grown() {
    let mut world = World::new(0b111, 3);
    for host in [0, 2] {
        world.announce(host);
    }
    world.settle();
    let layout = *world.hosts[&0].layout();
    let fresh = Session::new(layout, 2, SHAPE, AHEAD_MAX);
    world.hosts.insert(2, fresh);
    for host in [0, 1] {
        world.announce(host);
    }
    world.settle();
    assert!(world.hosts.values().all(|it| it.state() == State::Waiting));
    world.announce(2);
    world.settle();
    assert!(world.hosts.values().all(|it| it.state() == State::Running));
}

/// A host that cannot reach all others ends the VM: who hears of it tells them, before what it says of another life.
#[test]
fn an_end_comes_before_the_next_life() {
    let mut world = World::started(0b111, 3);
    world.act(1, |session, send| {
        session.tell(Kind::End, end::FAILED, send);
    });
    world.wires.remove(&(1, 2));
    world.deliver((1, 0)).unwrap();
    let layout = *world.hosts[&0].layout();
    world
        .hosts
        .insert(0, Session::new(layout, 0, SHAPE, AHEAD_MAX));
    world.act(0, |session, send| {
        session.announce(LIFE + 1, true, send);
    });
    world.settle();
    let failed = Todo::Live(Kind::End, end::FAILED);
    assert!(world.done.contains(&(2, failed)));
    assert_eq!(world.hosts[&2].state(), State::Ended);
}

#[test]
fn hosts_with_another_description_do_not_begin() {
    let mut world = World::new(0b11, 2);
    let layout = *world.hosts[&0].layout();
    world
        .hosts
        .insert(1, Session::new(layout, 1, SHAPE + 1, AHEAD_MAX));
    world.announce(0);
    world.settle();
    let unlike = Todo::Live(Kind::End, end::UNLIKE);
    assert!(world.done.contains(&(0, unlike)) && world.done.contains(&(1, unlike)));
    assert!(world.hosts.values().all(|it| it.state() == State::Ended));
}

#[test]
fn a_third_host_that_starts_sooner_is_waited_for() {
    let mut world = World::new(0b111, 3);
    for host in [0, 1, 2] {
        world.announce(host);
    }
    while world.hosts[&1].state() == State::Waiting {
        for wire in [(1, 0), (0, 1), (2, 0)] {
            world.deliver(wire).unwrap();
        }
        if world.hosts[&0].state() == State::Waiting {
            world.deliver((0, 2)).unwrap();
        }
    }
    assert_eq!(world.hosts[&2].state(), State::Waiting);
    ask(&mut world, 1, 1, 2, (Kind::AffinityInfo, 2, 0, 0));
    assert_eq!(world.deliver((1, 2)), Ok(false), "it is held");
    world.settle();
    assert_eq!(
        world.act(1, |session, _| session.take_answer(1)),
        Some(2 << 8)
    );
}

#[test]
fn any_host_pauses_resumes_and_ends_all() {
    let mut world = World::started(0b1011, 4);
    for (host, kind, detail) in [
        (1, Kind::Pause, 0),
        (3, Kind::Resume, 1),
        (0, Kind::End, end::KILLED),
    ] {
        world.done.clear();
        world.act(host, |session, send| session.tell(kind, detail, send));
        world.settle();
        // Who hears of an end tells it once more, which means nothing.
        world.done.retain(|it| it.1 != Todo::Nothing);
        let heard: Vec<u8> = world.done.iter().map(|it| it.0).collect();
        assert!(heard.len() == 2 && !heard.contains(&host));
        assert!(world.done.iter().all(|it| it.1 == Todo::Live(kind, detail)));
    }
    // After its end, messages mean nothing, and nothing is told again.
    world.act(1, |session, send| {
        session.tell(Kind::End, end::KILLED, send);
    });
    assert!(world.wires.values().all(VecDeque::is_empty));
    assert_eq!(
        world.forge(1, 0, |m| m.kind = Kind::Pause),
        Ok(Todo::Nothing)
    );
}

#[test]
fn a_vcpu_has_one_thing_under_way() {
    let mut world = World::started(0b11, 4);
    let sgi = |world: &mut World| {
        world.act(1, |session, send| {
            session.send_sgi(3, (5 | GROUP1_TOO, 0b1), send)
        })
    };
    assert!(sgi(&mut world));
    assert!(!world.hosts[&1].waits(3), "nobody waits for an SGI");
    assert!(!sgi(&mut world), "the next one waits");
    assert!(world.hosts[&1].waits(3));
    ask(&mut world, 1, 3, 0, (Kind::Load, 4, 0x1000, 0));
    assert_eq!(world.wires[&(1, 0)].len(), 1);
    world.settle();
    assert!(world.done.contains(&(1, Todo::Wake(3))) && world.sgis[0] == 1);
    let answer = world.act(1, |session, _| session.take_answer(3));
    assert_eq!(answer, None, "it asks again");
    world.register = 77;
    ask(&mut world, 1, 3, 0, (Kind::Load, 4, 0x1000, 0));
    world.settle();
    assert_eq!(world.act(1, |session, _| session.take_answer(3)), Some(77));
    assert_eq!(world.act(1, |session, _| session.take_answer(3)), None);
}

#[test]
fn what_hosts_must_not_say_ends_the_vm() {
    let malformed = Err(Broken::Malformed(1));
    let unexpected = |kind| Err(Broken::Unexpected(1, kind));
    let mut world = World::started(0b111, 6);
    // vCPUs 0, 1 | 2, 3 | 4, 5.
    let wrong: [fn(&mut Message); 9] = [
        |m| m.zero = 1,
        |m| (m.vcpu, m.at) = (4, 1.into()),
        |m| (m.vcpu, m.at) = (2, 4.into()),
        |m| (m.vcpu, m.at) = (2, (1 << 40).into()),
        |m| (m.vcpu, m.detail) = (2, 2 * GROUP1_TOO),
        |m| (m.kind, m.vcpu, m.detail) = (Kind::CpuOn, 2, 3),
        |m| (m.kind, m.vcpu, m.detail) = (Kind::Load, 2, 3),
        |m| (m.kind, m.detail) = (Kind::End, end::LAST + 1),
        |m| (m.kind, m.detail) = (Kind::Pause, 2),
    ];
    for (n, change) in wrong.into_iter().enumerate() {
        assert_eq!(world.forge(1, 0, change), malformed, "{n}");
    }
    for kind in [Kind::Offer, Kind::Start, Kind::Reply] {
        assert_eq!(world.forge(1, 0, |m| m.kind = kind), unexpected(kind));
    }
    let load = |m: &mut Message| (m.kind, m.vcpu, m.detail) = (Kind::Load, 2, 4);
    assert_eq!(
        world.forge(1, 2, load),
        unexpected(Kind::Load),
        "it has no devices"
    );
    let own = world.forge(0, 0, |m| m.kind = Kind::Pause);
    assert_eq!(own, Err(Broken::Unexpected(0, Kind::Pause)));
    for from in [3, 15] {
        let ends = world.forge(from, 0, |m| (m.kind, m.zero) = (Kind::End, 1));
        assert_eq!(ends, Ok(Todo::Nothing), "it has another VM");
    }
    let short = world.act(0, |session, send| {
        session.receive(1, &[Kind::Sgi as u8; 31], send)
    });
    assert_eq!(short, malformed);
    // A message of another life means nothing.
    assert_eq!(
        world.forge(1, 0, |m| m.life = (LIFE - 1).into()),
        Ok(Todo::Nothing)
    );
    // Clocks do not jump.
    world.clocks[1] = AHEAD_MAX + 1;
    world.act(1, |session, send| session.tell(Kind::Pause, 0, send));
    assert_eq!(world.deliver((1, 0)), Err(Broken::Clock(1, AHEAD_MAX + 1)));
}

/// A step of a random history.
#[derive(Clone, Debug)]
enum Step {
    Load(u8),
    Store(u8, u64),
    Sgi(u8, u64),
    Affinity(u8, u8),
    Deliver(u8, u8),
    Pass(u8, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        1 => (0..8_u8).prop_map(Step::Load),
        1 => (0..8_u8, 1..1000_u64).prop_map(|(vcpu, value)| Step::Store(vcpu, value)),
        1 => (0..8_u8, 0..256_u64).prop_map(|(vcpu, targets)| Step::Sgi(vcpu, targets)),
        1 => (0..8_u8, 0..8_u8).prop_map(|(vcpu, target)| Step::Affinity(vcpu, target)),
        8 => (0..4_u8, 0..4_u8).prop_map(|(from, to)| Step::Deliver(from, to)),
        1 => (0..4_u8, 1..100_u64).prop_map(|(host, counts)| Step::Pass(host, counts)),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Each question is done once and answered with what one machine would say; each SGI comes once; no clock goes back.
    #[test]
    fn hosts_do_as_one_machine(steps in steps()) {
        let mut world = World::started(0b1111, 8);
        let layout = *world.hosts[&0].layout();
        let mut sent = [0_u32; 16];
        // What each vCPU asked last, and the answer of a PSCI call.
        let mut asked: BTreeMap<u8, Option<u64>> = BTreeMap::new();
        for step in steps {
            if let Step::Deliver(from, to) = step {
                if from != to {
                    world.deliver((from, to)).unwrap();
                }
                for (vcpu, wanted) in asked.clone() {
                    let host = layout.host_of(vcpu).unwrap();
                    if !world.hosts[&host].waits(vcpu) {
                        let answer = world.act(host, |session, _| session.take_answer(vcpu));
                        asked.remove(&vcpu);
                        if let (Some(wanted), Some(answer)) = (wanted, answer) {
                            prop_assert_eq!(answer, wanted);
                        }
                    }
                }
                continue;
            }
            let (vcpu, what) = match step {
                Step::Load(vcpu) => (vcpu, (Kind::Load, 4, 0, 0)),
                Step::Store(vcpu, value) => (vcpu, (Kind::Store, 4, 0, value)),
                Step::Affinity(vcpu, target) => (vcpu, (Kind::AffinityInfo, target, 0, 0)),
                Step::Sgi(vcpu, _) => (vcpu, (Kind::Sgi, 0, 0, 0)),
                Step::Pass(host, counts) => {
                    world.clocks[usize::from(host)] += counts;
                    continue;
                }
                Step::Deliver(..) => continue,
            };
            let host = layout.host_of(vcpu).unwrap();
            if world.hosts[&host].waits(vcpu) || asked.contains_key(&vcpu) {
                continue;
            }
            if let Step::Sgi(_, targets) = step {
                let targets = targets & !layout.bits_of(host);
                let went = world.act(host, |session, send| session.send_sgi(vcpu, (3, targets), send));
                (0..16).filter(|it| went && targets >> it & 1 != 0).for_each(|it| sent[it] += 1);
                continue;
            }
            let to = match what.0 {
                Kind::AffinityInfo => layout.host_of(what.1).unwrap(),
                _ => layout.first(),
            };
            if to != host {
                ask(&mut world, host, vcpu, to, what);
                let wanted = (what.0 == Kind::AffinityInfo).then_some(u64::from(what.1) << 8);
                asked.insert(vcpu, wanted);
            }
        }
        world.settle();
        prop_assert_eq!(world.sgis, sent);
        let stores: Vec<u64> = world.done.iter().filter_map(|(_, todo)| match todo {
            Todo::Asked(m) if m.kind == Kind::Store => Some(m.value.get()),
            _ => None,
        }).collect();
        prop_assert_eq!(world.register, stores.last().copied().unwrap_or(0));
        for (host, session) in &world.hosts {
            prop_assert!(layout.vcpus_of(*host).all(|vcpu| !session.waits(vcpu)));
        }
    }
}
