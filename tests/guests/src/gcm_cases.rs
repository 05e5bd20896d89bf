//! Frames by which two ciphers are compared: `tests/guests` has the CPU's instructions, `model/link` the crate's code.

/// What a cipher must do.
pub trait Cipher {
    /// Takes a key.
    fn new(key: &[u8; 16]) -> Self;
    /// Encrypts in place and returns the tag.
    fn seal(&self, nonce: &[u8; 12], head: &[u8], body: &mut [u8]) -> [u8; 16];
    /// Decrypts in place and returns whether the tag is right.
    fn open(&self, nonce: &[u8; 12], head: &[u8], body: &mut [u8], tag: &[u8; 16]) -> bool;
}

/// The longest body.
pub const BODY_MAX: usize = 9000;
/// [`digest`] of the first 300 frames.
pub const DIGEST: u64 = 0xc201_bac1_6cbe_bc6c;

const EMPTY: u64 = 0xcbf2_9ce4_8422_2325;

fn add(digest: u64, bytes: &[u8]) -> u64 {
    let add = |digest: u64, byte: &u8| (digest ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(digest, add)
}

/// Seals frames of many lengths, each with another key, and opens each; returns a number that depends on all sealed bytes and tags,
/// or `None` if a frame does not open to what it was, or opens with a flipped bit.
pub fn digest<C: Cipher>(frames: u64, body: &mut [u8; BODY_MAX]) -> Option<u64> {
    let mut digest = EMPTY;
    let mut state = 1_u64;
    let mut number = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    for frame in 0..frames {
        let mut bytes = [0; 16 + 12 + 64];
        bytes.fill_with(|| number() as u8);
        let (key, rest) = bytes.split_at(16);
        let (nonce, head) = rest.split_at(12);
        let head = &head[..(number() % 65) as usize];
        // All lengths up to some blocks, then longer ones.
        let len = if frame < 200 {
            frame
        } else {
            number() % BODY_MAX as u64
        };
        let body = &mut body[..len as usize];
        body.fill_with(|| number() as u8);
        let mut fixed = ([0; 16], [0; 12]);
        fixed.0.copy_from_slice(key);
        fixed.1.copy_from_slice(nonce);
        let (cipher, nonce, plain) = (C::new(&fixed.0), &fixed.1, add(EMPTY, body));
        let tag = cipher.seal(nonce, head, body);
        digest = add(add(digest, body), &tag);
        let opens = cipher.open(nonce, head, body, &tag) && add(EMPTY, body) == plain;
        let mut sealed = cipher.seal(nonce, head, body);
        let bit = (digest % (8 * (len + 16))) as usize;
        let mut bytes = body.iter_mut().chain(&mut sealed);
        bytes
            .nth(bit / 8)
            .into_iter()
            .for_each(|byte| *byte ^= 1 << (bit % 8));
        if !opens || cipher.open(nonce, head, body, &sealed) {
            return None;
        }
    }
    Some(digest)
}
