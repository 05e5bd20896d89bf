//! What a Linux guest uses its pages for.

/// Bits of a word of `/proc/kpageflags` (Linux, admin-guide/mm/pagemap).
mod bit {
    /// On a list of pages that may be reclaimed.
    pub const LRU: u64 = 1 << 5;
    /// A page of a process that no file is behind.
    pub const ANON: u64 = 1 << 12;
    /// To be swapped rather than written to a file: anonymous, or tmpfs.
    pub const SWAPBACKED: u64 = 1 << 14;
    /// The first page of several that are one.
    pub const COMPOUND_HEAD: u64 = 1 << 15;
    /// Any other of them: older kernels tell the list at the first only.
    pub const COMPOUND_TAIL: u64 = 1 << 16;
}

/// A copy of a guest's `/proc/kpageflags`, read for what is page cache.
#[derive(Clone, Debug, Default)]
pub struct PageFlags {
    /// A bit for each frame of the guest.
    page_cache: Vec<u64>,
}

impl PageFlags {
    /// Reads 8 bytes for each frame of the guest, from frame 0 on. The error says what is wrong.
    pub fn read(bytes: &[u8]) -> Result<Self, String> {
        let (words, []) = bytes.as_chunks::<8>() else {
            let length = bytes.len();
            return Err(format!("{length} bytes are no whole words of 8 bytes"));
        };
        if words.is_empty() {
            return Err("it is empty".to_owned());
        }
        let mut page_cache = vec![0; words.len().div_ceil(64)];
        let mut head = false;
        for (gfn, word) in words.iter().enumerate() {
            let flags = u64::from_le_bytes(*word);
            let mut is = flags & (bit::LRU | bit::ANON | bit::SWAPBACKED) == bit::LRU;
            if flags & bit::COMPOUND_HEAD != 0 {
                head = is;
            } else if flags & bit::COMPOUND_TAIL != 0 {
                is = head;
            }
            page_cache[gfn / 64] |= u64::from(is) << (gfn % 64);
        }
        Ok(Self { page_cache })
    }

    /// Whether a frame of the guest holds part of a file on a disk.
    pub fn is_page_cache(&self, gfn: u64) -> bool {
        let word = usize::try_from(gfn / 64)
            .ok()
            .and_then(|n| self.page_cache.get(n));
        word.is_some_and(|word| word >> (gfn % 64) & 1 == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn page_cache_is_told_from_other_memory() {
        let file = bit::LRU | 1 << 11;
        let words = [
            0,
            file,
            file | bit::ANON,
            file | bit::SWAPBACKED,
            file | bit::COMPOUND_HEAD,
            bit::COMPOUND_TAIL,
            file | bit::ANON | bit::COMPOUND_HEAD,
            bit::COMPOUND_TAIL,
        ];
        let bytes: Vec<u8> = words
            .iter()
            .flat_map(|word: &u64| word.to_le_bytes())
            .collect();
        let flags = PageFlags::read(&bytes).unwrap();
        let is: Vec<bool> = (0..9).map(|gfn| flags.is_page_cache(gfn)).collect();
        assert_eq!(
            is,
            [false, true, false, false, true, true, false, false, false]
        );
        assert!(!flags.is_page_cache(u64::MAX));
        assert!(PageFlags::read(&bytes[1..]).is_err() && PageFlags::read(&[]).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..100), gfn: u64) {
            if let Ok(flags) = PageFlags::read(&bytes) {
                let _ = flags.is_page_cache(gfn);
            }
        }
    }
}
