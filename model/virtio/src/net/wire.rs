//! What a wire, or a driver that takes no offloads, needs of a frame: its checksum, and pieces that
//! are no longer than its MTU (TCP: RFC 9293, RFC 3168; UDP: RFC 768; Internet checksum: RFC 1071).

use super::header::{Checksum, Gso, HEAD_MAX, Offload, Protocol};
use core::ops::Range;
use heapless::Vec;
use zerocopy::FromBytes as _;

/// The most pieces that a frame is cut into: 64 KiB in pieces of 256 bytes.
pub const PIECES_MAX: u32 = 256;

const IPV4_LENGTH: usize = 2;
const IPV4_ID: usize = 4;
const IPV4_CHECKSUM: usize = 10;
const IPV6_LENGTH: usize = 4;
const IPV6_BYTES: usize = 40;
const TCP_SEQUENCE: usize = 4;
const TCP_FLAGS: usize = 13;
const FIN: u8 = 1;
const PSH: u8 = 1 << 3;
const CWR: u8 = 1 << 7;
const UDP_LENGTH: usize = 4;

/// The frame would be cut into more than [`PIECES_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyPieces;

/// What goes over the wire for a frame: pieces, made one at a time, so that a long frame is cut in several passes.
#[derive(Clone, Copy, Debug)]
pub struct Pieces<'a> {
    head: &'a [u8],
    bytes: usize,
    offload: Offload,
    count: u32,
}

impl<'a> Pieces<'a> {
    /// The pieces of a frame of `bytes` that begins with `head`, for both of which `offload` was checked.
    ///
    /// # Errors
    /// They are too many.
    pub fn of(head: &'a [u8], bytes: u32, offload: Offload) -> Result<Self, TooManyPieces> {
        let mut pieces = Self {
            head,
            bytes: bytes as usize,
            offload,
            count: 1,
        };
        if let Some((_, gso)) = pieces.cut() {
            let payload = pieces.bytes - pieces.headers(gso);
            pieces.count = payload.div_ceil(size(gso)) as u32;
        }
        if pieces.count > PIECES_MAX {
            return Err(TooManyPieces);
        }
        Ok(pieces)
    }

    /// How many they are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The bytes of the frame that piece `n` has behind its headers.
    pub fn payload(&self, n: u32) -> Range<usize> {
        let Some((_, gso)) = self.cut() else {
            return 0..self.bytes;
        };
        let headers = self.headers(gso);
        let start = (n as usize * size(gso) + headers).min(self.bytes);
        start..(start + size(gso)).min(self.bytes)
    }

    /// Does what is left to be done with piece `n`, whose `payload` that is: its headers. A frame that is not cut
    /// is all payload, and has its checksum completed there.
    pub fn complete(&self, n: u32, payload: &mut [u8]) -> Vec<u8, HEAD_MAX> {
        let Some((checksum, gso)) = self.cut() else {
            if let Some(checksum) = self.offload.checksum {
                finish(payload, checksum);
            }
            return Vec::new();
        };
        // No more than fits.
        let mut own = Vec::from_slice(&self.head[..self.headers(gso)]).unwrap_or_default();
        network(&mut own, gso, payload.len(), n as u16);
        let which = (n as usize, self.count as usize);
        transport(&mut own, checksum, gso, payload.len(), which);
        let sum = pseudo_header(&own, checksum, gso, payload.len());
        put(&mut own, checksum.at.into(), 0);
        let start = usize::from(checksum.start).min(own.len());
        // Headers of TCP and UDP have even lengths, so the payload's words stay words.
        let sum = add(add(sum, &own[start..]), payload);
        put(&mut own, checksum.at.into(), complement(sum));
        own
    }

    /// How it is cut.
    fn cut(&self) -> Option<(Checksum, Gso)> {
        self.offload.checksum.zip(self.offload.gso)
    }

    /// Bytes of its headers.
    fn headers(&self, gso: Gso) -> usize {
        let most = HEAD_MAX.min(self.head.len()).min(self.bytes);
        usize::from(gso.payload).min(most)
    }
}

/// Bytes of a piece behind its headers.
fn size(gso: Gso) -> usize {
    usize::from(gso.size).max(1)
}

/// Completes a checksum: its field holds the sum of the pseudo header (virtio 5.1.6.2).
fn finish(frame: &mut [u8], Checksum { start, at }: Checksum) {
    let sum = frame
        .get(usize::from(start)..)
        .map_or(0, |covered| add(0, covered));
    put(frame, at.into(), complement(sum));
}

/// Makes the IP header that of piece `n`.
fn network(head: &mut [u8], gso: Gso, payload: usize, n: u16) {
    let at = usize::from(gso.network);
    let bytes = (head.len().saturating_sub(at) + payload) as u16;
    if gso.ipv6 {
        put(
            head,
            at + IPV6_LENGTH,
            bytes.wrapping_sub(IPV6_BYTES as u16),
        );
        return;
    }
    let id = get(head, at + IPV4_ID).wrapping_add(n);
    put(head, at + IPV4_LENGTH, bytes);
    put(head, at + IPV4_ID, id);
    put(head, at + IPV4_CHECKSUM, 0);
    let words = head.get(at).map_or(0, |first| usize::from(first & 0xf));
    let sum = head
        .get(at..at + words * 4)
        .map_or(0, |header| add(0, header));
    put(head, at + IPV4_CHECKSUM, complement(sum));
}

/// Makes the TCP or UDP header that of piece `n` of `count`.
fn transport(
    head: &mut [u8],
    checksum: Checksum,
    gso: Gso,
    payload: usize,
    (n, count): (usize, usize),
) {
    let start = usize::from(checksum.start);
    if gso.protocol == Protocol::Udp {
        let bytes = head.len().saturating_sub(start) + payload;
        put(head, start + UDP_LENGTH, bytes as u16);
        return;
    }
    let skipped = (n * usize::from(gso.size)) as u32;
    if let Some(field) = head.get_mut(start + TCP_SEQUENCE..start + TCP_SEQUENCE + 4) {
        let first = field
            .iter()
            .fold(0_u32, |word, byte| word << 8 | u32::from(*byte));
        field.copy_from_slice(&first.wrapping_add(skipped).to_be_bytes());
    }
    if let Some(flags) = head.get_mut(start + TCP_FLAGS) {
        if n + 1 < count {
            *flags &= !(FIN | PSH);
        }
        if n > 0 {
            *flags &= !CWR;
        }
    }
}

fn pseudo_header(head: &[u8], checksum: Checksum, gso: Gso, payload: usize) -> u64 {
    let at = usize::from(gso.network);
    let addresses = if gso.ipv6 {
        at + 8..at + 40
    } else {
        at + 12..at + 20
    };
    let number: u64 = match gso.protocol {
        Protocol::Tcp => 6,
        Protocol::Udp => 17,
    };
    let bytes = head.len().saturating_sub(checksum.start.into()) + payload;
    let sum = head.get(addresses).map_or(0, |addresses| add(0, addresses));
    sum + number + bytes as u64
}

/// Adds 16-bit words, the last filled up with a zero; carries are left for [`complement`].
fn add(sum: u64, bytes: &[u8]) -> u64 {
    // What is aligned goes eight bytes at a time, in the CPU's byte order: a sum of swapped words is the swapped sum
    // (RFC 1071, 2 B). EL2 is built to load bytes where an address may be odd.
    let skip = bytes.as_ptr().align_offset(8).min(bytes.len());
    let is_even = skip.is_multiple_of(2);
    let (first, rest) = bytes.split_at(if is_even { skip } else { bytes.len() });
    let (words, last) =
        <[u64]>::ref_from_prefix_with_elems(rest, rest.len() / 8).unwrap_or((&[], rest));
    let halves = words.iter().fold([0_u64; 2], |[low, high], word| {
        let [more, most] = [word & 0xffff_ffff, word >> 32];
        [low.wrapping_add(more), high.wrapping_add(most)]
    });
    let swapped = halves[0].wrapping_add(halves[1]);
    pairs(sum, first) + fold(u64::from_be(swapped)) + pairs(0, last)
}

/// The same, two bytes at a time.
fn pairs(sum: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<2>();
    let words = words
        .iter()
        .map(|word| u64::from(u16::from_be_bytes(*word)));
    sum + words.sum::<u64>() + rest.first().map_or(0, |last| u64::from(*last) << 8)
}

/// The sum of the four words of a sum, with its carries.
fn fold(sum: u64) -> u64 {
    (0..4).map(|n| sum >> (16 * n) & 0xffff).sum()
}

/// The checksum for a sum; never zero, which UDP takes for none.
fn complement(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = fold(sum);
    }
    match !(sum as u16) {
        0 => 0xffff,
        checksum => checksum,
    }
}

fn get(bytes: &[u8], at: usize) -> u16 {
    let word = bytes.get(at..at + 2).and_then(|word| word.try_into().ok());
    word.map_or(0, u16::from_be_bytes)
}

fn put(bytes: &mut [u8], at: usize, word: u16) {
    if let Some(field) = bytes.get_mut(at..at + 2) {
        field.copy_from_slice(&word.to_be_bytes());
    }
}
