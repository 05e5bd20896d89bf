//! Frames out of any stream, and rights over all requests.
#![allow(clippy::unwrap_used, reason = "a test")]

use abi::bundle::control_rights::{ALL, NONE, READ};
use abi::control::{FrameHeader, MAGIC, PAYLOAD_MAX, Request, request};
use model_control::{FRAME_MAX, Inbox, Right, right};
use proptest::prelude::*;
use zerocopy::IntoBytes;

fn frame(kind: u32, tag: u32, payload: &[u8]) -> Vec<u8> {
    let header = FrameHeader {
        magic: MAGIC,
        kind,
        tag,
        length: payload.len() as u32,
    };
    [header.as_bytes(), payload].concat()
}

/// What an inbox makes of a stream that comes in pieces of these sizes.
fn cut(stream: &[u8], pieces: &[usize]) -> Vec<Vec<u8>> {
    let (mut inbox, mut frames) = (Inbox::default(), Vec::new());
    let mut payload = [0; PAYLOAD_MAX];
    let mut sizes = pieces.iter().copied().cycle();
    let mut rest = stream;
    while !rest.is_empty() {
        let size = sizes.next().unwrap_or(1).clamp(1, rest.len());
        let taken = inbox.push(&rest[..size]);
        rest = &rest[taken..];
        while inbox.has_frame() {
            let header = inbox.take(&mut payload).unwrap();
            let content = &payload[..header.length as usize];
            frames.push(frame(header.kind, header.tag, content));
        }
        assert!(inbox.take(&mut payload).is_none());
        // However it goes on, there is room for it: nobody can fill it for good.
        assert!(inbox.room() > 0);
    }
    frames
}

proptest! {
    /// Frames come out as they went in, whatever the pieces, with noise between them.
    #[test]
    fn frames_survive(
        parts in prop::collection::vec(
            (any::<u32>(), any::<u32>(), prop::collection::vec(any::<u8>(), 0..300), 0..40_usize),
            0..8,
        ),
        pieces in prop::collection::vec(1..700_usize, 1..6),
    ) {
        let mut stream = Vec::new();
        let mut expected = Vec::new();
        for (kind, tag, payload, noise) in parts {
            // Noise that cannot be a frame's beginning.
            stream.extend(std::iter::repeat_n(0xa5, noise));
            stream.extend(frame(kind, tag, &payload));
            expected.push(frame(kind, tag, &payload));
        }
        prop_assert_eq!(cut(&stream, &pieces), expected);
    }

    /// Anything is taken in, and no frame is longer than it says.
    #[test]
    fn noise_is_skipped(
        stream in prop::collection::vec(prop_oneof![any::<u8>(), Just(b'U'), Just(0)], 0..3000),
        pieces in prop::collection::vec(1..200_usize, 1..4),
    ) {
        for frame in cut(&stream, &pieces) {
            prop_assert!(frame.len() <= FRAME_MAX);
        }
    }
}

#[test]
fn a_full_box_of_noise_makes_room() {
    let mut inbox = Inbox::default();
    let noise = vec![0xff; FRAME_MAX];
    assert_eq!(inbox.push(&noise), FRAME_MAX);
    assert_eq!((inbox.room(), inbox.push(&noise)), (0, 0));
    assert!(!inbox.has_frame() && inbox.room() > FRAME_MAX - 16);
    inbox.clear();
    // The longest frame fits, and one that claims more is noise.
    inbox.push(&frame(1, 2, &[7; PAYLOAD_MAX]));
    assert!(inbox.has_frame());
    inbox.clear();
    let mut long = frame(1, 2, &[]);
    long[12..16].copy_from_slice(&(PAYLOAD_MAX as u32 + 1).to_le_bytes());
    inbox.push(&long);
    assert!(!inbox.has_frame());
}

/// Who may only read can ask nothing that changes something, or that tells of everybody.
#[test]
fn rights_are_what_they_are_called() {
    let forbidden = [
        request::START,
        request::STOP,
        request::KILL,
        request::PAUSE,
        request::RESUME,
        request::RESET,
        request::CONSOLE_INPUT,
        request::CREATE,
        request::SET,
        request::POWER_OFF,
        request::RECLAIM,
        request::NUMA_MOVE,
        request::SPAN_MOVE,
        request::SPAN_LEAVE,
        request::CLUSTER_LEAVE,
        request::TRACE,
        request::EVENTS,
        request::RECOUNT,
        request::ENTRIES,
    ];
    for kind in forbidden {
        assert_eq!(right(READ, kind), Right::None, "{kind}");
    }
    for kind in 0..0x1_0000 {
        assert_eq!(right(NONE, kind), Right::None);
        assert_eq!(right(ALL, kind), Right::All);
        assert_eq!(right(3, kind), Right::None);
        assert_ne!(right(READ, kind), Right::All);
    }
    // What may be read is decoded, with a name or without.
    let name = abi::Text::<32>::cut("a");
    let known = |kind: u32| {
        Request::decode(kind, &[]).is_some()
            || Request::decode(kind, name.as_bytes()).is_some()
            || Request::decode(kind, &[name.as_bytes(), &[0; 8]].concat()).is_some()
    };
    let readable: Vec<u32> = (0..0x1_0000)
        .filter(|kind| right(READ, *kind) == Right::Group)
        .collect();
    assert_eq!(readable.len(), 8);
    assert!(readable.into_iter().all(known));
}
