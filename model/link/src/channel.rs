//! Sealing and opening of a session's frames, each once.

use crate::cipher::{Cipher, Iv, Suite};
use crate::keys::{Secret, Stamps};
use abi::link::{BODY_AT, SLOTS_MAX, TAG_BYTES};

/// Counters that the window has bits for.
const WINDOW_BITS: u64 = 1024;
/// A frame so far behind the highest that has come may have come, too. Those of both windows are in flight at once, and
/// acknowledgements.
const BEHIND_MAX: u64 = WINDOW_BITS - 64;
const _: () = assert!(BEHIND_MAX >= 3 * SLOTS_MAX as u64);

/// Seals frames to the peer and opens those from it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Channel<C> {
    /// `None` where frames are open.
    secret: Option<Secret>,
    suite: Suite,
    /// This host, and the peer.
    hosts: [u8; 2],
    /// Those of this host, and of the peer.
    stamps: Option<[Stamps; 2]>,
    sealing: Option<C>,
    /// Counter of the last frame that was sealed.
    pub(crate) sealed: u64,
    /// Keys of the peer's generation and the next; generation `n` stands at `n % 2`.
    opening: [Option<C>; 2],
    generation: u64,
    /// Highest counter that has come, under a stamp.
    pub(crate) seen: u64,
    /// Bit `n % WINDOW_BITS` says that counter `n` has come, of the last [`BEHIND_MAX`].
    window: [u64; WINDOW_BITS as usize / 64],
}

impl<C: Cipher> Channel<C> {
    pub(crate) fn new(secret: Option<Secret>, suite: Suite, hosts: [u8; 2]) -> Self {
        let mut first = [0; _];
        first[0] = 1;
        let make = |from, generation| cipher(secret.as_ref(), suite, from, generation);
        Self {
            sealing: make(hosts[0], 0),
            sealed: 0,
            opening: [0, 1].map(|generation| make(hosts[1], generation)),
            generation: 0,
            seen: 0,
            window: first,
            stamps: secret.as_ref().map(|it| hosts.map(|from| it.stamps(from))),
            secret,
            suite,
            hosts,
        }
    }

    /// Returns the cipher, unless frames are open.
    pub(crate) fn suite(&self) -> Option<Suite> {
        self.secret.as_ref().map(|_| self.suite)
    }

    /// Takes a counter for the next frame, so that no nonce is used twice. At 10^7 frames a second, 64 bits last for 50,000
    /// years.
    pub(crate) fn next(&mut self) -> u64 {
        self.sealed += 1;
        if self.sealed.trailing_zeros() >= C::FRAMES_PER_KEY_LOG2 {
            let generation = self.sealed >> C::FRAMES_PER_KEY_LOG2;
            self.sealing = self.cipher(self.hosts[0], generation);
        }
        self.sealed
    }

    /// Returns the stamp of this host's frame with that counter.
    pub(crate) fn stamp(&self, counter: u64) -> u64 {
        self.stamps.as_ref().map_or(0, |[own, _]| own.of(counter))
    }

    /// Returns whether that is the stamp of the peer's frame with that counter.
    pub(crate) fn is_stamped(&self, counter: u64, stamp: u64) -> bool {
        let stamps = self.stamps.as_ref();
        stamps.is_none_or(|[_, peers]| peers.of(counter) == stamp)
    }

    /// Seals a frame under the counter that was taken last; the tag goes to its last bytes.
    pub(crate) fn seal(&self, frame: &mut [u8]) {
        let (head, rest) = frame.split_at_mut(BODY_AT);
        let (body, tag) = rest.split_at_mut(rest.len() - TAG_BYTES);
        let sealing = self.sealing.as_ref();
        let sealed = sealing.map(|it| it.seal(&nonce(self.sealed), head, body));
        tag.copy_from_slice(&sealed.unwrap_or_default());
    }

    /// Returns whether a frame with that counter may be opened: new, not too old, and under a key that is known.
    pub(crate) fn may_open(&self, counter: u64) -> bool {
        let generations = (counter >> C::FRAMES_PER_KEY_LOG2).wrapping_sub(self.generation);
        let (word, bit) = place(counter);
        let is_kept = self.seen.saturating_sub(counter) < BEHIND_MAX;
        let is_new = counter > self.seen || is_kept && self.window[word] >> bit & 1 == 0;
        generations < 2 && is_new
    }

    /// Opens a frame that may be opened and bears the peer's stamp; returns its body, or `None` if its sender does not have the
    /// key. No other frame with that counter may be opened then, so that nobody has more opened than the peer has sealed.
    pub(crate) fn open<'f>(&mut self, counter: u64, frame: &'f mut [u8]) -> Option<&'f [u8]> {
        self.mark(counter);
        let (head, rest) = frame.split_at_mut_checked(BODY_AT)?;
        let (body, tag) = rest.split_last_chunk_mut::<TAG_BYTES>()?;
        let generation = counter >> C::FRAMES_PER_KEY_LOG2;
        let opening = self.opening[(generation % 2) as usize].as_ref();
        if opening.is_some_and(|it| !it.open(&nonce(counter), head, body, tag)) {
            return None;
        }
        if generation > self.generation {
            let next = self.cipher(self.hosts[1], generation + 1);
            self.opening[(self.generation % 2) as usize] = next;
            self.generation = generation;
        }
        Some(body)
    }

    fn cipher(&self, from: u8, generation: u64) -> Option<C> {
        cipher(self.secret.as_ref(), self.suite, from, generation)
    }

    fn mark(&mut self, counter: u64) {
        for word in (self.seen / 64 + 1..=counter / 64).take(self.window.len()) {
            self.window[word as usize % self.window.len()] = 0;
        }
        self.seen = self.seen.max(counter);
        let (word, bit) = place(counter);
        self.window[word] |= 1 << bit;
    }
}

/// Word and bit of a counter in the window.
const fn place(counter: u64) -> (usize, u64) {
    ((counter % WINDOW_BITS) as usize / 64, counter % 64)
}

/// Makes the cipher of a host's frames in a generation.
fn cipher<C: Cipher>(
    secret: Option<&Secret>,
    suite: Suite,
    from: u8,
    generation: u64,
) -> Option<C> {
    Some(C::new(suite, &secret?.key(suite, from, generation)))
}

fn nonce(counter: u64) -> Iv {
    let mut nonce = Iv::default();
    nonce[..8].copy_from_slice(&counter.to_le_bytes());
    nonce
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ChaCha;
    use alloc::{collections::BTreeSet, vec::Vec};
    use proptest::prelude::*;

    /// Counters that come, each so far from the highest before.
    fn counters() -> impl Strategy<Value = Vec<i64>> {
        let near = prop_oneof![-2..=2_i64, -70..70_i64, -1100..1100_i64];
        let edge = (-2..=2_i64).prop_map(|off| -(BEHIND_MAX as i64) + off);
        let far = prop_oneof![Just(WINDOW_BITS as i64), 1000..5000_i64];
        prop::collection::vec(prop_oneof![4 => near, 2 => edge, 1 => far], 1..300)
    }

    proptest! {
        /// A frame is opened once, as long as fewer than so many have overtaken it.
        #[test]
        fn frames_are_opened_once(steps in counters()) {
            let mut channel = Channel::<ChaCha>::new(None, Suite::Aes, [0, 1]);
            let mut come = BTreeSet::from([0]);
            for step in steps {
                let counter = channel.seen.saturating_add_signed(step);
                let is_kept = channel.seen < counter + BEHIND_MAX;
                prop_assert_eq!(channel.may_open(counter), is_kept && !come.contains(&counter));
                if channel.may_open(counter) {
                    channel.mark(counter);
                    come.insert(counter);
                }
            }
        }
    }
}
