//! Records against a map of them.
#![allow(clippy::unwrap_used, reason = "a test")]

mod machine;

use std::collections::BTreeMap;

use machine::{Tables, user};
use model_sharing::{Link, Record, Slab};
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Each record is its own until it is given back; frames come as they are needed and go with
    /// their last record.
    #[test]
    fn records_are_kept_apart(
        runs in prop::collection::vec((any::<bool>(), 1..400_usize, any::<prop::sample::Index>()), 1..12),
        limit in 1..6_u64,
    ) {
        let mut tables = Tables::default();
        tables.limit(Some(limit));
        let mut slab = Slab::new();
        let mut known = BTreeMap::new();
        let mut stamp = 0;
        for (take, count, at) in runs {
            for _ in 0..count {
                stamp += 1;
                if take {
                    let full = slab.frames() * 255 == known.len() as u64;
                    let Some(id) = slab.take(&mut tables) else {
                        prop_assert!(full, "records are left");
                        continue;
                    };
                    let next = match (stamp % 3, known.keys().next_back()) {
                        (0, _) => Link::Last(user(2, stamp)),
                        (_, Some(id)) => Link::Record(*id, stamp % 2 == 0),
                        (_, None) => Link::Nobody,
                    };
                    let record = Record { user: user(1, stamp), next };
                    record.write(&mut tables, id);
                    prop_assert!(known.insert(id, record).is_none(), "given twice");
                } else if !known.is_empty() {
                    let id = *known.keys().nth(at.index(known.len())).unwrap();
                    prop_assert_eq!(Record::read(&tables, id), known[&id]);
                    known.remove(&id);
                    slab.give(&mut tables, id);
                }
            }
            for (id, record) in &known {
                prop_assert_eq!(Record::read(&tables, *id), *record);
            }
            let mut frames: Vec<_> = known.keys().map(|id| id.frame()).collect();
            frames.dedup();
            prop_assert_eq!(frames.len(), tables.in_use());
            prop_assert_eq!(slab.frames(), tables.in_use() as u64);
        }
    }
}
