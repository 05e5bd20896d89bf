//! Cuts a byte stream into frames.

use abi::control::{FrameHeader, MAGIC, PAYLOAD_MAX};
use zerocopy::{FromBytes as _, IntoBytes as _};

const HEADER: usize = size_of::<FrameHeader>();

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// A request, a reply or an event; see `abi::control`.
    pub kind: u32,
    /// The asker's tag.
    pub tag: u32,
    /// What follows the header, at most `PAYLOAD_MAX` bytes.
    pub payload: Vec<u8>,
}

/// A frame's bytes; the payload is given in parts.
pub fn encode(kind: u32, tag: u32, parts: &[&[u8]]) -> Vec<u8> {
    let length = parts.iter().map(|part| part.len()).sum::<usize>();
    let header = FrameHeader {
        magic: MAGIC,
        kind,
        tag,
        length: length as u32,
    };
    let mut bytes = Vec::with_capacity(HEADER + length);
    bytes.extend_from_slice(header.as_bytes());
    for part in parts {
        bytes.extend_from_slice(part);
    }
    bytes
}

/// Takes bytes as they arrive and gives frames. Bytes that begin no frame are skipped and counted.
#[derive(Debug, Default)]
pub struct Codec {
    buffer: Vec<u8>,
    start: usize,
    skipped: u64,
}

impl Codec {
    /// Takes bytes. They are held until [`Codec::next_frame`] has used them, so ask it until it
    /// gives nothing before the next ones.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.start);
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame.
    pub fn next_frame(&mut self) -> Option<Frame> {
        loop {
            self.skip_to_magic();
            let rest = self.buffer.get(self.start..)?;
            let (header, rest) = FrameHeader::read_from_prefix(rest).ok()?;
            let length = header.length as usize;
            if length > PAYLOAD_MAX {
                self.skip(1);
                continue;
            }
            let payload = rest.get(..length)?.to_owned();
            self.start += HEADER + length;
            return Some(Frame {
                kind: header.kind,
                tag: header.tag,
                payload,
            });
        }
    }

    /// How many bytes belonged to no frame.
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    fn skip_to_magic(&mut self) {
        let magic = MAGIC.to_le_bytes();
        let rest = self.buffer.get(self.start..).unwrap_or_default();
        // The last bytes may be the beginning of a magic number.
        let begins = |tail: &[u8]| {
            magic.starts_with(tail.get(..magic.len().min(tail.len())).unwrap_or(tail))
        };
        let garbage = (0..rest.len())
            .find(|&at| begins(&rest[at..]))
            .unwrap_or(rest.len());
        self.skip(garbage);
    }

    fn skip(&mut self, bytes: usize) {
        self.start += bytes;
        self.skipped += bytes as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frames(codec: &mut Codec) -> Vec<Frame> {
        std::iter::from_fn(|| codec.next_frame()).collect()
    }

    fn frame() -> impl Strategy<Value = Frame> {
        (
            any::<u32>(),
            any::<u32>(),
            proptest::collection::vec(any::<u8>(), 0..200),
        )
            .prop_map(|(kind, tag, payload)| Frame { kind, tag, payload })
    }

    proptest! {
        #[test]
        fn frames_survive_any_cuts(sent in proptest::collection::vec(frame(), 0..8), cut in 1usize..50) {
            let bytes: Vec<u8> =
                sent.iter().flat_map(|f| encode(f.kind, f.tag, &[&f.payload])).collect();
            let mut codec = Codec::default();
            let mut got = Vec::new();
            for piece in bytes.chunks(cut) {
                codec.push(piece);
                got.extend(frames(&mut codec));
            }
            prop_assert_eq!(got, sent);
            prop_assert_eq!(codec.skipped(), 0);
        }

        #[test]
        fn garbage_is_skipped_and_counted(
            noise in proptest::collection::vec(any::<u8>().prop_filter("no magic", |b| *b != b'U'), 0..100),
            sent in frame(),
        ) {
            let mut codec = Codec::default();
            codec.push(&noise);
            prop_assert!(frames(&mut codec).is_empty());
            codec.push(&encode(sent.kind, sent.tag, &[&sent.payload]));
            prop_assert_eq!(frames(&mut codec), vec![sent]);
            prop_assert_eq!(codec.skipped(), noise.len() as u64);
        }

        #[test]
        fn any_bytes_are_bounded(bytes in proptest::collection::vec(any::<u8>(), 0..4000)) {
            let mut codec = Codec::default();
            codec.push(&bytes);
            frames(&mut codec);
            prop_assert!(codec.buffer.len() - codec.start <= HEADER + PAYLOAD_MAX);
        }
    }

    #[test]
    fn a_frame_that_claims_too_much_is_no_frame() {
        let mut bytes = encode(1, 2, &[b"abc"]);
        bytes[12..16].copy_from_slice(&(PAYLOAD_MAX as u32 + 1).to_le_bytes());
        bytes.extend(encode(7, 8, &[b"x", b"yz"]));
        let mut codec = Codec::default();
        codec.push(&bytes);
        assert_eq!(
            frames(&mut codec),
            [Frame {
                kind: 7,
                tag: 8,
                payload: b"xyz".to_vec()
            }]
        );
        assert_eq!(codec.skipped(), 19);
    }
}
