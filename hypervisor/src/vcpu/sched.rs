//! The scheduler on the machine: run queues per node, CPUs that choose, sleep and are kicked.

use crate::beneath;
use crate::machine;
use crate::machine::cpu::{self, Cpu, ENTITIES_MAX};
use crate::machine::stretch::{self, Kind};
use crate::memory::frames;
use crate::run::entry::Outcome;
use crate::vcpu::stats::add;
use crate::vms::instance::Instance;
use abi::control::work;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use arch::{cpu as metal, timer};
use core::sync::atomic::{AtomicU8, Ordering};
use machine_locks::{Once, Rank, SpinLock, lock_pair};
use model_addr::{CpuId, NodeId};
use model_frame_table::{MAX_NODES, PerNode};
use model_scheduler::{Entity, EntityId, Kick, Load, NodeSet, Parameters, Pick, RunQueue, Steal};

type Queue = SpinLock<RunQueue<'static>>;

static QUEUES: PerNode<Once<Box<Queue>>> = PerNode([const { Once::new() }; MAX_NODES]);
/// Who is behind an entity.
static OCCUPANTS: [SpinLock<Option<Arc<Instance>>>; ENTITIES_MAX] =
    [const { SpinLock::new(Rank::Scheduler, None) }; ENTITIES_MAX];
/// The vCPU's number in its VM.
static INDICES: [AtomicU8; ENTITIES_MAX] = [const { AtomicU8::new(0) }; ENTITIES_MAX];
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
        let entities = Box::leak(vec![Entity::ABSENT; ENTITIES_MAX].into_boxed_slice());
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
    let index = usize::from(entity.0);
    *OCCUPANTS[index].lock() = None;
    NODES[index].store(NOWHERE, Ordering::Release);
}

/// Puts vCPU `index` of `vm` into the queue of `node`, its home, asleep.
pub fn enter(
    entity: EntityId,
    vm: &Arc<Instance>,
    index: u16,
    node: NodeId,
    parameters: Parameters,
) -> Result<(), model_scheduler::Refused> {
    let queue = queue(node.0).ok_or(model_scheduler::Refused::Node(node))?;
    queue.lock().add(entity, parameters, now_ns())?;
    let place = usize::from(entity.0);
    *OCCUPANTS[place].lock() = Some(Arc::clone(vm));
    INDICES[place].store(index as u8, Ordering::Relaxed);
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
            return set_alarm(own);
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

/// Runs vCPUs for ever.
pub fn run_forever(cpu: &'static Cpu) -> ! {
    loop {
        run_while(cpu, || true);
    }
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

/// Runs vCPUs as long as `goes_on`.
pub fn run_while(cpu: &'static Cpu, goes_on: impl Fn() -> bool) {
    cpu.stretch.restart(timer::now());
    while goes_on() {
        stretch::look(Kind::Switch);
        crate::run::housekeeping::some();
        crate::placement::take_turn(cpu);
        cpu.reschedule.store(false, Ordering::Relaxed);
        match choose(cpu) {
            Some(pick) => run(cpu, pick),
            None => rest(cpu),
        }
    }
    cpu.stretch.restart(u64::MAX);
}

/// Whom this CPU runs next: from its node's queue, or from another node's.
fn choose(cpu: &Cpu) -> Option<Pick> {
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

/// Runs one pick to its end.
fn run(cpu: &'static Cpu, pick: Pick) {
    let place = usize::from(pick.entity.0);
    let occupant = OCCUPANTS[place].lock().clone();
    let index = usize::from(INDICES[place].load(Ordering::Relaxed));
    let Some(vm) = occupant else {
        return run_os0(cpu, pick);
    };
    let Some(vcpu) = vm.vcpus.get(index) else {
        return;
    };
    let used = || vcpu.stats.get(work::RUN) + vcpu.stats.get(work::HYPERVISOR);
    let before = used();
    cpu.slice_end
        .set(timer::now() + machine::counts(pick.slice));
    set_alarm(cpu);
    let outcome = crate::run::entry::run(cpu, &vm, vcpu);
    let ran = machine::nanoseconds(used().wrapping_sub(before));
    cpu.slice_end.set(u64::MAX);
    let core = vcpu.core.try_lock();
    let deadline = core.and_then(|core| core.deadline(vm.time_offset()));
    let is_called = || vcpu.is_called();
    settle(cpu, pick.entity, (outcome, deadline), ran, is_called);
}

/// Runs OS-0's vCPU of this CPU, which is what a vCPU without a VM is.
fn run_os0(cpu: &'static Cpu, pick: Pick) {
    let began = timer::now();
    cpu.slice_end.set(began + machine::counts(pick.slice));
    set_alarm(cpu);
    let left = beneath::turn(cpu);
    cpu.slice_end.set(u64::MAX);
    let ran = machine::nanoseconds(timer::now() - began);
    settle(cpu, pick.entity, left, ran, beneath::has_interrupt);
}

/// Back into the queue, awake or asleep: then until the deadline, or until it is called.
fn settle(
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

/// Sets the CPU's alarm for whatever comes first: the end of a slice, the guest's physical timer,
/// or somebody to wake.
pub fn set_alarm(cpu: &Cpu) {
    let mut own = cpu.slice_end.get().min(cpu.guest_deadline.get());
    if cpu.id.0 == 0 {
        own = own.min(crate::run::housekeeping::due_at());
    }
    let at = cpu.sleepers.lock().earliest().min(own);
    if at == u64::MAX {
        timer::clear_alarm();
    } else {
        timer::set_alarm(at);
    }
}

/// The guest that slept in place goes on, with a slice of its own.
pub fn begin_slice(cpu: &Cpu) {
    cpu.slice_end
        .set(timer::now() + machine::counts(model_scheduler::SHARED_SLICE));
    set_alarm(cpu);
}

/// Wakes those whose time has come.
pub fn wake_sleepers(cpu: &Cpu) {
    crate::run::housekeeping::notice(timer::now());
    loop {
        let due = cpu.sleepers.lock().take_due(timer::now());
        match due {
            Some(entity) => wake(EntityId(entity)),
            None => return,
        }
    }
}

/// Nobody to run: sleeps until an interrupt, and takes it.
fn rest(cpu: &'static Cpu) {
    if crate::run::housekeeping::is_needed() {
        return;
    }
    let refill = queue(cpu.node.0).and_then(|queue| queue.lock().next_event());
    cpu.slice_end.set(refill.map_or(u64::MAX, machine::counts));
    set_alarm(cpu);
    if !cpu.reschedule.load(Ordering::Acquire) {
        sleep(cpu);
    }
    crate::run::exit::take_interrupts(cpu);
    cpu.slice_end.set(u64::MAX);
}

/// Sleeps until an interrupt is pending, and counts the time; zeroes frames ahead before.
pub fn sleep(cpu: &Cpu) {
    stretch::end();
    let began = timer::now();
    while frames::lacks_zeroed(cpu.node) && !metal::is_interrupt_pending() {
        frames::zero_ahead(cpu.node);
    }
    metal::wait_for_interrupt();
    let woke = timer::now();
    cpu.stretch.begin(woke, Kind::Interrupt);
    add(&cpu.idle, woke - began);
}

/// All nodes that a VM's description allows.
pub const fn node_set(nodes: u64) -> NodeSet {
    if nodes == 0 {
        NodeSet::ALL
    } else {
        NodeSet(nodes)
    }
}
