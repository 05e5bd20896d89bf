//! AES-128-GCM by the CPU's instructions, as `machine/aarch64` has it: NIST's vectors, forgeries, and frames of all lengths
//! whose digest the crate's code gives as well (`machine/host/tests/gcm.rs`).
//!
//! Command line: `clock_ns=N` nanoseconds of an instruction, where a clock counts them; then a page must take at most three
//! instructions a byte.
#![no_std]
#![no_main]
#![forbid(unsafe_code)]

#[path = "gcm_cases.rs"]
mod gcm_cases;

use gcm_cases::{BODY_MAX, Cipher, DIGEST, digest};
use machine_bare::gcm::{Key, is_there};
use machine_bare::machine::Machine;
use machine_bare::verdict::{Verdict, check, equal};
use machine_bare::{image, println, timer};

image!("gcm", main);

impl Cipher for Key {
    fn new(key: &[u8; 16]) -> Self {
        Self::new(key)
    }

    fn seal(&self, nonce: &[u8; 12], head: &[u8], body: &mut [u8]) -> [u8; 16] {
        self.seal(nonce, head, body)
    }

    fn open(&self, nonce: &[u8; 12], head: &[u8], body: &mut [u8], tag: &[u8; 16]) -> bool {
        self.open(nonce, head, body, tag)
    }
}

const fn digit(text: u8) -> u8 {
    match text {
        b'0'..=b'9' => text - b'0',
        _ => text - b'a' + 10,
    }
}

const fn hex<const N: usize>(text: &str) -> [u8; N] {
    let text = text.as_bytes();
    assert!(text.len() == 2 * N);
    let mut bytes = [0; N];
    let mut n = 0;
    while n < N {
        bytes[n] = digit(text[2 * n]) << 4 | digit(text[2 * n + 1]);
        n += 1;
    }
    bytes
}

/// Seals and opens a test case of McGrew and Viega's "The Galois/Counter Mode of Operation", which NIST took over.
fn case<const N: usize>(
    key: &str,
    nonce: &str,
    head: &[u8],
    text: &str,
    sealed: &str,
    tag: &str,
) -> Verdict {
    let (plain, sealed): ([u8; N], [u8; N]) = (hex(text), hex(sealed));
    let (key, nonce, right) = (Key::new(&hex(key)), hex(nonce), hex(tag));
    let mut body = plain;
    check(
        key.seal(&nonce, head, &mut body) == right,
        "the tag is wrong",
    )?;
    check(body == sealed, "the bytes are sealed wrongly")?;
    check(
        key.open(&nonce, head, &mut body, &right),
        "the right tag does not open",
    )?;
    check(body == plain, "the bytes are opened wrongly")?;
    for bit in 0..128 {
        let (mut body, mut wrong) = (sealed, right);
        wrong[bit / 8] ^= 1 << (bit % 8);
        check(
            !key.open(&nonce, head, &mut body, &wrong),
            "a wrong tag opens",
        )?;
    }
    Ok(())
}

fn main(machine: &'static Machine) -> Verdict {
    check(is_there(), "the CPU has no AES and PMULL")?;
    let zero = "00000000000000000000000000000000";
    let nonce = "000000000000000000000000";
    case::<0>(zero, nonce, &[], "", "", "58e2fccefa7e3061367f1d57a4e7455a")?;
    let sealed = "0388dace60b6a392f328c2b971b2fe78";
    case::<16>(
        zero,
        nonce,
        &[],
        zero,
        sealed,
        "ab6e47d42cec13bdf53a67b21257bddf",
    )?;
    let (key, nonce) = (
        "feffe9928665731c6d6a8f9467308308",
        "cafebabefacedbaddecaf888",
    );
    let text = "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255";
    let sealed = "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091473f5985";
    case::<64>(
        key,
        nonce,
        &[],
        text,
        sealed,
        "4d5c2af327cd64a62cf35abd2ba6fab4",
    )?;
    let head: [u8; 20] = hex("feedfacedeadbeeffeedfacedeadbeefabaddad2");
    case::<60>(
        key,
        nonce,
        &head,
        &text[..120],
        &sealed[..120],
        "5bc94fbc3221a5db94fae95ae7121a47",
    )?;
    let mut body = [0; BODY_MAX];
    let found = digest::<Key>(300, &mut body);
    check(found.is_some(), "a frame opens wrongly")?;
    equal("the digest of many frames", found.unwrap_or(0), DIGEST)?;
    measure(&mut body, machine.number("clock_ns", 0))
}

fn measure(body: &mut [u8; BODY_MAX], clock_ns: u64) -> Verdict {
    const TIMES: u64 = 64;
    if clock_ns == 0 {
        return Ok(());
    }
    let key = Key::new(&[7; 16]);
    for len in [64, 1380, 4128, 8960] {
        for opens in [false, true] {
            let begin = timer::now();
            for _ in 0..TIMES {
                let (nonce, head, body) = (&[1; 12], &[2; 34], &mut body[..len]);
                if opens {
                    // A wrong tag takes as long as the right one.
                    key.open(nonce, head, body, &[0; 16]);
                } else {
                    key.seal(nonce, head, body);
                }
            }
            let ns = (timer::now() - begin) * 1_000_000_000 / timer::frequency();
            let instructions = ns / clock_ns / TIMES;
            let how = if opens { "opened" } else { "sealed" };
            println!("gcm: {len} bytes take {instructions} instructions to be {how}");
            let is_page = len == 4128;
            check(
                !is_page || instructions <= 3 * len as u64,
                "more than three instructions a byte",
            )?;
        }
    }
    Ok(())
}
