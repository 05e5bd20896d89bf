//! Authenticated ciphers that seal frames.

use abi::link::TAG_BYTES;
use aes_gcm::{AeadInOut, KeyInit, aead::inout::InOutBuf};

/// Bytes of a key.
pub const KEY_BYTES: usize = 16;
/// Nonce of the cipher.
pub type Iv = [u8; 12];
/// Tag of the cipher.
pub type Tag = [u8; TAG_BYTES];

/// An authenticated cipher that works in place. The link never gives one key the same nonce twice.
pub trait Cipher {
    /// log2 of the number of frames that are sealed with one key.
    const FRAMES_PER_KEY_LOG2: u32;

    /// Makes the cipher with this key.
    fn new(key: &[u8; KEY_BYTES]) -> Self;

    /// Encrypts `body` and returns the tag over `head` and `body`.
    fn seal(&self, nonce: &Iv, head: &[u8], body: &mut [u8]) -> Tag;

    /// Decrypts `body` and returns `true` if `tag` is that of `head` and `body`; else `body` is of no use.
    fn open(&self, nonce: &Iv, head: &[u8], body: &mut [u8], tag: &Tag) -> bool;
}

/// AES-128-GCM (NIST SP 800-38D) of the crate `aes-gcm`, for CPUs without FEAT_AES and FEAT_PMULL, and for tests.
#[derive(Clone, Debug)]
pub struct Aes128Gcm(aes_gcm::Aes128Gcm);

impl Cipher for Aes128Gcm {
    // 2^24 frames of 9,000 bytes are 2^33 blocks: an observer tells them from noise with probability 2^-62.
    const FRAMES_PER_KEY_LOG2: u32 = 24;

    fn new(key: &[u8; KEY_BYTES]) -> Self {
        Self(aes_gcm::Aes128Gcm::new(key.into()))
    }

    fn seal(&self, nonce: &Iv, head: &[u8], body: &mut [u8]) -> Tag {
        let body = InOutBuf::from(body);
        // An error says that a frame is longer than 64 GiB. Zeroes are a tag that nobody takes.
        let tag = self.0.encrypt_inout_detached(nonce.into(), head, body);
        tag.map_or([0; TAG_BYTES], Into::into)
    }

    fn open(&self, nonce: &Iv, head: &[u8], body: &mut [u8], tag: &Tag) -> bool {
        let body = InOutBuf::from(body);
        let opened = self
            .0
            .decrypt_inout_detached(nonce.into(), head, body, tag.into());
        opened.is_ok()
    }
}
