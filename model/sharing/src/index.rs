//! Finding shared frames by what they hold.

use core::sync::atomic::{AtomicU32, Ordering};

use model_addr::Mfn;
use model_frame_table::{CacheKey, Chain, FrameEntry, MemoryMap};

/// Locks of the index: each bucket belongs to one of them.
pub const STRIPES: usize = 64;

/// Frames in a bucket, at most: as many candidates are compared, at most.
pub const LONGEST_CHAIN: usize = 32;

/// Frames in a bucket beside which a frame that was full is of use: of those that hold the same, few are enough.
pub const RELISTED: usize = 4;

/// Words of a page that are looked at for its bucket.
const SAMPLES: u32 = 8;

/// Two tables of chains through the frame table: by contents, and by disk block.
///
/// Whoever looks into a bucket, or changes it, holds the lock of its [`Bucket::stripe`]. It may
/// lock frames then. As a frame leaves the index before anybody may write it, a frame that is
/// found keeps its contents for as long as the stripe's lock is held.
#[derive(Debug)]
pub struct Index<'a> {
    /// The first half by contents, the other by block; words as [`MemoryMap::link`] makes them.
    heads: &'a [AtomicU32],
    /// Buckets of one half, less one; a power of two less one.
    mask: usize,
    key: u64,
}

/// A list of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket {
    chain: Chain,
    at: usize,
}

impl Bucket {
    /// The lock that protects it, below [`STRIPES`].
    pub const fn stripe(self) -> usize {
        self.at % STRIPES
    }
}

impl<'a> Index<'a> {
    /// An index with these heads, all zero at first: as many for each chain as the largest power
    /// of two of which there are two. One bucket for each frame that is shared is plenty. `key` is
    /// a secret random number: without it nobody can make contents that meet in one bucket.
    /// Without heads nothing is ever found.
    pub const fn new(heads: &'a [AtomicU32], key: u64) -> Self {
        let half = match (heads.len() / 2).checked_ilog2() {
            Some(log2) => 1 << log2,
            None => 1,
        };
        Self {
            heads,
            mask: half - 1,
            key,
        }
    }

    /// The bucket of a page of `group`, of which `word` gives each of the 512 words.
    ///
    /// Eight words are looked at: one of the first four, of the next four, of the next eight, and
    /// so on. Which one of each, only the key tells. Most pages that are short files or nearly
    /// empty differ at the beginning.
    pub fn content_bucket(&self, group: u16, word: impl Fn(usize) -> u64) -> Bucket {
        let mut hash = mix(self.key, group.into());
        for n in 0..SAMPLES {
            let (first, count) = match n {
                0 => (0, 4),
                n => (2_u64 << n, 2_u64 << n),
            };
            let at = first + mix(self.key, n.into()) % count;
            hash = mix(hash, word(at as usize));
        }
        self.bucket(Chain::Content, hash)
    }

    /// The bucket of a disk block.
    pub fn block_bucket(&self, key: CacheKey) -> Bucket {
        self.bucket(Chain::Block, mix(self.key, key.encode()))
    }

    fn bucket(&self, chain: Chain, hash: u64) -> Bucket {
        let half = chain as usize * (self.mask + 1);
        Bucket {
            chain,
            at: half + (hash as usize & self.mask),
        }
    }

    /// The first frame of the bucket that is the one wanted; at most [`LONGEST_CHAIN`] are asked
    /// about, each of which may leave the chain when it is. What it says of a frame's contents and key stays
    /// true until the stripe is unlocked.
    pub fn find<'m>(
        &self,
        map: &MemoryMap<'m>,
        bucket: Bucket,
        mut is_it: impl FnMut(Mfn, &'m FrameEntry) -> bool,
    ) -> Option<(Mfn, &'m FrameEntry)> {
        let mut link = self.heads.get(bucket.at)?.load(Ordering::Relaxed);
        for _ in 0..LONGEST_CHAIN {
            let (frame, entry) = map.linked(link)?;
            link = entry.next_in(bucket.chain);
            if is_it(frame, entry) {
                return Some((frame, entry));
            }
        }
        None
    }

    /// Puts a shared or kept frame into the bucket of its contents or block, with the group of its
    /// own [`CacheKey`]: it is looked for there when it has to leave. `false` where the bucket has
    /// `most` frames, at most [`LONGEST_CHAIN`], or the frame is in the chain already or in another use.
    pub fn insert(&self, map: &MemoryMap<'_>, bucket: Bucket, frame: Mfn, most: usize) -> bool {
        let (head, entry, link) = (self.heads.get(bucket.at), map.entry(frame), map.link(frame));
        let (Some(head), Some(entry), Some(link)) = (head, entry, link) else {
            return false;
        };
        let mut left = most.min(LONGEST_CHAIN);
        self.find(map, bucket, |_, _| {
            left = left.saturating_sub(1);
            left == 0
        });
        let locked = (left > 0).then(|| entry.lock_shared()).flatten();
        if locked.is_none_or(|mut frame| frame.set_indexed(bucket.chain, true).is_err()) {
            return false;
        }
        entry.set_next_in(bucket.chain, head.load(Ordering::Relaxed));
        head.store(link, Ordering::Relaxed);
        true
    }

    /// Takes a frame out of the bucket; `false` where it is not there.
    pub fn remove(&self, map: &MemoryMap<'_>, bucket: Bucket, frame: Mfn) -> bool {
        let mut before = None;
        let found = self.find(map, bucket, |at, entry| {
            let is_it = at == frame;
            if !is_it {
                before = Some(entry);
            }
            is_it
        });
        let Some((head, (_, entry))) = self.heads.get(bucket.at).zip(found) else {
            return false;
        };
        let next = entry.next_in(bucket.chain);
        match before {
            Some(before) => before.set_next_in(bucket.chain, next),
            None => head.store(next, Ordering::Relaxed),
        }
        let locked = entry.lock_shared();
        locked.is_some_and(|mut frame| frame.set_indexed(bucket.chain, false).is_ok())
    }
}

/// A number that depends on all bits of both (the finalizer of `SplitMix64`, after Steele, Lea and
/// Flood, "Fast splittable pseudorandom number generators", 2014).
const fn mix(a: u64, b: u64) -> u64 {
    let mut x = (a ^ b).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::cell::RefCell;
    use std::vec::Vec;

    use super::*;

    fn heads(count: usize) -> Vec<AtomicU32> {
        (0..count).map(|_| AtomicU32::new(0)).collect()
    }

    #[test]
    fn the_words_looked_at_lie_denser_at_the_beginning() {
        let heads = heads(64);
        for key in 0..100 {
            let seen = RefCell::new(Vec::new());
            Index::new(&heads, key).content_bucket(3, |at| {
                seen.borrow_mut().push(at);
                0
            });
            let seen = seen.into_inner();
            let doublings = seen.iter().map(|at| (at / 4).checked_ilog2());
            let wanted: Vec<_> = [None].into_iter().chain((0..7).map(Some)).collect();
            assert_eq!(doublings.collect::<Vec<_>>(), wanted, "{seen:?}");
        }
    }

    #[test]
    fn buckets_spread_and_depend_on_group_words_and_key() {
        let heads = heads(2 * 1024 + 5);
        let one = Index::new(&heads, 1);
        let mut counts = [0_u32; 2048];
        for n in 0..4096_u64 {
            let content = one.content_bucket(0, |at| if at < 4 { n } else { 0 });
            let block = one.block_bucket(CacheKey {
                group: 0,
                disk: 1,
                block: n,
            });
            assert!(content.at < 1024 && (1024..2048).contains(&block.at));
            counts[content.at] += 1;
            counts[block.at] += 1;
        }
        assert!(counts.iter().all(|count| *count < 20), "4 are expected");
        let at = |key, group| Index::new(&heads, key).content_bucket(group, |_| 7).at;
        assert!((1..100).filter(|group| at(1, *group) != at(1, 0)).count() > 90);
        assert!((2..100).filter(|key| at(*key, 0) != at(1, 0)).count() > 90);
    }

    #[test]
    fn an_index_without_heads_finds_nothing() {
        let none = Index::new(&[], 1);
        let bucket = none.content_bucket(0, |_| 0);
        let map = MemoryMap::new(&[]).unwrap();
        assert!(none.find(&map, bucket, |_, _| true).is_none());
        assert!(!none.insert(&map, bucket, Mfn(0), LONGEST_CHAIN));
        assert!(!none.remove(&map, bucket, Mfn(0)));
    }
}
