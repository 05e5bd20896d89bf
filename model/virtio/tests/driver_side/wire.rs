//! Checksums and pieces against a receiver written from the RFCs.

use model_virtio::net::wire::{PIECES_MAX, Pieces, TooManyPieces};
use model_virtio::net::{Checksum, Gso, HEAD_MAX, Offload, Protocol};
use proptest::prelude::*;

/// Calls `each` with the headers and the payload of every piece of a frame.
fn pieces(
    frame: &[u8],
    offload: Offload,
    mut each: impl FnMut(&[u8], &[u8]),
) -> Result<(), TooManyPieces> {
    let head = &frame[..frame.len().min(HEAD_MAX)];
    let pieces = Pieces::of(head, frame.len() as u32, offload)?;
    for n in 0..pieces.count() {
        let mut payload = frame[pieces.payload(n)].to_vec();
        let head = pieces.complete(n, &mut payload);
        each(&head, &payload);
    }
    Ok(())
}

/// The Internet checksum, word by word.
fn sum(words: impl IntoIterator<Item = u8>) -> u16 {
    let bytes: Vec<u8> = words.into_iter().collect();
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

struct Made {
    frame: Vec<u8>,
    offload: Offload,
}

fn frame(protocol: Protocol, ipv6: bool, options: u8, size: u16, payload: &[u8]) -> Made {
    let tcp = protocol == Protocol::Tcp;
    let words = 5 + options % 8;
    let transport = if tcp { usize::from(words) * 4 } else { 8 };
    let network = if ipv6 { 40 } else { 20 };
    let mut frame = vec![0x11; 14];
    frame[12..14].copy_from_slice(if ipv6 { &[0x86, 0xdd] } else { &[8, 0] });
    let number = if tcp { 6 } else { 17 };
    let mut ip = vec![0x22; network];
    ip[0] = if ipv6 { 0x60 } else { 0x45 };
    ip[if ipv6 { 6 } else { 9 }] = number;
    if !ipv6 {
        ip[4..6].copy_from_slice(&[0xff, 0xfe]);
    }
    frame.extend(ip);
    let mut header = vec![0x33; transport];
    if tcp {
        header[12] = words << 4;
        header[4..8].copy_from_slice(&[0xff, 0xff, 0xf0, 0]);
        header[13] = 0x99; // CWR, ACK, PSH, FIN
    }
    frame.extend(header);
    let gso = Gso {
        protocol,
        ipv6,
        ecn: false,
        size,
        network: 14,
        payload: frame.len() as u16,
    };
    let start = 14 + network as u16;
    let checksum = Checksum {
        start,
        at: start + if tcp { 16 } else { 6 },
    };
    frame.extend(payload);
    let offload = Offload {
        checksum: Some(checksum),
        gso: Some(gso),
    };
    Made { frame, offload }
}

/// Checks a piece as its receiver would, and gives its payload.
fn receive(piece: &[u8], made: &Made, n: usize, last: bool) -> Vec<u8> {
    let gso = made.offload.gso.unwrap();
    let (tcp, ip) = (gso.protocol == Protocol::Tcp, &piece[14..]);
    let header = if gso.ipv6 { 40 } else { 20 };
    let transport = &ip[header..];
    let length = u16::try_from(transport.len()).unwrap();
    let addresses = if gso.ipv6 {
        assert_eq!(u16::from_be_bytes([ip[4], ip[5]]), length);
        &ip[8..40]
    } else {
        assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), ip.len());
        assert_eq!(sum(ip[..20].iter().copied()), 0xffff);
        assert_eq!(
            u16::from_be_bytes([ip[4], ip[5]]),
            0xfffe_u16.wrapping_add(n as u16)
        );
        &ip[12..20]
    };
    let number = if tcp { 6 } else { 17 };
    let pseudo = addresses
        .iter()
        .copied()
        .chain([0, number])
        .chain(length.to_be_bytes());
    assert_eq!(sum(pseudo.chain(transport.iter().copied())), 0xffff);
    if tcp {
        let sequence = u32::from_be_bytes(transport[4..8].try_into().unwrap());
        let skipped = n as u32 * u32::from(gso.size);
        assert_eq!(sequence, 0xffff_f000_u32.wrapping_add(skipped));
        let flags = 0x10 | if last { 0x09 } else { 0 } | if n == 0 { 0x80 } else { 0 };
        assert_eq!(transport[13], flags);
    } else {
        assert_eq!(transport[4..6], length.to_be_bytes());
    }
    piece[usize::from(gso.payload)..].to_vec()
}

proptest! {
    #![proptest_config(crate::cases(200))]

    #[test]
    fn pieces_make_the_whole(
        tcp in any::<bool>(),
        ipv6 in any::<bool>(),
        options in any::<u8>(),
        size in 48..3000_u16,
        payload in prop::collection::vec(any::<u8>(), 1..20_000),
    ) {
        let protocol = if tcp { Protocol::Tcp } else { Protocol::Udp };
        let made = frame(protocol, ipv6, options, size, &payload);
        let (mut whole, count) = (Vec::new(), payload.len().div_ceil(size.into()));
        let (mut n, original) = (0, frame(protocol, ipv6, options, size, &payload));
        let cut = pieces(&made.frame, made.offload, |head, body| {
            assert!(body.len() <= usize::from(size));
            let piece = [head, body].concat();
            whole.extend(receive(&piece, &original, n, n + 1 == count));
            n += 1;
        });
        if count > PIECES_MAX as usize {
            prop_assert!(cut.is_err() && n == 0);
        } else {
            prop_assert_eq!((n, whole), (count, payload));
        }
    }

    #[test]
    fn checksums_are_finished(
        start in 14..60_u16,
        offset in 0..20_u16,
        bytes in prop::collection::vec(any::<u8>(), 100..3000),
    ) {
        let checksum = Some(Checksum { start, at: start + offset * 2 });
        let before = bytes.clone();
        let mut seen = Vec::new();
        pieces(&bytes, Offload { checksum, gso: None }, |head, body| {
            seen = [head, body].concat();
        }).unwrap();
        // What was in the field, the pseudo header's sum, now stands beside the complement.
        let at = usize::from(start + offset * 2);
        let field = before[at..at + 2].iter().copied();
        let total = sum(seen[usize::from(start)..].iter().copied().chain(
            if (seen.len() - usize::from(start)).is_multiple_of(2) { vec![] } else { vec![0] }
        ).chain(field));
        prop_assert_eq!(total, 0xffff);
        seen[at..at + 2].copy_from_slice(&before[at..at + 2]);
        prop_assert_eq!(seen, before);
    }
}

#[test]
fn nothing_to_do_is_nothing_done() {
    let bytes = *b"any bytes";
    let mut seen = Vec::new();
    pieces(&bytes, Offload::default(), |head, body| {
        seen = [head, body].concat();
    })
    .unwrap();
    assert_eq!(seen, bytes);
}
