//! The ring against a list of all that was ever pushed, and against a writer that does not wait.
#![allow(clippy::unwrap_used, reason = "a test")]

use model_trace::{Read, Ring, Slot, WORDS, empty};
use proptest::prelude::*;
use std::thread;

fn ring(capacity: usize) -> Ring<Vec<Slot>> {
    Ring::new((0..capacity).map(|_| empty()).collect())
}

fn event(n: u64) -> [u64; WORDS] {
    [n, !n, n.rotate_left(17), n.wrapping_mul(3)]
}

#[derive(Clone, Debug)]
enum Step {
    Push(u64),
    /// Reads from an event so many before or after the last that was read, so many at most.
    Read(i8, usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1..20_u64).prop_map(Step::Push),
        (-9..3_i8, 0..12_usize).prop_map(|(from, most)| Step::Read(from, most)),
    ]
}

proptest! {
    #[test]
    fn the_youngest_are_kept_and_the_rest_is_counted(
        capacity in 0..9_usize,
        steps in proptest::collection::vec(step(), 0..60),
    ) {
        let ring = ring(capacity);
        let (mut pushed, mut at) = (0_u64, 0_u64);
        for step in steps {
            match step {
                Step::Push(count) => {
                    for _ in 0..count {
                        ring.push(event(pushed));
                        // A ring without slots keeps nothing and counts nothing.
                        pushed += u64::from(capacity > 0);
                    }
                }
                Step::Read(offset, most) => {
                    let from = at.saturating_add_signed(offset.into());
                    let mut got = Vec::new();
                    let read = ring.read(from, |event| {
                        let room = got.len() < most;
                        if room { got.push(event) }
                        room
                    });
                    let oldest = from.max(pushed.saturating_sub(capacity as u64));
                    let wanted: Vec<_> = (oldest..pushed).take(most).map(event).collect();
                    let next = oldest + wanted.len() as u64;
                    prop_assert_eq!(&got, &wanted);
                    prop_assert_eq!(read, Read { next, lost: oldest - from });
                    at = next;
                }
            }
            prop_assert_eq!(ring.next(), pushed);
        }
    }
}

#[test]
fn a_reader_beside_a_fast_writer_sees_whole_events_in_order() {
    const EVENTS: u64 = 200_000;
    let ring = ring(8);
    thread::scope(|scope| {
        scope.spawn(|| (0..EVENTS).for_each(|n| ring.push(event(n))));
        let (mut at, mut got, mut lost) = (0, 0, 0);
        while at < EVENTS {
            let mut expected = None;
            let read = ring.read(at, |seen| {
                assert_eq!(seen, event(seen[0]), "torn");
                assert!(expected.is_none_or(|n| n == seen[0]), "out of order");
                expected = Some(seen[0] + 1);
                got += 1;
                true
            });
            assert!(expected.is_none_or(|n| n == read.next));
            lost += read.lost;
            at = read.next;
            assert_eq!(got + lost, at);
        }
    });
}
