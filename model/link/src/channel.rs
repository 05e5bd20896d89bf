//! Sealing and opening of a session's frames, each once.

use crate::cipher::{Cipher, Iv};
use crate::keys::Secret;
use abi::link::{BODY_AT, TAG_BYTES};

/// Seals frames to the peer and opens those from it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Channel<C> {
    /// `None` where frames are open.
    secret: Option<Secret>,
    /// This host, and the peer.
    hosts: [u8; 2],
    sealing: Option<C>,
    /// Counter of the last frame that was sealed.
    pub(crate) sealed: u64,
    /// Keys of the peer's generation and the next; generation `n` stands at `n % 2`.
    opening: [Option<C>; 2],
    generation: u64,
    /// Highest counter that has come.
    pub(crate) seen: u64,
    /// Bit `n` says that counter `seen - n` has come.
    window: u128,
}

impl<C: Cipher> Channel<C> {
    pub(crate) fn new(secret: Option<Secret>, hosts: [u8; 2]) -> Self {
        Self {
            sealing: cipher(secret.as_ref(), hosts[0], 0),
            sealed: 0,
            opening: [0, 1].map(|generation| cipher(secret.as_ref(), hosts[1], generation)),
            generation: 0,
            seen: 0,
            window: 1,
            secret,
            hosts,
        }
    }

    /// Takes a counter for the next frame, so that no nonce is used twice. At 10^7 frames a second, 64 bits last for 50,000
    /// years.
    pub(crate) fn next(&mut self) -> u64 {
        self.sealed += 1;
        if self.sealed.trailing_zeros() >= C::FRAMES_PER_KEY_LOG2 {
            let generation = self.sealed >> C::FRAMES_PER_KEY_LOG2;
            self.sealing = cipher(self.secret.as_ref(), self.hosts[0], generation);
        }
        self.sealed
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
        let behind = self.seen.saturating_sub(counter);
        let is_new = counter > self.seen || behind < 128 && self.window >> behind & 1 == 0;
        generations < 2 && is_new
    }

    /// Opens a frame that may be opened; returns its body, or `None` if its sender does not have the key.
    pub(crate) fn open<'f>(&mut self, counter: u64, frame: &'f mut [u8]) -> Option<&'f [u8]> {
        let (head, rest) = frame.split_at_mut_checked(BODY_AT)?;
        let (body, tag) = rest.split_last_chunk_mut::<TAG_BYTES>()?;
        let generation = counter >> C::FRAMES_PER_KEY_LOG2;
        let opening = self.opening[(generation % 2) as usize].as_ref();
        if opening.is_some_and(|it| !it.open(&nonce(counter), head, body, tag)) {
            return None;
        }
        self.mark(counter);
        if generation > self.generation {
            let next = cipher(self.secret.as_ref(), self.hosts[1], generation + 1);
            self.opening[(self.generation % 2) as usize] = next;
            self.generation = generation;
        }
        Some(body)
    }

    fn mark(&mut self, counter: u64) {
        let ahead = counter.saturating_sub(self.seen).min(128);
        self.window = self.window.checked_shl(ahead as u32).unwrap_or(0);
        self.seen = self.seen.max(counter);
        self.window |= 1 << (self.seen - counter);
    }
}

/// Makes the cipher of a host's frames in a generation.
fn cipher<C: Cipher>(secret: Option<&Secret>, from: u8, generation: u64) -> Option<C> {
    Some(C::new(&secret?.key(from, generation)))
}

fn nonce(counter: u64) -> Iv {
    let mut nonce = Iv::default();
    nonce[..8].copy_from_slice(&counter.to_le_bytes());
    nonce
}
