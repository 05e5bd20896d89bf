//! Runs of bytes end where they say, and a pass ends. The requests themselves are in `tests/request_path`.
#![allow(clippy::unwrap_used, reason = "a test")]

use model_addr::{FRAME_SIZE, Mfn};
use model_disk::{Budget, Bytes};
use proptest::prelude::*;

proptest! {
    #[test]
    fn a_part_is_inside_or_none(count in 1..40_u64, at in any::<u64>(), len in any::<u64>(), near in 0..0x3_0000_u64) {
        let all = Bytes::frames(Mfn(0x8_0000), count);
        for (at, len) in [(at, len), (near, len), (at, near), (near, near / 3)] {
            let fits = u128::from(at) + u128::from(len) <= u128::from(count * FRAME_SIZE);
            let part = all.part(at, len);
            prop_assert_eq!(part.is_some(), fits);
            if let Some(part) = part {
                prop_assert_eq!((part.start().0 - all.start().0, part.len()), (at, len));
                let is_frame = len == FRAME_SIZE && at % FRAME_SIZE == 0;
                prop_assert_eq!(part.whole_frame(), is_frame.then(|| all.start().frame().add(at / FRAME_SIZE)));
                prop_assert_eq!(part.part(0, len + 1), None);
            }
        }
    }
}

#[test]
fn a_pass_ends() {
    let mut budget = Budget::default();
    let mut requests = 0;
    while !budget.is_spent() {
        budget.began();
        requests += 1;
    }
    assert_eq!((requests, budget.pages()), (32, 0));
}
