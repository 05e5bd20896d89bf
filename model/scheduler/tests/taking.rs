//! What a node takes from another, and what it leaves.
#![allow(clippy::unwrap_used, reason = "a test")]

use model_addr::{CpuId, NodeId};
use model_scheduler::{
    BALANCE_PERIOD, Entity, EntityId, Kick, MIN_SLICE, Parameters, RunQueue, Steal,
};

const MS: u64 = 1_000_000;

/// A queue of a node of one CPU, with room for so many.
fn queue(node: u8, room: usize) -> RunQueue<'static> {
    let storage = Vec::leak(vec![Entity::default(); room]);
    RunQueue::new(NodeId(node), &[CpuId(node.into())], storage)
}

/// A queue in which the first of `count` runs and the others wait.
fn busy(count: u16) -> RunQueue<'static> {
    let mut queue = queue(0, count.into());
    for id in (0..count).map(EntityId) {
        queue.add(id, Parameters::default(), 0).unwrap();
        queue.wake(id, 0).unwrap();
        if id == EntityId(0) {
            assert_eq!(queue.pick(CpuId(0), 0).unwrap().entity, id);
        }
    }
    queue
}

/// It is one that waits, whose wait was stolen time, and neither node is balanced again at once.
#[test]
fn who_waits_is_taken_and_nobody_is_taken_back_at_once() {
    let (mut from, mut to) = (busy(2), queue(1, 2));
    let now = 5 * MS;
    assert_eq!(
        to.steal_from(&mut from, Steal::Balance, now),
        Some(EntityId(1))
    );
    let counters = to.entity(EntityId(1)).unwrap().counters();
    assert_eq!((counters.moved, counters.waited), (1, now));
    assert_eq!((from.load().weight, to.load().weight), (256, 256));
    for queue in [&mut from, &mut to] {
        assert!(!queue.is_balance_due(now + BALANCE_PERIOD - 1));
        assert!(queue.is_balance_due(now + BALANCE_PERIOD));
    }
}

/// An idle CPU was told of one that waits: no other node takes that.
#[test]
fn who_is_about_to_be_picked_stays() {
    let (mut from, mut to) = (queue(0, 2), queue(1, 2));
    for id in [0, 1].map(EntityId) {
        from.add(id, Parameters::default(), 0).unwrap();
    }
    assert_eq!(from.wake(EntityId(0), 0), Some(Kick::Idle(CpuId(0))));
    assert_eq!(to.steal_from(&mut from, Steal::Idle, 0), None);
    from.wake(EntityId(1), 0).unwrap();
    assert!(to.steal_from(&mut from, Steal::Idle, 0).is_some());
    assert_eq!(to.steal_from(&mut from, Steal::Idle, 0), None);
}

/// A load is that of the weights that count from now on.
#[test]
fn a_load_follows_what_entities_are_entitled_to() {
    let mut queue = busy(3);
    for (id, load) in [(0, 512 + 100), (1, 256 + 200), (2, 300)] {
        let parameters = Parameters {
            weight: 100,
            ..Parameters::default()
        };
        queue.entitle(EntityId(id), parameters, 0).unwrap();
        assert_eq!(queue.load().weight, load);
    }
}

/// However many wait, each has its while.
#[test]
fn slices_are_not_too_short() {
    let mut queue = busy(100);
    queue.put_back(EntityId(0), MS, MS);
    assert_eq!(queue.pick(CpuId(0), MS).unwrap().slice, MIN_SLICE);
}
