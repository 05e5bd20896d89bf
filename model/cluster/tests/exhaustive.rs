//! Whole hosts, each with its links and its membership, that join while frames are lost and repeated and hosts crash and
//! restart at every step.
//!
//! A frame that is repeated stays on the wire and may come again at any later time: also to a host, and from one, that was
//! restarted in between. Time passes while no frame is under way.

#![allow(clippy::unwrap_used)]

mod joining;

use joining::{Impostor, World};
use tests_explorer::{Fingerprint, State, explore_deep};

/// How often each event may still happen.
#[derive(Clone, Copy, Debug, Default, Hash)]
struct Left {
    losses: u8,
    repeats: u8,
    crashes: u8,
}

#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "printed with the way to a failure")]
enum Happened {
    Came(usize, usize),
    Lost(usize, usize),
    /// Came, and will come again.
    Doubled(usize, usize),
    CameAgain(usize),
    Crashed(usize),
    Started(usize),
    Time,
}

#[derive(Clone)]
struct Joining<const N: usize>(World<N>, Left);

impl<const N: usize> Joining<N> {
    fn faults(&self, all: &mut Vec<(Happened, Self)>) {
        let Self(world, left) = self;
        for n in 0..world.kept.len() {
            let mut next = self.clone();
            next.0.take_kept(n);
            all.push((Happened::CameAgain(n), next));
        }
        for host in 0..N {
            if world.hosts[host].is_dead {
                let mut next = self.clone();
                next.0.start(host);
                all.push((Happened::Started(host), next));
            } else if left.crashes > 0 {
                let mut next = self.clone();
                next.1.crashes -= 1;
                next.0.crash(host);
                all.push((Happened::Crashed(host), next));
            }
        }
    }
}

impl<const N: usize> State for Joining<N> {
    type Label = Happened;

    fn fingerprint(&self) -> u128 {
        Fingerprint::of(&(&self.0, self.1))
    }

    fn successors(&self) -> Vec<(Happened, Self)> {
        let Self(world, left) = self;
        let mut all = Vec::new();
        self.faults(&mut all);
        if world.is_one() {
            // Of what comes behind, only the end of a membership matters.
            all.retain(|(how, _)| matches!(how, Happened::Crashed(_)));
            return all;
        }
        for n in world.next_frames() {
            let (from, to) = world.flight[n].ends;
            let mut next = self.clone();
            next.0.deliver(n);
            all.push((Happened::Came(from, to), next));
            if left.losses > 0 {
                let mut next = self.clone();
                next.1.losses -= 1;
                next.0.flight.remove(n);
                all.push((Happened::Lost(from, to), next));
            }
            if left.repeats > 0 {
                let mut next = self.clone();
                next.1.repeats -= 1;
                next.0.kept.push(next.0.flight[n].clone());
                next.0.deliver(n);
                all.push((Happened::Doubled(from, to), next));
            }
        }
        if world.can_wait() {
            let mut next = self.clone();
            next.0.advance();
            all.push((Happened::Time, next));
        }
        all
    }

    fn check(&self) {
        self.0.check();
        // One of 32 is enough, as all paths go on.
        if self.0.impostor == Impostor::None && Fingerprint::of(&self.0).is_multiple_of(32) {
            self.0.check_future();
        }
    }
}

fn search<const N: usize>(impostor: Impostor, any_order: bool, left: Left, least: usize) {
    let world = World::<N>::new(impostor, any_order);
    let found = explore_deep(Joining(world, left), 20_000_000);
    println!("{N} hosts, {impostor:?}, {left:?}: {found:?}");
    assert!(found.states > least);
}

const fn left(losses: u8, repeats: u8, crashes: u8) -> Left {
    Left {
        losses,
        repeats,
        crashes,
    }
}

#[test]
fn two_hosts_crash_and_restart_at_every_step() {
    search::<2>(Impostor::None, true, left(0, 0, 1), 10_000);
    search::<2>(Impostor::None, false, left(1, 0, 1), 100_000);
}

#[test]
fn two_hosts_lose_and_repeat() {
    search::<2>(Impostor::None, false, left(1, 1, 0), 5_000);
}

#[test]
fn a_host_without_the_key_stays_out() {
    search::<2>(Impostor::Last, true, left(1, 1, 1), 5_000);
}

#[test]
fn three_hosts_lose_or_repeat() {
    search::<3>(Impostor::None, false, left(1, 0, 0), 1_000);
    search::<3>(Impostor::None, false, left(0, 1, 0), 2_000);
}

#[test]
fn three_hosts_crash_and_restart_at_every_step() {
    search::<3>(Impostor::None, false, left(0, 0, 1), 50_000);
}

// The deeper ones: `make soak` runs them.

#[test]
#[ignore = "takes a minute"]
fn two_hosts_crash_while_old_frames_come() {
    search::<2>(Impostor::None, false, left(0, 1, 1), 300_000);
}

#[test]
#[ignore = "takes a minute"]
fn two_hosts_crash_twice() {
    search::<2>(Impostor::None, false, left(0, 0, 2), 1_000_000);
}

#[test]
#[ignore = "takes minutes"]
fn three_hosts_crash_while_a_frame_is_lost() {
    search::<3>(Impostor::None, false, left(1, 0, 1), 8_000_000);
}
