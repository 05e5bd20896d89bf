//! A machine of several nodes in which vCPUs spin and sleep, by the nanosecond.
#![allow(clippy::unwrap_used)]

use model_addr::{CpuId, NodeId};
use model_scheduler::{
    CAP_PERIOD, Entity, EntityId, Kick, MAX_SLICE, NodeSet, Parameters, RunQueue, Steal,
};
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

/// What a vCPU does.
#[derive(Clone, Copy, Debug)]
enum Work {
    Spin,
    /// Runs and sleeps in turn, for these times.
    Sleep(u64, u64),
}

struct Vcpu {
    work: Work,
    /// Where its queue is, as EL2 remembers it.
    node: usize,
    home: usize,
    /// What is left of the run it is in.
    left: u64,
    wakes_at: Option<u64>,
    woken_at: u64,
    longest_wait: u64,
    on_cpu: Option<usize>,
}

#[derive(Clone, Copy)]
struct Running {
    id: EntityId,
    since: u64,
    until: u64,
}

struct Cpu {
    node: usize,
    running: Option<Running>,
}

struct Machine {
    now: u64,
    queues: Vec<RunQueue<'static>>,
    cpus: Vec<Cpu>,
    vcpus: Vec<Vcpu>,
}

impl Machine {
    /// `cpus` says how many CPUs each node has.
    fn new(cpus: &[usize], vcpus: usize) -> Self {
        let mut all = Vec::new();
        let mut queues = Vec::new();
        for (node, count) in cpus.iter().enumerate() {
            let ids: Vec<CpuId> = (0..*count)
                .map(|cpu| CpuId((all.len() + cpu) as u16))
                .collect();
            let storage = Vec::leak(vec![Entity::default(); vcpus]);
            queues.push(RunQueue::new(NodeId(node as u8), &ids, storage));
            all.extend(ids.iter().map(|_| Cpu {
                node,
                running: None,
            }));
        }
        Self {
            now: 0,
            queues,
            cpus: all,
            vcpus: Vec::new(),
        }
    }

    fn add(&mut self, node: usize, work: Work, parameters: Parameters) -> EntityId {
        let id = EntityId(self.vcpus.len() as u16);
        self.queues[node].add(id, parameters, self.now).unwrap();
        let left = if let Work::Sleep(run, _) = work {
            run
        } else {
            u64::MAX
        };
        let wakes_at = Some(self.now);
        let (woken_at, longest_wait, on_cpu) = (0, 0, None);
        self.vcpus.push(Vcpu {
            work,
            node,
            home: node,
            left,
            wakes_at,
            woken_at,
            longest_wait,
            on_cpu,
        });
        id
    }

    fn ran(&self, id: EntityId) -> u64 {
        let node = self.vcpus[usize::from(id.0)].node;
        self.queues[node].entity(id).unwrap().counters().ran
    }

    /// Books what `cpu` ran until now and frees it.
    fn stop(&mut self, cpu: usize) {
        let Some(running) = self.cpus[cpu].running.take() else {
            return;
        };
        let vcpu = &mut self.vcpus[usize::from(running.id.0)];
        assert_eq!(vcpu.on_cpu.take(), Some(cpu));
        let ran = self.now - running.since;
        vcpu.left -= ran.min(vcpu.left);
        let queue = &mut self.queues[vcpu.node];
        match vcpu.work {
            Work::Sleep(run, sleep) if vcpu.left == 0 => {
                vcpu.left = run;
                assert!(queue.block(running.id, ran, self.now));
                vcpu.wakes_at = Some(self.now + sleep);
            }
            _ => queue.put_back(running.id, ran, self.now),
        }
    }

    fn start(&mut self, cpu: usize) {
        assert!(self.cpus[cpu].running.is_none());
        let node = self.cpus[cpu].node;
        if self.queues[node].is_balance_due(self.now) {
            self.steal(node, Steal::Balance);
        }
        let id = CpuId(cpu as u16);
        let mut pick = self.queues[node].pick(id, self.now);
        if pick.is_none() && self.steal(node, Steal::Idle) {
            pick = self.queues[node].pick(id, self.now);
        }
        let Some(pick) = pick else {
            return;
        };
        assert!(pick.slice > 0 && pick.slice <= MAX_SLICE);
        let vcpu = &mut self.vcpus[usize::from(pick.entity.0)];
        assert_eq!(vcpu.on_cpu.replace(cpu), None, "runs twice");
        assert_eq!(vcpu.node, node);
        vcpu.longest_wait = vcpu
            .longest_wait
            .max(self.now - vcpu.woken_at.min(self.now));
        vcpu.woken_at = u64::MAX;
        let until = self.now + pick.slice.min(vcpu.left);
        self.cpus[cpu].running = Some(Running {
            id: pick.entity,
            since: self.now,
            until,
        });
    }

    fn steal(&mut self, node: usize, reason: Steal) -> bool {
        let nodes = self.queues.len();
        for victim in (1..nodes).map(|step| (node + step) % nodes) {
            let [mine, theirs] = self.queues.get_disjoint_mut([node, victim]).unwrap();
            if let Some(id) = mine.steal_from(theirs, reason, self.now) {
                let vcpu = &mut self.vcpus[usize::from(id.0)];
                assert!(vcpu.on_cpu.is_none());
                vcpu.node = node;
                return true;
            }
        }
        false
    }

    fn wake(&mut self, index: usize) {
        self.vcpus[index].wakes_at = None;
        self.vcpus[index].woken_at = self.now;
        self.go_home(index);
        let node = self.vcpus[index].node;
        match self.queues[node]
            .wake(EntityId(index as u16), self.now)
            .unwrap()
        {
            Kick::Idle(cpu) => self.start(usize::from(cpu.0)),
            Kick::Preempt(cpu) => {
                self.stop(usize::from(cpu.0));
                self.start(usize::from(cpu.0));
            }
            Kick::None => {}
        }
    }

    fn go_home(&mut self, index: usize) {
        let Vcpu { home, node, .. } = self.vcpus[index];
        let Ok([mine, away]) = self.queues.get_disjoint_mut([home, node]) else {
            return;
        };
        let had_room = mine.idle_cpu().is_some();
        let went = mine.bring_home(away, EntityId(index as u16), self.now);
        assert_eq!(went, had_room);
        if went {
            self.vcpus[index].node = home;
        }
    }

    fn next_event(&self) -> Option<u64> {
        let slices = self.cpus.iter().filter_map(|cpu| Some(cpu.running?.until));
        let wakes = self.vcpus.iter().filter_map(|vcpu| vcpu.wakes_at);
        let refills = self.queues.iter().filter_map(RunQueue::next_event);
        // Idle CPUs look for work to take from time to time, as they do when poked.
        let idle = self.cpus.iter().any(|cpu| cpu.running.is_none());
        let poll = idle.then_some(self.now + MS);
        slices
            .chain(wakes)
            .chain(refills)
            .chain(poll)
            .filter(|at| *at >= self.now)
            .min()
    }

    fn run_until(&mut self, end: u64) {
        while let Some(at) = self.next_event().filter(|at| *at <= end) {
            self.now = at;
            for index in 0..self.vcpus.len() {
                if self.vcpus[index].wakes_at.is_some_and(|wakes| wakes <= at) {
                    self.wake(index);
                }
            }
            for cpu in 0..self.cpus.len() {
                if self.cpus[cpu]
                    .running
                    .is_none_or(|running| running.until <= at)
                {
                    self.stop(cpu);
                    self.start(cpu);
                }
            }
            self.check();
            if self.next_event().is_some_and(|next| next <= at) {
                // Something is due that nobody can act on now: time goes on.
                self.now += 1;
            }
        }
        self.now = end;
        for cpu in 0..self.cpus.len() {
            self.stop(cpu);
        }
        for cpu in 0..self.cpus.len() {
            self.start(cpu);
        }
    }

    /// Every entity is in one queue, the one EL2 believes it to be in, on a node it may use.
    fn check(&self) {
        for (index, vcpu) in self.vcpus.iter().enumerate() {
            let id = EntityId(index as u16);
            let homes = self
                .queues
                .iter()
                .filter(|queue| queue.entity(id).is_some());
            assert_eq!(homes.count(), 1, "{id:?} is lost or twice there");
            let entity = self.queues[vcpu.node].entity(id).unwrap();
            assert!(entity.parameters().nodes.contains(NodeId(vcpu.node as u8)));
        }
    }
}

fn weight(weight: u16) -> Parameters {
    Parameters {
        weight,
        ..Parameters::default()
    }
}

fn cap(cap: u8) -> Parameters {
    Parameters {
        cap,
        ..Parameters::default()
    }
}

fn on(nodes: u64) -> Parameters {
    Parameters {
        nodes: NodeSet(nodes),
        ..Parameters::default()
    }
}

/// `value` is within `percent` of `expected`.
fn close(value: u64, expected: u64, percent: u64) -> bool {
    value.abs_diff(expected) * 100 <= expected * percent
}

#[test]
fn spinners_share_the_cpus_of_a_node() {
    for (cpus, vcpus) in [(1, 3), (2, 3), (2, 4), (2, 5), (4, 7), (3, 2), (8, 33)] {
        let mut machine = Machine::new(&[cpus], vcpus);
        for _ in 0..vcpus {
            machine.add(0, Work::Spin, Parameters::default());
        }
        machine.run_until(3 * SECOND);
        let fair = 3 * SECOND * cpus.min(vcpus) as u64 / vcpus as u64;
        for id in 0..vcpus as u16 {
            let ran = machine.ran(EntityId(id));
            assert!(close(ran, fair, 3), "{vcpus} on {cpus}: {ran} of {fair}");
        }
    }
}

#[test]
fn weights_divide_time() {
    // One CPU, one to three; and two CPUs, where nobody's share is more than a CPU.
    for (cpus, weights) in [(1, vec![100, 300]), (2, vec![100, 100, 300, 300, 400])] {
        let mut machine = Machine::new(&[cpus], weights.len());
        let ids: Vec<EntityId> = weights
            .iter()
            .map(|w| machine.add(0, Work::Spin, weight(*w)))
            .collect();
        machine.run_until(5 * SECOND);
        let sum: u64 = weights.iter().map(|w| u64::from(*w)).sum();
        for (id, weight) in ids.iter().zip(&weights) {
            let fair = 5 * SECOND * cpus as u64 * u64::from(*weight) / sum;
            let ran = machine.ran(*id);
            assert!(
                close(ran, fair, 5),
                "{weights:?} on {cpus}: {ran} of {fair}"
            );
        }
    }
}

#[test]
fn surplus_spinners_rotate_over_nodes() {
    for (cpus, vcpus) in [
        (vec![1, 1], 3),
        (vec![1, 1, 1, 1], 5),
        (vec![1, 1, 1, 1], 3),
        (vec![2, 2], 5),
        (vec![2, 2, 2, 2], 3),
        (vec![1, 1, 1], 7),
    ] {
        let mut machine = Machine::new(&cpus, vcpus);
        for _ in 0..vcpus {
            machine.add(0, Work::Spin, Parameters::default());
        }
        let time = 12 * SECOND;
        machine.run_until(time);
        let all: usize = cpus.iter().sum();
        let fair = time * all.min(vcpus) as u64 / vcpus as u64;
        let ran: Vec<u64> = (0..vcpus)
            .map(|id| machine.ran(EntityId(id as u16)))
            .collect();
        assert!(
            ran.iter().all(|ran| close(*ran, fair, 3)),
            "{vcpus} on {cpus:?}: {ran:?}, {fair}"
        );
    }
}

#[test]
fn caps_hold() {
    for percent in [5, 25, 50, 90] {
        let mut machine = Machine::new(&[1], 2);
        let capped = machine.add(0, Work::Spin, cap(percent));
        machine.run_until(3 * SECOND);
        let allowed = 3 * SECOND / 100 * u64::from(percent);
        assert!(
            close(machine.ran(capped), allowed, 5),
            "alone, {percent} %: {}",
            machine.ran(capped)
        );
    }
    let mut machine = Machine::new(&[1], 2);
    let capped = machine.add(0, Work::Spin, cap(20));
    let free = machine.add(0, Work::Spin, Parameters::default());
    machine.run_until(3 * SECOND);
    assert!(close(machine.ran(capped), 600 * MS, 5) && close(machine.ran(free), 2400 * MS, 5));
}

/// What a cap leaves over while its entity sleeps is no entity's later.
#[test]
fn a_capped_sleeper_saves_no_budget() {
    let mut machine = Machine::new(&[1], 1);
    // 100 ms take five periods; then it sleeps 50 of them.
    let sleeper = machine.add(0, Work::Sleep(CAP_PERIOD, 50 * CAP_PERIOD), cap(20));
    machine.run_until(50 * CAP_PERIOD);
    assert_eq!(machine.ran(sleeper), CAP_PERIOD);
    machine.run_until(57 * CAP_PERIOD);
    let since = machine.ran(sleeper) - CAP_PERIOD;
    let budget = CAP_PERIOD / 5;
    assert!((2 * budget..=4 * budget).contains(&since), "{since}");
}

#[test]
fn a_sleeper_is_served_within_a_slice() {
    let mut machine = Machine::new(&[2], 6);
    for _ in 0..5 {
        machine.add(0, Work::Spin, Parameters::default());
    }
    machine.run_until(SECOND);
    let sleeper = machine.add(0, Work::Sleep(MS / 5, 20 * MS), Parameters::default());
    // A new entity starts level with the others, as no sleeper does: its first turn is not meant.
    machine.run_until(SECOND + 15 * MS);
    machine.vcpus[usize::from(sleeper.0)].longest_wait = 0;
    machine.run_until(5 * SECOND);
    let longest = machine.vcpus[usize::from(sleeper.0)].longest_wait;
    assert!(longest <= MS, "waited {longest}");
    let cycles = 4 * SECOND / (20 * MS + MS / 5);
    assert!(
        close(machine.ran(sleeper), cycles * (MS / 5), 10),
        "{}",
        machine.ran(sleeper)
    );
}

#[test]
fn a_long_sleep_earns_nothing() {
    let mut machine = Machine::new(&[1], 2);
    let spinner = machine.add(0, Work::Spin, Parameters::default());
    // Sleeps 5 s, then wants 200 ms.
    let sleeper = machine.add(0, Work::Sleep(200 * MS, 5 * SECOND), Parameters::default());
    machine.run_until(5 * SECOND + 400 * MS);
    let before = machine.ran(spinner);
    machine.run_until(5 * SECOND + 500 * MS);
    let both = (machine.ran(spinner) - before, machine.ran(sleeper));
    assert!(
        both.0 >= 45 * MS,
        "the spinner had {} of 100 ms, the sleeper {}",
        both.0,
        both.1
    );
}

#[test]
fn weight_that_cannot_be_used_is_not_saved_up() {
    // The heavy one has a CPU to itself and still is behind the light ones in virtual time.
    let mut machine = Machine::new(&[2], 5);
    let heavy = machine.add(0, Work::Spin, weight(1000));
    for _ in 0..2 {
        machine.add(0, Work::Spin, weight(100));
    }
    machine.run_until(5 * SECOND);
    assert!(close(machine.ran(heavy), 5 * SECOND, 3));
    // Two as heavy come: all three share.
    let late = [(); 2].map(|()| machine.add(0, Work::Spin, weight(1000)));
    machine.run_until(6 * SECOND);
    for id in late {
        assert!(
            close(machine.ran(id), SECOND * 20 / 32, 12),
            "{}",
            machine.ran(id)
        );
    }
}

#[test]
fn pinned_entities_stay() {
    let mut machine = Machine::new(&[1, 1, 1], 5);
    let pinned: Vec<EntityId> = (0..3).map(|_| machine.add(0, Work::Spin, on(1))).collect();
    let two = machine.add(1, Work::Spin, on(0b110));
    machine.run_until(2 * SECOND);
    for id in pinned {
        assert!(close(machine.ran(id), 2 * SECOND / 3, 3));
        assert_eq!(machine.queues[0].entity(id).unwrap().counters().moved, 0);
    }
    assert!(close(machine.ran(two), 2 * SECOND, 1));
}

#[test]
fn a_wake_up_while_running_is_not_lost() {
    let mut storage = [Entity::default(); 2];
    let mut queue = RunQueue::new(NodeId(0), &[CpuId(0)], &mut storage);
    let id = EntityId(1);
    queue.add(id, Parameters::default(), 0).unwrap();
    assert_eq!(queue.wake(id, 0), Some(Kick::Idle(CpuId(0))));
    assert_eq!(queue.wake(id, 0), Some(Kick::None));
    assert_eq!(queue.pick(CpuId(0), 5).unwrap().entity, id);
    assert_eq!(queue.wake(id, 6), Some(Kick::None));
    assert!(!queue.block(id, 2, 7), "it was woken");
    assert_eq!(queue.pick(CpuId(0), 8).unwrap().entity, id);
    assert!(queue.remove(id).is_none(), "it runs");
    assert!(queue.block(id, 2, 10));
    assert_eq!(queue.load().weight, 0);
    let counters = queue.remove(id).unwrap();
    assert_eq!((counters.ran, counters.waited, counters.picked), (4, 6, 2));
    assert_eq!(queue.wake(id, 11), None);
}

#[test]
fn wake_ups_choose_a_cpu() {
    let mut storage = [Entity::default(); 4];
    let cpus = [CpuId(4), CpuId(5)];
    let mut queue = RunQueue::new(NodeId(0), &cpus, &mut storage);
    for id in 0..4 {
        queue.add(EntityId(id), Parameters::default(), 0).unwrap();
    }
    // The last CPU is preferred; one that was told already is not told again.
    queue.wake(EntityId(0), 0);
    queue.pick(CpuId(5), 0).unwrap();
    assert_eq!(queue.pick(CpuId(4), 0), None);
    queue.block(EntityId(0), 0, 0);
    assert_eq!(queue.wake(EntityId(0), 0), Some(Kick::Idle(CpuId(5))));
    assert_eq!(queue.wake(EntityId(1), 0), Some(Kick::Idle(CpuId(4))));
    assert_eq!(queue.wake(EntityId(2), 0), Some(Kick::None));
    assert_eq!(queue.pick(CpuId(5), 0).unwrap().entity, EntityId(0));
    assert_eq!(queue.pick(CpuId(4), MS).unwrap().entity, EntityId(1));
    // The one that ran longest gives way.
    assert_eq!(
        queue.wake(EntityId(3), 3 * MS),
        Some(Kick::Preempt(CpuId(5)))
    );
}

/// Two that sleep most of the time, on the CPU of one node: the other node's takes one when both are
/// awake at once, and it is home again before long.
#[test]
fn who_was_taken_while_its_node_was_busy_comes_home() {
    let mut machine = Machine::new(&[1, 1], 2);
    machine.add(0, Work::Sleep(3 * MS, 7 * MS), Parameters::default());
    machine.add(0, Work::Sleep(3 * MS, 8 * MS), Parameters::default());
    let (mut away, mut moved) = (0, 0);
    for millisecond in 1..=1000 {
        machine.run_until(millisecond * MS);
        away += machine.vcpus.iter().filter(|vcpu| vcpu.node == 1).count();
    }
    for id in 0..2 {
        let node = machine.vcpus[id].node;
        let entity = machine.queues[node].entity(EntityId(id as u16)).unwrap();
        moved += entity.counters().moved;
    }
    assert!(moved > 10 && away < 500, "moved {moved}, away {away} ms");
}

#[test]
fn balancing_waits() {
    let mut storage = [Entity::default(); 1];
    let mut queue = RunQueue::new(NodeId(0), &[CpuId(0)], &mut storage);
    assert!(queue.is_balance_due(0) && !queue.is_balance_due(MAX_SLICE - 1));
    assert!(queue.is_balance_due(MAX_SLICE));
}

fn work() -> impl Strategy<Value = Work> {
    prop_oneof![
        Just(Work::Spin),
        (1..20 * MS, 1..50 * MS).prop_map(|(run, sleep)| Work::Sleep(run, sleep)),
    ]
}

fn parameters(nodes: u32) -> impl Strategy<Value = Parameters> {
    let cap = prop_oneof![Just(0_u8), 1..=100_u8];
    (1..=10_000_u16, cap, 1..1_u64 << nodes).prop_map(|(weight, cap, nodes)| Parameters {
        weight,
        cap,
        nodes: NodeSet(nodes),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// `Machine` checks all along that nobody is lost, runs twice or is where it may not be.
    #[test]
    fn any_load_is_run_soundly(
        cpus in prop::collection::vec(1..4_usize, 3),
        vcpus in prop::collection::vec((work(), parameters(3)), 1..14),
    ) {
        let mut machine = Machine::new(&cpus, vcpus.len());
        for (work, parameters) in &vcpus {
            let node = parameters.nodes.0.trailing_zeros() as usize;
            machine.add(node, *work, *parameters);
        }
        let time = SECOND;
        machine.run_until(time);
        let all: u64 = (0..vcpus.len()).map(|id| machine.ran(EntityId(id as u16))).sum();
        prop_assert!(all <= time * cpus.iter().sum::<usize>() as u64);
        for (index, (work, parameters)) in vcpus.iter().enumerate() {
            let ran = machine.ran(EntityId(index as u16));
            prop_assert!(ran > 0, "{index} starved");
            if matches!(parameters.cap, 1..100) {
                // The period that has just begun may be used up already.
                let allowed = (time + CAP_PERIOD) / 100 * u64::from(parameters.cap);
                prop_assert!(ran <= allowed + MS, "{index} {work:?} ran {ran} of {allowed}");
            }
        }
        // With everybody gone nothing is left.
        for queue in &mut machine.queues {
            let ids = (0..vcpus.len()).map(|id| EntityId(id as u16));
            for id in ids {
                queue.block(id, 0, time);
                queue.remove(id);
            }
            prop_assert_eq!((queue.load().weight, queue.waiting_for(CpuId(0))), (0, 0));
        }
    }
}
