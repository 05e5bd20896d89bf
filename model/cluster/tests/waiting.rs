//! Any sequence of arrivals and departures, beside a list.

#![allow(clippy::unwrap_used)]

use model_cluster::Waiting;
use proptest::{collection::vec, prelude::*};
use std::collections::VecDeque;

const BYTES: usize = 500;
const MOST: usize = 9;
/// Of which each has fewer bytes.
const LONGEST: usize = 120;

proptest! {
    /// What waits is whole and in order, however it lies; what has no room changes nothing. There is room where
    /// twice as many bytes are free, and as many beside those of the longest one: it is in one piece.
    #[test]
    fn what_waits_stays_as_it_was(steps in vec((any::<bool>(), 0..LONGEST), 1..300)) {
        let mut waiting = Waiting::<_, MOST>::of(vec![0; BYTES]);
        let mut list = VecDeque::new();
        for (n, (arrives, bytes)) in steps.into_iter().enumerate() {
            let held: usize = list.iter().map(Vec::len).sum();
            if !arrives {
                waiting.pop();
                list.pop_front();
            } else if let Some(place) = waiting.place(bytes) {
                place.fill(n as u8);
                list.push_back(vec![n as u8; bytes]);
                prop_assert!(bytes > 0 && list.len() <= MOST && held + bytes <= BYTES);
            } else {
                let is_full = held + bytes + bytes.max(LONGEST) > BYTES;
                prop_assert!(bytes == 0 || list.len() == MOST || is_full, "{held} and {bytes}");
            }
            prop_assert_eq!(waiting.first().map(|it| it.to_vec()), list.front().cloned());
        }
        while let Some(oldest) = list.pop_front() {
            prop_assert_eq!(waiting.first().unwrap(), &oldest[..]);
            waiting.pop();
        }
        prop_assert!(waiting.first().is_none());
    }
}

#[test]
fn a_message_stands_behind_its_sender() {
    let mut waiting = Waiting::<_, 2>::of([0; 8]);
    assert!(waiting.push(7, &[1, 2, 3]) && waiting.push(8, &[4, 5, 6]));
    assert!(!waiting.push(9, &[]));
    assert_eq!(waiting.first().unwrap(), &[7, 1, 2, 3]);
    waiting.pop();
    assert!(!waiting.push(9, &[0; 4]) && waiting.push(9, &[0; 3]));
    waiting.pop();
    assert_eq!(waiting.first().unwrap(), &[9, 0, 0, 0]);
}
