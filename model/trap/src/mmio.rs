//! One load or store of a device's register.

/// A load or store of one general-purpose register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MmioAccess {
    /// Bytes: 1, 2, 4 or 8.
    pub size: u8,
    /// Whether it is a store.
    pub write: bool,
    /// Whether a load sign-extends.
    pub sign_extend: bool,
    /// Whether a load fills all 64 bits of the register (Arm ARM: SF); otherwise it clears the
    /// upper half.
    pub wide: bool,
    /// The register; 31 is the zero register.
    pub rt: u8,
}

impl MmioAccess {
    /// What a load leaves in the register when the device answers `value`.
    pub const fn loaded(self, value: u64) -> u64 {
        let unused = 64 - 8 * (self.size as u32 & 15);
        let value = value << (unused & 63);
        let extended = if self.sign_extend {
            (value as i64 >> (unused & 63)) as u64
        } else {
            value >> (unused & 63)
        };
        if self.wide {
            extended
        } else {
            extended as u32 as u64
        }
    }

    /// What a store sends to the device when the register holds `value`.
    pub const fn stored(self, value: u64) -> u64 {
        let unused = 64 - 8 * (self.size as u32 & 15);
        value << (unused & 63) >> (unused & 63)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_extend() {
        let byte = MmioAccess {
            size: 1,
            write: false,
            sign_extend: true,
            wide: false,
            rt: 0,
        };
        assert_eq!(byte.loaded(0x1_80), 0xffff_ff80);
        assert_eq!(
            MmioAccess { wide: true, ..byte }.loaded(0x80),
            0xffff_ffff_ffff_ff80
        );
        assert_eq!(
            MmioAccess {
                sign_extend: false,
                ..byte
            }
            .loaded(0x180),
            0x80
        );
        let double = MmioAccess {
            size: 8,
            write: true,
            sign_extend: false,
            wide: true,
            rt: 0,
        };
        assert_eq!(double.loaded(u64::MAX), u64::MAX);
        assert_eq!(double.stored(u64::MAX), u64::MAX);
        assert_eq!(MmioAccess { size: 2, ..double }.stored(u64::MAX), 0xffff);
    }
}
