//! Frames whose bodies tests can read and write.

use abi::link::{BODY_AT, Piece, Report, TAG_BYTES};
use model_link::{Cipher, Iv, KEY_BYTES, Suite, Tag};
use std::cell::Cell;
use zerocopy::FromBytes;

/// A cipher that hides nothing.
#[derive(Clone, Copy, Debug)]
pub struct Clear;

thread_local! {
    /// How often a frame was tried to open.
    pub static OPENED: Cell<u64> = const { Cell::new(0) };
}

impl Cipher for Clear {
    const FRAMES_PER_KEY_LOG2: u32 = 24;

    fn new(_: Suite, _: &[u8; KEY_BYTES]) -> Self {
        Self
    }

    fn seal(&self, _: &Iv, _: &[u8], _: &mut [u8]) -> Tag {
        [1; TAG_BYTES]
    }

    fn open(&self, _: &Iv, _: &[u8], _: &mut [u8], tag: &Tag) -> bool {
        OPENED.set(OPENED.get() + 1);
        *tag == [1; TAG_BYTES]
    }
}

/// The report of a sealed frame.
pub fn report(frame: &[u8]) -> Report {
    Report::read_from_prefix(&frame[BODY_AT..]).unwrap().0
}

/// The pieces of each frame: lanes and lengths.
pub fn pieces(frames: &[Vec<u8>]) -> Vec<Vec<(u8, usize)>> {
    let of_frame = |frame: &Vec<u8>| {
        let report = report(frame);
        let words: u8 = report.lanes.iter().map(|lane| lane.words).sum();
        let mut rest = &frame[BODY_AT + size_of::<Report>() + 8 * usize::from(words)..];
        let mut found = Vec::new();
        for _ in 0..report.pieces {
            let (piece, behind) = Piece::read_from_prefix(rest).unwrap();
            let bytes = usize::from(piece.bytes.get());
            found.push((piece.lane, bytes));
            rest = &behind[bytes..];
        }
        found
    };
    frames.iter().map(of_frame).collect()
}
