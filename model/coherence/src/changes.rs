//! What changed in a page, line by line, so that a host with an earlier version need not be sent all of it (as the diffs of
//! Munin and TreadMarks; but only their owner's, of a page that has one writer).
//!
//! ```text
//!  lines that changed, a bit each | those lines, ascending
//! ```

use zerocopy::FromBytes;

/// Words of a page.
pub const WORDS: usize = abi::coherence::PAGE_BYTES / 8;
/// Words of a line.
pub const LINE: usize = 8;
const LINES: usize = WORDS / LINE;
const _: () = assert!(LINES == u64::BITS as usize);
/// The most lines: with more, the page takes hardly longer.
pub const LINES_MAX: usize = 48;
/// Words that changes take at most.
pub const CHANGES_MAX: usize = 1 + LINES_MAX * LINE;

/// A page, in words.
pub type Words = [u64; WORDS];

/// Writes what changed from `old` to `new`; how many words that takes. `None` if it is too much.
pub fn write(old: &Words, new: &Words, changes: &mut [u64; CHANGES_MAX]) -> Option<usize> {
    let (mut bits, mut at) = (0, 1);
    let (old, _) = old.as_chunks::<LINE>();
    let (new, _) = new.as_chunks::<LINE>();
    for (n, (old, new)) in old.iter().zip(new).enumerate() {
        let differs = old
            .iter()
            .zip(new)
            .fold(0, |all, (old, new)| all | old ^ new);
        if differs != 0 {
            changes.get_mut(at..at + LINE)?.copy_from_slice(new);
            bits |= 1 << n;
            at += LINE;
        }
    }
    changes[0] = u64::to_le(bits);
    Some(at)
}

/// Returns the lines that changed, with their places in bytes. `None` if that is not what `changes` are.
pub fn read(changes: &[u8]) -> Option<impl Iterator<Item = (u64, &[u8])>> {
    let (bits, lines) = u64::read_from_prefix(changes).ok()?;
    let bits = u64::from_le(bits);
    let count = bits.count_ones() as usize;
    let line_bytes = size_of::<[u64; LINE]>();
    if count > LINES_MAX || lines.len() != count * line_bytes {
        return None;
    }
    let places = (0..LINES as u64).filter(move |n| bits >> n & 1 != 0);
    let places = places.map(move |n| n * line_bytes as u64);
    Some(places.zip(lines.chunks_exact(line_bytes)))
}
