//! Hosts that leave a VM which goes on.

#![allow(clippy::unwrap_used)]

mod world;

use model_span::{Kind, State, Stays, Todo, end};
use world::World;

/// A world of three hosts with two vCPUs each, of which the last has none any more.
fn emptied() -> World {
    let mut world = World::started(0b111, 6);
    for vcpu in [4, 5] {
        assert_eq!(world.move_vcpu(2, vcpu, 1), Ok(()));
        world.settle();
    }
    world
}

fn leave(world: &mut World, host: u8) -> Result<(), Stays> {
    world.act(host, |session, _| session.leave())
}

fn part(world: &mut World, host: u8) {
    world.act(host, |session, send| session.part(send));
}

#[test]
fn the_others_go_on_without_it() {
    let mut world = emptied();
    assert_eq!(leave(&mut world, 2), Ok(()));
    assert_eq!(leave(&mut world, 2), Ok(()), "it goes on leaving");
    part(&mut world, 2);
    part(&mut world, 2);
    world.settle();
    assert_eq!(
        world
            .done
            .iter()
            .filter(|it| **it == (2, Todo::Part))
            .count(),
        1
    );
    assert_eq!(world.hosts[&2].state(), State::Ended);
    assert_eq!(world.hosts[&0].hosts(), 0b011);
    // Nothing is sent to it any more, and all else goes on.
    world.act(2, |session, send| {
        session.tell(Kind::End, end::KILLED, send);
    });
    world.act(0, |session, send| session.tell(Kind::Pause, 0, send));
    assert!(
        world
            .wires
            .iter()
            .all(|((from, to, _), wire)| wire.is_empty() || (*from, *to) == (0, 1))
    );
    assert_eq!(world.move_vcpu(1, 3, 2), Err(Stays::Stranger(2)));
    assert_eq!(world.move_vcpu(1, 3, 0), Ok(()));
    world.settle();
    assert_eq!(world.hosts[&1].host_of(3), Some(0));
    assert_eq!(world.hosts[&0].state(), State::Running);
}

#[test]
fn it_is_said_why_a_host_stays() {
    let mut world = World::started(0b111, 6);
    assert_eq!(leave(&mut world, 0), Err(Stays::First));
    assert_eq!(leave(&mut world, 2), Err(Stays::Occupied(2)));
    let mut waiting = World::new(0b111, 6);
    assert_eq!(leave(&mut waiting, 2), Err(Stays::Apart));
    let mut world = emptied();
    assert_eq!(world.move_vcpu(1, 3, 2), Ok(()));
    assert!(world.deliver((1, 2)).unwrap());
    assert_eq!(leave(&mut world, 2), Err(Stays::Busy(3)));
    world.settle();
    assert_eq!(leave(&mut world, 2), Err(Stays::Occupied(1)));
}

#[test]
fn no_vcpu_comes_to_a_host_that_leaves() {
    let mut world = emptied();
    assert_eq!(leave(&mut world, 2), Ok(()));
    assert_eq!(world.move_vcpu(1, 3, 2), Ok(()));
    world.settle();
    assert_eq!(world.runs_at(3), Some(1));
    // The word of a host that leaves is as good as its answer.
    assert_eq!(world.move_vcpu(1, 3, 2), Ok(()));
    part(&mut world, 2);
    assert!(world.deliver((1, 0)).unwrap() && world.deliver((0, 1)).unwrap());
    assert!(world.deliver((2, 1)).unwrap());
    assert!(!world.hosts[&1].is_leaving(3));
    world.settle();
    assert_eq!(world.runs_at(3), Some(1));
    assert_eq!(world.hosts[&0].host_of(3), Some(1));
}

#[test]
fn two_hosts_that_leave_at_once_hear_each_other() {
    let mut world = emptied();
    for vcpu in [2, 3, 4, 5] {
        assert_eq!(world.move_vcpu(1, vcpu, 0), Ok(()));
        world.settle();
    }
    for host in [1, 2] {
        assert_eq!(leave(&mut world, host), Ok(()));
    }
    part(&mut world, 1);
    part(&mut world, 2);
    world.settle();
    for host in [1, 2] {
        assert_eq!(world.hosts[&host].state(), State::Ended);
    }
}

#[test]
fn the_state_of_the_last_vcpu_may_come_behind() {
    let mut world = World::started(0b111, 6);
    assert_eq!(world.move_vcpu(2, 4, 1), Ok(()));
    world.settle();
    assert_eq!(world.move_vcpu(2, 5, 1), Ok(()));
    for wire in [(2, 0), (2, 1), (0, 2), (1, 2)] {
        assert!(world.deliver(wire).unwrap());
    }
    assert!(world.leave(2));
    assert_eq!(leave(&mut world, 2), Ok(()));
    part(&mut world, 2);
    assert_eq!(world.deliver((2, 1)), Ok(false), "it waits");
    world.settle();
    assert_eq!(world.runs_at(5), Some(1));
    assert_eq!(world.hosts[&2].state(), State::Ended);
}

#[test]
fn a_vm_that_begins_anew_lets_a_leaver_go() {
    let mut world = emptied();
    assert_eq!(leave(&mut world, 2), Ok(()));
    let offer =
        |world: &mut World| world.forge(0, 2, |m| (m.kind, m.life) = (Kind::Offer, 8.into()));
    assert!(offer(&mut world).is_err(), "it has not parted");
    let mut world = emptied();
    assert_eq!(leave(&mut world, 2), Ok(()));
    part(&mut world, 2);
    assert_eq!(offer(&mut world), Ok(Todo::Part));
    assert_eq!(world.hosts[&2].state(), State::Ended);
}

#[test]
fn forged_words_of_leavers_end_the_vm() {
    let mut world = World::started(0b111, 6);
    for (from, to, kind) in [(2, 1, Kind::Leave), (0, 1, Kind::Leave), (2, 1, Kind::Left)] {
        assert!(
            world.forge(from, to, |m| m.kind = kind).is_err(),
            "{kind:?} of {from}"
        );
    }
    // What one says that has left means nothing, however wrong it is.
    let mut world = emptied();
    assert_eq!(leave(&mut world, 2), Ok(()));
    part(&mut world, 2);
    world.settle();
    for kind in [Kind::Sgi, Kind::Leave, Kind::End, Kind::Start] {
        let said = world.forge(2, 1, |m| m.kind = kind);
        assert_eq!(said, Ok(Todo::Nothing), "{kind:?}");
    }
    let mut m = Vec::new();
    m.resize(32, 0xff_u8);
    m[0] = Kind::Sgi as u8;
    assert_eq!(world.hosts[&1].behind(2, &m, 0), Ok(None));
}
