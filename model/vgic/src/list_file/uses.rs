//! Which list registers are in use.

/// What is known of each register: four sets of them in a word, so that taking one into use is one
/// load and one store.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Uses(u64);

impl Uses {
    const ALL_SETS: u64 = 0x0001_0001_0001_0001;
    const WATCHED: u32 = 16;
    const LATCHED: u32 = 32;
    const SHARED: u32 = 48;

    /// Registers in use.
    pub(super) const fn occupied(self) -> u16 {
        self.0 as u16
    }

    /// Those of them that tell their end by a maintenance interrupt, not by `ICH_ELRSR_EL2`.
    pub(super) const fn watched(self) -> u16 {
        (self.0 >> Self::WATCHED) as u16
    }

    /// Whether the pending state of register `n` came from a pending latch, not from a line.
    pub(super) const fn is_latched(self, n: u32) -> bool {
        self.0 >> (Self::LATCHED + n) & 1 != 0
    }

    /// Those of them that hold an SPI.
    pub(super) const fn shared(self) -> u16 {
        (self.0 >> Self::SHARED) as u16
    }

    /// Register `n` is taken into use.
    #[inline]
    pub(super) const fn take(&mut self, n: u32, watched: bool, latched: bool, shared: bool) {
        let sets = 1
            | (watched as u64) << Self::WATCHED
            | (latched as u64) << Self::LATCHED
            | (shared as u64) << Self::SHARED;
        self.0 |= sets << n;
    }

    pub(super) const fn set_latched(&mut self, n: u32) {
        self.0 |= 1 << (Self::LATCHED + n);
    }

    /// Register `n` is not in use any more.
    pub(super) const fn give_up(&mut self, n: u32) {
        self.0 &= !(Self::ALL_SETS << n);
    }
}
