//! A number that stands for a sequence of events: equal runs have equal numbers.

/// FNV-1a of 64 bits (Fowler, Noll, Vo). For comparison of runs only, not for secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    /// Adds bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    /// Adds a number.
    pub fn add_number(&mut self, number: u64) {
        self.add(&number.to_le_bytes());
    }

    /// The digest of all that was added.
    pub fn value(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_fnv_1a() {
        let mut digest = Digest::default();
        digest.add(b"foobar");
        // Of the authors' test vectors.
        assert_eq!(digest.value(), 0x8594_4171_f739_67e8);
    }
}
