//! Ciphers of the link: the CPU's instructions, and a kept crate for sessions of a host that lacks them.

use crate::machine;
use arch::gcm::Key;
use model_link::{ChaCha, Cipher, Iv, KEY_BYTES, Suite, Tag};

/// A key of either suite.
#[derive(Clone)]
#[expect(clippy::large_enum_variant, reason = "most have the larger")]
pub enum Sealer {
    /// By the instructions of every CPU, while no SVE state is anybody's.
    Aes(Key),
    /// Without them, for thirteen times as many others (docs/decisions/0120).
    ChaCha(ChaCha),
}

/// Returns the best suite of this machine, by what `ID_AA64ISAR0_EL1` tells guests and EL2 of AES and PMULL in every CPU.
pub fn best() -> Suite {
    if machine::guest_id(6, 0) >> 4 & 0xf >= 2 {
        Suite::Aes
    } else {
        Suite::ChaCha
    }
}

impl Cipher for Sealer {
    // 2^24 frames of 9,000 bytes are 2^33 blocks: an observer tells AES-GCM's from noise with probability 2^-62. ChaCha20 could
    // have more, but hosts must agree.
    const FRAMES_PER_KEY_LOG2: u32 = 24;

    fn new(suite: Suite, key: &[u8; KEY_BYTES]) -> Self {
        match (suite, key.first_chunk()) {
            (Suite::Aes, Some(key)) => Self::Aes(Key::new(key)),
            _ => Self::ChaCha(ChaCha::new(suite, key)),
        }
    }

    fn seal(&self, nonce: &Iv, head: &[u8], body: &mut [u8]) -> Tag {
        match self {
            Self::Aes(key) => key.seal(nonce, head, body),
            Self::ChaCha(key) => key.seal(nonce, head, body),
        }
    }

    fn open(&self, nonce: &Iv, head: &[u8], body: &mut [u8], tag: &Tag) -> bool {
        match self {
            Self::Aes(key) => key.open(nonce, head, body, tag),
            Self::ChaCha(key) => key.open(nonce, head, body, tag),
        }
    }
}
