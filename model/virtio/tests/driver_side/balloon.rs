//! The balloon: which pages are released, and when the driver gets its buffers back.

use crate::driver::{Buffer, DATA, Driver, Shape, start};
use machine_fake::FakeGuest;
use model_addr::{FRAME_SIZE, Gfn, Ipa, IpaRange};
use model_virtio::balloon::{Balloon, Counts, MAX_RUNS, Run, Source};
use model_virtio::{Transport, Window as _};
use proptest::prelude::*;
use std::{collections::BTreeSet, mem};

const RAM: Ipa = Ipa(0x4000_0000);
const RAM_SIZE: u64 = 8 << 20;
/// Not memory, though between memory.
const HOLE: IpaRange = IpaRange {
    start: Ipa(RAM.0 + 0x30_0000),
    size: 0x1_0000,
};
const FIRST: u32 = (RAM.0 / FRAME_SIZE) as u32;
const PAGES: u32 = (RAM_SIZE / FRAME_SIZE) as u32;

const INFLATE: usize = 0;
const DEFLATE: usize = 1;
const REPORT: usize = 2;

fn guest() -> FakeGuest {
    FakeGuest::new(RAM, RAM_SIZE as usize).with_hole(HOLE)
}

fn is_memory(page: u32) -> bool {
    let ipa = Ipa(u64::from(page) * FRAME_SIZE);
    (FIRST..FIRST + PAGES).contains(&page) && !HOLE.contains(ipa)
}

/// Every other 2 MiB are one block.
fn is_block(gfn: Gfn) -> bool {
    gfn.0 & 512 == 0
}

/// Serves once and gives what was released, page by page.
fn serve(
    balloon: &mut Transport<Balloon>,
    guest: &FakeGuest,
    budget: u64,
) -> (bool, Vec<(Source, u32)>) {
    serve_at(balloon, guest, 0, budget)
}

fn serve_at(
    balloon: &mut Transport<Balloon>,
    guest: &FakeGuest,
    now: u64,
    budget: u64,
) -> (bool, Vec<(Source, u32)>) {
    let (mut pages, mut whole) = (Vec::new(), 0);
    let more = balloon.serve(guest, now, budget, is_block, |source, runs| {
        assert!((1..=MAX_RUNS).contains(&runs.len()));
        for &Run { first, count } in runs {
            assert!(count > 0);
            pages.extend((0..count).map(|n| (source, first.add(n).0 as u32)));
            let blocks = (first.0..first.0 + count).filter(|gfn| gfn % 512 == 0);
            let end = first.0 + count;
            whole += blocks
                .filter(|gfn| is_block(Gfn(*gfn)) && gfn + 512 <= end)
                .count() as u64;
        }
    });
    let single = pages.len() as u64 - whole * 512;
    assert!(single <= budget, "{single} pages of {budget}");
    (more, pages)
}

/// A buffer of page numbers at [`DATA`], cut into segments.
fn put_numbers(
    guest: &FakeGuest,
    driver: &mut Driver,
    numbers: &[u32],
    cuts: &BTreeSet<usize>,
) -> u16 {
    let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
    guest.put(DATA, &bytes);
    let inner = cuts.iter().copied().filter(|cut| *cut < bytes.len());
    let edges: Vec<usize> = [0].into_iter().chain(inner).chain([bytes.len()]).collect();
    let buffers: Vec<Buffer> = edges
        .windows(2)
        .map(|edge| Buffer {
            ipa: Ipa(DATA.0 + edge[0] as u64),
            len: (edge[1] - edge[0]) as u32,
            writable: false,
        })
        .collect();
    let head = driver.add(guest, &buffers, Shape::Indirect).unwrap();
    driver.publish(guest);
    head
}

fn put_ranges(guest: &FakeGuest, driver: &mut Driver, ranges: &[(u64, u32)]) -> u16 {
    let buffers: Vec<Buffer> = ranges
        .iter()
        .map(|&(ipa, len)| Buffer {
            ipa: Ipa(ipa),
            len,
            writable: true,
        })
        .collect();
    let head = driver.add(guest, &buffers, Shape::Indirect).unwrap();
    driver.publish(guest);
    head
}

fn numbers() -> impl Strategy<Value = Vec<u32>> {
    let number = prop_oneof![
        6 => FIRST..FIRST + PAGES,
        4 => FIRST + 0x2f8..FIRST + 0x318,
        1 => any::<u32>(),
    ];
    prop_oneof![
        prop::collection::vec(number, 1..1000),
        (FIRST..FIRST + PAGES, 1..600u32).prop_map(|(last, count)| {
            // As Linux does it: one after the other, downwards.
            (0..count).map(|n| last.wrapping_sub(n)).collect()
        }),
    ]
}

/// What a step with that budget releases of the numbers that are left, and how many of them it refuses: 16 at a time, in
/// order and each once.
fn inflated(left: &mut &[u32], mut budget: usize) -> (Vec<(Source, u32)>, u64) {
    let (mut pages, mut taken) = (Vec::new(), 0);
    while budget > 0 && !left.is_empty() {
        let count = budget.min(16).min(left.len());
        let (piece, rest) = left.split_at(count);
        (*left, budget, taken) = (rest, budget - count, taken + count);
        let memory: BTreeSet<_> = piece.iter().copied().filter(|n| is_memory(*n)).collect();
        pages.extend(memory.into_iter().map(|page| (Source::Inflated, page)));
    }
    let refused = taken - pages.len();
    (pages, refused as u64)
}

fn ranges() -> impl Strategy<Value = Vec<(u64, u32)>> {
    let range = prop_oneof![
        // Whole pages of any order, as a buddy allocator has them.
        3 => (0..=10u32, 0..PAGES).prop_map(|(order, page)| {
            let page = page >> order << order;
            (RAM.0 + u64::from(page) * FRAME_SIZE, 4096 << order)
        }),
        1 => (0..RAM_SIZE - 1, 1..0x50_0000u32).prop_map(|(at, len)| (RAM.0 + at, len)),
    ];
    let fits = |&(at, len): &(u64, u32)| {
        let end = at + u64::from(len);
        end <= RAM.0 + RAM_SIZE && (end <= HOLE.start.0 || at >= HOLE.start.0 + HOLE.size)
    };
    prop::collection::vec(range, 1..33)
        .prop_map(move |ranges| ranges.into_iter().filter(fits).collect::<Vec<_>>())
        .prop_filter("empty", |ranges| !ranges.is_empty())
}

proptest! {
    #![proptest_config(crate::cases(60))]

    #[test]
    fn inflated_pages_are_released_before_the_buffer_goes_back(
        numbers in numbers(),
        cuts in prop::collection::btree_set(1..4000usize, 0..20),
        budgets in prop::collection::vec(1..700u64, 1..6),
    ) {
        let guest = guest();
        let (mut balloon, mut drivers) = start(Balloon::default(), 0, 64);
        let head = put_numbers(&guest, &mut drivers[INFLATE], &numbers, &cuts);
        let (mut left, mut refused) = (&numbers[..], 0);
        // The first step takes the buffer, which costs its segments.
        let mut segments = 1 + cuts.range(..4 * numbers.len()).count();
        for budget in budgets.iter().cycle() {
            let (more, pages) = serve(&mut balloon, &guest, *budget);
            let budget = *budget as usize - mem::take(&mut segments).min(*budget as usize);
            let (expected, odd) = inflated(&mut left, budget);
            prop_assert_eq!(pages, expected);
            refused += odd;
            if drivers[INFLATE].has_used(&guest) {
                prop_assert!(left.is_empty());
                break;
            }
            prop_assert!(more);
        }
        prop_assert_eq!(drivers[INFLATE].reap(&guest), Some((head, 0)));
        prop_assert!(balloon.irq_level());
        let counts = balloon.device().counts();
        prop_assert_eq!(counts.refused, refused);
        prop_assert_eq!(counts.inflated + counts.refused, numbers.len() as u64);
    }

    #[test]
    fn reported_pages_are_released_before_the_buffer_goes_back(
        ranges in ranges(), budgets in prop::collection::vec(1..2000u64, 1..6),
    ) {
        let guest = guest();
        let (mut balloon, mut drivers) = start(Balloon::default(), 0, 64);
        let head = put_ranges(&guest, &mut drivers[REPORT], &ranges);
        let expected: Vec<_> = ranges
            .iter()
            .flat_map(|&(at, len)| at.div_ceil(FRAME_SIZE)..(at + u64::from(len)) / FRAME_SIZE)
            .map(|page| (Source::Reported, page as u32))
            .collect();
        let mut released = Vec::new();
        for budget in budgets.iter().cycle() {
            let (more, pages) = serve(&mut balloon, &guest, *budget);
            released.extend(pages);
            if drivers[REPORT].has_used(&guest) {
                break;
            }
            prop_assert!(more);
        }
        prop_assert_eq!(drivers[REPORT].reap(&guest), Some((head, 0)));
        prop_assert_eq!(balloon.device().counts().reported, expected.len() as u64);
        prop_assert_eq!(released, expected);
        let whole = ranges.iter().all(|&(at, len)| at % 4096 == 0 && len % 4096 == 0);
        prop_assert_eq!(balloon.device().counts().refused == 0, whole);
    }
}

/// A step takes 16 numbers at most, in order and each once, and no more than its budget.
#[test]
fn numbers_of_a_step_are_sorted_and_each_counts_once() {
    let guest = guest();
    let (mut balloon, mut drivers) = start(Balloon::default(), 0, 64);
    let numbers: Vec<_> = (0..20).map(|n| FIRST + (20 - n) / 2).collect();
    put_numbers(&guest, &mut drivers[INFLATE], &numbers, &BTreeSet::new());
    let inflated = |pages: &[u32]| {
        let pages = pages.iter().map(|page| (Source::Inflated, FIRST + page));
        (true, pages.collect::<Vec<_>>())
    };
    // The segment takes one, and 10, 9, 9, 8, 8 the others.
    assert_eq!(serve(&mut balloon, &guest, 6), inflated(&[8, 9, 10]));
    assert_eq!(serve(&mut balloon, &guest, 9), inflated(&[3, 4, 5, 6, 7]));
    assert_eq!(balloon.device().counts().refused, 6);
}

#[test]
fn a_block_is_released_as_one_run_and_pages_in_pieces() {
    let guest = guest();
    let first = Gfn(u64::from(FIRST) + 1024);
    let run = |n, count| Run {
        first: first.add(n),
        count,
    };
    // Whatever the budget, a block is not cut.
    for budget in [1, 32] {
        let (mut balloon, mut drivers) = start(Balloon::default(), 0, 64);
        let ranges = [(first.address().0, 4 << 20)];
        put_ranges(&guest, &mut drivers[REPORT], &ranges);
        let mut runs = Vec::new();
        while balloon.serve(&guest, 0, budget, is_block, |_, some| {
            runs.extend_from_slice(some);
        }) {}
        let starts = (512..1024).step_by(budget as usize);
        let pieces: Vec<_> = starts.map(|n| run(n, budget)).collect();
        assert_eq!(runs[0], run(0, 512));
        assert_eq!(runs[1..], pieces);
    }
}

#[test]
fn a_report_is_held_until_it_is_due_and_the_balloon_is_not() {
    let guest = guest();
    let (mut balloon, mut drivers) = start(Balloon::default(), 0, 64);
    balloon.set_hold(100);
    let report = put_ranges(&guest, &mut drivers[REPORT], &[(RAM.0, 4096)]);
    assert_eq!(serve_at(&mut balloon, &guest, 1000, 50), (false, vec![]));
    assert_eq!(balloon.device().due(), Some(1100));
    let inflate = put_numbers(
        &guest,
        &mut drivers[INFLATE],
        &[FIRST + 7],
        &BTreeSet::new(),
    );
    let (_, pages) = serve_at(&mut balloon, &guest, 1099, 50);
    assert_eq!(pages, [(Source::Inflated, FIRST + 7)]);
    assert_eq!(drivers[INFLATE].reap(&guest), Some((inflate, 0)));
    assert_eq!(drivers[REPORT].reap(&guest), None);
    let (_, pages) = serve_at(&mut balloon, &guest, 1100, 50);
    assert_eq!(pages, [(Source::Reported, FIRST)]);
    assert_eq!(drivers[REPORT].reap(&guest), Some((report, 0)));
    assert_eq!(balloon.device().due(), None);
}

#[test]
fn a_report_that_is_held_is_forgotten_by_a_reset() {
    let guest = guest();
    let (mut balloon, mut drivers) = start(Balloon::default(), 0, 64);
    balloon.set_hold(100);
    put_ranges(&guest, &mut drivers[REPORT], &[(RAM.0, 4096)]);
    serve(&mut balloon, &guest, 50);
    balloon.write(0x070, 4, 0);
    assert_eq!(balloon.device().due(), None);
    assert_eq!(serve_at(&mut balloon, &guest, 200, 50), (false, vec![]));
}

#[test]
fn a_report_that_is_held_does_not_outlive_its_queue() {
    let guest = guest();
    let (mut balloon, mut drivers) = start(Balloon::default(), 0, 64);
    balloon.set_hold(100);
    put_ranges(&guest, &mut drivers[REPORT], &[(RAM.0, 4096)]);
    assert_eq!(serve_at(&mut balloon, &guest, 1000, 50), (false, vec![]));
    balloon.write(0x030, 4, REPORT as u64);
    balloon.write(0x044, 4, 0);
    let (has_more, _) = serve_at(&mut balloon, &guest, 1100, 50);
    assert!(!has_more);
    assert_eq!(drivers[REPORT].reap(&guest), None);
    assert_eq!(balloon.errors().0, 0);
}

#[test]
fn deflating_is_counted_and_acknowledged() {
    let guest = guest();
    let (mut balloon, mut drivers) = start(Balloon::default(), 0, 64);
    let head = put_numbers(&guest, &mut drivers[DEFLATE], &[1, 2, 3], &BTreeSet::new());
    assert_eq!(serve(&mut balloon, &guest, 50), (false, vec![]));
    assert_eq!(drivers[DEFLATE].reap(&guest), Some((head, 0)));
    let counts = Counts {
        deflated: 3,
        ..Counts::default()
    };
    assert_eq!(balloon.device().counts(), counts);
}

/// A driver may let pages out of the balloon without end, each a request of its own.
#[test]
fn deflating_is_done_in_pieces() {
    let guest = guest();
    let (mut balloon, mut drivers) = start(Balloon::default(), 0, 64);
    for _ in 0..40 {
        put_numbers(&guest, &mut drivers[DEFLATE], &[1], &BTreeSet::new());
    }
    let mut passes = 1;
    while serve(&mut balloon, &guest, 8).0 {
        assert_eq!(balloon.device().counts().deflated, 8 * passes);
        passes += 1;
    }
    assert_eq!((passes, balloon.device().counts().deflated), (6, 40));
}

#[test]
fn a_driver_that_does_not_report_has_no_such_queue() {
    let guest = guest();
    let (mut balloon, mut drivers) = start(Balloon::default(), 1 << 5, 64);
    put_ranges(&guest, &mut drivers[REPORT], &[(RAM.0, 8192)]);
    assert_eq!(serve(&mut balloon, &guest, 50), (false, vec![]));
}

#[test]
fn the_target_is_told_and_what_the_driver_has_is_heard() {
    let (mut balloon, _) = start(Balloon::default(), 0, 64);
    let generation = balloon.read(0x0fc, 4);
    balloon.set_target(0x1_2345);
    assert_ne!(balloon.read(0x0fc, 4), generation);
    assert_eq!(
        (balloon.read(0x100, 4), balloon.read(0x060, 4)),
        (0x1_2345, 2)
    );
    balloon.write(0x064, 4, 2);
    balloon.set_target(0x1_2345);
    assert!(!balloon.irq_level(), "nothing is new");
    balloon.write(0x104, 4, 0x1_0000);
    assert_eq!(balloon.read(0x104, 4), 0x1_0000);
    balloon.write(0x106, 2, 2);
    balloon.write(0x104, 1, 9);
    assert_eq!(balloon.read(0x104, 4), 0x2_0009);
    // Not its to write, or not there.
    for (at, size) in [
        (0x100, 4),
        (0x102, 4),
        (0x106, 4),
        (0x107, 2),
        (0x108, 4),
        (0x104, 8),
    ] {
        balloon.write(at, size, 0xffff_ffff);
    }
    balloon.write(u64::MAX, 4, 1);
    assert_eq!(
        (balloon.device().target(), balloon.read(0x104, 4)),
        (0x1_2345, 0x2_0009)
    );
    balloon.write(0x070, 4, 0);
    assert_eq!(
        (balloon.device().target(), balloon.read(0x104, 4)),
        (0x1_2345, 0)
    );
}
