//! Frames that a driver gets.

use super::header::{HEADER_BYTES, Offload};
use super::{Net, feature};
use crate::queue::Scratch;
use crate::{Chain, Queue, QueueError, Runs, Segment, Transport};
use heapless::Vec;
use machine_contract::{GuestMemory, GuestMemoryError};

/// Most buffers of one frame, or segments in all but the last of them, and most runs of memory in them: 64 KiB into
/// Linux's smallest mergeable buffers, of 1536 bytes, takes 43.
const BUFFERS_MAX: usize = 64;
const RUNS_MAX: usize = 160;
/// Bytes of the buffers that Linux gives where frames are long.
const USUAL: usize = 4096;

/// What became of a frame for a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// The driver has it.
    Done,
    /// There are too few buffers: a notification will come when there are more.
    NoBuffers,
    /// It does not fit the buffers that this driver gives.
    TooLong,
    /// There is no driver, or none that keeps the rules.
    NoDriver,
    /// Its bytes could not be moved. The driver does not notice.
    Lost,
    /// Not all memory is at hand where it goes: it is to be tried again. The driver does not notice.
    Away,
}

/// Buffers that are taken for one frame.
#[derive(Clone, Debug, Default)]
pub(super) struct Buffers {
    chain: Chain,
    /// The head of each, and its bytes.
    taken: Vec<(u16, u32), BUFFERS_MAX>,
    /// Their descriptors, as they are read.
    ahead: Scratch,
    /// Where they are, one after the other.
    runs: Vec<Segment, RUNS_MAX>,
}

/// What became of taking buffers.
enum Taken {
    Enough,
    TooFew,
    TooSmall,
}

impl Transport<Net> {
    /// Gives the driver a frame of `bytes`, of which `offload` is still to be done, and which fits what
    /// the driver [`takes`](Self::takes). All frames of one `flow` go to one queue. `fill` is called with the
    /// runs of the driver's memory that the frame goes to, in order; they hold it exactly, and may be empty.
    pub fn receive(
        &mut self,
        memory: &impl GuestMemory,
        (bytes, offload, flow): (u32, Offload, u32),
        fill: impl FnOnce(&mut Runs<'_>) -> Result<(), GuestMemoryError>,
    ) -> Received {
        let pair = flow % u32::from(self.device.used);
        let index = 2 * pair as usize;
        if !self.is_live() || !self.queues[index].is_ready() {
            return Received::NoDriver;
        }
        let needed = HEADER_BYTES as u32 + bytes;
        let mergeable = self.has_negotiated(feature::MRG_RXBUF);
        let (queue, buffers) = (&mut self.queues[index], &mut self.device.buffers);
        let taken = buffers.take(queue, memory, needed, mergeable);
        match self.settle(taken) {
            Some(Taken::Enough) => {}
            Some(Taken::TooFew) => return self.put_back(index, Received::NoBuffers),
            Some(Taken::TooSmall) => return self.put_back(index, Received::TooLong),
            None => return Received::NoDriver,
        }
        let count = self.device.buffers.taken.len() as u16;
        let header = offload.encode(count);
        let runs = &mut Runs::new(&self.device.buffers.runs, needed);
        if !is_at_hand(memory, runs.clone()) {
            return self.put_back(index, Received::Away);
        }
        match runs.put(memory, &header).and_then(|()| fill(runs)) {
            Ok(()) => {}
            Err(GuestMemoryError::Away(_)) => return self.put_back(index, Received::Away),
            Err(_) => return self.put_back(index, Received::Lost),
        }
        let given = self.give(index, memory, needed);
        if self.settle(given).is_none() {
            return Received::NoDriver;
        }
        self.signal(memory, index);
        Received::Done
    }

    /// The buffers stay the driver's next ones.
    fn put_back(&mut self, index: usize, received: Received) -> Received {
        let count = self.device.buffers.taken.len() as u16;
        self.queues[index].put_back(count);
        received
    }

    /// Hands all buffers to the driver at once: it looks for the others when it finds the first.
    fn give(
        &mut self,
        index: usize,
        memory: &impl GuestMemory,
        needed: u32,
    ) -> Result<(), QueueError> {
        let taken = &mut self.device.buffers.taken;
        let mut left = needed;
        for (_, bytes) in taken.iter_mut() {
            *bytes = left.min(*bytes);
            left -= *bytes;
        }
        self.queues[index].push_all(memory, taken)
    }
}

/// Whether what a frame's header goes to is at hand. One in several runs would take frames for all of them at once:
/// they get theirs here, as far as the owner's time goes, and one at least.
#[inline]
fn is_at_hand(memory: &impl GuestMemory, mut runs: Runs<'_>) -> bool {
    let mut left = HEADER_BYTES as u32;
    while left > 0
        && let Some(run) = runs.front()
        && run.len < HEADER_BYTES as u32
    {
        let piece = run.len.min(left);
        if memory.touch(run.ipa, piece.into(), true, left < HEADER_BYTES as u32) < piece.into() {
            return false;
        }
        runs.advance(piece);
        left -= piece;
    }
    true
}

impl Buffers {
    fn take(
        &mut self,
        queue: &mut Queue,
        memory: &impl GuestMemory,
        needed: u32,
        mergeable: bool,
    ) -> Result<Taken, QueueError> {
        self.taken.clear();
        self.runs.clear();
        let (mut room, mut segments) = (0_u32, 0);
        while room < needed {
            if !mergeable && room > 0 || self.taken.is_full() || segments > BUFFERS_MAX {
                return Ok(Taken::TooSmall);
            }
            let Self {
                taken, runs, ahead, ..
            } = self;
            let (before, mut fits) = (taken.len(), true);
            let expected = 1 + (needed - room) as usize / USUAL;
            queue.pop_buffers(memory, (expected, ahead), |head, buffer| {
                // There is a place for it: this was asked before.
                let _ = taken.push((head, buffer.len));
                fits = join(runs, buffer);
                room = room.saturating_add(buffer.len);
                fits && mergeable && room < needed && !taken.is_full()
            });
            if !fits {
                return Ok(Taken::TooSmall);
            }
            if taken.len() > before {
                continue;
            }
            if !queue.pop(memory, &mut self.chain)? {
                return Ok(Taken::TooFew);
            }
            let (chain, bytes) = (&self.chain, self.chain.writable_bytes());
            if chain.readable_bytes() > 0 || bytes == 0 {
                return Err(QueueError::Truncated);
            }
            let _ = self.taken.push((chain.head(), bytes));
            segments += chain.segment_count();
            for segment in chain.writable() {
                if !join(&mut self.runs, *segment) {
                    return Ok(Taken::TooSmall);
                }
            }
            room = room.saturating_add(bytes);
        }
        Ok(Taken::Enough)
    }
}

/// Adds a run, to the last one where it goes on there; `false` where there is no room.
#[inline]
fn join(runs: &mut Vec<Segment, RUNS_MAX>, next: Segment) -> bool {
    if let Some(last) = runs.last_mut()
        && last.ipa.0 + u64::from(last.len) == next.ipa.0
        && let Some(len) = last.len.checked_add(next.len)
    {
        last.len = len;
        return true;
    }
    runs.push(next).is_ok()
}
