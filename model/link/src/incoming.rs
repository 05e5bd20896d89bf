//! Receive window of a lane: pieces that wait for the rest of their message, or for those before it.

use crate::outgoing::place;
use abi::link::{LaneReport, PARTS_MAX, Piece};
use zerocopy::little_endian::U64;

/// Receive window of a lane, laid out as [`Outgoing`](crate::outgoing::Outgoing) is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Incoming<B, const SLOTS: usize> {
    buffer: B,
    piece_bytes: usize,
    /// Bytes, part and number of parts of each piece that is kept.
    slots: [Option<(u16, u8, u8)>; SLOTS],
    /// First piece not delivered, first that has not come, end of those that have.
    taken: u64,
    next: u64,
    end: u64,
}

/// Outcome of a received piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Kept, or delivered.
    New,
    /// Dropped: the piece had come before.
    Repeated,
    /// The peer broke the protocol.
    Malformed,
}

impl<B: AsRef<[u8]> + AsMut<[u8]>, const SLOTS: usize> Incoming<B, SLOTS> {
    pub(crate) const fn new(buffer: B, piece_bytes: usize) -> Self {
        Self {
            buffer,
            piece_bytes,
            slots: [None; SLOTS],
            taken: 0,
            next: 0,
            end: 0,
        }
    }

    /// Forgets all pieces, before a new session.
    pub(crate) fn reset(&mut self) {
        self.slots = [None; SLOTS];
        (self.taken, self.next, self.end) = (0, 0, 0);
    }

    const fn slot(number: u64) -> usize {
        (number % SLOTS as u64) as usize
    }

    /// Returns whether a piece is missing before one that has come.
    pub(crate) const fn has_gap(&self) -> bool {
        self.next < self.end
    }

    /// Returns the report on this lane, and its SACK words.
    pub(crate) fn report<const WORDS: usize>(
        &self,
        words_max: usize,
    ) -> (LaneReport, [U64; WORDS]) {
        let mut words = [U64::ZERO; WORDS];
        let mut used = 0;
        for number in self.next + 1..self.end {
            let (word, bit) = ((number - self.next - 1) / 64, (number - self.next - 1) % 64);
            if word as usize >= words_max.min(WORDS) {
                break;
            }
            if self.slots[Self::slot(number)].is_some() {
                words[word as usize] |= U64::new(1 << bit);
                used = word as u8 + 1;
            }
        }
        let report = LaneReport {
            next: self.next.into(),
            credit: ((self.taken + SLOTS as u64 - self.next) as u16).into(),
            words: used,
        };
        (report, words)
    }

    /// Takes a piece. The next message goes to `deliver` without a copy if it is of one piece.
    pub(crate) fn accept(
        &mut self,
        piece: &Piece,
        bytes: &[u8],
        deliver: impl FnOnce(&[u8]) -> bool,
    ) -> Fate {
        let number = piece.number.get();
        let (part, parts) = (piece.parts >> 4, piece.parts & 0xf);
        let is_last = part + 1 == parts;
        let is_sound = part < parts
            && usize::from(parts) <= PARTS_MAX
            && u64::from(part) <= number
            && bytes.len() <= self.piece_bytes
            && (is_last || bytes.len() == self.piece_bytes);
        if number < self.taken {
            return Fate::Repeated;
        }
        // No honest peer sends beyond its credit.
        if !is_sound || number - self.taken >= SLOTS as u64 {
            return Fate::Malformed;
        }
        let slot = Self::slot(number);
        if self.slots[slot].is_some() {
            return Fate::Repeated;
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
        Fate::New
    }

    /// Delivers kept messages in order, until one is incomplete or `deliver` refuses one. Returns how many pieces were
    /// delivered, or `None` if the parts of a message do not belong together.
    pub(crate) fn deliver(&mut self, mut deliver: impl FnMut(&[u8]) -> bool) -> Option<u64> {
        let before = self.taken;
        while let Some((_, part, parts)) = self.slots[Self::slot(self.taken)] {
            if part != 0 {
                return None;
            }
            if self.next - self.taken < parts.into() {
                break;
            }
            let mut bytes = 0;
            for n in 0..parts {
                let kept = self.slots[Self::slot(self.taken + u64::from(n))];
                let (of_part, ..) = kept.filter(|(_, at, of)| (*at, *of) == (n, parts))?;
                bytes += usize::from(of_part);
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
        Some(self.taken - before)
    }
}
