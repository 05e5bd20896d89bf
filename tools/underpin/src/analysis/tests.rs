use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn vm(vm: u16, group: u16, pages: &[(u64, u64)]) -> VmPages {
    let page = |(gfn, (hash, state)): (usize, &(u64, u64))| PageStatus {
        address: (gfn as u64 * 4096) | state,
        hash: *hash,
    };
    let pages = pages.iter().enumerate().map(page).collect();
    VmPages {
        vm,
        group,
        pages,
        flags: None,
    }
}

const P: u64 = page::PRIVATE;
const A: u64 = page::ALONE;
const S: u64 = page::SHARED;

fn once(vms: &[VmPages]) -> Found {
    Analysis::default().take(Duration::ZERO, vms).clone()
}

#[test]
fn opportunities_are_split_by_where_they_lie() {
    // Content 7: twice in one VM, in another of its group, and in one of another group.
    let vms = [
        vm(0, 0, &[(7, S), (7, P), (1, P), (0, P)]),
        vm(1, 0, &[(7, S), (2, P), (0, P)]),
        vm(2, 1, &[(7, A), (3, P), (3, P)]),
    ];
    let found = once(&vms);
    assert_eq!((found.pages, found.zero, found.contents), (10, 2, 2));
    assert_eq!((found.equal_across, found.equal_within), (4, 2));
    assert_eq!(found.ranks, BTreeMap::from([(2, 1), (4, 3)]));
    let expected = Savings {
        possible: 4,
        across: 1,
        within: 2,
        apart: 1,
        exploited: 1,
        missed_alone: 0,
        missed_private: 2,
    };
    assert_eq!(found.all, expected);
    assert_eq!(found.cache, None);
}

#[test]
fn a_page_alone_is_joined_by_private_ones() {
    let found = once(&[
        vm(0, 0, &[(7, A)]),
        vm(1, 0, &[(7, P)]),
        vm(2, 0, &[(7, A)]),
    ]);
    let Savings {
        exploited,
        missed_alone,
        missed_private,
        ..
    } = found.all;
    assert_eq!((exploited, missed_alone, missed_private), (0, 1, 1));
}

#[test]
fn page_cache_is_counted_apart() {
    let mut vms = [vm(0, 0, &[(7, S), (8, P)]), vm(1, 0, &[(7, S), (8, P)])];
    let words = [1u64 << 5, 1 << 12].map(u64::to_le_bytes).concat();
    vms[0].flags = Some(PageFlags::read(&words).unwrap());
    assert_eq!(once(&vms).cache, None);
    vms[1].flags = vms[0].flags.clone();
    let cache = once(&vms).cache.unwrap();
    assert_eq!((cache.possible, cache.exploited), (1, 1));
    assert_eq!(once(&vms).all.possible, 2);
}

#[test]
fn durations_are_told_by_the_snapshots_that_show_them() {
    let mut analysis = Analysis::default();
    for n in 0..20 {
        // 7 is always there, 8 in every other snapshot, 9 in the first three.
        let mut pages = vec![(7, S)];
        pages.extend((n % 2 == 0).then_some((8, P)));
        pages.extend((n < 3).then_some((9, P)));
        pages.push((0, P));
        let vms = [vm(0, 0, &pages), vm(1, 0, &pages)];
        analysis.take(Duration::from_secs(n), &vms);
    }
    let report = analysis.report();
    assert_eq!(report.contents.count, [10, 1, 0, 1]);
    assert_eq!(report.contents.left, [0, 0, 0, 1]);
    assert_eq!(report.lasting[0], [1, 1, 0, 1]);
    assert_eq!(report.lasting[3], [0, 0, 0, 1]);
    assert_eq!(report.ranks(), BTreeMap::from([(2, 33)]));
    // The zeroes of each VM lie at three addresses, 2, 9 and 9 times.
    assert_eq!(report.zero.count.iter().sum::<u64>(), 2 * 20);
    assert_eq!(report.zero.left.iter().sum::<u64>(), 2);
    let csv = report.csv();
    let columns: BTreeSet<usize> = csv.lines().map(|line| line.split(',').count()).collect();
    assert_eq!((csv.lines().count(), columns.len()), (21, 1), "{csv}");
}

type Pages = Vec<(u64, u64)>;

/// Snapshots of four VMs in two groups, with few contents so that many are equal.
fn snapshots() -> impl Strategy<Value = Vec<Vec<Pages>>> {
    let pages = proptest::collection::vec((0u64..6, 1u64..4), 0..8);
    let vms = proptest::collection::vec(pages, 4);
    proptest::collection::vec(vms, 1..24)
}

fn described(vms: &[Pages]) -> Vec<VmPages> {
    let vms = vms.iter().enumerate();
    vms.map(|(n, pages)| vm(n as u16, n as u16 / 2, pages))
        .collect()
}

/// Pages of one snapshot with this content: their VMs.
fn holders(vms: &[Pages], hash: u64) -> Vec<usize> {
    let of =
        |(n, pages): (usize, &Pages)| vec![n; pages.iter().filter(|page| page.0 == hash).count()];
    vms.iter().enumerate().flat_map(of).collect()
}

proptest! {
    /// Against counting each content for itself.
    #[test]
    fn snapshots_are_counted_as_by_hand(taken in snapshots()) {
        let mut analysis = Analysis::default();
        for (n, vms) in taken.iter().enumerate() {
            let found = analysis.take(Duration::from_secs(n as u64), &described(vms)).clone();
            let (mut possible, mut apart, mut across, mut equal) = (0, 0, 0, 0);
            for hash in 1..6 {
                let holders = holders(vms, hash);
                let different: BTreeSet<usize> = holders.iter().copied().collect();
                let groups: BTreeSet<usize> = different.iter().map(|vm| vm / 2).collect();
                possible += holders.len().saturating_sub(1);
                apart += groups.len().saturating_sub(1);
                across += different.len() - groups.len();
                equal += if holders.len() > 1 { holders.len() } else { 0 };
            }
            let all = found.all;
            prop_assert_eq!(all.possible, possible as u64);
            prop_assert_eq!((all.apart, all.across), (apart as u64, across as u64));
            prop_assert_eq!(all.possible, all.apart + all.allowed());
            prop_assert_eq!(all.allowed(), all.exploited + all.missed_alone + all.missed_private);
            prop_assert_eq!(found.equal_across + found.equal_within, equal as u64);
            prop_assert_eq!(found.ranks.values().sum::<u64>(), all.possible);
            prop_assert_eq!(found.zero, holders(vms, 0).len() as u64);
        }
        let report = analysis.report();
        let mut expected = Durations::default();
        for hash in 1..6 {
            let seen: Vec<bool> = taken.iter().map(|vms| holders(vms, hash).len() > 1).collect();
            let mut at = 0;
            for span in seen.chunk_by(|a, b| a == b) {
                at += span.len();
                if span[0] {
                    let range = match span.len() { 1 => 0, 2..=4 => 1, 5..=16 => 2, _ => 3 };
                    expected.count[range] += 1;
                    expected.left[range] += u64::from(at == seen.len());
                }
            }
        }
        prop_assert_eq!(report.contents, expected);
        for (found, lasting) in report.found.iter().zip(&report.lasting) {
            prop_assert_eq!(found.contents, lasting.iter().sum::<u64>());
        }
    }
}
