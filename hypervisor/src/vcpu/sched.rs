//! The scheduler on the machine: run queues per node, CPUs that choose, sleep and are kicked.

use crate::machine::{self, Cpu, ENTITIES_MAX, cpu, due};
use crate::vcpu::Outcome;
use alloc::{boxed::Box, vec};
use arch::timer;
use core::sync::atomic::{AtomicU8, Ordering};
use machine_locks::{Once, Rank, SpinLock, lock_pair};
use model_addr::{CpuId, NodeId};
use model_frame_table::{MAX_NODES, PerNode};
use model_scheduler::{Entity, EntityId, Kick, Load, NodeSet, Parameters, Pick, RunQueue, Steal};

type Queue = SpinLock<RunQueue<'static>>;

static QUEUES: PerNode<Once<Box<Queue>>> = PerNode([const { Once::new() }; MAX_NODES]);
/// In whose queue an entity is.
static NODES: [AtomicU8; ENTITIES_MAX] = [const { AtomicU8::new(NOWHERE) }; ENTITIES_MAX];
/// The node that an entity comes back to.
static HOMES: [AtomicU8; ENTITIES_MAX] = [const { AtomicU8::new(NOWHERE) }; ENTITIES_MAX];

const NOWHERE: u8 = u8::MAX;
/// An entity moves while somebody looks for it at most this often.
const CHASES: usize = 16;

/// Makes the queues, where there are none. Before any CPU chooses.
pub fn init() {
    let machine = machine::get();
    if queue(0).is_some() {
        return;
    }
    for node in 0..machine.nodes() {
        let node = NodeId(node as u8);
        let cpus: heapless::Vec<CpuId, { cpu::CPUS_MAX }> =
            machine::cpus_of(node).map(|cpu| cpu.id).collect();
        let entities = Box::leak(vec![Entity::default(); ENTITIES_MAX].into_boxed_slice());
        let queue = SpinLock::new(Rank::Scheduler, RunQueue::new(node, &cpus, entities));
        let _ = QUEUES[node].set(Box::new(queue));
    }
}

fn queue(node: u8) -> Option<&'static Queue> {
    Some(QUEUES.0.get(usize::from(node))?.get()?)
}

fn now_ns() -> u64 {
    machine::nanoseconds(timer::now())
}

/// How busy each node is.
pub fn loads() -> heapless::Vec<Load, MAX_NODES> {
    let queues = QUEUES.0.iter().filter_map(Once::get);
    queues.map(|queue| queue.lock().load()).collect()
}

/// How many vCPUs more the machine can run.
pub fn free_entities() -> u64 {
    let free = |node: &&AtomicU8| node.load(Ordering::Relaxed) == NOWHERE;
    NODES.iter().filter(free).count() as u64
}

/// Reserves an entity for a vCPU that is about to be made.
pub fn claim() -> Option<EntityId> {
    const CLAIMED: u8 = u8::MAX - 1;
    let free = NODES.iter().position(|node| {
        node.compare_exchange(NOWHERE, CLAIMED, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    })?;
    Some(EntityId(free as u16))
}

/// Gives back an entity that never entered a queue, or that has left it.
pub fn release(entity: EntityId) {
    NODES[usize::from(entity.0)].store(NOWHERE, Ordering::Release);
}

/// Puts an entity into the queue of `node`, its home, asleep.
pub fn enter(
    entity: EntityId,
    node: NodeId,
    parameters: Parameters,
) -> Result<(), model_scheduler::Refused> {
    let queue = queue(node.0).ok_or(model_scheduler::Refused::Node(node))?;
    queue.lock().add(entity, parameters, now_ns())?;
    settle_in(entity, node);
    Ok(())
}

/// `node` is where the entity is, and its home.
fn settle_in(entity: EntityId, node: NodeId) {
    let place = usize::from(entity.0);
    HOMES[place].store(node.0, Ordering::Relaxed);
    NODES[place].store(node.0, Ordering::Release);
}

/// Does something with the queue that an entity is in; `action` says `None` if it is not there.
fn in_queue<T>(
    entity: EntityId,
    mut action: impl FnMut(&mut RunQueue<'static>) -> Option<T>,
) -> Option<T> {
    for _ in 0..CHASES {
        let node = NODES.get(usize::from(entity.0))?.load(Ordering::Acquire);
        if let Some(done) = action(&mut queue(node)?.lock()) {
            return Some(done);
        }
    }
    None
}

/// Takes an entity out of its queue for good; `false` while it runs.
pub fn leave(entity: EntityId) -> bool {
    in_queue(entity, |queue| {
        queue.entity(entity)?;
        Some(queue.remove(entity).is_some())
    })
    .unwrap_or(true)
}

/// Changes what an entity is entitled to.
pub fn entitle(entity: EntityId, weight: u16, cap: u8) {
    in_queue(entity, |queue| {
        let nodes = queue.entity(entity)?.parameters().nodes;
        let changed = queue.entitle(entity, Parameters { weight, cap, nodes }, now_ns());
        Some(changed.is_ok())
    });
}

/// The queue of an entity's home and the one that it is in, where that is another.
#[inline]
fn away(entity: EntityId) -> Option<(&'static Queue, &'static Queue)> {
    let place = usize::from(entity.0);
    let home = HOMES.get(place)?.load(Ordering::Relaxed);
    let node = NODES.get(place)?.load(Ordering::Acquire);
    if home == node {
        return None;
    }
    Some((queue(home)?, queue(node)?))
}

/// Whether an entity is on another node while a CPU is idle at home: asleep, it could go back.
pub fn is_missed_at_home(entity: EntityId) -> bool {
    away(entity).is_some_and(|(home, _)| home.lock().idle_cpu().is_some())
}

/// Takes an entity that sleeps on another node home, where a CPU is idle.
#[cold]
fn bring_home(entity: EntityId, home: &Queue, away: &Queue) {
    let Some((mut home, mut away)) = lock_pair(home, away) else {
        return;
    };
    if home.bring_home(&mut away, entity, now_ns()) {
        NODES[usize::from(entity.0)].store(home.node().0, Ordering::Release);
    }
}

/// An entity has something to do.
pub fn wake(entity: EntityId) {
    if let Some((home, away)) = away(entity) {
        bring_home(entity, home, away);
    }
    let Some((kick, node)) = in_queue(entity, |queue| {
        let kick = queue.wake(entity, now_ns())?;
        Some((kick, queue.node()))
    }) else {
        return;
    };
    let own = crate::machine::cpu::this();
    let cpu = match kick {
        Kick::Preempt(cpu) if cpu == own.id && own.is_patient.get() => {
            let soon = timer::now() + machine::counts(model_scheduler::MIN_SLICE);
            own.slice_end.set(own.slice_end.get().min(soon));
            return due::set_alarm(own);
        }
        Kick::Idle(cpu) | Kick::Preempt(cpu) => machine::cpu(cpu.0),
        // A CPU whose guest sleeps in place looks busy to the queue, and is not.
        Kick::None => machine::cpus_of(node)
            .find(|cpu| cpu.sleeps_in_place.load(Ordering::Relaxed))
            .or_else(|| idle_cpu_but(Some(node))),
    };
    if let Some(cpu) = cpu {
        cpu.poke();
    }
}

/// Does what may wake others without giving them this CPU at once: they have it when its vCPU waits
/// or has had a while more, so that what it does for them comes in batches. Idle CPUs are told at once.
pub fn patiently(work: impl FnOnce()) {
    let before = crate::machine::cpu::this().is_patient.replace(true);
    work();
    crate::machine::cpu::this().is_patient.set(before);
}

/// Whether this CPU is at such work.
pub fn is_patient() -> bool {
    crate::machine::cpu::this().is_patient.get()
}

/// The same, and that it will soon be another's: what the vCPU has on hand may wait until it leaves.
pub fn leaves_soon() -> bool {
    let own = crate::machine::cpu::this();
    let soon = || timer::now() + machine::counts(model_scheduler::MIN_SLICE);
    own.is_patient.get() && own.slice_end.get() <= soon()
}

/// A CPU that has nothing to do.
pub fn idle_cpu() -> Option<&'static Cpu> {
    idle_cpu_but(None)
}

/// The same of another node than `not`, for what waits there.
fn idle_cpu_but(not: Option<NodeId>) -> Option<&'static Cpu> {
    QUEUES.0.iter().filter_map(Once::get).find_map(|queue| {
        let queue = queue.try_lock()?;
        let idle = queue.idle_cpu().filter(|_| Some(queue.node()) != not)?;
        machine::cpu(idle.0)
    })
}

/// Lets an idle CPU of `node`, where there is one, see what there is for idle CPUs to do.
#[cold]
pub fn rouse(node: NodeId) {
    idle_cpu_of(node).into_iter().for_each(Cpu::kick);
}

/// A CPU of `node` that has nothing to do.
pub fn idle_cpu_of(node: NodeId) -> Option<&'static Cpu> {
    let idle = queue(node.0)?.lock().idle_cpu()?;
    machine::cpu(idle.0)
}

/// Whether anybody waits for a CPU of this one's node.
pub fn somebody_waits(cpu: &Cpu) -> bool {
    queue(cpu.node.0).is_some_and(|queue| queue.lock().waiting_for(cpu.id) > 0)
}

/// Puts OS-0's vCPU of this CPU into its queue, awake; it runs nowhere else.
pub fn enter_os0(entity: EntityId, cpu: &Cpu) -> bool {
    let entered = queue(cpu.node.0).is_some_and(|queue| {
        let mut queue = queue.lock();
        let added = queue.add(entity, Parameters::default(), now_ns());
        added.and_then(|()| queue.pin(entity, cpu.id)).is_ok()
    });
    if entered {
        settle_in(entity, cpu.node);
        wake(entity);
    }
    entered
}

/// Whom this CPU runs next: from its node's queue, or from another node's.
pub fn choose(cpu: &Cpu) -> Option<Pick> {
    let now = now_ns();
    let own = queue(cpu.node.0)?;
    let balance = {
        let mut own = own.lock();
        let due = own.is_balance_due(now);
        if !due && let Some(pick) = own.pick(cpu.id, now) {
            return Some(pick);
        }
        due
    };
    let reason = if balance { Steal::Balance } else { Steal::Idle };
    let machine = machine::get();
    for &node in machine.preference.from(cpu.node).iter().skip(1) {
        let Some(victim) = queue(node.0) else {
            continue;
        };
        let Some((mut mine, mut theirs)) = lock_pair(own, victim) else {
            continue;
        };
        if let Some(stolen) = mine.steal_from(&mut theirs, reason, now) {
            NODES[usize::from(stolen.0)].store(cpu.node.0, Ordering::Release);
            break;
        }
    }
    own.lock().pick(cpu.id, now)
}

/// Back into the queue, awake or asleep: then until the deadline, or until it is called.
pub fn settle(
    cpu: &'static Cpu,
    entity: EntityId,
    (outcome, deadline): (Outcome, Option<u64>),
    ran: u64,
    is_called: impl Fn() -> bool,
) {
    let now = now_ns();
    if outcome == Outcome::Preempted {
        in_queue(entity, |queue| {
            queue.entity(entity)?;
            queue.put_back(entity, ran, now);
            Some(())
        });
        return;
    }
    let asleep = in_queue(entity, |queue| {
        queue.entity(entity)?;
        Some(queue.block(entity, ran, now))
    });
    if asleep != Some(true) || outcome != Outcome::Waiting {
        return;
    }
    if let Some(at) = deadline
        && !cpu.sleepers.lock().add(at, entity.0)
    {
        wake(entity);
    }
    // Whoever asked for its attention while it fell asleep may have missed it.
    if is_called() {
        wake(entity);
    }
}

/// Wakes those whose time has come.
pub fn wake_sleepers(cpu: &Cpu) {
    loop {
        let due = cpu.sleepers.lock().take_due(timer::now());
        match due {
            Some(entity) => wake(EntityId(entity)),
            None => return,
        }
    }
}

/// When an entity in the queue of this CPU's node may run again, in nanoseconds.
pub fn next_event(cpu: &Cpu) -> Option<u64> {
    queue(cpu.node.0).and_then(|queue| queue.lock().next_event())
}

/// All nodes that a VM's description allows.
pub const fn node_set(nodes: u64) -> NodeSet {
    if nodes == 0 {
        NodeSet::ALL
    } else {
        NodeSet(nodes)
    }
}
