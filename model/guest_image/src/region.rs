//! Shared regions as a guest finds them: ranges of persistent memory behind its own memory, which
//! Linux's `of_pmem` takes by the device tree (binding `pmem-region`) and gives programs as
//! `/dev/daxN.M`, to be mapped with caches on.
//!
//! ```text
//!  window: | zeroes | information block | zeroes ... to 2 MiB | the region |
//! ```
//! The block says that all behind it is one run for programs (Linux: `struct nd_pfn_sb`,
//! `drivers/nvdimm/pfn.h`, version 1.4), and that Linux keeps what it notes of pages in its own
//! memory. It is read-only for every guest: what a VM's kernel believes of it no other VM decides.

use model_addr::{Ipa, IpaRange};

/// Bytes before a region in its window.
pub const REGION_HEADER: u64 = 2 << 20;
/// Where in a window the information block is.
pub const REGION_BLOCK: u64 = 4096;
/// Bytes of the information block.
pub const REGION_BLOCK_SIZE: usize = 4096;
/// Windows begin at multiples of this: a section of Linux's memory map (arm64, 4 KiB pages).
const SECTION: u64 = 128 << 20;

/// A shared region in a guest's device tree.
#[derive(Clone, Copy, Debug)]
pub struct RegionNode<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its window.
    pub window: IpaRange,
    /// Whether the guest cannot write it.
    pub read_only: bool,
}

/// The windows of regions of these sizes, for a guest whose memory is `ram`.
pub fn region_windows(
    ram: IpaRange,
    sizes: impl Iterator<Item = u64>,
) -> impl Iterator<Item = IpaRange> {
    let mut next = ram.end().0;
    sizes.map(move |size| {
        let start = Ipa(next.next_multiple_of(SECTION));
        let window = IpaRange::of(start, REGION_HEADER + size);
        next = window.end().0;
        window
    })
}

/// The information block of a region of `size` bytes.
pub fn region_block(name: &str, size: u64) -> [u8; REGION_BLOCK_SIZE] {
    let mut block = [0; REGION_BLOCK_SIZE];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"NVDIMM_DAX_INFO\0");
    put(16, &identity(name));
    // From byte 32 on: no parent, no flags.
    put(52, &1_u16.to_le_bytes());
    put(54, &4_u16.to_le_bytes());
    put(56, &REGION_HEADER.to_le_bytes());
    put(64, &(size / 4096).to_le_bytes());
    // Linux's notes are in its own memory (`PFN_MODE_RAM`); nothing is padded or cut.
    put(72, &1_u32.to_le_bytes());
    // Alignment, size of a page, size of Linux's notes of one.
    put(84, &(REGION_HEADER as u32).to_le_bytes());
    put(88, &4096_u32.to_le_bytes());
    put(92, &64_u16.to_le_bytes());
    let sum = fletcher64(&block);
    block[REGION_BLOCK_SIZE - 8..].copy_from_slice(&sum.to_le_bytes());
    block
}

/// Fletcher's checksum over words of 32 bits (Linux: `nd_fletcher64`).
fn fletcher64(bytes: &[u8]) -> u64 {
    let (low, high) =
        bytes
            .as_chunks::<4>()
            .0
            .iter()
            .fold((0_u32, 0_u64), |(low, high): (u32, u64), word| {
                let low = low.wrapping_add(u32::from_le_bytes(*word));
                (low, high.wrapping_add(low.into()))
            });
    high << 32 | u64::from(low)
}

/// Sixteen bytes that tell regions apart by their names (FNV-1a, twice).
fn identity(name: &str) -> [u8; 16] {
    let hash = |seed: u64| {
        name.bytes().fold(seed, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        })
    };
    let both = [hash(0xcbf2_9ce4_8422_2325), hash(0x6c62_272e_07bb_0142)];
    let mut bytes = [0; 16];
    for (half, word) in bytes.chunks_exact_mut(8).zip(both) {
        half.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_as_linux_reads_it() {
        let block = region_block("table", 64 << 20);
        let word = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().unwrap());
        assert!(block.starts_with(b"NVDIMM_DAX_INFO\0"));
        assert_eq!([word(56), word(64)], [2 << 20, 16384]);
        // Version 1.4; `PFN_MODE_RAM`, with no padding in front; an alignment of 2 MiB; pages of 4 KiB, and notes of
        // 64 bytes.
        assert_eq!(word(48), 1 << 32 | 4 << 48);
        assert_eq!([word(72), word(80)], [1, (2 << 20) << 32]);
        assert_eq!(word(88), 4096 | 64 << 32);
        // Its checksum is over the block with a checksum of zero.
        let mut again = block;
        again[4088..].fill(0);
        assert_eq!(fletcher64(&again), word(4088));
        assert_ne!(block[16..32], region_block("other", 64 << 20)[16..32]);
    }

    #[test]
    fn the_checksum_is_fletchers() {
        // By hand: low is 1, 3, 6; high is 1 + 3 + 6.
        let words = [1_u32, 2, 3].map(u32::to_le_bytes);
        assert_eq!(fletcher64(words.as_flattened()), 10 << 32 | 6);
    }

    #[test]
    fn windows_lie_behind_memory_and_beside_each_other() {
        let ram = IpaRange {
            start: Ipa(0x4000_0000),
            size: (256 << 20) + (2 << 20),
        };
        let sizes = [2 << 20, 1 << 30, 126 << 20, 4 << 20];
        let windows: [IpaRange; 4] = {
            let mut windows = region_windows(ram, sizes.into_iter());
            core::array::from_fn(|_| windows.next().unwrap())
        };
        let mut end = ram.end().0;
        for (window, size) in windows.iter().zip(sizes) {
            assert!(window.start.0 >= end && window.start.is_aligned(SECTION));
            assert!(window.start.0 - end < SECTION);
            assert_eq!(window.size, size + REGION_HEADER);
            end = window.end().0;
        }
    }
}
