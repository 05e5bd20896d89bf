//! Probes of a link over networks that lose and repeat frames, and to hosts that go.

#![allow(clippy::unwrap_used)]

mod world;

use abi::cluster::{PROBED, Probe};
use model_link::Lane;
use world::{Host, MS, Plan, World};
use zerocopy::IntoBytes;

/// What a probe has come to: messages left, whether it has ended, and whether all came as they were sent.
fn probed(world: &World) -> (u32, bool, bool) {
    probed_to(world, 1)
}

fn probed_to(world: &World, other: u8) -> (u32, bool, bool) {
    let probes = &world.hosts[0].node.peers()[usize::from(other) - 1].probes;
    (
        probes.left,
        probes.times[1] > probes.times[0],
        probes.is_whole,
    )
}

#[test]
fn a_probe_brings_all_pages_over_a_bad_network() {
    for lane in Lane::ALL {
        let mut world = World::of(2);
        assert!(!world.hosts[0].node.probe(1, 300, lane), "no session yet");
        world.run(500 * MS);
        assert!(!world.hosts[0].node.probe(0, 300, lane), "host 0 itself");
        assert!(!world.hosts[0].node.probe(1, 0, lane));
        assert!(world.hosts[0].node.probe(1, 300, lane));
        let (end, mut n) = (world.now + 1_000 * MS, 0);
        while world.now < end {
            world.step(end, &mut |_, _, frame| {
                n += 1;
                match n % 20 {
                    0 => Vec::new(),
                    1 => vec![(0, frame.to_vec()), (MS, frame.to_vec())],
                    _ => vec![(0, frame.to_vec())],
                }
            });
        }
        assert_eq!(probed(&world), (0, true, true), "{lane:?}");
        assert!(world.is_in(0, 1) && world.is_in(1, 0));
        assert!(world.hosts[0].node.peers()[0].link.counters.resent > 0);
    }
}

#[test]
fn a_piece_of_a_late_host_makes_one_frame() {
    // With AES and without.
    for other in [1, 2] {
        let mut world = World::of(3);
        world.run(600 * MS);
        for host in &mut world.hosts {
            host.said.is_late = true;
        }
        assert!(world.hosts[0].node.probe(other.into(), 300, Lane::Bulk));
        let Host { node, said, .. } = &mut world.hosts[0];
        let mut made = 0;
        while node.work(world.now, said) {
            assert!(said.frames.len() <= made + 1);
            made = said.frames.len();
        }
        assert!(made > 8);
        world.run(1_000 * MS);
        assert_eq!(probed_to(&world, other), (0, true, true));
    }
}

/// A piece makes all frames of a page with AES, and one without.
#[test]
fn a_piece_without_aes_makes_one_frame() {
    for (other, most) in [(1, 3), (2, 1)] {
        let mut world = World::of(3);
        world.run(600 * MS);
        assert!(world.hosts[0].node.probe(other, 300, Lane::Bulk));
        let Host { node, said, .. } = &mut world.hosts[0];
        let (mut made, mut longest) = (said.frames.len(), 0);
        while node.work(world.now, said) {
            longest = longest.max(said.frames.len() - made);
            made = said.frames.len();
        }
        assert_eq!(longest, most);
    }
}

#[test]
fn a_members_frames_find_tokens() {
    let mut world = World::of(2);
    world.run(500 * MS);
    assert!(world.hosts[0].node.probe(1, 3000, Lane::Bulk));
    world.run(MS);
    let (left, ..) = probed(&world);
    world.run(MS);
    // More frames than would be admitted of strangers.
    assert!(probed(&world).0 + 100 < left);
    world.run(1_000 * MS);
    assert_eq!((probed(&world), world.unread), ((0, true, true), 0));
}

#[test]
fn a_probe_that_is_cut_off_has_not_ended() {
    let mut world = World::of(2);
    world.run(500 * MS);
    assert!(world.hosts[0].node.probe(1, 3000, Lane::Bulk));
    world.run(MS);
    world.dead = Some(1);
    world.run(3_000 * MS);
    let (left, has_ended, _) = probed(&world);
    assert!(left > 0 && !has_ended);
    // The host is quiet, and comes back to another probe.
    let Host { node, said, .. } = &mut world.hosts[0];
    while node.work(world.now, said) {}
    assert!(node.deadline() > world.now);
    let again = Plan {
        start: 2,
        ..Plan::of(2)
    };
    (world.dead, world.hosts[1]) = (None, again.make(1));
    world.run(3_000 * MS);
    assert!(world.hosts[0].node.probe(1, 10, Lane::Urgent));
    world.run(500 * MS);
    assert_eq!(probed(&world), (0, true, true));
}

#[test]
fn answers_that_nobody_asked_for_change_nothing() {
    let mut world = World::of(2);
    world.run(500 * MS);
    assert!(world.hosts[0].node.probe(1, 10, Lane::Urgent));
    world.run(100 * MS);
    let mut probes = world.hosts[0].node.peers()[0].probes.clone();
    assert!(probes.is_whole);
    let answer = |number: u32| Probe {
        kind: PROBED,
        asks: 0,
        zeroes: [0; 2],
        number: number.into(),
        digest: 5.into(),
    };
    for number in [0, 8, 9, u32::MAX] {
        probes.receive(world.now, answer(number).as_bytes());
        assert!(probes.is_whole && probes.times[1] < world.now);
    }
    // To one that is due: of another number, and with another digest.
    world.dead = Some(1);
    assert!(world.hosts[0].node.probe(1, 1, Lane::Urgent));
    world.run(MS);
    let mut probes = world.hosts[0].node.peers()[0].probes.clone();
    for number in [1, u32::MAX] {
        probes.receive(world.now, answer(number).as_bytes());
        assert_eq!(probes.times[1], 0);
    }
    probes.receive(world.now, answer(0).as_bytes());
    assert!(probes.times[1] == world.now && !probes.is_whole);
    probes.receive(world.now, &[PROBED]);
    probes.receive(world.now, &[]);
}
