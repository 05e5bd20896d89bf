//! The way out beside OS-0 (`abi::uplink`): which slot is next, and what of it is believed.
//!
//! [`Uplink`] is EL2's side. Its places are its own; of what OS-0 can write it reads one word for each frame,
//! once: a slot that is to be filled must be empty, and one that is taken says how long its frame is, which
//! is checked. Whatever is written there, what EL2 touches lies in the slot that is next.
#![no_std]
#![forbid(unsafe_code)]

use abi::uplink::{FRAME_MAX, FRAME_MIN, HEAD_BYTES, SLOT_BYTES, SLOTS};

/// EL2's place in each way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Uplink {
    to_os0: usize,
    from_os0: usize,
}

/// What is in the next slot from OS-0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing, and it stays the next.
    Nothing,
    /// A frame of so many bytes; its reader empties the slot that begins at `at` in the area.
    Frame {
        /// Where the slot begins.
        at: u64,
        /// Bytes of the frame.
        bytes: usize,
    },
    /// What is no frame, in the slot that begins there, and is emptied all the same.
    Nonsense(u64),
}

impl Uplink {
    /// At the first slots of an area that is all zero.
    pub const fn new() -> Self {
        Self {
            to_os0: 0,
            from_os0: 0,
        }
    }

    /// The slots that are next, to OS-0 and from it, as a record has them.
    pub const fn next(&self) -> [u64; 2] {
        [self.to_os0 as u64, self.from_os0 as u64]
    }

    /// At the slots that a record has; `None` where there are no such slots.
    pub fn at(next: [u64; 2]) -> Option<Self> {
        let [to_os0, from_os0] = next.map(|slot| usize::try_from(slot).unwrap_or(SLOTS));
        (to_os0.max(from_os0) < SLOTS).then_some(Self { to_os0, from_os0 })
    }

    /// Where the slot begins that a frame of so many bytes goes to; `None` where it is too long or too
    /// short, or OS-0 has not taken what is in the slot. `word_at` reads a word of the area.
    pub fn fill(&mut self, bytes: usize, word_at: impl FnOnce(u64) -> u16) -> Option<u64> {
        let at = slot(self.to_os0);
        if !is_frame(bytes) || word_at(at) != 0 {
            return None;
        }
        self.to_os0 = (self.to_os0 + 1) % SLOTS;
        Some(at)
    }

    /// What OS-0 has put into its next slot. `word_at` reads a word of the area.
    pub fn take(&mut self, word_at: impl FnOnce(u64) -> u16) -> Next {
        let at = slot(SLOTS + self.from_os0);
        let bytes = usize::from(word_at(at));
        if bytes == 0 {
            return Next::Nothing;
        }
        self.from_os0 = (self.from_os0 + 1) % SLOTS;
        if is_frame(bytes) {
            Next::Frame { at, bytes }
        } else {
            Next::Nonsense(at)
        }
    }
}

const fn is_frame(bytes: usize) -> bool {
    FRAME_MIN <= bytes && bytes <= FRAME_MAX
}

/// Where a slot begins: those to OS-0, then those from OS-0.
const fn slot(number: usize) -> u64 {
    HEAD_BYTES + number as u64 * SLOT_BYTES
}
