//! The cipher of a host whose CPUs have no instructions for it.

use hypervisor::outside::cluster::Gcm;
use model_link::{Aes128Gcm, Cipher};

const KEY: [u8; 16] = [7; 16];
const NONCE: [u8; 12] = [1; 12];
const HEAD: &[u8] = b"a frame's head";

/// It opens what another host sealed, and nothing of which one bit is another.
#[test]
fn one_wrong_bit_is_refused() {
    let sealer = Aes128Gcm::new(&KEY);
    let opener = Gcm::Portable(Aes128Gcm::new(&KEY));
    let sent = *b"a message between two hosts";
    let mut body = sent;
    let tag = sealer.seal(&NONCE, HEAD, &mut body);
    assert_ne!(body, sent);
    let frame = [&NONCE[..], HEAD, &body, &tag].concat();
    let opens = |frame: &[u8]| {
        let (nonce, rest) = frame.split_first_chunk().unwrap();
        let (head, rest) = rest.split_at(HEAD.len());
        let (body, tag) = rest.split_last_chunk().unwrap();
        let mut body = body.to_vec();
        opener.open(nonce, head, &mut body, tag).then_some(body)
    };
    assert_eq!(opens(&frame).as_deref(), Some(&sent[..]));
    for bit in 0..frame.len() * 8 {
        let mut frame = frame.clone();
        frame[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(opens(&frame), None, "bit {bit}");
    }
}
