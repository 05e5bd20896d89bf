//! The true random number generator of the firmware (Arm DEN0098).

use crate::function::UNDERPIN_UUID;
use crate::{Call, Refusal, Reply, answer, answer_support, refuse, uuid_registers};
use abi::firmware::{TRNG_FEATURES, TRNG_GET_UUID, TRNG_RND32, TRNG_RND64, TRNG_VERSION};

const VERSION_1_0: u64 = 0x1_0000;

/// A request for random bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Random {
    bits: u8,
    /// Three registers of 64 bits; otherwise three of 32.
    wide: bool,
}

impl Random {
    /// The answer when there is not enough entropy now: ask again later.
    pub const NO_ENTROPY: Reply = Reply::X0(-3i64 as u64);

    /// How many bits are wanted, 1..=192.
    pub const fn bits(self) -> u32 {
        self.bits as u32
    }

    /// The answer, from 192 bits of `entropy`: the lowest in X3, and zeroes above what was wanted.
    pub fn reply(self, entropy: [u64; 3]) -> Reply {
        let width = if self.wide { 64 } else { 32 };
        let mut registers = [0; 4];
        for (i, word) in entropy.into_iter().enumerate() {
            let wanted = self.bits().saturating_sub(width * i as u32).min(width);
            registers[3 - i] = word & u64::MAX.checked_shr(64 - wanted).unwrap_or(0);
        }
        Reply::X0To3(registers)
    }
}

/// Decodes a call of the generator.
pub(crate) fn decode(function: u32, argument: u64) -> Call {
    match function {
        TRNG_VERSION => answer(VERSION_1_0),
        TRNG_FEATURES => {
            let is_known = matches!(argument as u32, TRNG_VERSION..=TRNG_RND32 | TRNG_RND64);
            answer_support(is_known)
        }
        TRNG_GET_UUID => Call::Answered(Reply::X0To3(uuid_registers(UNDERPIN_UUID))),
        TRNG_RND32 if (1..=96).contains(&argument) => Call::Random(Random {
            bits: argument as u8,
            wide: false,
        }),
        TRNG_RND64 if (1..=192).contains(&argument) => Call::Random(Random {
            bits: argument as u8,
            wide: true,
        }),
        _ => refuse(Refusal::InvalidParameters),
    }
}
