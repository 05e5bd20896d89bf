//! vCPUs that go over to another host, and that stay.

#![allow(clippy::unwrap_used)]

mod world;

use model_span::{Broken, Kind, OWN_MAX, Stays, Todo};
use world::World;

/// A world of three hosts with two vCPUs each: 0, 1 | 2, 3 | 4, 5.
fn three() -> World {
    World::started(0b111, 6)
}

/// Where hosts believe a vCPU to be.
fn beliefs(world: &World, vcpu: u8) -> Vec<u8> {
    let hosts = world.hosts.values();
    hosts.map(|it| it.host_of(vcpu).unwrap()).collect()
}

/// The other two hosts of three hear that a vCPU of host 1 moves, and answer.
fn all_hold(world: &mut World) {
    for wire in [(1, 0), (1, 2), (0, 1), (2, 1)] {
        assert!(world.deliver(wire).unwrap());
    }
}

#[test]
fn a_vcpu_goes_over_with_its_state_and_back() {
    let mut world = three();
    world.interrupt(1, 1 << 3);
    assert_eq!(world.move_vcpu(1, 3, 2), Ok(()));
    world.settle();
    assert_eq!(beliefs(&world, 3), [2; 3]);
    assert_eq!(world.states.get(&(2, 3)), Some(&1));
    world.interrupt(2, 1 << 3);
    assert_eq!(world.move_vcpu(2, 3, 1), Ok(()));
    world.settle();
    assert_eq!(beliefs(&world, 3), [1; 3]);
    assert_eq!(world.states.get(&(1, 3)), Some(&2));
}

#[test]
fn a_host_may_have_no_vcpu() {
    let mut world = three();
    for vcpu in [4, 5] {
        assert_eq!(world.move_vcpu(2, vcpu, 0), Ok(()));
        world.settle();
        assert_eq!(beliefs(&world, vcpu), [0; 3]);
    }
}

#[test]
fn it_is_said_why_a_vcpu_stays() {
    let mut world = three();
    for (host, vcpu, to, why) in [
        (0, 6, 1, Stays::Absent(6)),
        (0, 255, 1, Stays::Absent(255)),
        (0, 1, 3, Stays::Stranger(3)),
        (0, 1, 255, Stays::Stranger(255)),
        (0, 1, 0, Stays::There(1)),
        (0, 3, 1, Stays::There(3)),
        (0, 3, 2, Stays::Elsewhere(3, 1)),
        (0, 0, 1, Stays::First),
    ] {
        assert_eq!(world.move_vcpu(host, vcpu, to), Err(why));
    }
    assert_eq!(world.move_vcpu(0, 1, 2), Ok(()));
    assert_eq!(world.move_vcpu(0, 1, 2), Err(Stays::Busy(1)));
    world.deliver((0, 1)).unwrap();
    assert_eq!(world.move_vcpu(1, 2, 0), Err(Stays::Busy(1)));
    let mut waiting = World::new(0b11, 2);
    assert_eq!(waiting.move_vcpu(1, 1, 0), Err(Stays::Apart));
}

#[test]
fn of_two_that_begin_at_once_both_stay() {
    let mut world = three();
    assert_eq!(world.move_vcpu(0, 1, 1), Ok(()));
    assert_eq!(world.move_vcpu(1, 3, 2), Ok(()));
    world.settle();
    assert_eq!(beliefs(&world, 1), [0; 3]);
    assert_eq!(beliefs(&world, 3), [1; 3]);
    // Nobody waits for them any more.
    assert_eq!(world.move_vcpu(1, 3, 0), Ok(()));
    world.settle();
    assert_eq!(beliefs(&world, 3), [0; 3]);
}

#[test]
fn a_host_that_is_full_takes_no_more() {
    let mut world = World::started(0b11, 10);
    for vcpu in 5..8 {
        assert_eq!(world.move_vcpu(1, vcpu, 0), Ok(()));
        world.settle();
        assert_eq!(beliefs(&world, vcpu), [0; 2]);
    }
    assert_eq!(OWN_MAX, 8);
    assert_eq!(world.move_vcpu(1, 8, 0), Ok(()));
    world.settle();
    assert_eq!(beliefs(&world, 8), [1; 2]);
    assert_eq!(world.move_vcpu(0, 7, 1), Ok(()));
    world.settle();
    assert_eq!(world.move_vcpu(1, 8, 0), Ok(()));
    world.settle();
    assert_eq!(beliefs(&world, 8), [0; 2]);
}

#[test]
fn what_is_asked_of_one_on_its_way_waits() {
    let mut world = three();
    let affinity = (Kind::AffinityInfo, 3, 0, 0);
    assert_eq!(world.move_vcpu(1, 3, 2), Ok(()));
    world.deliver((1, 0)).unwrap();
    world.ask(0, 1, affinity);
    let sgi =
        |world: &mut World| world.act(0, |session, send| session.send_sgi(0, (5, 0b1_1010), send));
    assert_eq!(sgi(&mut world), None);
    assert!(world.hosts[&0].waits(0) && world.hosts[&0].waits(1));
    world.settle();
    assert!(!world.hosts[&0].waits(0) && !world.hosts[&0].waits(1));
    assert_eq!(world.act(0, |session, _| session.take_answer(1)), None);
    assert_eq!(sgi(&mut world), Some(0b10), "vCPU 1 is here");
    world.ask(0, 1, affinity);
    world.settle();
    assert_eq!(
        world.act(0, |session, _| session.take_answer(1)),
        Some(3 << 8)
    );
    assert_eq!((world.sgis(3), world.sgis(4)), (1, 1));
}

#[test]
fn a_vcpu_that_cannot_leave_stays_and_nobody_waits_for_it() {
    let mut world = three();
    assert_eq!(world.move_vcpu(1, 3, 2), Ok(()));
    assert!(world.hosts[&1].is_leaving(3) && !world.hosts[&2].is_leaving(3));
    // Not all hold.
    world.act(1, |session, send| session.stays(send));
    assert!(world.hosts[&1].is_leaving(3));
    all_hold(&mut world);
    world.ask(0, 1, (Kind::AffinityInfo, 3, 0, 0));
    assert!(world.hosts[&0].waits(1));
    world.act(1, |session, send| session.stays(send));
    assert!(!world.hosts[&1].is_leaving(3));
    world.settle();
    assert_eq!(beliefs(&world, 3), [1; 3]);
    assert!(!world.hosts[&0].waits(1));
    assert_eq!(world.move_vcpu(1, 3, 0), Ok(()));
    world.settle();
    assert_eq!(beliefs(&world, 3), [0; 3]);
}

#[test]
fn a_vcpu_leaves_no_answer_behind() {
    let mut world = three();
    world.ask(1, 3, (Kind::AffinityInfo, 0, 0, 0));
    assert_eq!(world.move_vcpu(1, 3, 2), Ok(()));
    world.settle();
    assert_eq!(beliefs(&world, 3), [1; 3]);
    assert_eq!(world.act(1, |session, _| session.take_answer(3)), Some(0));
    world.settle();
    assert_eq!(beliefs(&world, 3), [2; 3]);
}

/// The vCPU's state, and what is asked of it there, come by different links and lanes.
#[test]
fn what_overtakes_the_state_waits_for_it() {
    for asks in [0, 1] {
        let mut world = three();
        assert_eq!(world.move_vcpu(1, 3, 2), Ok(()));
        all_hold(&mut world);
        assert!(world.leave(1));
        assert!(world.deliver((1, 0)).unwrap());
        let asker = 1 + asks;
        world.ask(asks, asker, (Kind::AffinityInfo, 3, 0, 0));
        assert_eq!(world.deliver((asks, 2)), Ok(false), "it is held");
        assert_eq!(world.deliver_state((1, 2)), Ok(true));
        assert_eq!(world.deliver((asks, 2)), Ok(true));
        world.settle();
        let answer = world.act(asks, |session, _| session.take_answer(asker));
        assert_eq!(answer, Some(3 << 8));
    }
}

/// Host 1 says something about a vCPU to a host.
fn says(world: &mut World, to: u8, (kind, vcpu, at): (Kind, u8, u64)) -> Result<Todo, Broken> {
    world.forge(1, to, |m| {
        (m.kind, m.detail, m.at) = (kind, vcpu, at.into());
    })
}

#[test]
fn moves_that_nothing_led_to_end_the_vm() {
    for (what, said) in [
        ("of another's vCPU", (Kind::Move, 4, 0)),
        ("of no vCPU", (Kind::Move, 6, 0)),
        ("to where it is", (Kind::Move, 3, 1)),
        ("to no host", (Kind::Move, 3, 3)),
        ("far away", (Kind::Move, 3, 256)),
        ("of one that did not leave", (Kind::Moved, 3, 2)),
        ("of another's that left", (Kind::Moved, 4, 1)),
        ("of a state", (Kind::State, 3, 0)),
        ("of an answer", (Kind::Held, 1, 0)),
        ("of an answer for no vCPU", (Kind::Held, 255, 0)),
    ] {
        let answer = says(&mut three(), 0, said);
        assert_eq!(answer, Err(Broken::Unexpected(1, said.0)), "{what}");
    }
    let asked = three().forge(1, 0, |m| {
        (m.kind, m.vcpu, m.detail) = (Kind::CpuOn, 2, 255);
    });
    assert_eq!(asked, Err(Broken::Malformed(1)));
    // Of the first host, whose vCPU 0 stays.
    let said = three().forge(0, 1, |m| {
        (m.kind, m.at) = (Kind::Move, 2.into());
    });
    assert_eq!(said, Err(Broken::Unexpected(0, Kind::Move)));
    // A move that was refused is taken back.
    let said = says(&mut three(), 0, (Kind::Moved, 3, 1));
    assert_eq!(said, Ok(Todo::Nothing));
}

#[test]
fn answers_to_a_move_are_given_once_and_mean_something() {
    // While vCPU 1 leaves: answers of nobody, twice, and without a meaning.
    for (detail, at) in [(3, 0), (1, 3), (1, 256)] {
        let mut world = three();
        assert_eq!(world.move_vcpu(0, 1, 2), Ok(()));
        let said = says(&mut world, 0, (Kind::Held, detail, at));
        assert_eq!(
            said,
            Err(Broken::Unexpected(1, Kind::Held)),
            "{detail} {at}"
        );
    }
    let mut world = three();
    assert_eq!(world.move_vcpu(0, 1, 2), Ok(()));
    let held = |world: &mut World| says(world, 0, (Kind::Held, 1, 0));
    assert_eq!(held(&mut world), Ok(Todo::Nothing));
    assert_eq!(held(&mut world), Err(Broken::Unexpected(1, Kind::Held)));
    // On its way here, it is nowhere else.
    let mut world = three();
    assert_eq!(world.move_vcpu(1, 3, 2), Ok(()));
    world.deliver((1, 2)).unwrap();
    let said = says(&mut world, 2, (Kind::Moved, 3, 2));
    assert_eq!(said, Err(Broken::Unexpected(1, Kind::Moved)));
    let said = says(&mut world, 2, (Kind::Moved, 3, 0));
    assert_eq!(said, Err(Broken::Unexpected(1, Kind::Moved)));
}
