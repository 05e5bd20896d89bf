//! Runs of bytes in machine memory, of which no part is outside.

use model_addr::{FRAME_SIZE, Mfn, Pa};

/// A run of bytes in frames that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes {
    start: Pa,
    len: u64,
}

impl Bytes {
    /// All bytes of so many frames from `first` on.
    pub const fn frames(first: Mfn, count: u64) -> Self {
        Self {
            start: first.address(),
            len: count * FRAME_SIZE,
        }
    }

    /// The first byte.
    pub const fn start(self) -> Pa {
        self.start
    }

    /// How many they are.
    pub const fn len(self) -> u64 {
        self.len
    }

    /// Whether there are none.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Returns the `len` bytes from byte `at` on; `None` where not all of them are inside.
    #[must_use]
    pub fn part(self, at: u64, len: u64) -> Option<Self> {
        let end = at.checked_add(len)?;
        (end <= self.len).then(|| Self {
            start: Pa(self.start.0 + at),
            len,
        })
    }

    /// The frame that it is the whole of, if it is one.
    pub fn whole_frame(self) -> Option<Mfn> {
        let is_whole = self.len == FRAME_SIZE && self.start.0.is_multiple_of(FRAME_SIZE);
        is_whole.then(|| self.start.frame())
    }
}
