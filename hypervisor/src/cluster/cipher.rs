//! The link's cipher: the CPU's instructions, or a kept crate where a CPU has none.

use crate::machine;
use arch::gcm::Key;
use model_link::{Aes128Gcm, Cipher, Iv, KEY_BYTES, Tag};

/// AES-128-GCM.
#[derive(Clone)]
pub enum Gcm {
    /// By the instructions of every CPU, while no SVE state is anybody's.
    Cpu(Key),
    /// Without them, for 17 to 20 times as many others (docs/decisions/0092).
    Portable(Aes128Gcm),
}

/// Returns whether every CPU has AES and PMULL, as `ID_AA64ISAR0_EL1` tells guests and EL2.
pub fn is_in_cpus() -> bool {
    machine::guest_id(6, 0) >> 4 & 0xf >= 2
}

impl Cipher for Gcm {
    // Hosts must agree, whichever they have.
    const FRAMES_PER_KEY_LOG2: u32 = Aes128Gcm::FRAMES_PER_KEY_LOG2;

    fn new(key: &[u8; KEY_BYTES]) -> Self {
        if is_in_cpus() {
            Self::Cpu(Key::new(key))
        } else {
            Self::Portable(Aes128Gcm::new(key))
        }
    }

    fn seal(&self, nonce: &Iv, head: &[u8], body: &mut [u8]) -> Tag {
        match self {
            Self::Cpu(key) => key.seal(nonce, head, body),
            Self::Portable(key) => key.seal(nonce, head, body),
        }
    }

    fn open(&self, nonce: &Iv, head: &[u8], body: &mut [u8], tag: &Tag) -> bool {
        match self {
            Self::Cpu(key) => key.open(nonce, head, body, tag),
            Self::Portable(key) => key.open(nonce, head, body, tag),
        }
    }
}
