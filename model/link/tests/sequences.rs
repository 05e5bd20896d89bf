//! Single frames, in an order that a network seldom brings about: credit, gaps, timeouts, hellos, replays.
#![allow(clippy::unwrap_used)]
mod world;
use abi::link::{FRAME_JUMBO, FRAME_STANDARD, HELLO_BYTES};
use model_link::{Actions, Cipher, Dropped, Event, Lane, Link, NEVER, Settings};
use world::{KEY, Owner, Pair, Said, Toy, link, settings};

type One<const SLOTS: usize, C = Toy> = (Link<C, Vec<u8>, SLOTS>, Owner);

fn host<const SLOTS: usize, C: Cipher + Clone>(
    host: u8,
    peer: u8,
    frame_bytes: usize,
) -> One<SLOTS, C> {
    let mut owner = Owner::new(u64::from(host) * 16 + u64::from(peer), frame_bytes);
    let mac = |host| [2, 0, 0, 0, 0, host];
    let settings = Settings {
        host,
        peer,
        macs: [mac(host), mac(peer)],
        ..settings(0, frame_bytes)
    };
    (link(settings, KEY, &mut owner), owner)
}

fn tick<const SLOTS: usize, C: Cipher + Clone>(
    (link, owner): &mut One<SLOTS, C>,
    now: u64,
) -> Vec<Vec<u8>> {
    link.step(now, Event::Tick, owner).unwrap();
    std::mem::take(&mut owner.sent)
}

fn take<const SLOTS: usize, C: Cipher + Clone>(
    (link, owner): &mut One<SLOTS, C>,
    now: u64,
    frames: Vec<Vec<u8>>,
) {
    for mut frame in frames {
        link.step(now, Event::Frame(&mut frame), owner).unwrap();
    }
}

/// Two hosts with a session, and the time.
fn joined<const SLOTS: usize, C: Cipher + Clone>(
    frame_bytes: usize,
) -> (One<SLOTS, C>, One<SLOTS, C>, u64) {
    let (mut a, mut b) = (host(0, 1, frame_bytes), host(1, 0, frame_bytes));
    for now in (0..40_000_000).step_by(1_000_000) {
        let frames = tick(&mut a, now);
        take(&mut b, now, frames);
        let frames = tick(&mut b, now);
        take(&mut a, now, frames);
    }
    assert!(a.0.session().is_some() && a.0.session() == b.0.session());
    (a, b, 40_000_000)
}

/// A stranger sends this host what a host has said to a third: the key is that of all.
#[test]
fn what_a_host_says_to_a_third_is_foreign() {
    let mut own: One<8> = host(0, 1, FRAME_STANDARD);
    let mut others: (One<8>, One<8>) = (host(1, 2, FRAME_STANDARD), host(2, 1, FRAME_STANDARD));
    let hellos = tick(&mut others.0, 0);
    assert_eq!(hellos.len(), 1);
    take(&mut own, 0, hellos.clone());
    assert_eq!(own.0.counters.dropped[Dropped::Foreign as usize], 1);
    take(&mut others.1, 0, hellos);
    assert_eq!(others.1.0.counters.dropped[Dropped::Foreign as usize], 0);
}

/// A frame counts its pieces in a byte.
#[test]
fn more_messages_than_a_frame_counts_go_in_two() {
    let (mut a, mut b, now) = joined::<256, Toy>(FRAME_JUMBO);
    for _ in 0..256 {
        a.0.send(Lane::Urgent, [&[], &[]]).unwrap();
    }
    let frames = tick(&mut a, now);
    assert_eq!(frames.len(), 2);
    take(&mut b, now, frames);
    let came = b.1.said.iter().filter(|it| matches!(it, Said::Deliver(..)));
    assert_eq!(came.count(), 256);
}

/// An answer to what a link said before it was made anew begins nothing.
#[test]
fn an_answer_to_before_a_restart_proves_nothing() {
    let (mut a, mut b): (One<8>, One<8>) = (host(0, 1, FRAME_STANDARD), host(1, 0, FRAME_STANDARD));
    let hellos = tick(&mut a, 0);
    take(&mut b, 0, hellos);
    let answers = tick(&mut b, 0);
    let nonce = a.1.nonce();
    a.0.restart(nonce);
    take(&mut a, 0, answers);
    assert_eq!(a.0.counters.dropped[Dropped::Unproved as usize], 1);
    let is_hello = |frame: &Vec<u8>| frame.len() == HELLO_BYTES;
    assert!(tick(&mut a, 0).iter().all(is_hello), "a session has begun");
}

/// A report that was overtaken takes no credit back.
#[test]
fn a_late_report_takes_no_credit_back() {
    let (mut a, mut b, mut now) = joined::<8, Toy>(FRAME_STANDARD);
    let mut reports = Vec::new();
    for _ in 0..2 {
        a.0.send(Lane::Urgent, [&[1], &[]]).unwrap();
        let frames = tick(&mut a, now);
        take(&mut b, now, frames);
        now += 1_000_000;
        reports.extend(tick(&mut b, now));
    }
    assert_eq!(reports.len(), 2);
    reports.reverse();
    take(&mut a, now, reports);
    for n in 0..8 {
        a.0.send(Lane::Urgent, [&[n], &[]]).unwrap();
    }
    let frames = tick(&mut a, now);
    take(&mut b, now, frames);
    let came = b.1.said.iter().filter(|it| matches!(it, Said::Deliver(..)));
    assert_eq!(came.count(), 10);
}

/// A frame went twice, and the answer to the second copy is lost: what the peer says a second later is no answer to it. The
/// timeout was a second from there on, in which a member that loses one frame more is dead (life 40073729 of a cluster).
#[test]
fn what_comes_long_after_a_lost_answer_times_no_round_trip() {
    let (mut a, mut b, now) = joined::<8, Toy>(FRAME_STANDARD);
    a.0.send(Lane::Urgent, [&[1], &[]]).unwrap();
    let frames = tick(&mut a, now);
    take(&mut b, now, frames);
    let at = b.0.deadline();
    let late = tick(&mut b, at);
    assert_eq!(late.len(), 1);
    let now = a.0.deadline();
    let again = tick(&mut a, now);
    assert_eq!(again.len(), 1);
    take(&mut a, now, late);
    assert_eq!(a.0.deadline(), NEVER);
    take(&mut b, now, again);
    let lost = tick(&mut b, now);
    assert_eq!(lost.len(), 1);

    let now = now + 1_000_000_000;
    b.0.send(Lane::Urgent, [&[2], &[]]).unwrap();
    let frames = tick(&mut b, now);
    take(&mut a, now, frames);
    a.0.send(Lane::Urgent, [&[3], &[]]).unwrap();
    tick(&mut a, now);
    assert!(a.0.deadline() < now + 100_000_000);
}

/// A gap is told of at once.
#[test]
fn a_gap_is_told_at_once() {
    let (mut a, mut b, now) = joined::<8, Toy>(FRAME_STANDARD);
    for n in 0..2 {
        a.0.send(Lane::Urgent, [&[n], &[]]).unwrap();
        let frames = tick(&mut a, now);
        if n == 1 {
            take(&mut b, now, frames);
        }
    }
    assert_eq!(b.0.deadline(), 0);
}

/// Two frames that change places are not taken for lost.
#[test]
fn frames_that_change_places_are_not_sent_again() {
    let (mut a, mut b, now) = joined::<8, Toy>(FRAME_STANDARD);
    let mut first = Vec::new();
    for n in 0..2 {
        a.0.send(Lane::Urgent, [&[n], &[]]).unwrap();
        let frames = tick(&mut a, now);
        if n == 0 {
            first = frames;
        } else {
            take(&mut b, now, frames);
        }
    }
    let reports = tick(&mut b, now);
    take(&mut a, now + 100, reports);
    assert!(tick(&mut a, now + 100).is_empty());
    take(&mut b, now + 100, first);
    assert_eq!(a.0.counters.resent, 0);
}

/// A piece is lost once a frame that was sent three later has come, and not before.
#[test]
fn a_frame_that_three_overtake_is_lost() {
    for overtake in 1..=4_u8 {
        let (mut a, mut b, now) = joined::<8, Toy>(FRAME_STANDARD);
        for n in 0..=overtake {
            a.0.send(Lane::Urgent, [&[n], &[]]).unwrap();
            let frames = tick(&mut a, now);
            if n > 0 {
                take(&mut b, now, frames);
            }
        }
        let reports = tick(&mut b, now);
        take(&mut a, now + 100, reports);
        tick(&mut a, now + 100);
        assert_eq!(a.0.counters.resent, u64::from(overtake >= 3), "{overtake}");
    }
}

/// A timeout says nothing of the pieces behind the first.
#[test]
fn one_piece_is_sent_again_after_a_timeout() {
    let (mut a, _, now) = joined::<8, Toy>(FRAME_STANDARD);
    for n in 0..5 {
        a.0.send(Lane::Urgent, [&[n], &[]]).unwrap();
        tick(&mut a, now);
    }
    let later = a.0.deadline();
    assert!(later > now && tick(&mut a, later).len() == 1);
    assert_eq!(a.0.counters.resent, 1);
}

/// Who sends a piece again has missed its acknowledgement, and waits for no delay.
#[test]
fn a_repeated_piece_is_answered_at_once() {
    let (mut a, mut b, now) = joined::<8, Toy>(FRAME_STANDARD);
    a.0.send(Lane::Urgent, [&[1], &[]]).unwrap();
    let frames = tick(&mut a, now);
    take(&mut b, now, frames);
    let lost = b.0.deadline();
    assert!(lost > now && tick(&mut b, lost).len() == 1);
    assert_eq!(b.0.deadline(), NEVER);
    let later = a.0.deadline();
    let frames = tick(&mut a, later);
    take(&mut b, later, frames);
    assert_eq!(b.0.deadline(), 0);
}

/// One message there and its acknowledgement back, within 100 ns.
fn exchange(a: &mut One<8>, b: &mut One<8>, now: u64) {
    a.0.send(Lane::Urgent, [&[1], &[]]).unwrap();
    for now in [now, now + 10_000] {
        let frames = tick(a, now);
        take(b, now + 50, frames);
        let frames = tick(b, now + 50);
        take(a, now + 100, frames);
    }
    assert_eq!(a.0.deadline(), NEVER);
}

/// Timeouts: the shortest, the peer's delay, what is sent again is not measured, and an answer ends the doubling.
#[test]
fn timeouts_are_neither_too_short_nor_too_long() {
    let (mut a, mut b, mut now) = joined::<8, Toy>(FRAME_STANDARD);
    for _ in 0..40 {
        now += 1_000_000;
        exchange(&mut a, &mut b, now);
    }
    let before = a.0.round_trip_ns();
    now += 1_000_000;
    a.0.send(Lane::Urgent, [&[1], &[]]).unwrap();
    tick(&mut a, now);
    let wait = a.0.deadline() - now;
    assert!(wait >= 20_000, "the floor: {wait}");
    assert!(
        wait >= before + before / 2 + 5_000,
        "the peer's delay: {wait} for {before}"
    );
    // Some are lost.
    for n in 1..4 {
        now = a.0.deadline();
        tick(&mut a, now);
        assert_eq!(a.0.deadline() - now, wait << n);
    }
    now = a.0.deadline();
    let frames = tick(&mut a, now);
    take(&mut b, now + 50, frames);
    let frames = tick(&mut b, now + 10_000);
    take(&mut a, now + 10_050, frames);
    assert!(
        a.0.round_trip_ns() <= before + 10_050,
        "{} after {before}",
        a.0.round_trip_ns()
    );
    now += 1_000_000;
    a.0.send(Lane::Urgent, [&[1], &[]]).unwrap();
    tick(&mut a, now);
    assert!(
        a.0.deadline() - now <= 2 * wait,
        "an answer ends the doubling"
    );
    for _ in 0..100 {
        let next = a.0.deadline();
        assert!(next >= now + 20_000 && next <= now + 1_000_000_000);
        now = next;
        tick(&mut a, now);
    }
}

/// A host that has measured round trips of so many nanoseconds, and the time.
fn after_round_trips(ns: u64) -> (One<8>, u64) {
    let (mut a, mut b, mut now) = joined::<8, Toy>(FRAME_STANDARD);
    for _ in 0..40 {
        a.0.send(Lane::Urgent, [&[1], &[]]).unwrap();
        let frames = tick(&mut a, now);
        take(&mut b, now, frames);
        let frames = tick(&mut b, now + 500_000);
        now += ns;
        take(&mut a, now, frames);
    }
    (a, now)
}

/// After a cut, a peer is heard within 0.1 s: timeouts double to that, and no further.
#[test]
fn doubled_timeouts_end_at_a_tenth_of_a_second() {
    let (mut a, mut now) = after_round_trips(1_000_000);
    a.0.send(Lane::Urgent, [&[1], &[]]).unwrap();
    let mut longest = 0;
    for _ in 0..20 {
        tick(&mut a, now);
        longest = longest.max(a.0.deadline() - now);
        now = a.0.deadline();
    }
    assert_eq!(longest, 100_000_000);
}

/// Where a round trip is longer than doubled timeouts may be, nothing is sent again before an answer can come.
#[test]
fn timeouts_are_longer_than_round_trips() {
    let (mut a, mut now) = after_round_trips(151_000_000);
    a.0.send(Lane::Urgent, [&[1], &[]]).unwrap();
    tick(&mut a, now);
    assert!(a.0.deadline() - now > 150_000_000);
    now = a.0.deadline();
    tick(&mut a, now);
    assert!(a.0.deadline() - now > 150_000_000, "it was doubled");
}

/// Hellos to nobody come at least each 64 intervals.
#[test]
fn hellos_go_on() {
    let mut own: One<8> = host(0, 1, FRAME_STANDARD);
    let mut now = 0;
    for _ in 0..100 {
        assert_eq!(tick(&mut own, now).len(), 1);
        assert!(own.0.deadline() > now && own.0.deadline() - now <= 64_000_000);
        now = own.0.deadline();
    }
}

/// A message that waits for credit needs a timeout: the report that gives the credit may be lost.
#[test]
fn a_message_without_credit_has_a_deadline() {
    let mut pair = Pair::<Toy, 4>::new(FRAME_STANDARD);
    let mut now = pair.settle(0, Vec::new());
    pair.hosts[1].owner.refuses = true;
    for _ in 0..4 {
        pair.step(0, now, Event::Send(Lane::Urgent, [&[1], &[]]));
    }
    for _ in 0..8 {
        for host in [0, 1] {
            for mut frame in pair.step(host, now, Event::Tick) {
                pair.step(1 - host, now, Event::Frame(&mut frame));
            }
        }
        now += 10_000;
    }
    assert_eq!(pair.hosts[0].link.deadline(), NEVER);
    assert_eq!(pair.hosts[0].link.room(Lane::Urgent), 4);
    pair.step(0, now, Event::Send(Lane::Urgent, [&[2], &[]]));
    assert_ne!(pair.hosts[0].link.deadline(), NEVER);
}

/// Times saturate.
#[test]
fn time_ends_without_a_panic() {
    let mut pair = Pair::<Toy, 4>::new(FRAME_STANDARD);
    let now = u64::MAX - 1_000;
    for mut frame in pair.step(0, now, Event::Tick) {
        pair.step(1, now, Event::Frame(&mut frame));
    }
}
