//! Whether a vCPU runs (DEN0022, 6.6).

use crate::{Refusal, Reply};
use model_addr::Ipa;

/// The power state of a vCPU, behind a lock of the caller's: two may be told to start it at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Power {
    /// Off: it starts by CPU_ON alone.
    #[default]
    Off,
    /// Told to start, and not yet at its entry point.
    OnPending,
    /// On, running or waiting.
    On,
}

impl Power {
    /// CPU_ON for this vCPU, to start at `entry`; `is_memory` says whether the guest has memory
    /// there. On success EL2 sets its registers and makes it ready to run.
    pub fn turn_on(&mut self, entry: Ipa, is_memory: bool) -> Result<(), Refusal> {
        match self {
            Self::On => Err(Refusal::AlreadyOn),
            Self::OnPending => Err(Refusal::OnPending),
            Self::Off if !is_memory || !entry.is_aligned(4) => Err(Refusal::InvalidAddress),
            Self::Off => {
                *self = Self::OnPending;
                Ok(())
            }
        }
    }

    /// It is about to run its first instruction.
    pub fn arrive(&mut self) {
        if *self == Self::OnPending {
            *self = Self::On;
        }
    }

    /// It has called CPU_OFF and left its CPU, or its VM is being reset.
    pub fn turn_off(&mut self) {
        *self = Self::Off;
    }

    /// The answer to AFFINITY_INFO.
    pub const fn affinity_info(self) -> Reply {
        Reply::X0(match self {
            Self::On => 0,
            Self::Off => 1,
            Self::OnPending => 2,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_starts_once() {
        let mut power = Power::default();
        assert_eq!(power.affinity_info(), Reply::X0(1));
        assert_eq!(
            power.turn_on(Ipa(0x1000), false),
            Err(Refusal::InvalidAddress)
        );
        assert_eq!(
            power.turn_on(Ipa(0x1002), true),
            Err(Refusal::InvalidAddress)
        );
        power.arrive();
        assert_eq!(power, Power::Off, "nobody told it to");
        assert_eq!(power.turn_on(Ipa(0x1000), true), Ok(()));
        assert_eq!(power.turn_on(Ipa(0x1000), true), Err(Refusal::OnPending));
        assert_eq!(power.affinity_info(), Reply::X0(2));
        power.arrive();
        assert_eq!(power.turn_on(Ipa(0x1000), false), Err(Refusal::AlreadyOn));
        assert_eq!(power.affinity_info(), Reply::X0(0));
        power.turn_off();
        assert_eq!(power.turn_on(Ipa(0x1000), true), Ok(()));
    }
}
