//! Sealing and opening of a session's frames, each once.

use crate::cipher::{Cipher, Iv, Suite};
use crate::keys::Secret;
use crate::{Dropped, window::Window};
use abi::link::{BODY_AT, TAG_BYTES};

/// Seals frames to the peer and opens those from it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Channel<C> {
    /// `None` where frames are open.
    secret: Option<Secret>,
    suite: Suite,
    /// This host, and the peer.
    hosts: [u8; 2],
    /// Keys of stamps of this host, and of the peer.
    stamps: Option<[Secret; 2]>,
    sealing: Option<C>,
    /// Counter of the last frame that was sealed.
    pub(crate) sealed: u64,
    /// Keys of the peer's generation and the next; generation `n` stands at `n % 2`.
    opening: [Option<C>; 2],
    generation: u64,
    /// Counters of the peer's frames that were admitted, and of those that opened.
    admitted: Window,
    pub(crate) opened: Window,
}

impl<C: Cipher> Channel<C> {
    pub(crate) fn new(secret: Option<Secret>, suite: Suite, hosts: [u8; 2]) -> Self {
        let make = |from, generation| cipher(secret.as_ref(), suite, from, generation);
        Self {
            sealing: make(hosts[0], 0),
            sealed: 0,
            opening: [0, 1].map(|generation| make(hosts[1], generation)),
            generation: 0,
            admitted: Window::default(),
            opened: Window::default(),
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
        let stamps = self.stamps.as_ref();
        stamps.map_or(0, |[own, _]| own.stamp(counter))
    }

    /// Admits a frame of the peer: the first that comes with that counter, and with its stamp.
    pub(crate) fn admit(&mut self, counter: u64, stamp: u64) -> Result<(), Dropped> {
        if !self.is_new(counter, &self.admitted) {
            return Err(Dropped::Replayed);
        }
        let stamps = self.stamps.as_ref();
        if stamps.is_some_and(|[_, peers]| peers.stamp(counter) != stamp) {
            return Err(Dropped::Forged);
        }
        self.admitted.mark(counter);
        Ok(())
    }

    /// Seals a frame under the counter that was taken last; the tag goes to its last bytes.
    pub(crate) fn seal(&self, frame: &mut [u8]) {
        let (head, rest) = frame.split_at_mut(BODY_AT);
        let (body, tag) = rest.split_at_mut(rest.len() - TAG_BYTES);
        let sealing = self.sealing.as_ref();
        let sealed = sealing.map(|it| it.seal(&nonce(self.sealed), head, body));
        tag.copy_from_slice(&sealed.unwrap_or_default());
    }

    /// Opens a frame with a counter of which none has opened; returns its body.
    pub(crate) fn open<'f>(
        &mut self,
        counter: u64,
        frame: &'f mut [u8],
    ) -> Result<&'f [u8], Dropped> {
        if !self.is_new(counter, &self.opened) {
            return Err(Dropped::Replayed);
        }
        let parts = frame.split_at_mut_checked(BODY_AT);
        let parts = parts.and_then(|(head, rest)| Some((head, rest.split_last_chunk_mut()?)));
        let (head, (body, tag)) = parts.ok_or(Dropped::Forged)?;
        let generation = counter >> C::FRAMES_PER_KEY_LOG2;
        let opening = self.opening[(generation % 2) as usize].as_ref();
        if opening.is_some_and(|it| !it.open(&nonce(counter), head, body, tag)) {
            return Err(Dropped::Forged);
        }
        self.opened.mark(counter);
        if generation > self.generation {
            let next = self.cipher(self.hosts[1], generation + 1);
            self.opening[(self.generation % 2) as usize] = next;
            self.generation = generation;
        }
        Ok(body)
    }

    /// Returns whether a counter is new to a window, and under a key that is known.
    fn is_new(&self, counter: u64, window: &Window) -> bool {
        let generations = (counter >> C::FRAMES_PER_KEY_LOG2).wrapping_sub(self.generation);
        generations < 2 && window.is_new(counter)
    }

    fn cipher(&self, from: u8, generation: u64) -> Option<C> {
        cipher(self.secret.as_ref(), self.suite, from, generation)
    }
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
