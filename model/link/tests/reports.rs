//! Single rules of reports: what they carry, when they leave, and the timeouts that wait for them.

#![allow(clippy::unwrap_used)]

mod world;

use abi::link::{ASK, BODY_AT, FRAME_JUMBO, FRAME_STANDARD, SLOTS_MAX, WORDS_MAX};
use model_link::{Event, Lane};
use world::clear::{Clear, pieces, report};
use world::{Pair, Toy, joined, rounds, send};

const SLOTS: usize = 8;
/// Where a report has its flags.
const FLAGS_AT: usize = BODY_AT + 30;

/// Two hosts of which the second takes no bulk: its window is full, and so is that of the first.
fn without_credit() -> (Pair<Clear, SLOTS>, u64) {
    let (mut pair, mut now) = joined(FRAME_STANDARD);
    pair.hosts[1].owner.refuses = true;
    for n in 0..2 * SLOTS as u8 {
        send(&mut pair, Lane::Bulk, &[n; 10]);
        rounds(&mut pair, &mut now, 2);
    }
    (pair, now)
}

/// Lets host 0 wait for its next timeout; gives when that is, and its only frame.
fn next_timeout(pair: &mut Pair<Clear, SLOTS>) -> (u64, Vec<u8>) {
    let now = pair.hosts[0].link.deadline();
    let mut frames = pair.step(0, now, Event::Tick);
    assert_eq!(frames.len(), 1, "{frames:?}");
    (now, frames.remove(0))
}

#[test]
fn credit_is_asked_for_if_its_report_was_lost() {
    let (mut pair, now) = without_credit();
    pair.hosts[1].owner.refuses = false;
    let lost = pair.step(1, now, Event::Tick);
    assert_eq!(lost.len(), 1);
    assert!(!pair.is_done());
    pair.settle(now, Vec::new());
}

#[test]
fn a_question_is_answered_at_once() {
    let (mut pair, _) = without_credit();
    let (now, mut frame) = next_timeout(&mut pair);
    assert_eq!((report(&frame).flags, report(&frame).pieces), (ASK, 0));
    let mut told = pair.clone();
    told.step(1, now, Event::Frame(&mut frame.clone()));
    assert_eq!(told.step(1, now, Event::Tick).len(), 1);
    frame[FLAGS_AT] = 0;
    pair.step(1, now, Event::Frame(&mut frame));
    assert!(pair.step(1, now, Event::Tick).is_empty(), "nobody asks");
}

#[test]
fn an_answer_to_a_question_is_a_round_trip() {
    let (mut pair, _) = without_credit();
    let before = pair.hosts[0].link.round_trip_ns();
    let (now, mut frame) = next_timeout(&mut pair);
    pair.step(1, now, Event::Frame(&mut frame));
    let mut answer = pair.step(1, now, Event::Tick).remove(0);
    pair.step(0, now + 8_000_000, Event::Frame(&mut answer));
    let after = pair.hosts[0].link.round_trip_ns();
    assert_eq!(after, (7 * before + 8_000_000).div_ceil(8));
}

#[test]
fn credit_ends_the_doubling_of_timeouts() {
    let (mut pair, _) = without_credit();
    let mut asked = [0; 5].map(|_| next_timeout(&mut pair));
    let now = asked[4].0;
    let doubled = pair.hosts[0].link.deadline() - now;
    pair.hosts[1].owner.refuses = false;
    pair.step(1, now, Event::Frame(&mut asked[4].1));
    let mut credit = pair.step(1, now, Event::Tick).remove(0);
    pair.step(0, now, Event::Frame(&mut credit));
    assert!(!pair.step(0, now, Event::Tick).is_empty());
    let wait = pair.hosts[0].link.deadline() - now;
    assert!(wait <= doubled / 16, "{wait} of {doubled}");
}

#[test]
fn a_frame_has_no_more_pieces_than_its_report_can_count() {
    let (mut pair, now) = joined::<Clear, SLOTS_MAX>(FRAME_JUMBO);
    for _ in 0..SLOTS_MAX {
        send(&mut pair, Lane::Urgent, b"x");
    }
    let found = pieces(&pair.step(0, now, Event::Tick));
    let counts: Vec<_> = found.iter().map(Vec::len).collect();
    assert_eq!(counts, [255, 1]);
}

#[test]
fn a_report_has_no_more_words_than_there_is_room_for() {
    let (mut pair, now) = joined::<Clear, SLOTS_MAX>(FRAME_STANDARD);
    let mut words = [0; 2];
    for lane in Lane::ALL {
        let mut last = Vec::new();
        for n in 0..SLOTS_MAX {
            send(&mut pair, lane, b"x");
            last = pair.step(0, now, Event::Tick);
            if n > 0 {
                pair.step(1, now, Event::Frame(&mut last[0].clone()));
            }
        }
        assert_eq!(last.len(), 1);
        let said = pair.step(1, now, Event::Tick);
        words[lane as usize] = usize::from(report(&said[0]).lanes[lane as usize].words);
    }
    assert_eq!(words, WORDS_MAX);
    pair.settle(now, Vec::new());
}

#[test]
fn timeouts_follow_the_round_trip_and_double() {
    let (mut pair, mut now) = joined::<Toy, SLOTS>(FRAME_STANDARD);
    for n in 0..20 {
        send(&mut pair, Lane::Bulk, &[n; 1380]);
        let frames = pair.step(0, now, Event::Tick);
        now += 400_000;
        for mut frame in frames {
            pair.step(1, now, Event::Frame(&mut frame));
        }
        for mut report in pair.step(1, now + 5_000, Event::Tick) {
            pair.step(0, now + 5_000, Event::Frame(&mut report));
        }
        now += 10_000;
    }
    let round_trip = pair.hosts[0].link.round_trip_ns();
    assert!((400_000..500_000).contains(&round_trip), "{round_trip}");
    send(&mut pair, Lane::Bulk, b"lost");
    pair.step(0, now, Event::Tick);
    let mut waits = Vec::new();
    for _ in 0..4 {
        let at = pair.hosts[0].link.deadline();
        waits.push(at - now);
        now = at;
        assert_eq!(pair.step(0, now, Event::Tick).len(), 1, "it is sent again");
    }
    assert_eq!(pair.hosts[0].link.counters.resent, 4);
    assert!(
        (round_trip..2 * round_trip).contains(&waits[0]),
        "{waits:?}"
    );
    assert!(
        waits.windows(2).all(|pair| pair[1] == 2 * pair[0]),
        "{waits:?}"
    );
}
