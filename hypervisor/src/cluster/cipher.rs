//! The link's cipher by the CPU's instructions.

use arch::gcm::Key;
use model_link::{Cipher, Iv, KEY_BYTES, Tag};

/// AES-128-GCM. Made and used only where every CPU has the instructions, and no SVE state is anybody's.
#[derive(Clone)]
pub struct Gcm(Key);

impl Cipher for Gcm {
    // As the kept crate's: hosts must agree.
    const FRAMES_PER_KEY_LOG2: u32 = 24;

    fn new(key: &[u8; KEY_BYTES]) -> Self {
        Self(Key::new(key))
    }

    fn seal(&self, nonce: &Iv, head: &[u8], body: &mut [u8]) -> Tag {
        self.0.seal(nonce, head, body)
    }

    fn open(&self, nonce: &Iv, head: &[u8], body: &mut [u8], tag: &Tag) -> bool {
        self.0.open(nonce, head, body, tag)
    }
}
