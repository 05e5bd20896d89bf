//! Random loans against a plain list of blocks: each is whose, in order.
#![allow(clippy::unwrap_used)]

use abi::os0::Refusal;
use model_addr::{Pa, PaRange};
use model_loans::{BLOCK, Borrower, LOANS_MAX, Loans, Returned, SCATTERED_MAX, Scattered};
use proptest::prelude::*;
use std::collections::BTreeSet;

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
    Lend(Borrower, u64, u64),
    Return(Borrower, u64),
}

fn borrower() -> impl Strategy<Value = Borrower> {
    prop_oneof![3 => Just(Borrower::Vms), 1 => Just(Borrower::Successor)]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (borrower(), 0..64_u64, 0..8_u64)
            .prop_map(|(who, first, blocks)| Step::Lend(who, first, blocks)),
        (borrower(), 0..64_u64).prop_map(|(who, first)| Step::Return(who, first)),
    ]
}

proptest! {
    #[test]
    fn each_block_is_lent_once_and_comes_back(steps in prop::collection::vec(step(), 0..120)) {
        let mut loans = Loans::new();
        // The first block of the run that has each block; runs, and how many of their blocks are back.
        let mut owner: [Option<u64>; 64] = [None; 64];
        let mut runs: Vec<(Borrower, u64, u64, u64)> = Vec::new();
        for step in steps {
            let count = |runs: &[(Borrower, u64, u64, u64)], who| runs.iter().filter(|run| run.0 == who).count();
            match step {
                Step::Lend(who, first, blocks) => {
                    let mine = || first..first + blocks;
                    let kept = [run(8, 2)];
                    let lent = loans.lend(who, run(first, blocks), memory().into_iter(), kept.into_iter());
                    let is_one_run = !(first < 40 && first + blocks > 40);
                    let most = if who == Borrower::Vms { LOANS_MAX } else { 1 };
                    let expected = blocks > 0
                        && is_one_run
                        && mine().all(|b| b < 64 && is_usable(b) && owner[b as usize].is_none())
                        && count(&runs, who) < most;
                    prop_assert_eq!(lent.is_ok(), expected, "{:?}", lent);
                    if expected {
                        mine().for_each(|b| owner[b as usize] = Some(first));
                        runs.push((who, first, blocks, 0));
                    }
                }
                Step::Return(who, first) => {
                    let place = runs.iter().position(|run| (run.0, run.1) == (who, first));
                    let next = loans.next_returned(who, run(first, 1).start);
                    let Some(place) = place else {
                        prop_assert_eq!(next, Err(Refusal::NotLent));
                        continue;
                    };
                    let (_, _, blocks, back) = &mut runs[place];
                    if *back == *blocks {
                        prop_assert_eq!(next, Ok(Returned::All));
                        owner.iter_mut().filter(|o| **o == Some(first)).for_each(|o| *o = None);
                        runs.remove(place);
                    } else {
                        prop_assert_eq!(next, Ok(Returned::Block(run(first + *back, 1))));
                        *back += 1;
                    }
                }
            }
            for block in 0..64 {
                prop_assert_eq!(loans.overlaps(run(block, 1)), owner[block as usize].is_some());
            }
            let bytes: u64 = runs.iter().map(|(_, _, blocks, back)| (blocks - back) * BLOCK).sum();
            prop_assert_eq!(loans.bytes(), bytes);
            for who in [Borrower::Vms, Borrower::Successor] {
                prop_assert_eq!(loans.is_empty(who), count(&runs, who) == 0);
                prop_assert_eq!(loans.runs(who).count(), count(&runs, who));
            }
            let whole = |who| { runs.iter() }.filter(move |run| run.0 == who && run.3 == 0);
            prop_assert_eq!(loans.whole(Borrower::Vms).count(), whole(Borrower::Vms).count());
            let staged = whole(Borrower::Successor).next().map(|staged| run(staged.1, staged.2));
            prop_assert_eq!(loans.whole(Borrower::Successor).next(), staged);
        }
    }
}

#[test]
fn what_is_refused_says_why() {
    let mut loans = Loans::new();
    let mut lend = |range| {
        loans.lend(
            Borrower::Vms,
            range,
            memory().into_iter(),
            [run(8, 2)].into_iter(),
        )
    };
    let odd = PaRange {
        start: Pa(4 * BLOCK + 4096),
        size: BLOCK,
    };
    assert_eq!(lend(odd), Err(Refusal::NoBlocks));
    let wraps = PaRange {
        start: Pa(u64::MAX - BLOCK + 1),
        size: 2 * BLOCK,
    };
    assert_eq!(lend(wraps), Err(Refusal::NoBlocks));
    assert_eq!(lend(run(39, 2)), Err(Refusal::NoMemory));
    assert_eq!(lend(run(7, 2)), Err(Refusal::NoMemory));
    assert_eq!(lend(run(4, 4)), Ok(()));
    assert_eq!(lend(run(6, 1)), Err(Refusal::LentAlready));
    assert!(loans.contains(run(5, 3)) && !loans.contains(run(7, 2)));
    loans.next_returned(Borrower::Vms, Pa(4 * BLOCK)).unwrap();
    assert!(!loans.contains(run(5, 3)) && loans.overlaps(run(4, 1)));
}

const PAGE: u64 = 4096;

fn page(block: u64, n: u64) -> PaRange {
    PaRange {
        start: Pa(block * BLOCK + n * PAGE),
        size: PAGE,
    }
}

fn of_block(block: u64, pages: [u64; 8]) -> Scattered {
    Scattered {
        start: Pa(block * BLOCK),
        pages,
    }
}

fn pages_of(scattered: Scattered) -> BTreeSet<u64> {
    let is_lent = |n: &u64| scattered.pages[(*n / 64) as usize] >> (n % 64) & 1 == 1;
    let first = scattered.start.0 / PAGE;
    (0..512).filter(is_lent).map(|n| first + n).collect()
}

#[derive(Clone, Debug)]
enum PageStep {
    Lend(u64, [u64; 8]),
    LendRun(u64, u64),
    Return(u64),
}

fn page_step() -> impl Strategy<Value = PageStep> {
    let word = || prop_oneof![Just(0_u64), Just(u64::MAX), any::<u64>()];
    let words = proptest::array::uniform8(word());
    prop_oneof![
        2 => (0..64_u64, words).prop_map(|(block, words)| PageStep::Lend(block, words)),
        1 => (0..64_u64, 0..4_u64).prop_map(|(first, blocks)| PageStep::LendRun(first, blocks)),
        1 => (0..64_u64).prop_map(PageStep::Return),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn each_page_is_lent_once_and_comes_back(steps in prop::collection::vec(page_step(), 0..100)) {
        let mut loans = Loans::new();
        // Blocks of which pages are lent, and all pages that are lent, of runs as well.
        let mut blocks: Vec<Scattered> = Vec::new();
        let mut lent: BTreeSet<u64> = BTreeSet::new();
        // One page of block 5, and two blocks.
        let kept = || [run(8, 2), page(5, 77)].into_iter();
        let is_kept = |n: u64| n == 5 * 512 + 77 || (8 * 512..10 * 512).contains(&n);
        for step in steps {
            match step {
                PageStep::Lend(block, words) => {
                    let pages = of_block(block, words);
                    let mine = pages_of(pages);
                    let all = block * 512..(block + 1) * 512;
                    let is_memory = (4..40).contains(&block) || (44..60).contains(&block);
                    let expected = !mine.is_empty()
                        && is_memory
                        && !mine.iter().any(|n| is_kept(*n))
                        && lent.range(all).next().is_none()
                        && blocks.len() < SCATTERED_MAX;
                    let done = loans.lend_pages(pages, memory().into_iter(), kept());
                    prop_assert_eq!(done.is_ok(), expected, "{:?}", done);
                    if expected {
                        prop_assert_eq!(pages.bytes(), mine.len() as u64 * PAGE);
                        lent.extend(mine);
                        blocks.push(pages);
                    }
                }
                PageStep::LendRun(first, count) => {
                    if loans.lend(Borrower::Vms, run(first, count), memory().into_iter(), kept()).is_ok() {
                        let mine = first * 512..(first + count) * 512;
                        prop_assert!(mine.clone().all(|n| !is_kept(n) && lent.insert(n)));
                    }
                }
                PageStep::Return(block) => {
                    let Some(place) = blocks.iter().position(|pages| pages.start == page(block, 0).start) else {
                        continue;
                    };
                    let pages = blocks.swap_remove(place);
                    prop_assert_eq!(loans.next_returned(Borrower::Vms, pages.start), Ok(Returned::Pages(pages)));
                    prop_assert!(pages_of(pages).iter().all(|n| lent.remove(n)));
                }
            }
            prop_assert_eq!(loans.bytes(), lent.len() as u64 * PAGE);
            prop_assert_eq!(loans.scattered().len(), blocks.len());
            for block in &blocks {
                let mut runs = block.runs();
                let mut at = block.start;
                let all = runs.all(|(run, is_lent)| {
                    let follows = run.start == at && run.size > 0;
                    at = run.end();
                    follows && (run.start.0 / PAGE..at.0 / PAGE).all(|n| lent.contains(&n) == is_lent)
                });
                prop_assert!(all && at == block.block().end());
            }
            for n in (0..64 * 512).step_by(1009) {
                prop_assert_eq!(loans.overlaps(page(0, n)), lent.contains(&n));
            }
        }
    }
}

#[test]
fn pages_that_are_refused_say_why() {
    let mut loans = Loans::new();
    let mut lend = |pages| loans.lend_pages(pages, memory().into_iter(), [page(5, 3)].into_iter());
    let some = [0b110, 0, 0, 0, 0, 0, 0, 1 << 63];
    let odd = Scattered {
        start: Pa(4 * BLOCK + PAGE),
        pages: some,
    };
    let last = Scattered {
        start: Pa(BLOCK.wrapping_neg()),
        pages: some,
    };
    assert_eq!(lend(odd), Err(Refusal::NoBlocks));
    assert_eq!(lend(last), Err(Refusal::NoBlocks));
    assert_eq!(lend(of_block(4, [0; 8])), Err(Refusal::NoBlocks));
    assert_eq!(lend(of_block(41, some)), Err(Refusal::NoMemory));
    assert_eq!(lend(of_block(5, [8; 8])), Err(Refusal::NoMemory));
    assert_eq!(lend(of_block(5, some)), Ok(()));
    assert_eq!(lend(of_block(5, [1; 8])), Err(Refusal::LentAlready));
    let whole = loans.lend(
        Borrower::Vms,
        run(4, 2),
        memory().into_iter(),
        [].into_iter(),
    );
    assert_eq!(whole, Err(Refusal::LentAlready));
    assert!(loans.overlaps(page(5, 511)) && !loans.overlaps(page(5, 0)));
    assert!(!loans.contains(page(5, 511)) && loans.whole(Borrower::Vms).next().is_none());
    assert_eq!(
        loans.next_returned(Borrower::Vms, Pa(5 * BLOCK)),
        Ok(Returned::Pages(of_block(5, some)))
    );
    assert!(loans.is_empty(Borrower::Vms));
    assert_eq!(
        loans.next_returned(Borrower::Vms, Pa(5 * BLOCK)),
        Err(Refusal::NotLent)
    );
}
