//! Sessions of two to four hosts, with messages in order between two hosts and in any order else.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod world;

use model_span::{
    Broken, GROUP1_TOO, Kind, Layout, MEMORY_STEP, Message, Session, State, Todo, Unfit, end,
};
use std::collections::VecDeque;
use world::{AHEAD_MAX, LIFE, SHAPE, World};

#[test]
fn shares_cover_all_without_overlap() {
    for hosts in [0b11_u16, 0b1010, 0b111, 0b1011_0001, u16::MAX] {
        let count = hosts.count_ones();
        for vcpus in count as u8..=16 {
            let layout = Layout::new(hosts, vcpus, u64::from(count) * 3 * MEMORY_STEP).unwrap();
            let (mut vcpu, mut byte) = (0, 0);
            for host in layout.hosts() {
                let its = layout.vcpus_of(host);
                assert!(its.start == vcpu && !its.is_empty(), "{hosts:#b} {vcpus}");
                for index in its.clone() {
                    assert_eq!(layout.host_of(index), Some(host));
                    assert_eq!(layout.bits_of(host) >> index & 1, 1);
                }
                let memory = layout.memory_of(host);
                assert!(memory.start == byte && memory.end - byte == 3 * MEMORY_STEP);
                (vcpu, byte) = (its.end, memory.end);
            }
            assert_eq!((vcpu, byte), (vcpus, u64::from(count) * 3 * MEMORY_STEP));
            assert_eq!(layout.host_of(vcpus), None);
            assert_eq!(layout.host_of(0), Some(layout.first()));
        }
    }
}

#[test]
fn shares_that_leave_a_host_with_nothing_are_refused() {
    let (one, two) = (MEMORY_STEP, 2 * MEMORY_STEP);
    assert_eq!(Layout::new(0b100, 4, two), Err(Unfit::Hosts(1)));
    assert_eq!(Layout::new(0, 4, two), Err(Unfit::Hosts(0)));
    assert_eq!(Layout::new(0b111, 2, 3 * one), Err(Unfit::Vcpus(2, 3)));
    assert_eq!(Layout::new(0b11, 17, two), Err(Unfit::Vcpus(17, 2)));
    for memory in [0, one, 3 * one, two + 4096] {
        assert_eq!(Layout::new(0b11, 2, memory), Err(Unfit::Memory(memory, 2)));
    }
}

#[test]
fn hosts_begin_together_whoever_comes_first() {
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [2, 0, 1]] {
        let mut world = World::new(0b111, 3);
        for host in order {
            assert!(world.hosts.values().all(|it| it.state() == State::Waiting));
            // A host without the VM drops what comes for it.
            world.announce(host);
            let is_there =
                |host: u8| order[..=order.iter().position(|it| *it == host).unwrap()].len();
            let now = is_there(host);
            let wires: Vec<_> = world.wires.keys().copied().collect();
            for wire in wires.iter().filter(|wire| is_there(wire.1) > now) {
                world.wires.remove(wire);
            }
            world.settle();
        }
        let starts = world.done.iter().filter(|it| it.1 == Todo::Start).count();
        assert!(starts == 3 && world.hosts.values().all(|it| it.state() == State::Running));
    }
}

#[test]
fn hosts_that_do_not_know_all_others_do_not_begin() {
    for late in [0, 1, 2] {
        let mut world = World::new(0b111, 3);
        for host in [0, 1, 2] {
            let has_all = host != late;
            world.act(host, |session, send| {
                session.announce(LIFE, has_all, send);
            });
        }
        world.settle();
        assert!(world.hosts.values().all(|it| it.state() == State::Waiting));
        world.announce(late);
        world.settle();
        assert!(world.hosts.values().all(|it| it.state() == State::Running));
    }
}

/// Of a host that was ready and comes back, nothing is known.
#[test]
fn hosts_are_ready_anew_where_the_membership_has_grown() {
    let mut world = World::new(0b111, 3);
    for host in [0, 2] {
        world.announce(host);
    }
    world.settle();
    let layout = *world.hosts[&0].layout();
    let fresh = Session::new(layout, 2, SHAPE, AHEAD_MAX);
    world.hosts.insert(2, fresh);
    for host in [0, 1] {
        world.announce(host);
    }
    world.settle();
    assert!(world.hosts.values().all(|it| it.state() == State::Waiting));
    world.announce(2);
    world.settle();
    assert!(world.hosts.values().all(|it| it.state() == State::Running));
}

/// A host that cannot reach all others ends the VM: who hears of it tells them, before what it says of another life.
#[test]
fn an_end_comes_before_the_next_life() {
    let mut world = World::started(0b111, 3);
    world.act(1, |session, send| {
        session.tell(Kind::End, end::FAILED, send);
    });
    world.wires.remove(&(1, 2, 0));
    world.deliver((1, 0)).unwrap();
    let layout = *world.hosts[&0].layout();
    world
        .hosts
        .insert(0, Session::new(layout, 0, SHAPE, AHEAD_MAX));
    world.act(0, |session, send| {
        session.announce(LIFE + 1, true, send);
    });
    world.settle();
    let failed = Todo::Live(Kind::End, end::FAILED);
    assert!(world.done.contains(&(2, failed)));
    assert_eq!(world.hosts[&2].state(), State::Ended);
}

#[test]
fn hosts_with_another_description_do_not_begin() {
    let mut world = World::new(0b11, 2);
    let layout = *world.hosts[&0].layout();
    world
        .hosts
        .insert(1, Session::new(layout, 1, SHAPE + 1, AHEAD_MAX));
    world.announce(0);
    world.settle();
    let unlike = Todo::Live(Kind::End, end::UNLIKE);
    assert!(world.done.contains(&(0, unlike)) && world.done.contains(&(1, unlike)));
    assert!(world.hosts.values().all(|it| it.state() == State::Ended));
}

#[test]
fn a_third_host_that_starts_sooner_is_waited_for() {
    let mut world = World::new(0b111, 3);
    for host in [0, 1, 2] {
        world.announce(host);
    }
    while world.hosts[&1].state() == State::Waiting {
        for wire in [(1, 0), (0, 1), (2, 0)] {
            world.deliver(wire).unwrap();
        }
        if world.hosts[&0].state() == State::Waiting {
            world.deliver((0, 2)).unwrap();
        }
    }
    assert_eq!(world.hosts[&2].state(), State::Waiting);
    world.ask(1, 1, (Kind::AffinityInfo, 2, 0, 0));
    assert_eq!(world.deliver((1, 2)), Ok(false), "it is held");
    world.settle();
    assert_eq!(
        world.act(1, |session, _| session.take_answer(1)),
        Some(2 << 8)
    );
}

#[test]
fn any_host_pauses_resumes_and_ends_all() {
    let mut world = World::started(0b1011, 4);
    for (host, kind, detail) in [
        (1, Kind::Pause, 0),
        (3, Kind::Resume, 1),
        (0, Kind::End, end::KILLED),
    ] {
        world.done.clear();
        world.act(host, |session, send| session.tell(kind, detail, send));
        world.settle();
        // Who hears of an end tells it once more, which means nothing.
        world.done.retain(|it| it.1 != Todo::Nothing);
        let heard: Vec<u8> = world.done.iter().map(|it| it.0).collect();
        assert!(heard.len() == 2 && !heard.contains(&host));
        assert!(world.done.iter().all(|it| it.1 == Todo::Live(kind, detail)));
    }
    // After its end, messages mean nothing, and nothing is told again.
    world.act(1, |session, send| {
        session.tell(Kind::End, end::KILLED, send);
    });
    assert!(world.wires.values().all(VecDeque::is_empty));
    assert_eq!(
        world.forge(1, 0, |m| m.kind = Kind::Pause),
        Ok(Todo::Nothing)
    );
}

#[test]
fn a_vcpu_has_one_thing_under_way() {
    let mut world = World::started(0b11, 4);
    let sgi = |world: &mut World| {
        world.act(1, |session, send| {
            session.send_sgi(3, (5 | GROUP1_TOO, 0b1), send)
        })
    };
    assert_eq!(sgi(&mut world), Some(0));
    assert!(!world.hosts[&1].waits(3), "nobody waits for an SGI");
    assert_eq!(sgi(&mut world), None, "the next one waits");
    assert!(world.hosts[&1].waits(3));
    world.ask(1, 3, (Kind::Load, 4, 0x1000, 0));
    assert_eq!(world.wires[&(1, 0, 0)].len(), 1);
    world.settle();
    assert!(world.done.contains(&(1, Todo::Wake(3))) && world.sgis(0) == 1);
    let answer = world.act(1, |session, _| session.take_answer(3));
    assert_eq!(answer, None, "it asks again");
    world.register = 77;
    world.ask(1, 3, (Kind::Load, 4, 0x1000, 0));
    world.settle();
    assert_eq!(world.act(1, |session, _| session.take_answer(3)), Some(77));
    assert_eq!(world.act(1, |session, _| session.take_answer(3)), None);
}

#[test]
fn what_hosts_must_not_say_ends_the_vm() {
    let malformed = Err(Broken::Malformed(1));
    let unexpected = |kind| Err(Broken::Unexpected(1, kind));
    let mut world = World::started(0b111, 6);
    // vCPUs 0, 1 | 2, 3 | 4, 5.
    let wrong: [fn(&mut Message); 9] = [
        |m| m.zero = 1,
        |m| (m.vcpu, m.at) = (4, 1.into()),
        |m| (m.vcpu, m.at) = (2, 4.into()),
        |m| (m.vcpu, m.at) = (2, (1 << 40).into()),
        |m| (m.vcpu, m.detail) = (2, 2 * GROUP1_TOO),
        |m| (m.kind, m.vcpu, m.detail) = (Kind::CpuOn, 2, 3),
        |m| (m.kind, m.vcpu, m.detail) = (Kind::Load, 2, 3),
        |m| (m.kind, m.detail) = (Kind::End, end::LAST + 1),
        |m| (m.kind, m.detail) = (Kind::Pause, 2),
    ];
    for (n, change) in wrong.into_iter().enumerate() {
        assert_eq!(world.forge(1, 0, change), malformed, "{n}");
    }
    for kind in [Kind::Offer, Kind::Start, Kind::Reply] {
        assert_eq!(world.forge(1, 0, |m| m.kind = kind), unexpected(kind));
    }
    let load = |m: &mut Message| (m.kind, m.vcpu, m.detail) = (Kind::Load, 2, 4);
    assert_eq!(
        world.forge(1, 2, load),
        unexpected(Kind::Load),
        "it has no devices"
    );
    let own = world.forge(0, 0, |m| m.kind = Kind::Pause);
    assert_eq!(own, Err(Broken::Unexpected(0, Kind::Pause)));
    for from in [3, 15] {
        let ends = world.forge(from, 0, |m| (m.kind, m.zero) = (Kind::End, 1));
        assert_eq!(ends, Ok(Todo::Nothing), "it has another VM");
    }
    let short = world.act(0, |session, send| {
        session.receive(1, &[Kind::Sgi as u8; 31], send)
    });
    assert_eq!(short, malformed);
    // A message of another life means nothing.
    assert_eq!(
        world.forge(1, 0, |m| m.life = (LIFE - 1).into()),
        Ok(Todo::Nothing)
    );
    // Clocks do not jump.
    world.clocks[1] = AHEAD_MAX + 1;
    world.act(1, |session, send| session.tell(Kind::Pause, 0, send));
    assert_eq!(world.deliver((1, 0)), Err(Broken::Clock(1, AHEAD_MAX + 1)));
}
