//! Authenticated ciphers that seal frames.

use abi::link::{NO_AES, TAG_BYTES};
use chacha20poly1305::{AeadInOut, KeyInit, aead::inout::InOutBuf};

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;
/// Nonce of the cipher.
pub type Iv = [u8; 12];
/// Tag of the cipher.
pub type Tag = [u8; TAG_BYTES];

/// Cipher of a session, which both hosts must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Suite {
    /// AES-128-GCM (NIST SP 800-38D), with the first 16 bytes of a key: where all CPUs of both hosts have it.
    Aes,
    /// ChaCha20-Poly1305 (RFC 8439), which takes half the instructions where a CPU has no AES.
    ChaCha,
}

impl Suite {
    /// Bits of a frame's version that say so.
    pub(crate) const fn bit(self) -> u8 {
        match self {
            Self::Aes => 0,
            Self::ChaCha => NO_AES,
        }
    }

    /// Returns the suite of a session between hosts of which these are the versions of frames.
    pub(crate) const fn of(versions: [u8; 2]) -> Self {
        match (versions[0] | versions[1]) & NO_AES {
            0 => Self::Aes,
            _ => Self::ChaCha,
        }
    }
}

/// An authenticated cipher that works in place. The link never gives one key the same nonce twice.
pub trait Cipher {
    /// log2 of the number of frames that are sealed with one key.
    const FRAMES_PER_KEY_LOG2: u32;

    /// Makes the cipher of this suite with this key.
    fn new(suite: Suite, key: &[u8; KEY_BYTES]) -> Self;

    /// Encrypts `body` and returns the tag over `head` and `body`.
    fn seal(&self, nonce: &Iv, head: &[u8], body: &mut [u8]) -> Tag;

    /// Decrypts `body` and returns `true` if `tag` is that of `head` and `body`; else `body` is of no use.
    fn open(&self, nonce: &Iv, head: &[u8], body: &mut [u8], tag: &Tag) -> bool;
}

/// ChaCha20-Poly1305 of the crate `chacha20poly1305`, whatever the suite.
#[derive(Clone)]
pub struct ChaCha(chacha20poly1305::ChaCha20Poly1305);

impl Cipher for ChaCha {
    // As many as AES-GCM may have, as hosts must agree.
    const FRAMES_PER_KEY_LOG2: u32 = 24;

    fn new(_: Suite, key: &[u8; KEY_BYTES]) -> Self {
        Self(chacha20poly1305::ChaCha20Poly1305::new(key.into()))
    }

    fn seal(&self, nonce: &Iv, head: &[u8], body: &mut [u8]) -> Tag {
        let body = InOutBuf::from(body);
        // An error says that a frame is longer than 256 GiB. Zeroes are a tag that nobody takes.
        let tag = self.0.encrypt_inout_detached(nonce.into(), head, body);
        tag.map_or([0; TAG_BYTES], Into::into)
    }

    fn open(&self, nonce: &Iv, head: &[u8], body: &mut [u8], tag: &Tag) -> bool {
        let body = InOutBuf::from(body);
        let (nonce, tag) = (nonce.into(), tag.into());
        let opened = self.0.decrypt_inout_detached(nonce, head, body, tag);
        opened.is_ok()
    }
}
