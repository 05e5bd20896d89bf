//! What becomes of each call that OS-0 makes to the firmware by SMC (SMCCC, Arm DEN0028; PSCI, Arm
//! DEN0022).
//!
//! OS-0 owns the machine, so nearly all calls go to the firmware as they are. [`decide`] is the
//! table of those that do not: calls that give the firmware an address at which a CPU is to start,
//! which would be at EL2 and past Underpin; calls that end a CPU, which EL2 notes, or the machine, which
//! VMs may still need; and the range of hypervisors, which is Underpin's to answer.
#![no_std]
#![forbid(unsafe_code)]

use abi::firmware::{
    CPU_DEFAULT_SUSPEND, CPU_OFF, CPU_ON, CPU_SUSPEND, IS_64_BIT, PSCI_FEATURES, SYSTEM_OFF,
    SYSTEM_RESET, SYSTEM_RESET2, SYSTEM_SUSPEND,
};

/// SDEI (Arm DEN0054): `SDEI_VERSION` to its last function.
const SDEI: core::ops::RangeInclusive<u32> = 0x8400_0020..=0x8400_003f;
/// Owners of functions, bits 29 to 24: standard calls of hypervisors, and a vendor's.
const STANDARD_HYPERVISOR: u32 = 5;
const VENDOR_HYPERVISOR: u32 = 6;

/// What SMCCC and PSCI answer to a call that there is not.
pub const NOT_SUPPORTED: u64 = -1i64 as u64;
/// What PSCI answers to arguments that mean nothing.
pub const INVALID_PARAMETERS: u64 = -2i64 as u64;

/// How the firmware writes the argument of CPU_SUSPEND (DEN0022, 5.4.2), as PSCI_FEATURES tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PowerStateFormat {
    /// State type in bit 16.
    #[default]
    Original,
    /// State type in bit 30.
    Extended,
}

impl PowerStateFormat {
    /// By what the firmware answers to PSCI_FEATURES for CPU_SUSPEND: bit 1.
    pub const fn of(features: u64) -> Self {
        if features as i64 >= 0 && features & 2 != 0 {
            Self::Extended
        } else {
            Self::Original
        }
    }

    const fn loses_state(self, power_state: u64) -> bool {
        match self {
            Self::Original => power_state >> 16 & 1 != 0,
            Self::Extended => power_state >> 30 & 1 != 0,
        }
    }
}

/// What to do with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The firmware's: as it is.
    Forward,
    /// The firmware's, with EL2's own start instead of OS-0's; the CPU goes on at `entry` when it
    /// has passed through EL2.
    CpuOn {
        /// The CPU, as MPIDR has it.
        target: u64,
        /// Where OS-0 wants it to start.
        entry: u64,
        /// Its X0.
        context: u64,
    },
    /// The firmware's; the executing CPU ends, unless the firmware refuses.
    CpuOff,
    /// The firmware's, with EL2's own start in arguments number `slot` and `slot + 1`: the
    /// executing CPU may lose its state and come back through there.
    Suspend {
        /// Where OS-0 wants it to go on if it lost its state.
        entry: u64,
        /// Its X0 then.
        context: u64,
        /// Where the call has them: 1 for X1 and X2.
        slot: u8,
    },
    /// The machine's end, which is the firmware's unless somebody else needs the machine: then OS-0's
    /// alone.
    End,
    /// Underpin's own.
    Own,
    /// Answered at once.
    Answer(u64),
}

/// What becomes of the call `function` (X0) with the arguments X1 to X3.
pub fn decide(function: u64, arguments: [u64; 3], format: PowerStateFormat) -> Verdict {
    // Identifiers are 32 bits, and so are the arguments of calls of the 32-bit kind.
    let function = function as u32;
    let is_64_bit = function & IS_64_BIT != 0;
    let [first, second, third] = if is_64_bit {
        arguments
    } else {
        arguments.map(|argument| argument & 0xffff_ffff)
    };
    match function & !IS_64_BIT {
        CPU_ON => Verdict::CpuOn {
            target: first,
            entry: second,
            context: third,
        },
        CPU_OFF if !is_64_bit => Verdict::CpuOff,
        CPU_SUSPEND if format.loses_state(first) => Verdict::Suspend {
            entry: second,
            context: third,
            slot: 2,
        },
        SYSTEM_SUSPEND | CPU_DEFAULT_SUSPEND => Verdict::Suspend {
            entry: first,
            context: second,
            slot: 1,
        },
        SYSTEM_OFF | SYSTEM_RESET if !is_64_bit => Verdict::End,
        SYSTEM_RESET2 => Verdict::End,
        // The firmware would deliver events to EL2.
        id if SDEI.contains(&id) => Verdict::Answer(NOT_SUPPORTED),
        PSCI_FEATURES if !is_64_bit && SDEI.contains(&(first as u32 & !IS_64_BIT)) => {
            Verdict::Answer(NOT_SUPPORTED)
        }
        _ => match function >> 24 & 0x3f {
            VENDOR_HYPERVISOR => Verdict::Own,
            STANDARD_HYPERVISOR => Verdict::Answer(NOT_SUPPORTED),
            _ => Verdict::Forward,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ORIGINAL: PowerStateFormat = PowerStateFormat::Original;

    #[test]
    fn what_starts_a_cpu_is_caught_in_both_widths() {
        let on = |function| decide(function, [2, 0x1_4000_0000, 7], ORIGINAL);
        assert_eq!(
            on(0xc400_0003),
            Verdict::CpuOn {
                target: 2,
                entry: 0x1_4000_0000,
                context: 7
            }
        );
        assert_eq!(
            on(0x8400_0003),
            Verdict::CpuOn {
                target: 2,
                entry: 0x4000_0000,
                context: 7
            }
        );
        assert_eq!(decide(0x8400_0002, [0; 3], ORIGINAL), Verdict::CpuOff);
        for function in [0x8400_000e, 0xc400_000e, 0x8400_000c, 0xc400_000c] {
            assert_eq!(
                decide(function, [0x4000_0000, 5, 0], ORIGINAL),
                Verdict::Suspend {
                    entry: 0x4000_0000,
                    context: 5,
                    slot: 1
                }
            );
        }
    }

    #[test]
    fn a_suspend_that_keeps_the_state_is_the_firmwares() {
        let suspend = |state, format| decide(0xc400_0001, [state, 0x1000, 9], format);
        let lost = Verdict::Suspend {
            entry: 0x1000,
            context: 9,
            slot: 2,
        };
        let extended = PowerStateFormat::of(2);
        assert_eq!(PowerStateFormat::of(0), ORIGINAL);
        assert_eq!(PowerStateFormat::of(NOT_SUPPORTED), ORIGINAL);
        assert_eq!(suspend(1, ORIGINAL), Verdict::Forward);
        assert_eq!(suspend(1 << 16, ORIGINAL), lost);
        assert_eq!(suspend(1 << 30, ORIGINAL), Verdict::Forward);
        assert_eq!(suspend(1 << 30, extended), lost);
        assert_eq!(suspend(1 << 16, extended), Verdict::Forward);
    }

    #[test]
    fn ranges() {
        let plain = |function| decide(function, [0; 3], ORIGINAL);
        for function in [
            0x8000_0000,
            0x8000_8000,
            0x8400_0000,
            0xc400_0004,
            0x8400_0050,
            0x8200_0010,
            0x8300_0000,
            0xb200_0000,
            0xc400_0041,
            0x8400_0061,
        ] {
            assert_eq!(plain(function), Verdict::Forward, "{function:#x}");
        }
        assert_eq!(plain(0x8600_ff01), Verdict::Own);
        assert_eq!(plain(0xc600_0040), Verdict::Own);
        assert_eq!(plain(0xc500_0020), Verdict::Answer(NOT_SUPPORTED));
        assert_eq!(plain(0xc400_0020), Verdict::Answer(NOT_SUPPORTED));
        assert_eq!(
            decide(0x8400_000a, [0xc400_0021, 0, 0], ORIGINAL),
            Verdict::Answer(NOT_SUPPORTED)
        );
    }

    proptest! {
        /// No call of the firmware's that carries an entry address goes there as it is.
        #[test]
        fn nothing_starts_past_el2(number in 0..0x20_u32, wide: bool, state: u64) {
            let function = 0x8400_0000 | number | u32::from(wide) << 30;
            let starts = [3, 0xc, 0xe].contains(&number) || number == 1 && state >> 16 & 1 == 1;
            let verdict = decide(function.into(), [state, 0, 0], ORIGINAL);
            let ends = matches!((number, wide), (8 | 9, false) | (0x12, _));
            prop_assert_eq!(verdict == Verdict::End, ends);
            let forwarded = matches!(verdict, Verdict::Forward | Verdict::End);
            prop_assert_eq!(forwarded, !starts && (number != 2 || wide));
        }
    }
}
