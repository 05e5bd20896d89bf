//! Random words for guests' seeds and their TRNG calls.
//!
//! The source is FEAT_RNG where the machine has it; a machine without it gets a generator seeded by
//! what varies between boots, which is good enough to tell VMs apart and is no basis for keys:
//! guests with interrupts to sample do better.

use core::sync::atomic::{AtomicU64, Ordering};
use machine_aarch64::{features, timer};

static STATE: AtomicU64 = AtomicU64::new(0x9e37_79b9_7f4a_7c15);

/// Mixes `value` into the state: addresses, times, names.
pub fn stir(value: u64) {
    STATE.fetch_add(
        value.wrapping_mul(0xd134_2543_de82_ef95) ^ timer::now(),
        Ordering::Relaxed,
    );
}

/// 64 random bits.
pub fn word() -> u64 {
    if let Some(word) = features::random() {
        return word;
    }
    // SplitMix64.
    let state = STATE.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed) ^ timer::now();
    let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// What a TRNG call is answered with, if there is a true source.
pub fn words() -> Option<[u64; 3]> {
    Some([
        features::random()?,
        features::random()?,
        features::random()?,
    ])
}

/// Fills `bytes`.
pub fn fill(bytes: &mut [u8]) {
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&word().to_le_bytes()[..chunk.len()]);
    }
}
