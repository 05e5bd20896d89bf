//! Every seed is survived, and so are some inputs near them.
#![allow(clippy::panic)]

use std::time::Duration;
use tests_fuzz::{Mutator, TARGETS, campaign, replay, seeds, target};

/// How long the short campaigns take, all together.
const TIME: Duration = Duration::from_secs(3);

#[test]
fn seeds_and_their_neighbours_are_survived() {
    for (name, target) in TARGETS {
        let seeds = seeds(name);
        assert!(!seeds.is_empty(), "{name} has no seeds");
        if let Err(failure) = replay(*target, &seeds) {
            panic!("{name}: {failure}");
        }
        let mutator = Mutator::new(0, seeds.into_iter().map(|(_, bytes)| bytes));
        match campaign(*target, mutator, TIME / TARGETS.len() as u32) {
            Ok(runs) => assert!(runs > 0),
            Err(failure) => panic!("{name}: {failure}; input {:02x?}", failure.input),
        }
    }
}

#[test]
fn names_are_unique_and_found() {
    for (n, (name, _)) in TARGETS.iter().enumerate() {
        assert!(target(name).is_some());
        assert!(TARGETS[..n].iter().all(|(other, _)| other < name));
    }
    assert!(target("no such target").is_none());
}

fn dislikes_a_word(data: &[u8]) {
    assert!(
        !data.windows(2).any(|pair| pair == [0xff, 0xff]),
        "found it"
    );
}

#[test]
fn a_bug_is_found_and_again_with_the_same_seed() {
    let find = || {
        let mutator = Mutator::new(5, [b"harmless".to_vec()]);
        // It ends at the bug, long before this, unless the host is very busy.
        campaign(dislikes_a_word, mutator, Duration::from_mins(1))
    };
    let first = find();
    assert!(first.is_err(), "{first:?}");
    assert_eq!(first, find());
}
