//! What changed in a page makes the new one of the old one, and nothing that a peer says leads beyond a page.

#![allow(clippy::unwrap_used)]

use model_coherence::changes::{CHANGES_MAX, LINE, LINES_MAX, WORDS, Words, read, write};
use model_coherence::earlier::{Earlier, PLACES};
use proptest::prelude::*;
use zerocopy::IntoBytes;

fn page(words: &[(usize, u64)], of: &Words) -> Words {
    let mut page = *of;
    for (at, word) in words {
        page[at % WORDS] = *word;
    }
    page
}

fn words(most: usize) -> impl Strategy<Value = Vec<(usize, u64)>> {
    prop::collection::vec((any::<usize>(), any::<u64>()), 0..most)
}

proptest! {
    /// Whoever has the old page comes to have the new one.
    #[test]
    fn changes_make_the_new_page(first in words(40), few in words(9), many in words(200), is_wide: bool) {
        let old = page(&first, &[0; WORDS]);
        let new = page(if is_wide { &many } else { &few }, &old);
        let differ = old.chunks(LINE).zip(new.chunks(LINE)).filter(|(old, new)| old != new);
        let differ = differ.count();
        let mut changes = [0; CHANGES_MAX];
        let length = write(&old, &new, &mut changes);
        prop_assert_eq!(length, (differ <= LINES_MAX).then_some(1 + differ * LINE));
        let Some(length) = length else { return Ok(()) };
        let mut theirs = old;
        for (at, line) in read(changes[..length].as_bytes()).unwrap() {
            theirs.as_mut_bytes()[at as usize..][..line.len()].copy_from_slice(line);
        }
        prop_assert_eq!(theirs, new);
    }

    /// Nothing that a peer sends leads beyond a page.
    #[test]
    fn changes_of_a_peer_lie_in_a_page(bits in prop_oneof![any::<u64>(), any::<u64>().prop_map(|it| !(it & it >> 7 & it >> 13))], few in any::<u8>(), odd in 0..3_usize) {
        let bits = if few < 64 { bits & 1 << (few & 63) } else { bits };
        let count = bits.count_ones() as usize;
        let mut bytes = bits.to_le_bytes().to_vec();
        bytes.resize(8 + 64 * count + odd, 7);
        let lines = read(&bytes);
        prop_assert_eq!(lines.is_some(), odd == 0 && count <= LINES_MAX);
        for (at, line) in lines.into_iter().flatten() {
            prop_assert!(line.len() == 64 && at.is_multiple_of(64) && at + 64 <= 4096);
        }
        prop_assert!(read(&bytes[..few as usize % 8]).is_none());
    }
}

#[test]
fn pages_of_one_place_are_told_apart() {
    let mut earlier = Earlier::new().unwrap();
    let far = PLACES as u32;
    let page = |word: u64| {
        let mut page: Words = [0; WORDS];
        page[9] = word;
        page
    };
    earlier.remember(0, 1, |into| into.copy_from_slice(page(1).as_bytes()));
    assert!(earlier.changes(0, 2, &page(3)).is_none());
    assert!(earlier.changes(far, 1, &page(3)).is_none());
    earlier.remember(far, 1, |into| into.copy_from_slice(page(2).as_bytes()));
    assert!(earlier.changes(0, 1, &page(3)).is_none());
    assert_eq!(earlier.changes(far, 1, &page(2)), Some(&[0; 8][..]));
    let changes = earlier.changes(far, 1, &page(3)).unwrap();
    assert_eq!((changes.len(), changes[0], changes[16]), (8 + 64, 2, 3));
}
