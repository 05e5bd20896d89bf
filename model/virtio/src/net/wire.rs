//! What a wire, or a driver that takes no offloads, needs of a frame: its checksum, and pieces that
//! are no longer than its MTU (TCP: RFC 9293, RFC 3168; UDP: RFC 768; Internet checksum: RFC 1071).

use super::header::{Checksum, Gso, HEAD_MAX, Offload, Protocol};

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

/// Does what `offload` leaves to be done with `frame`, for which it was checked, and calls `each` with
/// every piece: its headers, and its payload.
///
/// # Errors
/// It would be too many; none was made.
pub fn pieces(
    frame: &mut [u8],
    offload: Offload,
    mut each: impl FnMut(&[u8], &[u8]),
) -> Result<(), TooManyPieces> {
    let Some(checksum) = offload.checksum else {
        each(frame, &[]);
        return Ok(());
    };
    if let Some(gso) = offload.gso {
        return cut(frame, checksum, gso, each);
    }
    finish(frame, checksum);
    each(frame, &[]);
    Ok(())
}

/// Completes a checksum: its field holds the sum of the pseudo header (virtio 5.1.6.2).
fn finish(frame: &mut [u8], Checksum { start, at }: Checksum) {
    let sum = frame
        .get(usize::from(start)..)
        .map_or(0, |covered| add(0, covered));
    put(frame, at.into(), complement(sum));
}

fn cut(
    frame: &[u8],
    checksum: Checksum,
    gso: Gso,
    mut each: impl FnMut(&[u8], &[u8]),
) -> Result<(), TooManyPieces> {
    let headers = usize::from(gso.payload).min(HEAD_MAX).min(frame.len());
    let (head, payload) = frame.split_at(headers);
    let count = payload.len().div_ceil(usize::from(gso.size).max(1));
    if count > PIECES_MAX as usize {
        return Err(TooManyPieces);
    }
    for (n, piece) in payload.chunks(usize::from(gso.size).max(1)).enumerate() {
        let mut own = [0; HEAD_MAX];
        let own = &mut own[..headers];
        own.copy_from_slice(head);
        network(own, gso, piece.len(), n as u16);
        transport(own, checksum, gso, piece.len(), (n, count));
        let sum = pseudo_header(own, checksum, gso, piece.len());
        put(own, checksum.at.into(), 0);
        let start = usize::from(checksum.start).min(own.len());
        // Headers of TCP and UDP have even lengths, so the payload's words stay words.
        let sum = add(add(sum, &own[start..]), piece);
        put(own, checksum.at.into(), complement(sum));
        each(own, piece);
    }
    Ok(())
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
fn add(mut sum: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    for word in words {
        sum += u64::from(u32::from_be_bytes(*word));
    }
    let (words, rest) = rest.as_chunks::<2>();
    for word in words {
        sum += u64::from(u16::from_be_bytes(*word));
    }
    sum + rest.first().map_or(0, |last| u64::from(*last) << 8)
}

/// The checksum for a sum; never zero, which UDP takes for none.
fn complement(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
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
