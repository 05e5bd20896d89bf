//! The ciphers of a host, by suite.

use hypervisor::outside::cluster::Sealer;
use machine_host::gcm::Key;
use model_link::{ChaCha, Cipher, KEY_BYTES, Suite};

const KEY: [u8; KEY_BYTES] = [7; _];
const NONCE: [u8; 12] = [1; 12];
const HEAD: &[u8] = b"a frame's head";

/// Each is the cipher that its suite names, by the crate that other hosts' tests have.
#[test]
fn suites_are_what_they_are_called() {
    let sealed = |seal: &dyn Fn(&mut [u8]) -> [u8; 16]| {
        let mut body = [3; 100];
        let tag = seal(&mut body);
        (body, tag)
    };
    let by_suite = |suite| {
        let sealer = Sealer::new(suite, &KEY);
        sealed(&|body| sealer.seal(&NONCE, HEAD, body))
    };
    let chacha = ChaCha::new(Suite::ChaCha, &KEY);
    assert_eq!(
        by_suite(Suite::ChaCha),
        sealed(&|body| chacha.seal(&NONCE, HEAD, body))
    );
    let aes = Key::new(&[7; 16]);
    assert_eq!(
        by_suite(Suite::Aes),
        sealed(&|body| aes.seal(&NONCE, HEAD, body))
    );
}

/// One opens what another host sealed, and nothing of which one bit is another.
#[test]
fn one_wrong_bit_is_refused() {
    for suite in [Suite::Aes, Suite::ChaCha] {
        let [sealer, opener] = [(); 2].map(|()| Sealer::new(suite, &KEY));
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
}
