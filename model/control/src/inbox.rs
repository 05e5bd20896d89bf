//! Bytes that come, as frames.

use alloc::boxed::Box;
use alloc::vec;

use abi::control::{FrameHeader, MAGIC, PAYLOAD_MAX};
use zerocopy::FromBytes;

const HEADER: usize = size_of::<FrameHeader>();
/// Bytes of the largest frame.
pub const FRAME_MAX: usize = HEADER + PAYLOAD_MAX;

/// Bytes of a frame that is not complete yet, and of what followed.
pub struct Inbox {
    /// [`FRAME_MAX`] of them, on the heap: stacks are small.
    bytes: Box<[u8]>,
    len: usize,
}

impl Default for Inbox {
    /// Nothing has come.
    fn default() -> Self {
        Self {
            bytes: vec![0; FRAME_MAX].into_boxed_slice(),
            len: 0,
        }
    }
}

impl Inbox {
    /// Forgets what has come.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// What has come and was not taken.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// How many more bytes it takes. None where a frame is complete, or as good as.
    pub const fn room(&self) -> usize {
        FRAME_MAX - self.len
    }

    /// Adds bytes; how many there was room for.
    pub fn push(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.room());
        self.bytes[self.len..self.len + taken].copy_from_slice(&bytes[..taken]);
        self.len += taken;
        taken
    }

    /// Whether a frame is complete. What begins none is skipped.
    pub fn has_frame(&mut self) -> bool {
        self.skip();
        self.complete().is_some()
    }

    /// Takes the next frame out, if it is complete: its header, with the payload in `payload`.
    pub fn take(&mut self, payload: &mut [u8; PAYLOAD_MAX]) -> Option<FrameHeader> {
        self.skip();
        let header = self.complete()?;
        let length = header.length as usize;
        payload[..length].copy_from_slice(&self.bytes[HEADER..HEADER + length]);
        self.drop_front(HEADER + length);
        Some(header)
    }

    /// The header at the front, where all of its frame is there.
    fn complete(&self) -> Option<FrameHeader> {
        let header = header_at(&self.bytes[..self.len], 0)?;
        (self.len >= HEADER + header.length as usize).then_some(header)
    }

    /// Drops what is in front of the first header, in one go.
    fn skip(&mut self) {
        let bytes = &self.bytes[..self.len];
        let known = bytes.len().saturating_sub(HEADER - 1);
        let first = (0..known).find(|at| header_at(bytes, *at).is_some());
        // The last bytes may be the beginning of one.
        self.drop_front(first.unwrap_or(known));
    }

    fn drop_front(&mut self, count: usize) {
        self.bytes.copy_within(count..self.len, 0);
        self.len -= count;
    }
}

fn header_at(bytes: &[u8], at: usize) -> Option<FrameHeader> {
    let (header, _) = FrameHeader::read_from_prefix(bytes.get(at..)?).ok()?;
    let is_one = header.magic == MAGIC && header.length as usize <= PAYLOAD_MAX;
    is_one.then_some(header)
}
