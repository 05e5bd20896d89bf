//! The table against a plain list of ranges, in which everything is looked for from the front.

use model_addr::{Ipa, IpaRange};
use model_mmio::{MmioMap, Refused, Row};
use proptest::prelude::*;

const ROWS: usize = 12;

fn range(start: u64, size: u64) -> IpaRange {
    IpaRange {
        start: Ipa(start),
        size,
    }
}

/// Few addresses, at the bottom and at the top, so that ranges touch, overlap and end where addresses do.
fn address() -> impl Strategy<Value = u64> {
    prop_oneof![0..64_u64, (u64::MAX - 31)..=u64::MAX]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_table_finds_what_a_list_finds(
        ranges in proptest::collection::vec((address(), 0..24_u64), 0..24),
        asked in proptest::collection::vec(address(), 0..64),
    ) {
        let mut table = MmioMap::<usize, ROWS>::default();
        let mut list = Vec::<(u64, u64)>::new();
        for (start, size) in ranges {
            let end = start.checked_add(size);
            let overlaps = |&(first, bytes): &(u64, u64)| end.is_some_and(|end| first < end && start < first + bytes);
            let number = list.len();
            let expected = if size == 0 || end.is_none() || list.iter().any(overlaps) {
                Err(Refused::Overlaps)
            } else if list.len() == ROWS {
                Err(Refused::Full)
            } else {
                list.push((start, size));
                Ok(())
            };
            prop_assert_eq!(table.add(range(start, size), number), expected);
        }
        let mut last = Row::default();
        for at in asked {
            let found = list.iter().position(|(start, size)| at >= *start && at - start < *size);
            let found = found.map(|n| (n, at - list[n].0));
            prop_assert_eq!(table.find(&mut last, Ipa(at)), found);
            // The row that is kept is the one that was found, or, where nothing was, the one before.
            if found.is_some() {
                prop_assert_eq!(last.at(Ipa(at)), found);
            }
        }
    }
}

#[test]
fn an_empty_row_has_no_address() {
    for at in [0, 1, u64::MAX] {
        assert_eq!(Row::<u8>::default().at(Ipa(at)), None);
        assert_eq!(
            MmioMap::<u8, 1>::default().find(&mut Row::default(), Ipa(at)),
            None
        );
    }
}

/// Windows of PCIe lie far above, of any size, and come in any order.
#[test]
fn devices_of_another_bus_are_rows_too() {
    let mut table = MmioMap::<&str, 4>::default();
    for (start, size, what) in [
        (0x10_0000_0000, 1 << 39, "bars"),
        (0x0a00_0000, 0x200, "window"),
        (0x3f00_0000, 0x0100_0000, "ecam"),
    ] {
        assert_eq!(table.add(range(start, size), what), Ok(()));
    }
    let mut last = Row::default();
    assert_eq!(
        table.find(&mut last, Ipa(0x3f00_8004)),
        Some(("ecam", 0x8004))
    );
    assert_eq!(
        table.find(&mut last, Ipa(0x8f_ffff_ffff)),
        Some(("bars", (1 << 39) - 1))
    );
    assert_eq!(table.find(&mut last, Ipa(0x90_0000_0000)), None);
    assert_eq!(table.find(&mut last, Ipa(0x0a00_0200)), None);
    assert_eq!(
        table.find(&mut last, Ipa(0x0a00_01ff)),
        Some(("window", 0x1ff))
    );
}
