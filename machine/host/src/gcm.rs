//! AES-128-GCM as the CPU's instructions have it, by a kept crate.

use aes_gcm::aead::inout::InOutBuf;
use aes_gcm::{AeadInOut, Aes128Gcm, KeyInit};

/// A key.
#[derive(Clone)]
pub struct Key(Aes128Gcm);

impl Key {
    /// Makes the key.
    pub fn new(key: &[u8; 16]) -> Self {
        Self(Aes128Gcm::new(key.into()))
    }

    /// Encrypts `body` in place and returns the tag; zeroes, which nobody takes, if it is too long.
    pub fn seal(&self, nonce: &[u8; 12], head: &[u8], body: &mut [u8]) -> [u8; 16] {
        let tag = self
            .0
            .encrypt_inout_detached(nonce.into(), head, InOutBuf::from(body));
        tag.map_or([0; 16], Into::into)
    }

    /// Decrypts `body` in place; returns whether the tag is right. Else `body` is of no use.
    pub fn open(&self, nonce: &[u8; 12], head: &[u8], body: &mut [u8], tag: &[u8; 16]) -> bool {
        let opened =
            self.0
                .decrypt_inout_detached(nonce.into(), head, InOutBuf::from(body), tag.into());
        opened.is_ok()
    }
}
