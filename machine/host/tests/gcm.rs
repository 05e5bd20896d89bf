//! The crate's cipher gives what the CPU's instructions give (`tests/guests/src/gcm.rs`).

#[path = "../../../tests/guests/src/gcm_cases.rs"]
mod gcm_cases;

use gcm_cases::{BODY_MAX, Cipher, DIGEST, digest};
use machine_host::gcm::Key;

struct Crate(Key);

impl Cipher for Crate {
    fn new(key: &[u8; 16]) -> Self {
        Self(Key::new(key))
    }

    fn seal(&self, nonce: &[u8; 12], head: &[u8], body: &mut [u8]) -> [u8; 16] {
        self.0.seal(nonce, head, body)
    }

    fn open(&self, nonce: &[u8; 12], head: &[u8], body: &mut [u8], tag: &[u8; 16]) -> bool {
        self.0.open(nonce, head, body, tag)
    }
}

#[test]
fn the_digest_is_that_of_the_instructions() {
    let found = digest::<Crate>(300, &mut [0; BODY_MAX]);
    assert_eq!(found, Some(DIGEST), "{found:#x?}");
}
