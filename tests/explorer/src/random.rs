//! Random numbers from a seed, the same on every machine.

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct Random(
    /// The seed.
    pub u64,
);

impl Random {
    /// Returns 64 of them.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from `from` on, below `to`.
    pub fn within(&mut self, from: u64, to: u64) -> u64 {
        from + self.bits() % (to - from)
    }

    /// Returns a number below `most`.
    pub fn below(&mut self, most: usize) -> usize {
        self.within(0, most as u64) as usize
    }

    /// Returns `true` so many times in a thousand.
    pub fn permille(&mut self, permille: u64) -> bool {
        self.within(0, 1000) < permille
    }
}
