//! Random bits from all sources that a machine has, or from none.
//!
//! ```text
//!  rng-seed ──┐ checked                       per CPU
//!  TRNG ──────┼─────────► Pool ──► Generator ──► fork ──► fill
//!  RNDRRS ────┘ BLAKE2s    None where no source is sound
//! ```
//!
//! A [`Pool`] mixes what sources give: whoever knows all but one of them knows nothing of the result. A source
//! counts only where what it gave is not plainly broken ([`is_sound`]); without one that counts there is no
//! [`Generator`], and so no key. A generator forgets what it gave: its key is replaced by each use ("fast key
//! erasure", Bernstein 2017), so that who reads it later learns nothing of what was given before.
#![no_std]
#![forbid(unsafe_code)]

mod firmware;

pub use firmware::{WORDS_OF_FIRMWARE, ask_firmware};

use blake2::{Blake2s256, Digest};

/// Words of 64 bits that a source must give to count: 128 bits.
pub const WORDS_AT_LEAST: usize = 2;
/// Bytes of a key, and of a block of output.
const BLOCK: usize = 32;

/// Where random bits come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Source {
    /// `/chosen/rng-seed` of the machine's device tree.
    Tree = 1,
    /// The firmware's generator (Arm DEN0098).
    Firmware = 2,
    /// The CPU's generator (FEAT_RNG).
    Cpu = 4,
}

impl Source {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Tree, Self::Firmware, Self::Cpu];

    /// Its usual name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tree => "rng-seed",
            Self::Firmware => "TRNG",
            Self::Cpu => "RNDRRS",
        }
    }
}

/// Whether words are not plainly those of a broken source: enough of them, none of all zeroes or ones, and no two
/// alike. A sound source fails this once in 2^60 times.
pub fn is_sound(words: &[u64]) -> bool {
    let is_new = |(n, word): (usize, &u64)| {
        ![0, u64::MAX].contains(word) && words.iter().take(n).all(|before| before != word)
    };
    words.len() >= WORDS_AT_LEAST && words.iter().enumerate().all(is_new)
}

/// What sources gave so far.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    hash: Blake2s256,
    counted: u8,
}

impl Pool {
    /// Mixes in what a source gave; whether it counts.
    pub fn add(&mut self, source: Source, words: &[u64]) -> bool {
        self.hash.update([source as u8]);
        self.hash.update((words.len() as u64).to_le_bytes());
        for word in words {
            self.hash.update(word.to_le_bytes());
        }
        let is_sound = is_sound(words);
        if is_sound {
            self.counted |= source as u8;
        }
        is_sound
    }

    /// Mixes in what tells one boot from another and counts for nothing.
    pub fn stir(&mut self, value: u64) {
        self.hash.update([0]);
        self.hash.update(value.to_le_bytes());
    }

    /// Whether a source counts.
    pub const fn counts(&self, source: Source) -> bool {
        self.counted & source as u8 != 0
    }

    /// A generator; `None` where no source counts.
    pub fn generator(self) -> Option<Generator> {
        (self.counted != 0).then(|| Generator {
            key: self.hash.finalize().into(),
        })
    }
}

/// Gives random bits without end.
pub struct Generator {
    key: [u8; BLOCK],
}

impl Generator {
    /// Fills `bytes`.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for (n, chunk) in (1..).zip(bytes.chunks_mut(BLOCK)) {
            let block = self.block(n);
            chunk.copy_from_slice(&block[..chunk.len()]);
        }
        self.key = self.block(0);
    }

    /// `N` words.
    pub fn words<const N: usize>(&mut self) -> [u64; N] {
        core::array::from_fn(|_| {
            let mut bytes = [0; 8];
            self.fill(&mut bytes);
            u64::from_le_bytes(bytes)
        })
    }

    /// A generator of its own for somebody else: neither learns what the other gives.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        let mut key = [0; BLOCK];
        self.fill(&mut key);
        Self { key }
    }

    /// Block `n` of a use; 0 is the key of the next one.
    fn block(&self, n: u64) -> [u8; BLOCK] {
        let hash = Blake2s256::new()
            .chain_update(self.key)
            .chain_update(n.to_le_bytes());
        hash.finalize().into()
    }
}
