//! Random histories of four hosts whose vCPUs ask, send SGIs and move.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod world;

use model_span::{Kind, State, Todo};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use world::World;

const VCPUS: u8 = 8;

/// A step of a history.
#[derive(Clone, Copy, Debug)]
enum Step {
    Load(u8),
    Store(u8, u64),
    Sgi(u8, u64),
    Affinity(u8, u8),
    Move(u8, u8),
    Leave(u8),
    Stay(u8),
    Part(u8),
    Empty(u8, u8),
    Deliver(u8, u8),
    DeliverState(u8, u8),
    Pass(u8, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        1 => (0..VCPUS).prop_map(Step::Load),
        1 => (0..VCPUS, 1..1000_u64).prop_map(|(vcpu, value)| Step::Store(vcpu, value)),
        2 => (0..VCPUS, 0..256_u64).prop_map(|(vcpu, targets)| Step::Sgi(vcpu, targets)),
        1 => (0..VCPUS, 0..VCPUS).prop_map(|(vcpu, target)| Step::Affinity(vcpu, target)),
        1 => (0..VCPUS, 0..4_u8).prop_map(|(vcpu, to)| Step::Move(vcpu, to)),
        2 => (0..4_u8).prop_map(Step::Leave),
        1 => (0..4_u8).prop_map(Step::Stay),
        3 => (0..4_u8).prop_map(Step::Part),
        6 => (1..4_u8, 0..VCPUS).prop_map(|(host, vcpu)| Step::Empty(host, vcpu)),
        16 => (0..4_u8, 0..4_u8).prop_map(|(from, to)| Step::Deliver(from, to)),
        3 => (0..4_u8, 0..4_u8).prop_map(|(from, to)| Step::DeliverState(from, to)),
        1 => (0..4_u8, 1..100_u64).prop_map(|(host, counts)| Step::Pass(host, counts)),
    ];
    prop::collection::vec(step, 1..400)
}

/// What vCPUs do, and what they have been told.
struct History {
    world: World,
    sent: [u32; VCPUS as usize],
    /// What each vCPU asked last, and the answer of a PSCI call.
    asked: BTreeMap<u8, Option<u64>>,
    /// Hosts that have left.
    parted: BTreeSet<u8>,
}

impl History {
    /// Lets vCPUs take the answers that have come.
    fn take_answers(&mut self) {
        for (vcpu, wanted) in self.asked.clone() {
            // Or it is to ask again.
            let Some(host) = self.world.runs_at(vcpu) else {
                continue;
            };
            if !self.world.hosts[&host].waits(vcpu) {
                let answer = self.world.act(host, |session, _| session.take_answer(vcpu));
                self.asked.remove(&vcpu);
                if let (Some(wanted), Some(answer)) = (wanted, answer) {
                    assert_eq!(answer, wanted);
                }
            }
        }
    }

    /// A vCPU asks something or sends an SGI, if it runs.
    fn acts(&mut self, vcpu: u8, what: (Kind, u8, u64, u64)) {
        let Some(host) = self.world.runs_at(vcpu) else {
            return;
        };
        if self.world.hosts[&host].waits(vcpu) || self.asked.contains_key(&vcpu) {
            return;
        }
        let (kind, detail, at, _) = what;
        if kind == Kind::Sgi {
            // What this host knows to be here gets it at once.
            let here = |it: u8| self.world.hosts[&host].host_of(it) == Some(host);
            let own = (0..VCPUS)
                .filter(|it| here(*it))
                .fold(0, |own, it| own | 1 << it);
            let went = self.world.act(host, |session, send| {
                session.send_sgi(vcpu, (3, at & !own), send)
            });
            if went.is_some() {
                self.world.interrupt(host, at & own);
                (0..8)
                    .filter(|it| at >> it & 1 != 0)
                    .for_each(|it| self.sent[it] += 1);
            }
            return;
        }
        self.world.ask(host, vcpu, what);
        let wanted = (kind == Kind::AffinityInfo).then_some(u64::from(detail) << 8);
        self.asked.insert(vcpu, wanted);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Deliver(from, to) => {
                if from != to {
                    self.world.deliver((from, to)).unwrap();
                }
                self.take_answers();
            }
            Step::DeliverState(from, to) => {
                self.world.deliver_state((from, to)).unwrap();
            }
            Step::Load(vcpu) => self.acts(vcpu, (Kind::Load, 4, 0, 0)),
            Step::Store(vcpu, value) => self.acts(vcpu, (Kind::Store, 4, 0, value)),
            Step::Affinity(vcpu, target) => self.acts(vcpu, (Kind::AffinityInfo, target, 0, 0)),
            Step::Sgi(vcpu, targets) => self.acts(vcpu, (Kind::Sgi, 0, targets, 0)),
            Step::Move(vcpu, to) => {
                if let Some(host) = self.world.runs_at(vcpu) {
                    let _ = self.world.move_vcpu(host, vcpu, to);
                }
            }
            Step::Leave(host) => {
                self.world.leave(host);
            }
            Step::Stay(host) => self.world.act(host, |session, send| session.stays(send)),
            Step::Part(host) => {
                let parts = self.world.act(host, |session, send| {
                    session.leave().map(|()| session.part(send)).is_ok()
                });
                self.parted.extend(parts.then_some(host));
            }
            Step::Empty(host, vcpu) => {
                if self.world.runs_at(vcpu) == Some(host) {
                    let _ = self.world.move_vcpu(host, vcpu, 0);
                }
            }
            Step::Pass(host, counts) => self.world.clocks[usize::from(host)] += counts,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Each question is done once and answered with what one machine would say; each SGI comes once, wherever its vCPU is by
    /// then; no clock goes back; and in the end every vCPU is somewhere, and all hosts know where.
    #[test]
    fn hosts_do_as_one_machine(steps in steps()) {
        let world = World::started(0b1111, VCPUS);
        let (asked, parted) = (BTreeMap::new(), BTreeSet::new());
        let mut history = History { world, sent: [0; VCPUS as usize], asked, parted };
        for step in steps {
            history.step(step);
        }
        for _ in 0..VCPUS {
            history.world.settle();
            history.take_answers();
        }
        let History { world, sent, parted, .. } = history;
        prop_assert!(parted.iter().all(|host| world.hosts[host].state() == State::Ended));
        for (vcpu, sent) in (0..).zip(sent) {
            prop_assert_eq!(world.sgis(vcpu), sent);
            let at = world.runs_at(vcpu);
            prop_assert!(at.is_some());
            let mut stay = world.hosts.values().filter(|it| it.state() == State::Running);
            prop_assert!(stay.all(|it| it.host_of(vcpu) == at && it.is_idle(vcpu)));
        }
        let stores: Vec<u64> = world.done.iter().filter_map(|(_, todo)| match todo {
            Todo::Asked(m) if m.kind == Kind::Store => Some(m.value.get()),
            _ => None,
        }).collect();
        prop_assert_eq!(world.register, stores.last().copied().unwrap_or(0));
    }
}
