//! Several nodes: who takes work from whom, and where a new VM goes.

use core::iter::repeat_n;
use model_addr::NodeId;

use crate::entity::State;
use crate::{BALANCE_PERIOD, Entity, EntityId, MAX_LAG, MAX_NODES, MAX_SLICE, NodeSet, RunQueue};

/// How busy a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// The weights of all that run or wait there.
    pub weight: u64,
    /// Its CPUs.
    pub cpus: u16,
}

impl Load {
    /// Whether this node has less to do for each CPU than `other`, or as much, when it has
    /// `added` more. A node without CPUs is never less busy.
    pub const fn is_at_most(self, added: u64, other: Self) -> bool {
        let mine = self.weight.saturating_add(added) as u128 * other.cpus as u128;
        self.cpus > 0 && mine <= other.weight as u128 * self.cpus as u128
    }
}

/// Why a node takes work from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steal {
    /// A CPU has nothing to do.
    Idle,
    /// The loads are to be compared ([`RunQueue::is_balance_due`]).
    Balance,
}

impl RunQueue<'_> {
    /// Whether it is time to compare loads: [`BALANCE_PERIOD`] after something was moved, and
    /// [`MAX_SLICE`] after the last question. One CPU of the node asks when it picks.
    pub fn is_balance_due(&mut self, now: u64) -> bool {
        let due = now >= self.balance_at;
        if due {
            self.balance_at = now.saturating_add(MAX_SLICE);
        }
        due
    }

    /// Takes one entity that waits at `victim` and may run here. Gives whom; `None` where there
    /// is none or the rule does not allow it.
    ///
    /// For an idle CPU it is the one that is furthest behind, and nobody where `victim` has told idle
    /// CPUs of its own to come for all that wait. For balance, `victim` must be so
    /// busy that this node, with one more, has no more for each CPU than `victim` had; and it is
    /// the one that has been there longest (nobody, as long as that one runs). So where
    /// entities do not divide evenly, the surplus goes round: with three spinning vCPUs on two
    /// nodes of one CPU each, every one has a CPU to itself in turn, and all get the same in the
    /// end. The price is a move each [`BALANCE_PERIOD`]; whoever cannot bear it pins its vCPUs.
    pub fn steal_from(
        &mut self,
        victim: &mut RunQueue<'_>,
        reason: Steal,
        now: u64,
    ) -> Option<EntityId> {
        let id = match reason {
            // Who has nothing has nobody to share CPUs with: to take what runs would gain nothing.
            Steal::Balance if self.weight > 0 => self.surplus(victim)?,
            // The front of the queue is its end.
            Steal::Idle | Steal::Balance => {
                let may = |id: &EntityId| victim.entity(*id).is_some_and(|e| self.may_have(e));
                let spare = victim.waiting.len().saturating_sub(victim.promised());
                let from_front = victim.waiting.iter().rev().copied();
                from_front.take(spare).find(may)?
            }
        };
        if !self.adopt(victim, id, now) {
            if self.is_absent(id) {
                // It runs just now: to be asked again at the next pick, which is at another moment.
                self.balance_at = now;
            }
            return None;
        }
        self.enqueue(id, now);
        if reason == Steal::Balance {
            // Both are balanced for now; neither takes it back at once.
            self.balance_at = now.saturating_add(BALANCE_PERIOD);
            victim.balance_at = self.balance_at;
        }
        Some(id)
    }

    /// Brings one that sleeps at `away` back, whose home is here and who is about to be woken, if a
    /// CPU is idle here; whether it did. So a vCPU that an idle CPU of another node took while its own
    /// was busy comes back to its memory.
    pub fn bring_home(&mut self, away: &mut RunQueue<'_>, id: EntityId, now: u64) -> bool {
        let Some(entity) = away.entity(id) else {
            return false;
        };
        let may = entity.state == State::Blocked && self.may_have(entity);
        may && self.idle_cpu().is_some() && self.adopt(away, id, now)
    }

    /// Takes the whole state of one that does not run from another queue; here, it does nothing yet.
    fn adopt(&mut self, victim: &mut RunQueue<'_>, id: EntityId, now: u64) -> bool {
        if !self.is_absent(id) {
            return false;
        }
        let their_clock = victim.clock;
        let Some(mut entity) = victim.take(id) else {
            return false;
        };
        entity.vruntime = translate(entity.vruntime, their_clock, self.clock);
        entity.arrived = now;
        entity.counters.moved += 1;
        if entity.is_runnable() {
            let waited = now.saturating_sub(entity.waiting_since);
            entity.counters.waited = entity.counters.waited.saturating_add(waited);
            self.weight = self.weight.saturating_add(entity.parameters.weight.into());
        }
        entity.state = State::Blocked;
        if let Some(place) = self.entities.get_mut(usize::from(id.0)) {
            *place = entity;
        }
        true
    }

    fn is_absent(&self, id: EntityId) -> bool {
        let place = self.entities.get(usize::from(id.0));
        place.is_some_and(|entity| entity.state == State::Absent)
    }

    fn may_have(&self, entity: &Entity) -> bool {
        !self.cpus.is_empty() && entity.pin.is_none() && entity.parameters.nodes.contains(self.node)
    }

    /// Who should come from `victim` for the sake of balance.
    fn surplus(&self, victim: &RunQueue<'_>) -> Option<EntityId> {
        let (mine, theirs) = (self.load(), victim.load());
        let on_cpus = victim.cpus.iter().filter_map(|cpu| cpu.running);
        let candidates = victim.waiting.iter().copied().chain(on_cpus);
        let suitable = |id| {
            let entity = victim.entity(id)?;
            let light_enough = mine.is_at_most(entity.parameters.weight.into(), theirs);
            (light_enough && self.may_have(entity)).then_some((entity.arrived, id))
        };
        candidates
            .filter_map(suitable)
            .min()
            .map(|(_, longest)| longest)
    }
}

/// A virtual runtime on another node's clock: as far ahead or behind, at most [`MAX_LAG`].
fn translate(vruntime: u64, from: u64, to: u64) -> u64 {
    let ahead = vruntime.saturating_sub(from).min(MAX_LAG);
    let behind = from.saturating_sub(vruntime).min(MAX_LAG);
    to.saturating_add(ahead).saturating_sub(behind)
}

/// The node where a new VM with vCPUs of `weight` in all finds most room: of the `allowed` ones,
/// the one that has least for each CPU with the VM there; `None` where none of them has a CPU.
/// `loads` is by node.
pub fn place(weight: u64, allowed: NodeSet, loads: &[Load]) -> Option<NodeId> {
    let mut best: Option<(NodeId, Load)> = None;
    for (index, load) in loads.iter().take(MAX_NODES).enumerate() {
        let node = NodeId(index as u8);
        if load.cpus == 0 || !allowed.contains(node) {
            continue;
        }
        let with_vm = Load {
            weight: load.weight.saturating_add(weight),
            ..*load
        };
        if best.is_none_or(|(_, best)| !best.is_at_most(0, with_vm)) {
            best = Some((node, with_vm));
        }
    }
    best.map(|(node, _)| node)
}

/// The homes of a VM's vCPUs, in order: as many as a node has CPUs, but `most`, and then the next node;
/// when all have their share, again from the first. `nodes` are those that the VM may use, with their
/// CPUs, nearest to its memory first. So a VM that fits into a node is in one, and one that does not is
/// spread from its start, with the memory that each of its vCPUs touches first.
pub fn homes(
    nodes: impl Iterator<Item = (NodeId, u16)> + Clone,
    most: u16,
) -> impl Iterator<Item = NodeId> {
    nodes
        .filter(|(_, cpus)| *cpus > 0)
        .cycle()
        .flat_map(move |(node, cpus)| repeat_n(node, cpus.min(most.max(1)).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_virtual_runtime_keeps_its_distance_within_bounds() {
        let (from, to) = (10 * MAX_LAG, 70 * MAX_LAG);
        assert_eq!(translate(from + 5, from, to), to + 5);
        assert_eq!(translate(from - 5, from, to), to - 5);
        assert_eq!(translate(from + 2 * MAX_LAG, from, to), to + MAX_LAG);
        assert_eq!(translate(from - 2 * MAX_LAG, from, to), to - MAX_LAG);
        assert_eq!(translate(0, MAX_LAG, 5), 0);
        assert_eq!(translate(u64::MAX, 0, u64::MAX - 1), u64::MAX);
    }
}
