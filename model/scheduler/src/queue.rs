//! One node's run queue.

use heapless::Vec;
use model_addr::{CpuId, NodeId};

use crate::entity::State;
use crate::{
    Counters, Entity, EntityId, LATENCY, Load, MAX_CPUS, MAX_ENTITIES, MAX_LAG, MAX_SLICE,
    MIN_SLICE, Parameters, Refused, SHARED_SLICE, SLEEPER_BONUS, WAKEUP_GRANULARITY,
};

/// What a CPU is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pick {
    /// Whom.
    pub entity: EntityId,
    /// For how long, before the queue is asked again.
    pub slice: u64,
}

/// Which CPU has to be told that somebody woke up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kick {
    /// None: it waits for its turn, or runs already.
    None,
    /// This one, which is idle.
    Idle(CpuId),
    /// This one, whose entity had more than its share: it should put it back and pick again.
    Preempt(CpuId),
}

/// A CPU of the node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cpu {
    id: CpuId,
    pub(crate) running: Option<EntityId>,
    picked_at: u64,
    /// It was told to pick and has not done so yet.
    kicked: bool,
}

/// The run queue of one node: who waits, who is on which CPU, who sleeps.
///
/// Those who wait are kept in order of virtual runtime, the next at the end: picking is O(1),
/// queueing a binary search and a move of at most two bytes for each that waits.
#[derive(Debug)]
pub struct RunQueue<'a> {
    pub(crate) node: NodeId,
    pub(crate) cpus: Vec<Cpu, MAX_CPUS>,
    pub(crate) entities: &'a mut [Entity],
    pub(crate) waiting: Vec<EntityId, MAX_ENTITIES>,
    throttled: Vec<EntityId, MAX_ENTITIES>,
    /// Virtual time: the furthest that anybody was when picked. It never goes back.
    pub(crate) clock: u64,
    /// The weights of all that are runnable.
    pub(crate) weight: u64,
    /// When loads are to be compared again.
    pub(crate) balance_at: u64,
}

impl<'a> RunQueue<'a> {
    /// An empty queue for `node` and its `cpus` (at most [`MAX_CPUS`] count). `entities` is room
    /// for as many as there can be in the whole machine: an id means the same place in every
    /// queue's storage.
    pub fn new(node: NodeId, cpus: &[CpuId], entities: &'a mut [Entity]) -> Self {
        entities.fill(Entity::default());
        let idle = |id: &CpuId| Cpu {
            id: *id,
            running: None,
            picked_at: 0,
            kicked: false,
        };
        Self {
            node,
            cpus: cpus.iter().take(MAX_CPUS).map(idle).collect(),
            entities,
            waiting: Vec::new(),
            throttled: Vec::new(),
            clock: 0,
            weight: 0,
            balance_at: 0,
        }
    }

    /// Adds an entity that has nothing to do yet.
    ///
    /// # Errors
    /// Where the id is taken here or out of range, or the parameters do not allow it.
    pub fn add(&mut self, id: EntityId, parameters: Parameters, now: u64) -> Result<(), Refused> {
        let index = id.index(self.entities.len()).ok_or(Refused::Id(id))?;
        if self.entities[index].state != State::Absent {
            return Err(Refused::Id(id));
        }
        if !parameters.nodes.contains(self.node) {
            return Err(Refused::Node(self.node));
        }
        let mut entity = Entity {
            vruntime: self.clock,
            arrived: now,
            ..Entity::default()
        };
        entity.entitle(parameters, now)?;
        entity.state = State::Blocked;
        self.entities[index] = entity;
        Ok(())
    }

    /// Lets an entity run on one CPU of this node only, from its next pick on.
    ///
    /// # Errors
    /// Where it is not here.
    pub fn pin(&mut self, id: EntityId, cpu: CpuId) -> Result<(), Refused> {
        self.present(id).ok_or(Refused::Id(id))?.pin = Some(cpu);
        Ok(())
    }

    /// Changes what an entity is entitled to, from its next pick on.
    ///
    /// # Errors
    /// Where it is not here, or the parameters do not allow it; then nothing changes.
    pub fn entitle(
        &mut self,
        id: EntityId,
        parameters: Parameters,
        now: u64,
    ) -> Result<(), Refused> {
        let node = self.node;
        let entity = self.present(id).ok_or(Refused::Id(id))?;
        if !parameters.nodes.contains(node) {
            return Err(Refused::Node(node));
        }
        let before = entity.is_runnable().then_some(entity.parameters.weight);
        entity.entitle(parameters, now)?;
        if let Some(before) = before {
            self.weight = self
                .weight
                .saturating_sub(before.into())
                .saturating_add(parameters.weight.into());
        }
        Ok(())
    }

    /// Takes an entity out and gives its accounts; `None` where it is not here, or runs.
    pub fn remove(&mut self, id: EntityId) -> Option<Counters> {
        self.take(id).map(|entity| entity.counters)
    }

    /// The entity, if it is in this queue.
    pub fn entity(&self, id: EntityId) -> Option<&Entity> {
        let entity = &self.entities[id.index(self.entities.len())?];
        (entity.state != State::Absent).then_some(entity)
    }

    /// Whom `cpu` is to run next; `None` where nobody waits. The CPU must have put back what it
    /// ran. An idle CPU should ask again at [`Self::next_event`].
    ///
    /// Of those that are furthest behind, one that ran on this CPU before is preferred.
    pub fn pick(&mut self, cpu: CpuId, now: u64) -> Option<Pick> {
        self.release_throttled(now);
        let slot = self.cpus.iter_mut().find(|slot| slot.id == cpu)?;
        slot.kicked = false;
        if slot.running.is_some() {
            return None;
        }
        let position = preferred(&self.waiting, self.entities, cpu)?;
        let chosen = self.waiting.remove(position);
        slot.running = Some(chosen);
        slot.picked_at = now;
        let slice = self.slice();
        let entity = self.present(chosen)?;
        let vruntime = entity.vruntime;
        entity.state = State::Running { woken: false };
        entity.last_cpu = Some(cpu);
        entity.counters.picked += 1;
        let waited = now.saturating_sub(entity.waiting_since);
        entity.counters.waited = entity.counters.waited.saturating_add(waited);
        let slice = slice.min(entity.allowance());
        self.clock = self.clock.max(vruntime);
        Some(Pick {
            entity: chosen,
            slice,
        })
    }

    /// Takes an entity from its CPU after `ran` nanoseconds; it wants to go on.
    pub fn put_back(&mut self, id: EntityId, ran: u64, now: u64) {
        if self.leave_cpu(id, ran, now).is_some() {
            self.enqueue(id, now);
        }
    }

    /// Takes an entity from its CPU after `ran` nanoseconds; it has nothing to do. Gives whether
    /// it sleeps now: where it was woken while it ran, it is put back instead.
    pub fn block(&mut self, id: EntityId, ran: u64, now: u64) -> bool {
        match self.leave_cpu(id, ran, now) {
            Some(woken) if woken => {
                self.enqueue(id, now);
                false
            }
            Some(_) => {
                let weight = self
                    .present(id)
                    .map_or(0, |entity| entity.parameters.weight);
                self.weight = self.weight.saturating_sub(weight.into());
                true
            }
            None => false,
        }
    }

    /// An entity has something to do: which CPU must know. `None` where it is not in this queue:
    /// it has moved, and the caller looks where.
    pub fn wake(&mut self, id: EntityId, now: u64) -> Option<Kick> {
        let earliest = self.clock.saturating_sub(SLEEPER_BONUS);
        let entity = self.present(id)?;
        match entity.state {
            State::Blocked => {}
            State::Running { .. } => {
                entity.state = State::Running { woken: true };
                return Some(Kick::None);
            }
            State::Absent | State::Waiting | State::Throttled => return Some(Kick::None),
        }
        entity.vruntime = entity.vruntime.max(earliest);
        let weight = entity.parameters.weight;
        self.weight = self.weight.saturating_add(weight.into());
        self.enqueue(id, now);
        Some(self.kick_for(id, now))
    }

    /// When a CPU that found nobody should ask again; `None` where only a wake-up matters.
    pub fn next_event(&self) -> Option<u64> {
        let refill = |id: &EntityId| self.entity(*id).map(|entity| entity.refill_at);
        self.throttled.iter().filter_map(refill).min()
    }

    /// The node whose queue it is.
    pub const fn node(&self) -> NodeId {
        self.node
    }

    /// How many wait that `cpu` may run.
    pub fn waiting_for(&self, cpu: CpuId) -> usize {
        let may = |id: &&EntityId| self.entity(**id).is_some_and(|e| e.may_run_on(cpu));
        self.waiting.iter().filter(may).count()
    }

    /// A CPU of this node that has nothing to do and was not told of anything yet.
    pub fn idle_cpu(&self) -> Option<CpuId> {
        self.cpus
            .iter()
            .find(|cpu| cpu.running.is_none() && !cpu.kicked)
            .map(|cpu| cpu.id)
    }

    /// How many CPUs have nothing to do and were told to come and pick.
    pub(crate) fn promised(&self) -> usize {
        let comes = |cpu: &&Cpu| cpu.running.is_none() && cpu.kicked;
        self.cpus.iter().filter(comes).count()
    }

    /// How busy the node is.
    pub fn load(&self) -> Load {
        Load {
            weight: self.weight,
            cpus: self.cpus.len() as u16,
        }
    }

    /// The entity, if it is here, to be changed.
    fn present(&mut self, id: EntityId) -> Option<&mut Entity> {
        let index = id.index(self.entities.len())?;
        let entity = &mut self.entities[index];
        (entity.state != State::Absent).then_some(entity)
    }

    /// Takes the entity's whole state out of the queue, unless it runs.
    pub(crate) fn take(&mut self, id: EntityId) -> Option<Entity> {
        let entity = *self.present(id)?;
        match entity.state {
            State::Absent | State::Running { .. } => return None,
            State::Blocked => {}
            State::Waiting => self.waiting.retain(|waiting| *waiting != id),
            State::Throttled => self.throttled.retain(|throttled| *throttled != id),
        }
        if entity.is_runnable() {
            self.weight = self.weight.saturating_sub(entity.parameters.weight.into());
        }
        *self.present(id)? = Entity::default();
        Some(entity)
    }

    /// Ends the entity's time on a CPU and books it; it is left blocked. Gives whether it was
    /// woken while it ran; `None` where it did not run.
    fn leave_cpu(&mut self, id: EntityId, ran: u64, now: u64) -> Option<bool> {
        let earliest = self.clock.saturating_sub(MAX_LAG);
        let entity = self.present(id)?;
        let State::Running { woken } = entity.state else {
            return None;
        };
        entity.charge(ran, now);
        // Whoever could not use its weight (it had a CPU to itself) does not save it up.
        entity.vruntime = entity.vruntime.max(earliest);
        entity.state = State::Blocked;
        if let Some(cpu) = self.cpus.iter_mut().find(|cpu| cpu.running == Some(id)) {
            cpu.running = None;
        }
        Some(woken)
    }

    /// Lets an entity wait for a CPU, or for its cap.
    pub(crate) fn enqueue(&mut self, id: EntityId, now: u64) {
        let Some(entity) = self.present(id) else {
            return;
        };
        entity.waiting_since = now;
        self.enqueue_since(id, now);
    }

    /// As [`Self::enqueue`], for one that waits already. The lists have room for every entity and
    /// none is in a list twice, so pushing cannot fail.
    fn enqueue_since(&mut self, id: EntityId, now: u64) {
        let Some(entity) = self.present(id) else {
            return;
        };
        entity.refill(now);
        let vruntime = entity.vruntime;
        if entity.allowance() == 0 {
            entity.state = State::Throttled;
            let _ = self.throttled.push(id);
            return;
        }
        entity.state = State::Waiting;
        // Behind those with the same virtual runtime: the end is the front.
        let behind = |other: &EntityId| vruntime_of(self.entities, *other) > vruntime;
        let position = self.waiting.partition_point(behind);
        let _ = self.waiting.insert(position, id);
    }

    /// Lets those go on whose cap's next period began.
    fn release_throttled(&mut self, now: u64) {
        let mut position = 0;
        for _ in 0..self.throttled.len() {
            let Some(id) = self.throttled.get(position).copied() else {
                return;
            };
            if self.entity(id).is_some_and(|entity| entity.refill_at > now) {
                position += 1;
                continue;
            }
            self.throttled.swap_remove(position);
            // Still overdrawn, it comes to the list's end, with a later refill.
            self.enqueue_since(id, now);
        }
    }

    /// How long the next one may run: the more wait for each CPU, the shorter.
    fn slice(&self) -> u64 {
        if self.waiting.is_empty() {
            return MAX_SLICE;
        }
        let waiting_per_cpu = self.waiting.len().div_ceil(self.cpus.len().max(1)) as u64;
        (LATENCY / (waiting_per_cpu + 1)).clamp(MIN_SLICE, SHARED_SLICE)
    }

    /// Which CPU should know that `id` began to wait: an idle one, if possible the one it ran on;
    /// or else the one whose entity had most, if that is much more than `id` had.
    fn kick_for(&mut self, id: EntityId, now: u64) -> Kick {
        let Some(entity) = self.entity(id).copied() else {
            return Kick::None;
        };
        if entity.state != State::Waiting {
            return Kick::None;
        }
        let idle = |cpu: &Cpu| cpu.running.is_none() && !cpu.kicked && entity.may_run_on(cpu.id);
        let last = self
            .cpus
            .iter()
            .position(|cpu| idle(cpu) && Some(cpu.id) == entity.last_cpu);
        if let Some(position) = last.or_else(|| self.cpus.iter().position(idle)) {
            let cpu = &mut self.cpus[position];
            cpu.kicked = true;
            return Kick::Idle(cpu.id);
        }
        let progress = |cpu: &Cpu| {
            let running = self.entity(cpu.running?)?;
            let ran = now.saturating_sub(cpu.picked_at);
            Some((
                running.vruntime.saturating_add(running.virtual_time(ran)),
                cpu.id,
            ))
        };
        let may = |cpu: &&Cpu| !cpu.kicked && entity.may_run_on(cpu.id);
        let candidates = self.cpus.iter().filter(may);
        let Some((furthest, cpu)) = candidates.filter_map(progress).max() else {
            return Kick::None;
        };
        if furthest <= entity.vruntime.saturating_add(WAKEUP_GRANULARITY) {
            return Kick::None;
        }
        if let Some(slot) = self.cpus.iter_mut().find(|slot| slot.id == cpu) {
            slot.kicked = true;
        }
        Kick::Preempt(cpu)
    }
}

/// Which of those that wait `cpu` should run: the first that may, or one just behind it that ran here.
fn preferred(waiting: &[EntityId], entities: &[Entity], cpu: CpuId) -> Option<usize> {
    const LOOK_AT: usize = 4;
    let entity = |position: usize| {
        let index = waiting.get(position)?.index(entities.len())?;
        entities.get(index)
    };
    let may = |position: &usize| entity(*position).is_some_and(|entity| entity.may_run_on(cpu));
    let mut able = (0..waiting.len()).rev().filter(may);
    let front = able.next()?;
    let limit = vruntime_of(entities, waiting[front]).saturating_add(WAKEUP_GRANULARITY);
    let ran_here = |position: &usize| {
        entity(*position)
            .is_some_and(|entity| entity.vruntime <= limit && entity.last_cpu == Some(cpu))
    };
    let mut first = core::iter::once(front).chain(able).take(LOOK_AT);
    first.find(ran_here).or(Some(front))
}

fn vruntime_of(entities: &[Entity], id: EntityId) -> u64 {
    id.index(entities.len())
        .map_or(0, |index| entities[index].vruntime)
}
