//! AES-128-GCM (NIST SP 800-38D) by FEAT_AES and FEAT_PMULL. `machine/bare` has this file as well, for tests.

use crate::simd;
use core::arch::{asm, global_asm};
use core::hint::black_box;

global_asm!(include_str!("gcm.S"), options(raw));

unsafe extern "C" {
    fn gcm_key(key: *mut u8);
    fn gcm_run(job: *mut u8);
}

/// The longest associated data.
pub const HEAD_MAX: usize = 64;

/// Returns whether the CPU has the instructions (`ID_AA64ISAR0_EL1.AES`).
pub fn is_there() -> bool {
    let features: u64;
    // SAFETY: the register can be read at EL1 and EL2, and reading it changes nothing.
    unsafe {
        asm!("mrs {}, id_aa64isar0_el1", out(reg) features, options(nomem, nostack, preserves_flags));
    }
    features >> 4 & 0xf >= 2
}

/// A key, as the instructions need it: 11 round keys, 4 powers of the hash key, and their halves.
#[derive(Clone)]
#[repr(C, align(16))]
pub struct Key([u8; 17 * 16]);

/// What `gcm_run` works on; `gcm.S` knows the offsets.
#[repr(C, align(16))]
struct Job {
    key: *const Key,
    head: *const u8,
    head_blocks: usize,
    body: *mut u8,
    body_blocks: usize,
    opens: u64,
    /// What the body has behind whole blocks, and ones for its bytes.
    tail: [u8; 16],
    mask: [u8; 16],
    lengths: [[u8; 8]; 2],
    counter: [u8; 16],
    tag: [u8; 16],
    has_tail: u64,
}

const _: () = assert!(core::mem::offset_of!(Job, tail) == 48);
const _: () = assert!(core::mem::offset_of!(Job, tag) == 112);

impl Key {
    /// Makes the key. The CPU must have the instructions ([`is_there`]), and no SVE state may be loaded.
    pub fn new(key: &[u8; 16]) -> Self {
        let mut all = Self([0; 17 * 16]);
        all.0[..16].copy_from_slice(key);
        // SAFETY: `gcm_key` reads and writes a key.
        unsafe { simd::call(gcm_key, &mut all) };
        all
    }

    /// Encrypts `body` in place and returns the tag; zeroes, which nobody takes, if `head` is longer than [`HEAD_MAX`].
    pub fn seal(&self, nonce: &[u8; 12], head: &[u8], body: &mut [u8]) -> [u8; 16] {
        self.run(nonce, head, body, 0).unwrap_or_default()
    }

    /// Decrypts `body` in place; returns whether the tag is right, in constant time. Else `body` is of no use.
    pub fn open(&self, nonce: &[u8; 12], head: &[u8], body: &mut [u8], tag: &[u8; 16]) -> bool {
        let differs = |right: [u8; 16]| {
            let pairs = right.iter().zip(tag);
            black_box(pairs.fold(0, |all, (a, b)| all | (a ^ b)))
        };
        self.run(nonce, head, body, 1).map(differs) == Some(0)
    }

    fn run(&self, nonce: &[u8; 12], head: &[u8], body: &mut [u8], opens: u64) -> Option<[u8; 16]> {
        let mut padded = [0; HEAD_MAX];
        padded.get_mut(..head.len())?.copy_from_slice(head);
        let lengths = [head, body].map(|bytes| (8 * bytes.len() as u64).to_be_bytes());
        let body_blocks = body.len() / 16;
        let (whole, rest) = body.split_at_mut(16 * body_blocks);
        let mut job = Job {
            key: self,
            head: padded.as_ptr(),
            head_blocks: head.len().div_ceil(16),
            body: whole.as_mut_ptr(),
            body_blocks,
            opens,
            tail: [0; 16],
            mask: [0; 16],
            lengths,
            counter: [0; 16],
            tag: [0; 16],
            has_tail: u64::from(!rest.is_empty()),
        };
        job.tail[..rest.len()].copy_from_slice(rest);
        job.mask[..rest.len()].fill(0xff);
        job.counter[..12].copy_from_slice(nonce);
        job.counter[15] = 1;
        // SAFETY: `gcm_run` reads the key and so many blocks of the head, and reads and writes so many of the body.
        unsafe { simd::call(gcm_run, &mut job) };
        rest.copy_from_slice(&job.tail[..rest.len()]);
        Some(job.tag)
    }
}
