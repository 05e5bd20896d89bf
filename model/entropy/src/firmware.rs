//! The firmware's generator, and whether there is one (Arm DEN0098, True Random Number Generator Firmware
//! Interface 1.0).

use abi::firmware::{
    PSCI_FEATURES, PSCI_VERSION, SMCCC_VERSION, TRNG_FEATURES, TRNG_RND64, TRNG_VERSION,
};

/// `TRNG_RND64`: out of entropy just now.
const NO_ENTROPY: i64 = -3;
/// How often it is asked again then.
const TRIES: usize = 16;

/// Words that one call gives: the most there can be.
pub const WORDS_OF_FIRMWARE: usize = 3;

/// Words of the firmware's generator; `None` where it has none, or none ready. `call` is a call with one
/// argument, and brings X0 to X3. No call is made that one before did not say is there: old firmware takes
/// unknown ones badly (DEN0028, 2.10; DEN0098, 1.3).
pub fn ask_firmware(
    mut call: impl FnMut(u32, u64) -> [u64; 4],
) -> Option<[u64; WORDS_OF_FIRMWARE]> {
    // Results of the questions are signed, of 32 bits.
    let mut number = |function, argument| call(function, argument)[0] as i32;
    let is_there = number(PSCI_VERSION, 0) >= 0x1_0000
        && number(PSCI_FEATURES, SMCCC_VERSION.into()) >= 0
        && number(SMCCC_VERSION, 0) >= 0x1_0001
        && number(TRNG_VERSION, 0) >= 0x1_0000
        && number(TRNG_FEATURES, TRNG_RND64.into()) >= 0;
    if !is_there {
        return None;
    }
    for _ in 0..TRIES {
        // The lowest bits are in X3.
        match call(TRNG_RND64, 64 * WORDS_OF_FIRMWARE as u64) {
            [0, high, middle, low] => return Some([low, middle, high]),
            [status, ..] if status.cast_signed() == NO_ENTROPY => {}
            _ => return None,
        }
    }
    None
}
