//! Send window of a lane: pieces that wait to be sent, or to be acknowledged.

use crate::Refused;
use abi::link::{LaneReport, PARTS_MAX, Piece};
use alloc::{boxed::Box, vec::Vec};
use zerocopy::little_endian::U64;

/// A piece in flight is lost once a frame that was sent so many frames later has come.
const REORDERED_MAX: u64 = 3;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Slot {
    bytes: u16,
    part: u8,
    parts: u8,
    /// Counter of the frame that it was last sent in; [`DUE`] or [`COME`].
    sent_in: u64,
}

/// Of a piece: to be sent, for the first time or again.
const DUE: u64 = 0;
/// Of a piece: acknowledged.
const COME: u64 = u64::MAX;

/// Send window of a lane. Piece `n` stands at slot `n % SLOTS`; a message that would wrap goes on behind the last slot, so
/// that its bytes are contiguous.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Outgoing<B, const SLOTS: usize> {
    buffer: B,
    piece_bytes: usize,
    slots: Box<[Slot]>,
    /// First piece that is not acknowledged, first never sent, end of the queue.
    first: u64,
    next: u64,
    end: u64,
    /// End of the peer's credit.
    limit: u64,
    /// Pieces that are to be sent again.
    lost: u32,
}

/// Returns the last number up to `most` with that lower half, if there is one.
fn whole(most: u64, low: u32) -> Option<u64> {
    let behind = (most as u32).wrapping_sub(low);
    most.checked_sub(behind.into())
}

/// Returns where a piece's bytes are in its lane's buffer.
pub(crate) const fn place(number: u64, part: u8, slots: usize, piece_bytes: usize) -> usize {
    let slot = (number % slots as u64) as usize;
    let wrapped = slot < part as usize;
    (slot + if wrapped { slots } else { 0 }) * piece_bytes
}

/// Makes the slots of a window, which would be long on a stack; `None` without memory.
pub(crate) fn slots<T: Clone + Default>(count: usize) -> Option<Box<[T]>> {
    let mut slots = Vec::new();
    slots.try_reserve_exact(count).ok()?;
    slots.resize(count, T::default());
    Some(slots.into_boxed_slice())
}

impl<B: AsRef<[u8]> + AsMut<[u8]>, const SLOTS: usize> Outgoing<B, SLOTS> {
    pub(crate) fn new(buffer: B, piece_bytes: usize) -> Option<Self> {
        Some(Self {
            buffer,
            piece_bytes,
            slots: slots(SLOTS)?,
            first: 0,
            next: 0,
            end: 0,
            limit: 0,
            lost: 0,
        })
    }

    /// Forgets all pieces, before a new session.
    pub(crate) fn reset(&mut self) {
        (self.first, self.next, self.end, self.limit, self.lost) = (0, 0, 0, 0, 0);
    }

    fn slot(&mut self, number: u64) -> &mut Slot {
        &mut self.slots[(number % SLOTS as u64) as usize]
    }

    /// Returns whether pieces are queued or in flight.
    pub(crate) const fn is_busy(&self) -> bool {
        self.first < self.end
    }

    /// Returns how many pieces can be queued.
    pub(crate) const fn room(&self) -> usize {
        SLOTS - (self.end - self.first) as usize
    }

    /// Queues a message: both slices, one after the other.
    pub(crate) fn push(&mut self, [head, body]: [&[u8]; 2], most: usize) -> Result<(), Refused> {
        let bytes = head.len() + body.len();
        let parts = bytes.div_ceil(self.piece_bytes).max(1);
        if bytes > most || parts > PARTS_MAX.min(SLOTS) {
            return Err(Refused::TooLong(bytes, most));
        }
        if parts > self.room() {
            return Err(Refused::Full);
        }
        let at = place(self.end, 0, SLOTS, self.piece_bytes);
        let run = &mut self.buffer.as_mut()[at..at + bytes];
        run[..head.len()].copy_from_slice(head);
        run[head.len()..].copy_from_slice(body);
        for part in 0..parts {
            *self.slot(self.end) = Slot {
                bytes: (bytes - part * self.piece_bytes).min(self.piece_bytes) as u16,
                part: part as u8,
                parts: parts as u8,
                sent_in: DUE,
            };
            self.end += 1;
        }
        Ok(())
    }

    /// Returns the piece that goes next: one that was lost, else a new one within the credit.
    pub(crate) fn due(&self, lane: u8) -> Option<(Piece, &[u8])> {
        let slot = |number: u64| &self.slots[(number % SLOTS as u64) as usize];
        let number = match self.lost {
            0 => (self.next < self.end.min(self.limit)).then_some(self.next),
            _ => (self.first..self.next).find(|number| slot(*number).sent_in == DUE),
        }?;
        let slot = slot(number);
        let at = place(number, slot.part, SLOTS, self.piece_bytes);
        let piece = Piece {
            number: number.into(),
            bytes: slot.bytes.into(),
            parts: slot.part << 4 | slot.parts,
            lane,
        };
        let bytes = &self.buffer.as_ref()[at..at + usize::from(slot.bytes)];
        Some((piece, bytes))
    }

    /// Notes that the due piece is in the frame with that counter; returns whether it was sent before.
    pub(crate) fn sent(&mut self, number: u64, counter: u64) -> bool {
        self.slot(number).sent_in = counter;
        let again = number < self.next;
        self.lost -= u32::from(again);
        self.next = self.next.max(number + 1);
        again
    }

    /// Notes that a piece has come; returns whether that is news.
    fn came(&mut self, number: u64) -> bool {
        let before = core::mem::replace(&mut self.slot(number).sent_in, COME);
        self.lost -= u32::from(before == DUE);
        before != COME
    }

    fn lose(&mut self, number: u64) {
        self.slot(number).sent_in = DUE;
        self.lost += 1;
    }

    /// Applies a report of the peer, whose latest frame was `seen`; returns whether there is news. `None` if the report
    /// acknowledges pieces that were never sent; after 2^32 pieces it counts as an old one.
    pub(crate) fn report(&mut self, report: LaneReport, words: &[U64], seen: u64) -> Option<bool> {
        let all_before = whole(self.next, report.next.get())?;
        let limit = all_before + u64::from(report.credit.get());
        let mut news = limit > self.limit;
        self.limit = self.limit.max(limit);
        while self.first < all_before {
            news |= self.came(self.first);
            self.first += 1;
        }
        let mut highest = self.first;
        for (word, base) in words.iter().zip((all_before + 1..).step_by(64)) {
            let bits = (0..64).filter(|bit| word.get() >> bit & 1 == 1);
            for number in bits.map(|bit| base + bit) {
                if number >= self.next {
                    return None;
                }
                if number >= self.first {
                    news |= self.came(number);
                    highest = highest.max(number);
                }
            }
        }
        // Lost pieces are before the highest that came, or follow the first one without a gap.
        for number in self.first..self.next {
            let sent_in = self.slot(number).sent_in;
            if sent_in != DUE && sent_in.saturating_add(REORDERED_MAX) <= seen {
                self.lose(number);
            } else if number >= highest {
                break;
            }
        }
        Some(news)
    }

    /// Marks the first piece in flight as lost after a timeout; returns whether a piece is to be sent again.
    pub(crate) fn time_out(&mut self) -> bool {
        for number in self.first..self.next {
            if ![DUE, COME].contains(&self.slot(number).sent_in) {
                self.lose(number);
                break;
            }
        }
        self.lost > 0
    }
}

#[cfg(test)]
mod tests {
    use super::whole;

    #[test]
    fn a_number_is_found_by_its_lower_half() {
        let all = [0, 5, 6, 0xffff_ffff, 1 << 32, (1 << 32) + 5, (9 << 32) + 4];
        for (most, number) in all
            .iter()
            .flat_map(|most| all.map(|number| (*most, number)))
        {
            let found = whole(most, number as u32);
            let is_near = number <= most && most - number < 1 << 32;
            assert_eq!(found == Some(number), is_near, "{number} up to {most}");
            let fits = |it| it <= most && it as u32 == number as u32;
            assert!(found.is_none_or(fits), "{found:?} up to {most}");
        }
        assert_eq!(whole(5, 6), None);
    }
}
