//! Which frames are let in: all that members stamp, once, and others within a budget.

#![allow(clippy::unwrap_used)]

mod world;

use abi::link::{HELLO, Prefix, SEALED, Sealed};
use model_cluster::{STRANGE_EVERY_NS, STRANGE_MAX, TICK_NS};
use world::{Host, MS, World};
use zerocopy::FromBytes;

/// A frame of somebody who knows no session.
const STRANGER: [u8; 80] = [0; 80];

/// A world of two members.
fn members() -> World {
    let mut world = World::of(2);
    world.run(520 * MS);
    assert!(world.is_in(0, 1) && world.is_in(1, 0));
    world
}

/// Lets a host take a frame, if there is one, and do all that is due; gives the frames that it sends.
fn take_and_work(host: &mut Host, now: u64, frame: Option<Vec<u8>>) -> Vec<Vec<u8>> {
    let Host { node, said, .. } = host;
    if let Some(mut frame) = frame {
        node.frame(now, &mut frame, said);
    }
    while node.work(now, said) {}
    std::mem::take(&mut said.frames)
}

/// A frame with a message of host 1 to host 0.
fn message(world: &mut World) -> Vec<u8> {
    let node = &mut world.hosts[1].node;
    node.send(0, [&[0x50], &[0; 39]]).unwrap();
    let now = world.now;
    take_and_work(&mut world.hosts[1], now, None).pop().unwrap()
}

/// Forgeries of a member's frame: each with other bytes before its body, and one that has no room for them.
fn forgeries(frame: &[u8]) -> Vec<Vec<u8>> {
    let change = |change: fn(&mut Sealed)| {
        let mut frame = frame.to_vec();
        change(Sealed::mut_from_prefix(&mut frame).unwrap().0);
        frame
    };
    vec![
        change(|it| it.prefix.kind = HELLO),
        change(|it| it.prefix.from = 0),
        change(|it| it.prefix.from = 9),
        change(|it| it.session += 1),
        change(|it| it.stamp += 1),
        change(|it| it.counter += 1),
        change(|it| it.counter = u64::MAX.into()),
        frame[..size_of::<Sealed>() - 1].to_vec(),
        STRANGER.to_vec(),
    ]
}

#[test]
fn strangers_have_a_budget_and_members_need_none() {
    let mut world = members();
    let frame = message(&mut world);
    let mut now = world.now;
    for mut forgery in forgeries(&frame) {
        let Host { node, said, .. } = &mut world.hosts[0];
        for _ in 0..STRANGE_MAX {
            assert!(node.admit(now, &forgery));
        }
        assert!(!node.admit(now, &forgery));
        // Nothing comes of them, not even a token.
        for _ in 0..STRANGE_MAX {
            node.frame(now, &mut forgery, said);
        }
        assert!(forgeries(&frame).iter().all(|it| !node.admit(now, it)));
        assert!((0..10_000).all(|_| node.admit(now, &frame)));
        now += STRANGE_EVERY_NS;
        assert_eq!([0, 1].map(|_| node.admit(now, &forgery)), [true, false]);
        now += STRANGE_MAX * STRANGE_EVERY_NS;
    }
    assert!(world.is_in(0, 1));
    world.run(500 * MS);
    assert!(world.is_in(0, 1) && world.is_in(1, 0));
}

/// As strangers' frames are, once one with its counter has been opened, whatever came of it.
#[test]
fn a_frame_that_comes_again_is_a_strangers() {
    let mut world = members();
    let [first, second] = [0, 1].map(|_| message(&mut world));
    let mut forged = second.clone();
    *forged.last_mut().unwrap() ^= 1;
    let now = world.now;
    let Host { node, said, .. } = &mut world.hosts[0];
    while node.admit(now, &STRANGER) {}
    let opened = node.peers()[0].link.counters.opened;
    for frame in [forged, first] {
        assert!(node.admit(now, &frame));
        node.frame(now, &mut frame.clone(), said);
        assert!(!node.admit(now, &frame));
    }
    assert!(!node.admit(now, &second));
    assert_eq!(node.peers()[0].link.counters.opened, opened + 1);
}

/// Those that come before the first one has opened.
#[test]
fn frames_of_a_session_that_is_not_up_are_members() {
    let count = 5;
    let mut world = World::of(2);
    let (mut now, mut kept) = (0, Vec::new());
    while kept.len() < count {
        now += MS;
        for from in 0..2 {
            let Host { node, said, .. } = &mut world.hosts[from];
            while node.work(now, said) {}
            let frames = std::mem::take(&mut said.frames);
            let Host { node, said, .. } = &mut world.hosts[1 - from];
            for mut frame in frames {
                let (prefix, _) = Prefix::ref_from_prefix(&frame).unwrap();
                if from == 1 && prefix.kind == SEALED {
                    kept.push(frame);
                } else {
                    node.frame(now, &mut frame, said);
                }
            }
        }
    }
    let Host { node, said, .. } = &mut world.hosts[0];
    while node.admit(now, &STRANGER) {}
    assert!(node.peers()[0].link.session().is_none());
    for mut frame in kept {
        assert!(node.admit(now, &frame));
        node.frame(now, &mut frame, said);
    }
    assert_eq!(node.peers()[0].link.counters.opened, count as u64);
}

#[test]
fn a_frame_of_no_peer_is_counted() {
    let mut world = members();
    let now = world.now;
    let Host { node, said, .. } = &mut world.hosts[0];
    for (mut frame, unheard) in [(STRANGER.to_vec(), 1), (vec![1; 5], 2), (Vec::new(), 3)] {
        node.frame(now, &mut frame, said);
        assert_eq!(node.unheard, unheard);
    }
}

/// A report alone asks for no answer; that it came is news of its host.
#[test]
fn the_membership_hears_of_each_frame_that_opens() {
    let mut world = members();
    let message = message(&mut world);
    take_and_work(&mut world.hosts[0], world.now, Some(message));
    let now = world.now + MS;
    let mut report = take_and_work(&mut world.hosts[0], now, None).remove(0);
    take_and_work(&mut world.hosts[1], now, None);
    let Host { node, said, .. } = &mut world.hosts[1];
    assert!(node.deadline() > now + TICK_NS);
    node.frame(now, &mut report, said);
    assert!(node.deadline() <= now + TICK_NS);
}
