//! The order of names for people: vm2 is before vm10.

use std::{cmp::Ordering, iter};

/// Compares names; numbers in them count as numbers. Names that differ in zeroes before a number alone are
/// in the order of their bytes.
pub fn natural(one: &str, other: &str) -> Ordering {
    parts(one).cmp(parts(other)).then_with(|| one.cmp(other))
}

/// Sorts what has names.
pub fn natural_by<T>(all: &mut [T], name: impl Fn(&T) -> String) {
    all.sort_by(|a, b| natural(&name(a), &name(b)));
}

/// A name as bytes and numbers. Numbers are where their digits would be, shorter ones first.
fn parts(name: &str) -> impl Iterator<Item = (u8, usize, &[u8])> {
    let mut rest = name.as_bytes();
    iter::from_fn(move || {
        let count = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (part, after) = rest.split_at_checked(count.max(1))?;
        rest = after;
        if count == 0 {
            return Some((*part.first()?, 0, &[][..]));
        }
        let zeroes = part.iter().take_while(|byte| **byte == b'0').count();
        let number = part.get(zeroes..).unwrap_or_default();
        Some((b'0', number.len(), number))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_in_names_count() {
        let sorted = [
            "",
            "-a",
            "2",
            "10",
            "a",
            "a-1",
            "a0",
            "a00",
            "a1b9",
            "a1b10",
            "a9",
            "a09",
            "a10",
            "a18446744073709551616",
            "b",
            "vm2",
            "vm10",
            "vm10-a2",
            "vm10-a11",
            "vma",
        ];
        let mut names = sorted;
        names.reverse();
        names.sort_by(|a, b| natural(a, b));
        // Of equal numbers, the one with zeroes is first, as bytes have it.
        let mut expected = sorted;
        expected.swap(10, 11);
        assert_eq!(names, expected);
    }

    proptest! {
        #[test]
        fn all_names_have_one_order(names in proptest::collection::vec("[a0-2-]{0,5}", 3)) {
            let [a, b, c] = [0, 1, 2].map(|n| names[n].as_str());
            prop_assert_eq!(natural(a, b), natural(b, a).reverse());
            prop_assert_eq!(natural(a, b) == Ordering::Equal, a == b);
            if natural(a, b).is_le() && natural(b, c).is_le() {
                prop_assert!(natural(a, c).is_le());
            }
        }

        #[test]
        fn numbers_alone_are_in_their_order(a: u64, b: u64) {
            prop_assert_eq!(natural(&format!("vm{a}"), &format!("vm{b}")), a.cmp(&b));
        }
    }
}
