//! Keys and tags derived from the cluster's key by keyed BLAKE2s (RFC 7693).

use crate::cipher::{KEY_BYTES, Suite};
use abi::link::{HELLO_BYTES, NONCE_BYTES, TAG_BYTES};
use blake2::Blake2sMac256;
use blake2::digest::{KeyInit, Mac};
use core::{array, fmt};
use siphasher::sip::SipHasher24;

/// Random number that its host has never used before.
pub type Nonce = [u8; NONCE_BYTES];

/// Secret from which keys are derived: the cluster's, which all its hosts have, or a session's.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Secret(pub [u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// Returns the MAC of parts whose lengths depend on the label alone. Each purpose has a label of its own.
    fn mac(&self, label: u8, parts: &[&[u8]]) -> Blake2sMac256 {
        let mac = Blake2sMac256::new(&self.0.into()).chain_update([label]);
        parts.iter().fold(mac, Mac::chain_update)
    }

    /// Writes the tag of a hello to its end.
    pub(crate) fn tag(&self, hello: &mut [u8; HELLO_BYTES]) {
        let (head, tag) = hello.split_at_mut(HELLO_BYTES - TAG_BYTES);
        let whole = self.mac(1, &[head]).finalize().into_bytes();
        tag.copy_from_slice(&whole[..TAG_BYTES]);
    }

    /// Returns whether the tag of a hello is right, in constant time.
    pub(crate) fn has_tagged(&self, hello: &[u8]) -> bool {
        let (head, tag) = hello.split_at(HELLO_BYTES - TAG_BYTES);
        self.mac(1, &[head]).verify_truncated_left(tag).is_ok()
    }

    /// Derives a session's secret from the epoch, and the number and a nonce of each host.
    pub(crate) fn session(&self, epoch: u32, mut hosts: [(u8, &Nonce); 2]) -> Self {
        hosts.sort_unstable();
        let [(low, low_nonce), (high, high_nonce)] = hosts;
        let numbers = [low, high];
        let mac = self.mac(2, &[&epoch.to_le_bytes(), &numbers, low_nonce, high_nonce]);
        Self(mac.finalize().into_bytes().into())
    }

    /// Derives the key of a host's stamps.
    pub(crate) fn stamps(&self, from: u8) -> Self {
        Self(self.mac(5, &[&[from]]).finalize().into_bytes().into())
    }

    /// Returns the stamp of a counter under such a key: a proof that the host has sealed a frame with it.
    pub(crate) fn stamp(&self, counter: u64) -> u64 {
        let key = array::from_fn(|n| self.0[n]);
        SipHasher24::new_with_key(&key).hash(&counter.to_le_bytes())
    }

    /// Derives the key of a host's frames in a generation, for a cipher.
    pub(crate) fn key(&self, suite: Suite, from: u8, generation: u64) -> [u8; KEY_BYTES] {
        let label = match suite {
            Suite::Aes => 3,
            Suite::ChaCha => 4,
        };
        let mac = self.mac(label, &[&[from], &generation.to_le_bytes()]);
        mac.finalize().into_bytes().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ninth of the vectors of SipHash-2-4's reference: bytes 0 to 7 under a key of bytes 0 to 15.
    #[test]
    fn stamps_are_those_of_siphash() {
        let key = Secret(array::from_fn(|n| n as u8));
        let counter = u64::from_le_bytes(array::from_fn(|n| n as u8));
        assert_eq!(key.stamp(counter), 0x93f5_f579_9a93_2462);
    }

    #[test]
    fn hosts_of_a_session_stamp_by_different_keys() {
        let [one, other] = [0, 1].map(|from| Secret([7; 32]).stamps(from));
        assert_ne!(one.0[..16], other.0[..16]);
        assert_ne!(one.0[..8], one.0[8..16]);
    }
}
