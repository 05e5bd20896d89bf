//! Sealing and opening of a session's frames, each once.

use crate::cipher::{Cipher, IV_BYTES, TAG_BYTES};
use crate::keys::Secret;
use abi::link::BODY_AT;

const WINDOW_WORDS: u64 = 16;
/// Frames that are this far behind the latest are dropped.
const WINDOW: u64 = (WINDOW_WORDS - 1) * 64;

/// Counters that have come: a ring of bits whose oldest word is always stale (RFC 6479).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Window {
    highest: u64,
    seen: [u64; WINDOW_WORDS as usize],
}

impl Window {
    const fn place(counter: u64) -> (usize, u64) {
        ((counter / 64 % WINDOW_WORDS) as usize, 1 << (counter % 64))
    }

    fn is_new(&self, counter: u64) -> bool {
        let (word, bit) = Self::place(counter);
        counter > self.highest
            || self.highest - counter < WINDOW && counter > 0 && self.seen[word] & bit == 0
    }

    fn mark(&mut self, counter: u64) {
        let passed = (counter / 64).saturating_sub(self.highest / 64);
        for ahead in 1..=passed.min(WINDOW_WORDS) {
            self.seen[((self.highest / 64 + ahead) % WINDOW_WORDS) as usize] = 0;
        }
        let (word, bit) = Self::place(counter);
        self.seen[word] |= bit;
        self.highest = self.highest.max(counter);
    }
}

/// Seals frames to the peer and opens those from it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Channel<C> {
    secret: Secret,
    hosts: [u8; 2],
    sealing: C,
    sealed: u64,
    /// Keys of the peer's generation and the next; generation `n` stands at `n % 2`.
    opening: [C; 2],
    generation: u64,
    window: Window,
}

impl<C: Cipher> Channel<C> {
    /// Between `hosts`: this one, and the peer.
    pub(crate) fn new(secret: Secret, hosts: [u8; 2]) -> Self {
        Self {
            sealing: C::new(&secret.key(hosts[0], 0)),
            sealed: 0,
            opening: [0, 1].map(|generation| C::new(&secret.key(hosts[1], generation))),
            generation: 0,
            window: Window::default(),
            secret,
            hosts,
        }
    }

    /// Counter of the last frame that was sealed.
    pub(crate) const fn sealed(&self) -> u64 {
        self.sealed
    }

    /// Highest counter that has come.
    pub(crate) const fn seen(&self) -> u64 {
        self.window.highest
    }

    /// Takes a counter for the next frame, so that no nonce is used twice. At 10^7 frames a second, 64 bits last for 50,000
    /// years.
    pub(crate) fn next(&mut self) -> u64 {
        self.sealed += 1;
        if self.sealed.trailing_zeros() >= C::FRAMES_PER_KEY_LOG2 {
            let generation = self.sealed >> C::FRAMES_PER_KEY_LOG2;
            self.sealing = C::new(&self.secret.key(self.hosts[0], generation));
        }
        self.sealed
    }

    /// Seals a frame under the counter that was taken last; the tag goes to its last bytes.
    pub(crate) fn seal(&self, frame: &mut [u8]) {
        let (head, rest) = frame.split_at_mut(BODY_AT);
        let (body, tag) = rest.split_at_mut(rest.len() - TAG_BYTES);
        tag.copy_from_slice(&self.sealing.seal(&nonce(self.sealed), head, body));
    }

    /// Returns whether a frame with that counter may be opened: new, not too old, and under a key that is known.
    pub(crate) fn may_open(&self, counter: u64) -> bool {
        let ahead = (counter >> C::FRAMES_PER_KEY_LOG2).wrapping_sub(self.generation);
        ahead < 2 && self.window.is_new(counter)
    }

    /// Opens a frame that may be opened; returns its body, or `None` if its sender does not have the key.
    pub(crate) fn open<'f>(&mut self, counter: u64, frame: &'f mut [u8]) -> Option<&'f [u8]> {
        let (head, rest) = frame.split_at_mut_checked(BODY_AT)?;
        let (body, tag) = rest.split_last_chunk_mut::<TAG_BYTES>()?;
        let generation = counter >> C::FRAMES_PER_KEY_LOG2;
        let cipher = &self.opening[(generation % 2) as usize];
        if !cipher.open(&nonce(counter), head, body, tag) {
            return None;
        }
        self.window.mark(counter);
        if generation > self.generation {
            let key = self.secret.key(self.hosts[1], generation + 1);
            self.opening[(self.generation % 2) as usize] = C::new(&key);
            self.generation = generation;
        }
        Some(body)
    }
}

fn nonce(counter: u64) -> [u8; IV_BYTES] {
    let mut nonce = [0; IV_BYTES];
    nonce[..8].copy_from_slice(&counter.to_le_bytes());
    nonce
}

#[cfg(test)]
mod tests {
    use super::{WINDOW, Window};
    use std::collections::HashSet;

    #[test]
    fn every_counter_is_new_once() {
        let mut window = Window::default();
        let mut came = HashSet::new();
        let mut random = 1u64;
        let mut around = 1;
        for _ in 0..200_000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            around += [0, 1, 1, 2, 90][(random % 5) as usize];
            let counter = (around + random / 5 % 1200).saturating_sub(700);
            let is_near = counter > 0 && counter + WINDOW > window.highest;
            assert_eq!(window.is_new(counter), is_near && !came.contains(&counter));
            if window.is_new(counter) {
                window.mark(counter);
                came.insert(counter);
            }
        }
    }
}
