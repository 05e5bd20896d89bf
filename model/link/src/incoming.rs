//! Receive window of a lane: pieces that wait for the rest of their message, or for those before it.

use crate::outgoing::{place, slots};
use abi::link::{LaneReport, PARTS_MAX, Piece};
use alloc::boxed::Box;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

/// Receive window of a lane, laid out as [`Outgoing`](crate::outgoing::Outgoing) is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Incoming<B, const SLOTS: usize> {
    buffer: B,
    piece_bytes: usize,
    /// Bytes, part and number of parts of each piece that is kept.
    slots: Box<[Option<(u16, u8, u8)>]>,
    /// First piece not delivered, first that has not come, end of those that have.
    taken: u64,
    next: u64,
    end: u64,
}

impl<B: AsRef<[u8]> + AsMut<[u8]>, const SLOTS: usize> Incoming<B, SLOTS> {
    pub(crate) fn new(buffer: B, piece_bytes: usize) -> Option<Self> {
        Some(Self {
            buffer,
            piece_bytes,
            slots: slots(SLOTS)?,
            taken: 0,
            next: 0,
            end: 0,
        })
    }

    /// Forgets all pieces, before a new session.
    pub(crate) fn reset(&mut self) {
        self.slots.fill(None);
        (self.taken, self.next, self.end) = (0, 0, 0);
    }

    const fn slot(number: u64) -> usize {
        (number % SLOTS as u64) as usize
    }

    /// Returns whether a piece is missing before one that has come.
    pub(crate) const fn has_gap(&self) -> bool {
        self.next < self.end
    }

    /// Returns the report on this lane; writes its SACK words to `frame`.
    pub(crate) fn report(&self, words_max: usize, frame: &mut [u8]) -> LaneReport {
        let behind = (self.next + 1..self.end).take(64 * words_max);
        let mut words = 0;
        for word in behind.step_by(64) {
            let is_kept =
                |bit: &u64| word + bit < self.end && self.slots[Self::slot(word + bit)].is_some();
            let bits = (0..64).filter(is_kept).fold(0, |bits, bit| bits | 1 << bit);
            let at = 8 * usize::from(words);
            frame[at..at + 8].copy_from_slice(U64::new(bits).as_bytes());
            words += 1;
        }
        LaneReport {
            next: (self.next as u32).into(),
            credit: ((self.taken + SLOTS as u64 - self.next) as u16).into(),
            words,
        }
    }

    /// Takes a piece, and delivers what it completes; a message of one piece goes to `deliver` without a copy. Returns
    /// whether the piece had come before, or `None` if the peer broke the protocol.
    pub(crate) fn accept(
        &mut self,
        piece: &Piece,
        bytes: &[u8],
        mut deliver: impl FnMut(&[u8]) -> bool,
    ) -> Option<bool> {
        let number = piece.number.get();
        let (part, parts) = (piece.parts >> 4, piece.parts & 0xf);
        let is_full = bytes.len() == self.piece_bytes;
        let is_last = part + 1 == parts && bytes.len() <= self.piece_bytes;
        let is_sound = part < parts && usize::from(parts) <= PARTS_MAX && (is_full || is_last);
        let slot = Self::slot(number);
        if number < self.taken {
            return Some(true);
        }
        // No honest peer sends beyond its credit.
        if !is_sound || number - self.taken >= SLOTS as u64 {
            return None;
        }
        if self.slots[slot].is_some() {
            return Some(true);
        }
        self.end = self.end.max(number + 1);
        if number == self.taken && parts == 1 && deliver(bytes) {
            self.taken += 1;
        } else {
            let at = place(number, part, SLOTS, self.piece_bytes);
            self.buffer.as_mut()[at..at + bytes.len()].copy_from_slice(bytes);
            self.slots[slot] = Some((bytes.len() as u16, part, parts));
        }
        self.next = self.next.max(self.taken);
        while self.next < self.end && self.slots[Self::slot(self.next)].is_some() {
            self.next += 1;
        }
        self.deliver(deliver)?;
        Some(false)
    }

    /// Delivers kept messages in order, until one is incomplete or `deliver` refuses one. Returns whether one was
    /// delivered, or `None` if the parts of a message do not belong together.
    pub(crate) fn deliver(&mut self, mut deliver: impl FnMut(&[u8]) -> bool) -> Option<bool> {
        let before = self.taken;
        while let Some((_, _, parts)) = self.slots[Self::slot(self.taken)] {
            if self.next - self.taken < parts.into() {
                break;
            }
            let mut bytes = 0;
            for n in 0..parts {
                let kept = self.slots[Self::slot(self.taken + u64::from(n))];
                bytes += usize::from(kept.filter(|kept| (kept.1, kept.2) == (n, parts))?.0);
            }
            let at = place(self.taken, 0, SLOTS, self.piece_bytes);
            if !deliver(&self.buffer.as_ref()[at..at + bytes]) {
                break;
            }
            for _ in 0..parts {
                self.slots[Self::slot(self.taken)] = None;
                self.taken += 1;
            }
        }
        Some(self.taken > before)
    }
}
