//! Which frames are let in: all that members stamp, once, and others within a budget.

#![allow(clippy::unwrap_used)]

mod world;

use abi::link::{HELLO, Prefix, SEALED, Sealed};
use model_cluster::{STRANGE_EVERY_NS, STRANGE_MAX, TICK_NS};
use model_link::Dropped;
use proptest::{collection::vec, prelude::*};
use std::collections::VecDeque;
use world::{Host, MS, Node, World};
use zerocopy::FromBytes;

/// A frame of somebody who knows no session.
const STRANGER: [u8; 80] = [0; 80];
/// What becomes of a frame ([`Cluster::admit`](model_cluster::Cluster::admit)): it is kept, or is not without being too many, or
/// is one of too many.
const KEPT: [bool; 2] = [true; 2];
const REFUSED: [bool; 2] = [false, true];
const TOO_MANY: [bool; 2] = [false; 2];

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

/// Forgeries of a member's frame: each with other bytes before its body, one that has no room for them, and one of no session;
/// and whether they name the session.
fn forgeries(frame: &[u8]) -> Vec<(Vec<u8>, bool)> {
    let change = |change: fn(&mut Sealed), names_session| {
        let mut frame = frame.to_vec();
        change(Sealed::mut_from_prefix(&mut frame).unwrap().0);
        (frame, names_session)
    };
    vec![
        change(|it| it.prefix.kind = HELLO, false),
        change(|it| it.prefix.from = 0, false),
        change(|it| it.prefix.from = 9, false),
        change(|it| it.session += 1, false),
        change(|it| it.stamp += 1, true),
        change(|it| it.counter += 1, true),
        change(|it| it.counter = u64::MAX.into(), true),
        (frame[..size_of::<Sealed>() - 1].to_vec(), false),
        (STRANGER.to_vec(), false),
    ]
}

#[test]
fn strangers_have_a_budget_and_members_need_none() {
    let mut world = members();
    let frame = message(&mut world);
    let mut now = world.now;
    for (mut forgery, names_session) in forgeries(&frame) {
        let next = message(&mut world);
        let Host { node, said, .. } = &mut world.hosts[0];
        let counted =
            |node: &Node| node.unheard + node.peers()[0].link.counters.dropped.iter().sum::<u64>();
        let before = counted(node);
        let (answer, refused) = if names_session {
            (REFUSED, STRANGE_MAX + 1)
        } else {
            (KEPT, 1)
        };
        for _ in 0..STRANGE_MAX {
            assert_eq!(node.admit(now, &forgery), answer);
        }
        assert_eq!(node.admit(now, &forgery), TOO_MANY);
        assert_eq!(counted(node) - before, refused);
        // Nothing comes of them, not even a token.
        for _ in 0..STRANGE_MAX {
            node.frame(now, &mut forgery, said);
        }
        assert!(
            forgeries(&frame)
                .iter()
                .all(|it| node.admit(now, &it.0) == TOO_MANY)
        );
        assert_eq!([0, 1].map(|_| node.admit(now, &next)), [KEPT, TOO_MANY]);
        now += STRANGE_EVERY_NS;
        let answers = [0, 1].map(|_| node.admit(now, &STRANGER));
        assert_eq!(answers, [KEPT, TOO_MANY]);
        now += STRANGE_MAX * STRANGE_EVERY_NS;
    }
    assert!(world.is_in(0, 1));
    world.run(500 * MS);
    assert!(world.is_in(0, 1) && world.is_in(1, 0));
}

/// Each frame that is sealed is a stamp to keep back, and to spend at once with others.
#[test]
fn copies_of_a_hello_have_few_frames_sealed() {
    let (mut world, mut hello) = (World::of(2), Vec::new());
    while world.now < 520 * MS {
        world.step(520 * MS, &mut |from, _, frame| {
            if (from, frame[15]) == (1, HELLO) {
                hello = frame.to_vec();
            }
            vec![(0, frame.to_vec())]
        });
    }
    assert!(world.is_in(0, 1));
    let mut sealed = 0;
    for n in 0..1_000 {
        let now = world.now + n * MS;
        sealed += take_and_work(&mut world.hosts[0], now, Some(hello.clone())).len();
    }
    let dropped = world.hosts[0].node.peers()[0].link.counters.dropped;
    assert_eq!(dropped[Dropped::Forged as usize], 0);
    assert!((10..120).contains(&sealed), "{sealed}");
}

/// Before anything has been looked at, and after. Copies of it are strangers' frames.
#[test]
fn a_members_frame_is_kept_once() {
    let mut world = members();
    let [mut first, second] = [0, 1].map(|_| message(&mut world));
    let mut forged = second.clone();
    *forged.last_mut().unwrap() ^= 1;
    let now = world.now;
    let Host { node, said, .. } = &mut world.hosts[0];
    for frame in [&first, &forged] {
        assert_eq!([0, 1].map(|_| node.admit(now, frame)), [KEPT, REFUSED]);
    }
    while node.admit(now, &STRANGER) == KEPT {}
    let opened = node.peers()[0].link.counters.opened;
    node.frame(now, &mut forged, said);
    node.frame(now, &mut first.clone(), said);
    node.frame(now, &mut first, said);
    for frame in [first, forged, second] {
        assert_eq!(node.admit(now, &frame), TOO_MANY);
    }
    assert_eq!(node.peers()[0].link.counters.opened, opened + 1);
}

/// For three seconds frames wait, as when somebody spends those that were kept back: most are a stranger's.
#[test]
fn a_host_stays_a_member_while_frames_always_wait() {
    let mut world = members();
    let ids = |world: &World| [0, 1].map(|n: usize| world.hosts[n].node.membership().view().id);
    let read = |world: &World| {
        let node = &world.hosts[0].node;
        node.unheard + node.peers()[0].link.counters.opened
    };
    let (before, read_before, end) = (ids(&world), read(&world), world.now + 3_000 * MS);
    let (mut waiting, mut taken) = (VecDeque::new(), 0);
    while world.now < end {
        world.now += MS / 100;
        waiting.extend(take_and_work(&mut world.hosts[1], world.now, None));
        if waiting.is_empty() {
            waiting.push_back(STRANGER.to_vec());
        }
        let Host { node, said, .. } = &mut world.hosts[0];
        let oldest = waiting.front_mut().map(Vec::as_mut_slice);
        if node.piece(world.now, oldest, said) == [true; 2] {
            waiting.pop_front();
            taken += 1;
        }
        for frame in std::mem::take(&mut said.frames) {
            let sent = take_and_work(&mut world.hosts[1], world.now, Some(frame));
            waiting.extend(sent);
        }
    }
    assert_eq!(ids(&world), before);
    assert_eq!(read(&world), read_before + taken);
}

/// Somebody hears all frames, of which one in ten is lost, and sends each of them again 300 times with a wrong bit, a million a
/// second.
#[test]
fn members_stay_while_all_their_frames_are_copied() {
    let mut world = members();
    let ids = |world: &World| [0, 1].map(|n: usize| world.hosts[n].node.membership().view().id);
    let (before, end) = (ids(&world), world.now + 3_000 * MS);
    let (mut sent, mut lost) = (0_u64, 0);
    while world.now < end {
        world.step(end, &mut |_, _, frame| {
            sent += 1;
            let is_lost = sent.is_multiple_of(10);
            lost += u64::from(is_lost);
            let mut forged = frame.to_vec();
            *forged.last_mut().unwrap() ^= 1;
            let copies = (0..300).map(|n| (1_000 * n, forged.clone()));
            let own = (!is_lost).then(|| (0, frame.to_vec()));
            own.into_iter().chain(copies).collect()
        });
    }
    assert_eq!(ids(&world), before);
    assert!(lost > 10, "{sent}");
    // Those of the others were dropped where they came.
    let dropped = |why: Dropped| {
        let of = |host: &Host| host.node.peers()[0].link.counters.dropped[why as usize];
        world.hosts.iter().map(of).sum::<u64>()
    };
    assert!(dropped(Dropped::Forged) <= lost);
    assert!(dropped(Dropped::Replayed) >= 299 * sent);
}

proptest! {
    /// Whoever hears, changes, repeats and overtakes members' frames, before any is looked at.
    #[test]
    fn copies_take_no_more_room_than_members(steps in vec((0..3_u8, 0..9_usize, any::<u16>()), 1..200)) {
        let mut world = members();
        let sent = [(); 9].map(|()| message(&mut world));
        let Host { node, .. } = &mut world.hosts[0];
        let mut has_come = [false; 9];
        while node.admit(world.now, &STRANGER) == KEPT {}
        for (change, n, at) in steps {
            let mut frame = sent[n].clone();
            let body = frame.len() - size_of::<Sealed>();
            match change {
                0 => frame[size_of::<Sealed>() + usize::from(at) % body] ^= 1,
                1 => frame.truncate(size_of::<Sealed>() + usize::from(at) % body),
                _ => {}
            }
            let is_first = !std::mem::replace(&mut has_come[n], true);
            prop_assert_eq!(node.admit(world.now, &frame), [is_first; 2]);
        }
    }
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
    while node.admit(now, &STRANGER) == KEPT {}
    assert!(node.peers()[0].link.session().is_none());
    for mut frame in kept {
        assert_eq!(node.admit(now, &frame), KEPT);
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
