//! `VTCR_EL2` for these tables.

/// Address bits of a level-1 table's whole reach: 512 entries of 1 GiB.
const ROOT_BITS: u32 = 39;

/// How many bits a guest-physical address has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpaSize(u8);

impl IpaSize {
    /// 39 bits: 512 GiB and a root of one table.
    pub const ONE_TABLE: Self = Self(ROOT_BITS as u8);

    /// `bits`, 31 to 43: what a start at level 1 can have (Arm ARM table D8-17, 4 KiB granule).
    /// It must not exceed the machine's physical address size.
    pub const fn new(bits: u32) -> Option<Self> {
        match bits {
            31..=43 => Some(Self(bits as u8)),
            _ => None,
        }
    }

    /// The number of bits.
    pub const fn bits(self) -> u32 {
        self.0 as u32
    }

    /// The number of bytes.
    pub const fn bytes(self) -> u64 {
        1 << self.0
    }

    /// How many tables the root consists of, 1 to 16. They follow each other and are aligned to
    /// their size together.
    pub const fn root_tables(self) -> u64 {
        1 << self.bits().saturating_sub(ROOT_BITS)
    }
}

/// How many bits of VMID the machine uses (`ID_AA64MMFR1_EL1.VMIDBits`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmidBits {
    /// 256 VMIDs.
    Eight,
    /// 65,536 VMIDs.
    Sixteen,
}

/// The value of `VTCR_EL2`: 4 KiB granule, start at level 1, inner-shareable write-back walks.
///
/// `pa_bits` is the machine's physical address size, 32 to 52 (`ID_AA64MMFR0_EL1.PARange`); these
/// descriptors use at most 48 bits of it.
pub const fn vtcr(ipa: IpaSize, pa_bits: u32, vmid: VmidBits) -> u64 {
    const RES1: u64 = 1 << 31;
    const SH0_INNER: u64 = 3 << 12;
    const ORGN0_WRITE_BACK: u64 = 1 << 10;
    const IRGN0_WRITE_BACK: u64 = 1 << 8;
    const SL0_LEVEL_1: u64 = 1 << 6;
    let ps: u64 = match pa_bits {
        ..=35 => 0,
        36..=39 => 1,
        40..=41 => 2,
        42..=43 => 3,
        44..=47 => 4,
        48.. => 5,
    };
    let vs = matches!(vmid, VmidBits::Sixteen) as u64;
    let t0sz = 64 - ipa.bits() as u64;
    RES1 | vs << 19
        | ps << 16
        | SH0_INNER
        | ORGN0_WRITE_BACK
        | IRGN0_WRITE_BACK
        | SL0_LEVEL_1
        | t0sz
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_root_table_reaches_39_bits() {
        assert_eq!(IpaSize::new(30), None);
        assert_eq!(IpaSize::new(44), None);
        assert_eq!(IpaSize::new(39), Some(IpaSize::ONE_TABLE));
        let tables = |bits| IpaSize::new(bits).unwrap().root_tables();
        assert_eq!([31, 39, 40, 43].map(tables), [1, 1, 2, 16]);
    }

    #[test]
    fn vtcr_of_a_neoverse_n1() {
        assert_eq!(vtcr(IpaSize::ONE_TABLE, 48, VmidBits::Sixteen), 0x800d_3559);
        assert_eq!(vtcr(IpaSize::ONE_TABLE, 44, VmidBits::Eight), 0x8004_3559);
    }
}
