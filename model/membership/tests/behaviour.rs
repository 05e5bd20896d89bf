//! What fits, what is common, and how long things take.

#![allow(clippy::unwrap_used)]

mod world;

use abi::cluster::{BEAT, Beat, HOSTS_MAX, PROPOSE, PROTOCOL, Propose};
use model_membership::{
    Description, Event, Membership, NEVER, Settings, Standing, Unfit, common, differences,
};
use world::{DECLARE, Item, STOP, World, description};
use zerocopy::{FromBytes, IntoBytes};

fn changed(change: impl FnOnce(&mut Description)) -> Result<(), Unfit> {
    let mut theirs = description(2);
    change(&mut theirs);
    let first = differences(&theirs, &description(1)).next();
    first.map_or(Ok(()), Err)
}

#[test]
fn every_field_that_must_be_equal_is_named() {
    assert_eq!(changed(|_| {}), Ok(()));
    assert_eq!(
        changed(|it| it.protocol = 9),
        Err(Unfit::Protocol(9, PROTOCOL))
    );
    assert_eq!(
        changed(|it| it.page_log2 = 16),
        Err(Unfit::PageSize(16, 12))
    );
    assert_eq!(changed(|it| it.zva_log2 = 0), Err(Unfit::ZeroedBlock(0, 6)));
    let clock = Err(Unfit::Clock(25_000_000, 62_500_000));
    assert_eq!(changed(|it| it.clock_hz = 25_000_000.into()), clock);
    let version = Err(Unfit::Version(7, 0x01_0200));
    assert_eq!(changed(|it| it.version = 7.into()), version);
    let frames = Err(Unfit::Frames(4270, 1514));
    assert_eq!(changed(|it| it.frame_bytes = 4270.into()), frames);
    let lines = Err(Unfit::CacheLines(1, 0x8444_c004));
    assert_eq!(changed(|it| it.cache_lines = 1.into()), lines);
    assert_eq!(changed(|it| it.features[0] = 0.into()), Ok(()));
}

#[test]
fn common_features_are_the_lesser_ones() {
    let (mut a, mut b) = (description(1).features, description(2).features);
    // ID_AA64ISAR0_EL1: AES has bits 4 to 7, Atomic 20 to 23.
    a[3] = 0x0020_0010.into();
    b[3] = 0x0000_0020.into();
    assert_eq!(common(&a, &b)[3].get(), 0x0000_0010);
}

#[test]
fn a_host_that_does_not_fit_stays_out_and_is_named() {
    let mut world = World::<2>::new();
    world.deliver_all(|_, _| false);
    let mut other = description(7);
    other.clock_hz = 1_000.into();
    world.restart(1);
    world.step(0, Event::Down(1));
    world.step(0, Event::Up(1));
    world.step(0, Event::Message(1, other.as_bytes()));
    let standing = world.hosts[0].membership.standing(1);
    assert_eq!(standing, Standing::Unfit(Unfit::Clock(1_000, 62_500_000)));
    let message = "its clock has 1000 Hz, here 62500000 Hz: guests read the frequency once, so it must be equal";
    assert_eq!(Unfit::Clock(1_000, 62_500_000).to_string(), message);
    let membership = &world.hosts[0].membership;
    assert_eq!((membership.view().id, membership.runs_until()), (0, NEVER));
}

#[test]
fn times_that_a_drifting_clock_turns_round_are_refused() {
    let settings = Settings::new(0);
    let make = |settings| Membership::<2>::new(settings, description(1));
    assert!(make(settings).is_some());
    // 200 ppm of 2 s are 0.4 ms.
    let close = Settings {
        stop_ns: 1_999_700_000,
        ..settings
    };
    assert!(make(close).is_none());
    let far = Settings {
        stop_ns: 1_999_500_000,
        ..settings
    };
    assert!(make(far).is_some());
    assert!(
        make(Settings {
            host: 2,
            ..settings
        })
        .is_none()
    );
    assert!(Membership::<2>::new(settings, description(0)).is_none());
}

#[test]
fn a_silent_member_stops_the_other_and_is_then_lost() {
    let mut world = World::<2>::new();
    for _ in 0..4 {
        world.deliver_all(|_, _| false);
        world.advance(None);
    }
    world.deliver_all(|_, _| false);
    let view = *world.hosts[0].membership.view();
    assert_eq!(view.lives.map(|life| life != 0), [true; 2]);
    world.crash(1);
    let begin = world.hosts[0].clock;
    let mut times = [0; 2];
    while world.hosts[0].membership.view() == &view {
        assert!(world.hosts[0].clock < begin + 100, "never lost");
        let at = &world.hosts[0];
        if at.clock >= at.membership.runs_until() && times[0] == 0 {
            times[0] = at.clock - begin;
        }
        world.advance(None);
    }
    times[1] = world.hosts[0].clock - begin;
    assert_eq!(times, [STOP, DECLARE]);
    let said = &world.hosts[0].membership;
    assert_eq!((said.view().id, said.view().lives[1]), (0, 0));
    assert_ne!(
        said.view().lives[0],
        view.lives[0],
        "a host that leaves has a new life"
    );
}

#[test]
fn a_membership_grows_without_a_stop() {
    let mut world = World::<3>::new();
    let is_cut = |from: usize, to: usize| from == 2 || to == 2;
    for _ in 0..4 {
        world.deliver_all(is_cut);
        world.advance(None);
    }
    let before = *world.hosts[0].membership.view();
    assert_eq!(before.lives.map(|life| life != 0), [true, true, false]);
    for _ in 0..4 {
        world.deliver_all(|_, _| false);
        world.advance(None);
        for host in &world.hosts[..2] {
            assert!(host.clock < host.membership.runs_until());
        }
    }
    let view = world.hosts[0].membership.view();
    assert_eq!(view.lives[..2], before.lives[..2]);
    assert!(view.lives[2] != 0 && view.epoch() > before.epoch());
    assert!(world.is_one());
}

/// Even if the first beats of its new life come together, before a tick.
#[test]
fn a_new_life_proves_nothing_for_the_old_one() {
    let mut world = World::<2>::new();
    for _ in 0..4 {
        world.deliver_all(|_, _| false);
        world.advance(None);
    }
    let asked = world.queues[0][1].iter().find_map(|item| match item {
        Item::Message(_, message) => Beat::ref_from_bytes(message).ok(),
        Item::Up(_) => None,
    });
    let view = *world.hosts[0].membership.view();
    let answer = Beat {
        kind: BEAT,
        with: 1,
        zeroes: [0; 2],
        number: 0.into(),
        echo: asked.unwrap().number,
        accepted: view.id.into(),
        life: (view.lives[1] + 1).into(),
    };
    world.step(0, Event::Message(1, answer.as_bytes()));
    assert_eq!(world.hosts[0].membership.runs_until(), 0);
    world.step(0, Event::Tick);
    assert_eq!(world.hosts[0].membership.view().lives[1], 0);
}

/// A leader that has heard of a member's new life sooner than of the end of its old one would take the old one out of a
/// membership that this host is still in.
#[test]
fn a_proposal_without_a_present_member_is_not_accepted() {
    let mut world = World::<3>::new();
    for _ in 0..4 {
        world.deliver_all(|_, _| false);
        world.advance(None);
    }
    assert!(world.is_one());
    let view = *world.hosts[1].membership.view();
    let mut lives = [0; HOSTS_MAX];
    lives[..3].copy_from_slice(&view.lives);
    lives[2] += 1;
    let beat = Beat {
        kind: BEAT,
        with: 0,
        zeroes: [0; 2],
        number: 0.into(),
        echo: 0.into(),
        accepted: 0.into(),
        life: lives[2].into(),
    };
    world.step(1, Event::Message(2, beat.as_bytes()));
    let id = view.id + 0x500;
    let proposal = Propose {
        kind: PROPOSE,
        zeroes: [0; 7],
        id: (id & !0xff).into(),
        lives: lives.map(Into::into),
    };
    world.queues[1][0].clear();
    world.step(1, Event::Message(0, proposal.as_bytes()));
    for _ in 0..4 {
        world.step(1, Event::Tick);
        world.advance(None);
    }
    let accepted = world.queues[1][0].iter().filter_map(|item| match item {
        Item::Message(_, message) => Some(Beat::ref_from_bytes(message).ok()?.accepted.get()),
        Item::Up(_) => None,
    });
    let accepted: Vec<u64> = accepted.collect();
    assert!(!accepted.is_empty());
    assert!(accepted.iter().all(|it| *it == view.id), "{accepted:x?}");
}
