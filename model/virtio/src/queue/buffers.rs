//! Buffers that are taken many at once, as a driver posts them for what comes in.

use super::{DESC_WRITE, Descriptor, Heads, Queue};
use crate::Segment;
use abi::state::queue::{EVENT_IDX, MUTED};
use machine_contract::GuestMemory;
use model_addr::Ipa;

/// Descriptors that are read at once, wherever they are in the table.
const AT_ONCE: usize = 16;

/// Descriptors that are read ahead, while a frame gets its buffers.
pub(crate) type Scratch = [u128; AT_ONCE];

impl Heads {
    /// Those from the one that the driver counts as `next`.
    #[inline]
    fn from(&self, next: u16) -> &[u16] {
        let ahead = next.wrapping_sub(self.first).into()..self.count.into();
        self.entries.get(ahead).unwrap_or_default()
    }
}

impl Queue {
    /// Takes chains that are one buffer to write each, as long as `take` says to go on, `expected` of them most likely;
    /// any other is for [`Self::pop`].
    #[inline]
    pub(crate) fn pop_buffers(
        &mut self,
        memory: &impl GuestMemory,
        (expected, raw): (usize, &mut Scratch),
        mut take: impl FnMut(u16, Segment) -> bool,
    ) {
        let is_ready = self.is_ready() && !self.armed && (self.has(EVENT_IDX) || self.has(MUTED));
        if !is_ready || !self.can_answer {
            return;
        }
        let table = (Ipa(self.state.descriptors), self.size());
        let mut goes_on = true;
        while goes_on && self.state.next_avail != self.seen_avail && self.head(memory).is_ok() {
            let heads = self.heads.from(self.state.next_avail);
            let heads = &heads[..expected.clamp(1, AT_ONCE).min(heads.len())];
            // One of them may be no descriptor: [`Self::pop`] finds out which.
            if memory.read_entries(table, heads, raw).is_err() {
                return;
            }
            let mut taken = 0;
            goes_on = false;
            for (head, raw) in heads.iter().zip(raw.iter()) {
                let Descriptor { segment, flags, .. } = Descriptor::decode(*raw);
                let (ipa, len) = (segment.ipa, u64::from(segment.len));
                let is_buffer = flags == DESC_WRITE && len > 0 && ipa.checked_add(len).is_some();
                goes_on =
                    is_buffer && memory.contains(ipa, len) && memory.ready(ipa, len, true) == len;
                if goes_on {
                    taken += 1;
                    goes_on = take(*head, segment);
                }
                if !goes_on {
                    break;
                }
            }
            self.take_next(taken);
        }
    }
}
