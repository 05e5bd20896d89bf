//! Entities that may run on one CPU alone.
#![allow(clippy::unwrap_used)]

use model_addr::{CpuId, NodeId};
use model_scheduler::{Entity, EntityId, Kick, Parameters, RunQueue, Steal};

const MS: u64 = 1_000_000;

/// Whoever is pinned waits for its CPU, and that one is told; nobody takes it to another node.
#[test]
fn a_pinned_entity_runs_on_its_cpu_alone() {
    let cpus = [CpuId(0), CpuId(1)];
    let storage = Vec::leak(vec![Entity::default(); 4]);
    let mut queue = RunQueue::new(NodeId(0), &cpus, storage);
    for id in 0..3 {
        queue.add(EntityId(id), Parameters::default(), 0).unwrap();
    }
    queue.pin(EntityId(0), CpuId(1)).unwrap();
    queue.pin(EntityId(1), CpuId(1)).unwrap();
    assert_eq!(queue.wake(EntityId(0), 0), Some(Kick::Idle(CpuId(1))));
    assert_eq!(queue.pick(CpuId(0), 0), None);
    assert_eq!(
        (queue.waiting_for(CpuId(0)), queue.waiting_for(CpuId(1))),
        (0, 1)
    );
    assert_eq!(queue.pick(CpuId(1), 0).unwrap().entity, EntityId(0));
    // Its CPU is busy: CPU 0, which idles, is of no use, and is not told.
    assert_eq!(queue.wake(EntityId(1), 0), Some(Kick::None));
    assert_eq!(queue.wake(EntityId(1), 20 * MS), Some(Kick::None));
    assert_eq!(queue.wake(EntityId(2), 0), Some(Kick::Idle(CpuId(0))));
    assert_eq!(queue.pick(CpuId(0), 0).unwrap().entity, EntityId(2));
    let storage = Vec::leak(vec![Entity::default(); 4]);
    let mut other = RunQueue::new(NodeId(1), &[CpuId(2)], storage);
    assert_eq!(other.steal_from(&mut queue, Steal::Idle, 0), None);
    queue.put_back(EntityId(0), 5 * MS, 5 * MS);
    assert_eq!(queue.pick(CpuId(1), 5 * MS).unwrap().entity, EntityId(1));
}
