//! Records against a map of them.
#![allow(clippy::unwrap_used, reason = "a test")]

mod machine;

use std::collections::{BTreeMap, BTreeSet};

use machine::Tables;
use model_addr::Mfn;
use model_sharing::{Link, RecordId, Size, Slab};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Each record is its own until it is given back; frames come as they are needed and go with
    /// their last record.
    #[test]
    fn records_are_kept_apart(
        runs in prop::collection::vec((any::<bool>(), any::<bool>(), 1..400_usize, any::<prop::sample::Index>()), 1..12),
        limit in 1..6_u64,
    ) {
        let mut tables = Tables::default();
        tables.limit(Some(limit));
        let mut slab = Slab::new();
        let mut known = BTreeMap::<RecordId, u64>::new();
        let words = |id: RecordId| 0..id.size().words();
        let mut stamp = 0;
        for (take, large, count, at) in runs {
            let size = if large { Size::Line } else { Size::One };
            for _ in 0..count {
                stamp += 1;
                if take {
                    let Some(id) = slab.take(&mut tables, size) else {
                        let all = known.keys().filter(|id| id.size() == size);
                        let frames: BTreeSet<Mfn> = all.clone().map(|id| id.frame()).collect();
                        let room = frames.len() as u64 * size.in_frame();
                        prop_assert_eq!(all.count() as u64, room, "records are left");
                        continue;
                    };
                    prop_assert_eq!(id.size(), size);
                    let link = Link::Record(id);
                    prop_assert_eq!(Link::decode(link.encode()), link);
                    words(id).for_each(|n| id.write(&mut tables, n, stamp << 8 | n as u64));
                    prop_assert!(known.insert(id, stamp).is_none(), "given twice");
                } else if !known.is_empty() {
                    let id = *known.keys().nth(at.index(known.len())).unwrap();
                    known.remove(&id);
                    slab.give(&mut tables, id);
                }
            }
            for (id, stamp) in &known {
                let wanted = [stamp << 8, stamp << 8 | 1];
                prop_assert_eq!(id.read(&tables), wanted);
                if id.size() == Size::Line {
                    let all: [u64; 8] = id.read(&tables);
                    prop_assert_eq!(all[7], stamp << 8 | 7);
                }
            }
            let frames: BTreeSet<Mfn> = known.keys().map(|id| id.frame()).collect();
            prop_assert_eq!(frames.len(), tables.in_use());
            prop_assert_eq!(slab.frames(), tables.in_use() as u64);
        }
    }
}
