//! Probes: messages by which people measure the link to a host. Its host answers the last one of a probe with a digest of
//! all, so that a page that was lost, changed or moved is seen.

use abi::cluster::{PROBE, PROBED, Probe};
use model_link::Lane;
use xxhash_rust::xxh64::xxh64;
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of a bulk message behind its header.
pub const PAGE_BYTES: usize = 4096;

/// Contents of pages: that of message `n` begins at byte `n`.
static PATTERN: [u8; 2 * PAGE_BYTES] = {
    let (mut bytes, mut n) = ([0; 2 * PAGE_BYTES], 0);
    while n < bytes.len() {
        bytes[n] = ((n * n * 37) >> 9 ^ n) as u8;
        n += 1;
    }
    bytes
};

/// The latest probe to a host, and what has come of one from it.
#[derive(Clone, Debug, Default)]
pub struct Probes {
    /// Messages that are still to be queued, and all of them.
    pub left: u32,
    all: u32,
    lane: Option<Lane>,
    /// When the first message was queued, and when the answer came; 0 before that, in nanoseconds.
    pub times: [u64; 2],
    /// The answer has the digest of what was sent.
    pub is_whole: bool,
    /// Digests of what was sent, and of what has come.
    digests: [u64; 2],
    /// Number of the message that is to be answered.
    owed: Option<u32>,
    /// The link had no room.
    pub(crate) waits: bool,
}

impl Probes {
    /// Begins a probe of messages on a lane; those on the bulk lane have a page.
    pub(crate) fn begin(&mut self, messages: u32, lane: Lane) {
        (self.left, self.all, self.lane) = (messages, messages, Some(lane));
        (self.times, self.is_whole, self.digests[0], self.waits) = ([0; 2], false, 0, false);
    }

    /// Returns whether there is something to queue, and may be room for it.
    pub(crate) fn is_due(&self) -> bool {
        !self.waits && (self.left > 0 || self.owed.is_some())
    }

    /// Takes a message of the host's probe, or its answer.
    pub fn receive(&mut self, now_ns: u64, message: &[u8]) {
        let Ok((head, page)) = Probe::ref_from_prefix(message) else {
            return;
        };
        let number = head.number.get();
        if head.kind == PROBED {
            if self.left == 0 && self.times[1] == 0 && self.all.checked_sub(1) == Some(number) {
                self.times[1] = now_ns;
                self.is_whole = head.digest.get() == self.digests[0];
            }
            return;
        }
        let before = if number == 0 { 0 } else { self.digests[1] };
        self.digests[1] = digest(before, head, page);
        if head.asks == 1 {
            self.owed = Some(number);
        }
    }

    /// Queues what is due; `false` if nothing is, or there is no room.
    pub(crate) fn send(
        &mut self,
        now_ns: u64,
        queue: impl FnOnce(Lane, [&[u8]; 2]) -> bool,
    ) -> bool {
        if !self.is_due() {
            return false;
        }
        let number = self.owed.unwrap_or(self.all - self.left);
        let mut head = Probe {
            kind: PROBE,
            asks: u8::from(self.left == 1),
            zeroes: [0; 2],
            number: number.into(),
            digest: 0.into(),
        };
        let (mut lane, mut page) = (Lane::Urgent, &[][..]);
        if self.owed.is_some() {
            (head.kind, head.digest) = (PROBED, self.digests[1].into());
        } else if self.lane == Some(Lane::Bulk) {
            (lane, page) = (
                Lane::Bulk,
                &PATTERN[number as usize % PAGE_BYTES..][..PAGE_BYTES],
            );
        }
        self.waits = !queue(lane, [head.as_bytes(), page]);
        if self.waits || self.owed.take().is_some() {
            return !self.waits;
        }
        if number == 0 {
            self.times[0] = now_ns;
        }
        self.digests[0] = digest(self.digests[0], &head, page);
        self.left -= 1;
        true
    }
}

/// Returns the digest of all before and of a message.
fn digest(before: u64, head: &Probe, page: &[u8]) -> u64 {
    xxh64(page, xxh64(head.as_bytes(), before))
}
