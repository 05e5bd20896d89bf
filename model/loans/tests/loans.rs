//! Random loans against a plain list of blocks: each is whose, in order.
#![allow(clippy::unwrap_used)]

use model_addr::{Pa, PaRange};
use model_loans::{BLOCK, LOANS_MAX, Loans, Refused, Returned};
use proptest::prelude::*;

/// Blocks 4..40 and 44..60 are memory; 8 and 9 are kept.
fn memory() -> [PaRange; 2] {
    [run(4, 36), run(44, 16)]
}

fn run(first: u64, blocks: u64) -> PaRange {
    PaRange {
        start: Pa(first * BLOCK),
        size: blocks * BLOCK,
    }
}

fn is_usable(block: u64) -> bool {
    (4..40).contains(&block) && !(8..10).contains(&block) || (44..60).contains(&block)
}

#[derive(Clone, Debug)]
enum Step {
    Lend(u64, u64),
    Return(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..64_u64, 0..8_u64).prop_map(|(first, blocks)| Step::Lend(first, blocks)),
        (0..64_u64).prop_map(Step::Return),
    ]
}

proptest! {
    #[test]
    fn each_block_is_lent_once_and_comes_back(steps in prop::collection::vec(step(), 0..120)) {
        let mut loans = Loans::new();
        // The first block of the run that has each block, and how many of that are back.
        let mut owner: [Option<u64>; 64] = [None; 64];
        let mut runs: Vec<(u64, u64, u64)> = Vec::new();
        for step in steps {
            match step {
                Step::Lend(first, blocks) => {
                    let mine = || first..first + blocks;
                    let kept = [run(8, 2)];
                    let lent = loans.lend(run(first, blocks), memory().into_iter(), kept.into_iter());
                    let is_one_run = !(first < 40 && first + blocks > 40);
                    let expected = blocks > 0
                        && is_one_run
                        && mine().all(|b| b < 64 && is_usable(b) && owner[b as usize].is_none())
                        && runs.len() < LOANS_MAX;
                    prop_assert_eq!(lent.is_ok(), expected, "{:?}", lent);
                    if expected {
                        mine().for_each(|b| owner[b as usize] = Some(first));
                        runs.push((first, blocks, 0));
                    }
                }
                Step::Return(first) => {
                    let place = runs.iter().position(|run| run.0 == first);
                    let Some(place) = place else {
                        prop_assert_eq!(loans.next_returned(run(first, 1).start), Err(Refused::NotLent));
                        continue;
                    };
                    let next = loans.next_returned(run(first, 1).start).unwrap();
                    let (_, blocks, back) = &mut runs[place];
                    if *back == *blocks {
                        prop_assert_eq!(next, Returned::All);
                        owner.iter_mut().filter(|o| **o == Some(first)).for_each(|o| *o = None);
                        runs.remove(place);
                    } else {
                        prop_assert_eq!(next, Returned::Block(run(first + *back, 1)));
                        *back += 1;
                    }
                }
            }
            for block in 0..64 {
                prop_assert_eq!(loans.overlaps(run(block, 1)), owner[block as usize].is_some());
            }
            let bytes: u64 = runs.iter().map(|(_, blocks, back)| (blocks - back) * BLOCK).sum();
            prop_assert_eq!(loans.bytes(), bytes);
            prop_assert_eq!(loans.is_empty(), runs.is_empty());
            let whole = runs.iter().filter(|run| run.2 == 0).count();
            prop_assert_eq!(loans.whole().len(), whole);
        }
    }
}

#[test]
fn what_is_refused_says_why() {
    let mut loans = Loans::new();
    let mut lend = |range| loans.lend(range, memory().into_iter(), [run(8, 2)].into_iter());
    let odd = PaRange {
        start: Pa(4 * BLOCK + 4096),
        size: BLOCK,
    };
    assert_eq!(lend(odd), Err(Refused::Blocks));
    let wraps = PaRange {
        start: Pa(u64::MAX - BLOCK + 1),
        size: 2 * BLOCK,
    };
    assert_eq!(lend(wraps), Err(Refused::Blocks));
    assert_eq!(lend(run(39, 2)), Err(Refused::NoMemory));
    assert_eq!(lend(run(7, 2)), Err(Refused::Kept));
    assert_eq!(lend(run(4, 4)), Ok(()));
    assert_eq!(lend(run(6, 1)), Err(Refused::Lent));
    assert!(loans.contains(run(5, 3)) && !loans.contains(run(7, 2)));
    loans.next_returned(Pa(4 * BLOCK)).unwrap();
    assert!(!loans.contains(run(5, 3)) && loans.overlaps(run(4, 1)));
}
