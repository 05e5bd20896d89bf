//! Frames that a driver sends.

use super::header::{HEAD_MAX, HEADER_BYTES, Offload};
use super::{ETHERNET_BYTES, FRAME_MAX, Net};
use crate::{Chain, QueueError, Segment, Transport};
use machine_contract::GuestMemory;
use model_addr::Gfn;

/// The most segments of a frame that is read at once with what leads to them. Linux's have 19.
const SEGMENTS_AT_ONCE: usize = 32;

/// A frame on its way. About 2.5 KiB: make one, and refill it.
#[derive(Clone, Debug)]
pub struct Frame {
    chain: Chain,
    /// Header and head, as they were when it was taken.
    start: [u8; HEADER_BYTES + HEAD_MAX],
    head_bytes: usize,
    bytes: u32,
    offload: Offload,
    queue: usize,
    resets: u32,
}

impl Default for Frame {
    fn default() -> Self {
        Self {
            chain: Chain::default(),
            start: [0; HEADER_BYTES + HEAD_MAX],
            head_bytes: 0,
            bytes: 0,
            offload: Offload::default(),
            queue: 0,
            resets: 0,
        }
    }
}

impl Frame {
    /// Its first bytes, at most [`HEAD_MAX`], as they were when it was taken.
    pub fn head(&self) -> &[u8] {
        &self.start[HEADER_BYTES..][..self.head_bytes]
    }

    /// Where the bytes behind the head are.
    pub fn rest(&self) -> &[Segment] {
        self.chain.readable()
    }

    /// Bytes of the whole frame.
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// What is still to be done with it.
    pub fn offload(&self) -> Offload {
        self.offload
    }

    /// A number that all frames of one connection have in common.
    pub fn flow(&self) -> u32 {
        flow(self.head())
    }

    /// Who gets it.
    pub fn destination(&self) -> [u8; 6] {
        [0, 1, 2, 3, 4, 5].map(|n| self.start[HEADER_BYTES + n])
    }

    /// Who sends it.
    pub fn source(&self) -> [u8; 6] {
        [6, 7, 8, 9, 10, 11].map(|n| self.start[HEADER_BYTES + n])
    }

    /// Whether any of it is in this guest frame.
    pub fn uses(&self, gfn: Gfn) -> bool {
        self.rest().iter().any(|segment| {
            let last = segment.ipa.0 + u64::from(segment.len.max(1)) - 1;
            (segment.ipa.frame()..=model_addr::Ipa(last).frame()).contains(&gfn)
        })
    }
}

/// What [`Transport::next_frame`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A frame that the owner must [`Transport::sent`].
    Frame,
    /// One that makes no sense and went back to the driver: ask again.
    Refused,
    /// Nothing: a notification will come when there is more, unless the owner looks before that.
    Empty,
}

impl Transport<Net> {
    /// Takes the next frame into `frame`, of each queue in turn. The work is bounded; the owner bounds
    /// how often it asks. An owner that `will_look` again soon gets no notification before it did.
    pub fn next_frame(
        &mut self,
        memory: &impl GuestMemory,
        frame: &mut Frame,
        will_look: bool,
    ) -> Next {
        if !self.is_live() {
            return Next::Empty;
        }
        let pairs = self.pairs();
        let mut popped = Ok(false);
        for _ in 0..pairs {
            let pair = self.device.turn % pairs;
            self.device.turn = (pair + 1) % pairs;
            frame.queue = transmit_queue(pair);
            let queue = &mut self.queues[frame.queue];
            popped = match queue.has_more(memory) {
                Ok(false) if will_look => Ok(false),
                // An error is the pop's, too, which knows what is only to be waited for.
                // To read a head in many segments takes as long as to find them: it may be left for another time.
                _ => queue.pop_in_time(memory, &mut frame.chain, |chain| {
                    chain.segment_count() > SEGMENTS_AT_ONCE
                }),
            };
            if popped != Ok(false) {
                break;
            }
        }
        if self.settle(popped) != Some(true) {
            return Next::Empty;
        }
        frame.resets = self.resets();
        let opened = self.open(memory, frame);
        match self.settle_chain(frame.queue, opened) {
            Some(true) => Next::Frame,
            Some(false) => {
                self.sent(memory, frame);
                Next::Refused
            }
            None => Next::Empty,
        }
    }

    /// Gives a frame's buffers back to the driver, whether it arrived or not. A frame from before
    /// the last reset is dropped: its driver is gone.
    pub fn sent(&mut self, memory: &impl GuestMemory, frame: &Frame) {
        let Some(queue) = self.queue_of(frame) else {
            return;
        };
        let queue = &mut self.queues[queue];
        let pushed = queue.push_used(memory, frame.chain.head(), 0);
        self.settle(pushed);
    }

    /// Whether the driver that sent a frame is still there; else its memory is not the device's any more.
    pub fn awaits(&self, frame: &Frame) -> bool {
        self.queue_of(frame).is_some()
    }

    /// The queue that a frame's buffers go back to, if its driver is still there.
    pub(crate) fn queue_of(&self, frame: &Frame) -> Option<usize> {
        (frame.resets == self.resets() && self.is_live()).then_some(frame.queue)
    }

    /// A frame that was not sent is to be taken anew.
    pub fn unsend(&mut self, frame: &Frame) {
        if let Some(queue) = self.queue_of(frame) {
            self.queues[queue].put_back(1);
        }
    }

    /// How many frames were sent that the driver was not told of, or as many as can be counted.
    pub fn untold(&self) -> u16 {
        let untold = |pair| self.queues[transmit_queue(pair)].unsignalled();
        (0..self.pairs()).map(untold).fold(0, u16::saturating_add)
    }

    /// Tells the driver of all frames that were sent, if it wants to know.
    pub fn signal_sent(&mut self, memory: &impl GuestMemory) {
        for pair in 0..self.pairs() {
            self.signal(memory, transmit_queue(pair));
        }
    }

    /// Reads header and head; `false` where the frame is none.
    fn open(&self, memory: &impl GuestMemory, frame: &mut Frame) -> Result<bool, QueueError> {
        let chain = &mut frame.chain;
        if chain.writable_bytes() > 0 {
            return Err(QueueError::Truncated);
        }
        // Both at once: Linux has them one behind the other.
        let bytes = chain.readable_bytes().checked_sub(HEADER_BYTES as u32);
        let bytes = bytes.ok_or(QueueError::Truncated)?;
        frame.bytes = bytes;
        if !(ETHERNET_BYTES..=FRAME_MAX).contains(&bytes) {
            return Ok(false);
        }
        let read = chain.read(memory, &mut frame.start)?;
        frame.head_bytes = read - HEADER_BYTES;
        let (header, head) = frame.start.split_at(HEADER_BYTES);
        let (Ok(header), head) = (header.try_into(), &head[..frame.head_bytes]) else {
            return Ok(false);
        };
        let Ok(offload) = Offload::parse(header, head, frame.bytes, self.negotiated()) else {
            return Ok(false);
        };
        frame.offload = offload;
        Ok(offload.gso.is_some() || frame.bytes <= self.device.wire_max())
    }
}

fn transmit_queue(pair: u16) -> usize {
    2 * usize::from(pair) + 1
}

/// A number made of addresses and ports, for frames of TCP and UDP without IP options; 0 for others.
pub fn flow(head: &[u8]) -> u32 {
    let (first, words) = match head.get(12..15) {
        Some([0x08, 0x00, 0x45]) => (26, 3),
        Some([0x86, 0xdd, _]) => (22, 9),
        _ => return 0,
    };
    let words = head.get(first..first + 4 * words).unwrap_or_default();
    let mix = |hash: u32, word: &[u8; 4]| {
        (hash ^ u32::from_be_bytes(*word))
            .wrapping_mul(0x9e37_79b1)
            .rotate_left(15)
    };
    words.as_chunks().0.iter().fold(0, mix)
}
