//! Send window of a lane: pieces that wait to be sent, or to be acknowledged.

use crate::Refused;
use abi::link::{LaneReport, PARTS_MAX};
use zerocopy::little_endian::U64;

/// A piece in flight is lost once a frame that was sent so many frames later has come.
const REORDERED_MAX: u64 = 3;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum State {
    /// Never sent.
    #[default]
    Queued,
    /// Last sent in the frame with this counter.
    Sent(u64),
    /// Sent, and to be sent again.
    Lost,
    /// Come.
    Come,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Slot {
    bytes: u16,
    part: u8,
    parts: u8,
    state: State,
}

/// Send window of a lane. Piece `n` stands at slot `n % SLOTS`; a message that would wrap goes on behind the last slot, so
/// that its bytes are contiguous.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Outgoing<B, const SLOTS: usize> {
    buffer: B,
    piece_bytes: usize,
    slots: [Slot; SLOTS],
    /// First piece that is not acknowledged, first never sent, end of the queue.
    first: u64,
    next: u64,
    end: u64,
    /// End of the peer's credit.
    limit: u64,
    lost: u32,
}

/// Returns where a piece's bytes are in its lane's buffer.
pub(crate) const fn place(number: u64, part: u8, slots: usize, piece_bytes: usize) -> usize {
    let slot = (number % slots as u64) as usize;
    let wrapped = slot < part as usize;
    (slot + if wrapped { slots } else { 0 }) * piece_bytes
}

/// Piece that is to be sent.
pub(crate) struct Due<'a> {
    pub(crate) number: u64,
    pub(crate) part: u8,
    pub(crate) parts: u8,
    pub(crate) bytes: &'a [u8],
}

impl<B: AsRef<[u8]> + AsMut<[u8]>, const SLOTS: usize> Outgoing<B, SLOTS> {
    pub(crate) const fn new(buffer: B, piece_bytes: usize) -> Self {
        let slot = Slot {
            bytes: 0,
            part: 0,
            parts: 0,
            state: State::Queued,
        };
        Self {
            buffer,
            piece_bytes,
            slots: [slot; SLOTS],
            first: 0,
            next: 0,
            end: 0,
            limit: 0,
            lost: 0,
        }
    }

    /// Forgets all pieces, before a new session.
    pub(crate) fn reset(&mut self) {
        (self.first, self.next, self.end) = (0, 0, 0);
        (self.limit, self.lost) = (0, 0);
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
    pub(crate) fn push(&mut self, message: [&[u8]; 2], bytes_max: usize) -> Result<(), Refused> {
        let bytes = message[0].len() + message[1].len();
        let parts = bytes.div_ceil(self.piece_bytes).max(1);
        if bytes > bytes_max || parts > PARTS_MAX.min(SLOTS) {
            return Err(Refused::TooLong { bytes, bytes_max });
        }
        if parts > self.room() {
            return Err(Refused::Full);
        }
        let at = place(self.end, 0, SLOTS, self.piece_bytes);
        let run = &mut self.buffer.as_mut()[at..at + bytes];
        let (head, body) = run.split_at_mut(message[0].len());
        head.copy_from_slice(message[0]);
        body.copy_from_slice(message[1]);
        for part in 0..parts {
            let bytes = (bytes - part * self.piece_bytes).min(self.piece_bytes);
            *self.slot(self.end) = Slot {
                bytes: bytes as u16,
                part: part as u8,
                parts: parts as u8,
                state: State::Queued,
            };
            self.end += 1;
        }
        Ok(())
    }

    /// Returns the piece that goes next: one that was lost, else a new one within the credit.
    pub(crate) fn due(&self) -> Option<Due<'_>> {
        let is_lost = |n: &u64| self.slots[(n % SLOTS as u64) as usize].state == State::Lost;
        let lost = || (self.first..self.next).find(is_lost);
        let number = match self.lost {
            0 => (self.next < self.end.min(self.limit)).then_some(self.next),
            _ => lost(),
        }?;
        let slot = self.slots[(number % SLOTS as u64) as usize];
        let at = place(number, slot.part, SLOTS, self.piece_bytes);
        Some(Due {
            number,
            part: slot.part,
            parts: slot.parts,
            bytes: &self.buffer.as_ref()[at..at + usize::from(slot.bytes)],
        })
    }

    /// Notes that the due piece is in the frame with that counter; returns whether it was sent before.
    pub(crate) fn sent(&mut self, number: u64, counter: u64) -> bool {
        let slot = self.slot(number);
        let again = slot.state == State::Lost;
        slot.state = State::Sent(counter);
        if again {
            self.lost -= 1;
        } else {
            self.next = number + 1;
        }
        again
    }

    /// Notes that a piece has come; returns whether that is news.
    fn came(&mut self, number: u64) -> bool {
        let slot = self.slot(number);
        let before = slot.state;
        slot.state = State::Come;
        if before == State::Lost {
            self.lost -= 1;
        }
        before != State::Come
    }

    /// Applies a report of the peer, whose latest frame was `seen`; returns whether there is news. `None` if the report
    /// acknowledges pieces that were never sent.
    pub(crate) fn report(&mut self, report: &LaneReport, words: &[U64], seen: u64) -> Option<bool> {
        let all_before = report.next.get();
        if all_before > self.next {
            return None;
        }
        let limit = all_before + u64::from(report.credit.get());
        let mut news = limit > self.limit;
        self.limit = self.limit.max(limit);
        while self.first < all_before {
            news |= self.came(self.first);
            self.first += 1;
        }
        let mut highest = self.first;
        for (word, base) in words.iter().zip((all_before + 1..).step_by(64)) {
            let mut bits = word.get();
            while bits != 0 {
                let number = base + u64::from(bits.trailing_zeros());
                bits &= bits - 1;
                if number >= self.next {
                    return None;
                }
                if number >= self.first {
                    news |= self.came(number);
                    highest = highest.max(number);
                }
            }
        }
        self.mark_lost(highest, seen);
        Some(news)
    }

    /// Marks lost pieces: all before `highest`, the highest acknowledged one, and behind it up to the first that is not.
    fn mark_lost(&mut self, highest: u64, seen: u64) {
        for number in self.first..self.next {
            let slot = self.slot(number);
            let is_lost =
                matches!(slot.state, State::Sent(counter) if counter + REORDERED_MAX <= seen);
            if is_lost {
                slot.state = State::Lost;
                self.lost += 1;
            } else if number >= highest {
                break;
            }
        }
    }

    /// Marks the first piece in flight as lost after a timeout; returns whether a piece is to be sent again.
    pub(crate) fn time_out(&mut self) -> bool {
        for number in self.first..self.next {
            if let State::Sent(_) = self.slot(number).state {
                self.slot(number).state = State::Lost;
                self.lost += 1;
                return true;
            }
        }
        self.lost > 0
    }
}
