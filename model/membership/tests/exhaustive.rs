//! Every order of few events on two and three hosts: messages late or lost with their host, crashes, restarts, slow clocks.

#![allow(clippy::unwrap_used)]

mod world;

use tests_explorer::{Fingerprint, State, explore};
use world::World;

/// How often each event may happen.
#[derive(Clone, Copy, Debug, Default, Hash)]
struct Left {
    units: u8,
    restarts: u8,
    crashes: u8,
    retires: u8,
    slow: u8,
    cuts: u8,
    /// A host takes all that came in a unit before it ticks.
    in_batches: bool,
}

#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "printed with the way to a failure")]
enum Happened {
    Came(usize, usize),
    Unit(Option<usize>),
    Restarted(usize),
    Crashed(usize),
    Retired(usize),
    /// All messages came but those that are cut: bit `n * from + to`.
    Round(u16, Option<usize>),
}

/// Each message comes at any time.
#[derive(Clone)]
struct Fine<const N: usize>(World<N>, Left);

fn faults<const N: usize>(world: &World<N>, left: Left) -> Vec<(Happened, World<N>, Left)> {
    let mut all = Vec::new();
    for host in (0..N).filter(|host| !world.hosts[*host].is_dead) {
        if left.restarts > 0 {
            let mut next = world.clone();
            next.restart(host);
            let left = Left {
                restarts: left.restarts - 1,
                ..left
            };
            all.push((Happened::Restarted(host), next, left));
        }
        if left.retires > 0 && !world.hosts[host].membership.is_retired() {
            let mut next = world.clone();
            next.retire(host);
            let left = Left {
                retires: left.retires - 1,
                ..left
            };
            all.push((Happened::Retired(host), next, left));
        }
        if left.crashes > 0 {
            let mut next = world.clone();
            next.crash(host);
            let left = Left {
                crashes: left.crashes - 1,
                ..left
            };
            all.push((Happened::Crashed(host), next, left));
        }
    }
    all
}

/// Clocks that may be slow in the next unit.
fn slow<const N: usize>(left: Left) -> impl Iterator<Item = Option<usize>> {
    let hosts = if left.slow > 0 { N } else { 0 };
    std::iter::once(None).chain((0..hosts).map(Some))
}

fn check<const N: usize>(world: &World<N>) {
    world.check();
    // One of 64 is enough, as all paths go on.
    if Fingerprint::of(world).is_multiple_of(64) {
        world.check_future();
    }
}

impl<const N: usize> State for Fine<N> {
    type Label = Happened;

    fn fingerprint(&self) -> u128 {
        Fingerprint::of(&(&self.0, self.1))
    }

    fn successors(&self) -> Vec<(Happened, Self)> {
        let Self(world, left) = self;
        let faults = faults(world, *left).into_iter();
        let mut all: Vec<_> = faults
            .map(|(label, world, left)| (label, Self(world, left)))
            .collect();
        for (from, to) in (0..N).flat_map(|from| (0..N).map(move |to| (from, to))) {
            if !world.queues[from][to].is_empty() {
                let mut next = self.clone();
                next.0.deliver(from, to);
                all.push((Happened::Came(from, to), next));
            }
        }
        for slow in slow::<N>(*left).filter(|_| left.units > 0) {
            let mut next = self.clone();
            next.1.units -= 1;
            next.1.slow -= u8::from(slow.is_some());
            next.0.advance(slow);
            all.push((Happened::Unit(slow), next));
        }
        all
    }

    fn check(&self) {
        check(&self.0);
    }
}

/// In each unit, all messages come but those of the links that are cut; each direction is cut by itself.
#[derive(Clone)]
struct Rounds<const N: usize>(World<N>, Left);

impl<const N: usize> State for Rounds<N> {
    type Label = Happened;

    fn fingerprint(&self) -> u128 {
        Fingerprint::of(&(&self.0, self.1))
    }

    fn successors(&self) -> Vec<(Happened, Self)> {
        let Self(world, left) = self;
        if left.units == 0 {
            return Vec::new();
        }
        let faults = faults(world, *left).into_iter();
        let mut all: Vec<_> = faults
            .map(|(label, world, left)| (label, Self(world, left)))
            .collect();
        let ways = (0..N).flat_map(|from| (0..N).map(move |to| (from, to)));
        let ways = ways
            .filter(|(from, to)| from != to)
            .map(|(from, to)| 1_u16 << (N * from + to));
        let ways: Vec<u16> = ways.collect();
        for cut in 0..1_u16 << ways.len() {
            if cut.count_ones() > left.cuts.into() {
                continue;
            }
            let chosen = ways.iter().enumerate().filter(|(n, _)| cut >> n & 1 == 1);
            let cut = chosen.fold(0, |cut, (_, way)| cut | way);
            for slow in slow::<N>(*left) {
                let mut next = self.clone();
                next.1.units -= 1;
                next.1.slow -= u8::from(slow.is_some());
                next.1.cuts -= cut.count_ones() as u8;
                next.0.advance(slow);
                next.0.check();
                let is_cut = |from, to| cut >> (N * from + to) & 1 == 1;
                if left.in_batches {
                    next.0.deliver_batches(is_cut);
                } else {
                    next.0.deliver_all(is_cut);
                }
                all.push((Happened::Round(cut, slow), next));
            }
        }
        all
    }

    fn check(&self) {
        check(&self.0);
    }
}

/// Hosts in one membership, nothing under way.
fn joined<const N: usize>() -> World<N> {
    let mut world = World::new();
    for _ in 0..4 {
        world.deliver_all(|_, _| false);
        world.advance(None);
    }
    world.deliver_all(|_, _| false);
    assert!(world.is_one());
    world
}

fn fine<const N: usize>(world: World<N>, left: Left, least: usize) {
    let found = explore(Fine(world, left), 20_000_000);
    println!("{N} hosts, {left:?}: {found:?}");
    assert!(found.states > least);
}

fn rounds<const N: usize>(world: World<N>, left: Left, least: usize) {
    let found = explore(Rounds(world, left), 20_000_000);
    println!("{N} hosts, {left:?}: {found:?}");
    assert!(found.states > least);
}

#[test]
fn two_hosts_join() {
    let left = Left {
        units: 4,
        restarts: 1,
        ..Left::default()
    };
    fine(World::<2>::new(), left, 1_000);
}

#[test]
fn two_hosts_part() {
    let left = Left {
        units: 8,
        slow: 1,
        ..Left::default()
    };
    fine(joined::<2>(), left, 1_000);
}

#[test]
fn two_hosts_restart() {
    let left = Left {
        units: 5,
        restarts: 1,
        ..Left::default()
    };
    fine(joined::<2>(), left, 1_000);
}

#[test]
fn three_hosts_join() {
    let left = Left {
        units: 0,
        ..Left::default()
    };
    fine(World::<3>::new(), left, 1_000);
}

#[test]
fn three_hosts_are_cut() {
    let left = Left {
        units: 9,
        cuts: 4,
        slow: 1,
        ..Left::default()
    };
    rounds(joined::<3>(), left, 1_000);
}

#[test]
fn three_hosts_crash_and_restart() {
    let left = Left {
        units: 7,
        cuts: 2,
        crashes: 1,
        restarts: 1,
        ..Left::default()
    };
    rounds(joined::<3>(), left, 1_000);
}

#[test]
fn three_hosts_in_batches() {
    let left = Left {
        units: 7,
        cuts: 2,
        restarts: 1,
        in_batches: true,
        ..Left::default()
    };
    rounds(joined::<3>(), left, 1_000);
}

#[test]
fn a_host_of_two_leaves() {
    let left = Left {
        units: 5,
        retires: 1,
        slow: 1,
        ..Left::default()
    };
    fine(joined::<2>(), left, 1_000);
    fine(World::<2>::new(), Left { units: 3, ..left }, 1_000);
}

#[test]
fn a_host_of_three_leaves() {
    let left = Left {
        units: 6,
        cuts: 2,
        restarts: 1,
        retires: 1,
        ..Left::default()
    };
    rounds(joined::<3>(), left, 1_000);
    fine(
        World::<3>::new(),
        Left {
            units: 0,
            retires: 1,
            ..Left::default()
        },
        1_000,
    );
}
