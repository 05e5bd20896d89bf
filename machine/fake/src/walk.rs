//! The architecture's stage-2 walk, written from the Arm ARM (DDI 0487: `VTCR_EL2`, D8.2 on
//! translation, D8.3 on descriptor formats) and not from the model that fills the tables.

use machine_contract::TableMemory;
use model_addr::{Ipa, Mfn, Pa};

/// Why a walk ends without a translation; the level is the one the syndrome would carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The address is past the input size, or its descriptor is invalid.
    Translation(u32),
    /// The descriptor's access flag is clear.
    AccessFlag(u32),
}

/// What a leaf descriptor says, as a TLB keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// The first address it translates.
    pub ipa: Ipa,
    /// What that is translated to.
    pub pa: Pa,
    /// Bytes: 4 KiB, 2 MiB or 1 GiB.
    pub size: u64,
    /// `S2AP[0]`.
    pub read: bool,
    /// `S2AP[1]`.
    pub write: bool,
    /// `XN[1]` is clear.
    pub execute: bool,
    /// `MemAttr` and `SH`, as they stand in the descriptor (bits 9:8 and 5:2).
    pub attributes: u64,
}

/// The outcome of translating one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Translation {
    /// The machine address.
    pub pa: Pa,
    /// The leaf it comes from.
    pub leaf: Leaf,
}

impl Leaf {
    /// Whether `ipa` is one of the addresses it translates.
    pub fn covers(&self, ipa: Ipa) -> bool {
        ipa.0 >= self.ipa.0 && ipa.0 - self.ipa.0 < self.size
    }

    /// Translates `ipa`, which it covers.
    pub fn translate(&self, ipa: Ipa) -> Translation {
        Translation {
            pa: Pa(self.pa.0 + (ipa.0 - self.ipa.0)),
            leaf: *self,
        }
    }
}

/// A descriptor, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Descriptor {
    Invalid,
    Table(Mfn),
    Leaf(Leaf),
}

/// A table walker, set up by the registers' values alone.
#[derive(Clone, Copy, Debug)]
pub struct Walker {
    root: Mfn,
    input_bits: u32,
    start_level: u32,
}

impl Walker {
    /// The walker that `VTCR_EL2` and `VTTBR_EL2` (the tables' address) describe. It knows the
    /// 4 KiB granule and inner-shareable, write-back walks only.
    pub fn new(vtcr: u64, root: Mfn) -> Self {
        assert_eq!(vtcr >> 31 & 1, 1, "bit 31 is RES1");
        assert_eq!(vtcr >> 14 & 3, 0, "TG0: 4 KiB");
        assert_eq!(
            vtcr >> 8 & 0x3f,
            0b11_01_01,
            "SH0, ORGN0, IRGN0: the walks are coherent"
        );
        let input_bits = 64 - (vtcr & 0x3f) as u32;
        let start_level = match vtcr >> 6 & 3 {
            0 => 2,
            1 => 1,
            2 => 0,
            other => unreachable!("SL0 {other} is reserved with the 4 KiB granule"),
        };
        let entry_bits = 12 + 9 * (3 - start_level);
        let tables = 1 << input_bits.saturating_sub(entry_bits + 9);
        assert!(
            input_bits > entry_bits,
            "the start level has nothing to resolve"
        );
        assert!(tables <= 16, "no more than 16 tables can be concatenated");
        assert!(root.is_aligned(tables), "the root is aligned to its size");
        let output_bits = [32, 36, 40, 42, 44, 48][(vtcr >> 16 & 7) as usize];
        assert!(
            input_bits <= output_bits,
            "the input size is within the physical address size"
        );
        Self {
            root,
            input_bits,
            start_level,
        }
    }

    /// Translates `ipa` by the tables as they are now.
    pub fn walk(&self, memory: &impl TableMemory, ipa: Ipa) -> Result<Translation, Fault> {
        if ipa.0 >> self.input_bits != 0 {
            return Err(Fault::Translation(0));
        }
        let mut level = self.start_level;
        let mut table = self.root;
        loop {
            let shift = 12 + 9 * (3 - level);
            let mut index = ipa.0 >> shift;
            if level > self.start_level {
                index &= 511;
            }
            let value = memory.read(table.add(index / 512), (index % 512) as usize);
            match decode(value, level, ipa.align_down(1 << shift)) {
                Descriptor::Invalid => return Err(Fault::Translation(level)),
                Descriptor::Leaf(_) if value >> 10 & 1 == 0 => {
                    return Err(Fault::AccessFlag(level));
                }
                Descriptor::Leaf(leaf) => return Ok(leaf.translate(ipa)),
                Descriptor::Table(next) => table = next,
            }
            level += 1;
        }
    }

    /// The root tables, each with its level and the first address it translates.
    pub(crate) fn roots(&self) -> impl Iterator<Item = (Mfn, u32, Ipa)> + use<> {
        let Self {
            root,
            start_level,
            input_bits,
        } = *self;
        let table_bits = 12 + 9 * (4 - start_level);
        let tables = 1 << input_bits.saturating_sub(table_bits);
        (0..tables).map(move |n| (root.add(n), start_level, Ipa(n << table_bits)))
    }
}

/// Decodes descriptor `value` of a table of `level` that translates from `ipa` on.
pub(crate) fn decode(value: u64, level: u32, ipa: Ipa) -> Descriptor {
    let shift = 12 + 9 * (3 - level);
    let address = value & 0xffff_ffff_f000;
    match (value & 3, level) {
        (3, 0..=2) => Descriptor::Table(Mfn(address >> 12)),
        (1, 1 | 2) | (3, 3) => {
            assert_eq!(
                address & ((1 << shift) - 1),
                0,
                "the output address is aligned"
            );
            assert_eq!(value >> 48 & 7, 0, "bits 50:48 are RES0");
            Descriptor::Leaf(Leaf {
                ipa,
                pa: Pa(address),
                size: 1 << shift,
                read: value >> 6 & 1 == 1,
                write: value >> 7 & 1 == 1,
                execute: value >> 54 & 1 == 0,
                attributes: value & 0x33c,
            })
        }
        _ => Descriptor::Invalid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FakeTables;

    /// 39 bits of input, 44 of output, start level 1.
    const VTCR: u64 = 1 << 31 | 4 << 16 | 3 << 12 | 1 << 10 | 1 << 8 | 1 << 6 | 0x19;

    #[test]
    fn three_levels_are_walked() {
        let mut tables = FakeTables::new();
        let [one, two, three] = [(); 3].map(|()| tables.allocate_table().unwrap());
        tables.write(one, 1, one_table(two));
        tables.write(two, 2, one_table(three));
        tables.write(three, 3, 0x8877_6000 | 0x7ff | 1 << 54);
        tables.write(two, 3, 0x8860_0000 | 0x47d);
        let walker = Walker::new(VTCR, one);
        let page = walker.walk(&tables, Ipa(0x4040_3123)).unwrap();
        assert_eq!((page.pa, page.leaf.size), (Pa(0x8877_6123), 0x1000));
        assert!(page.leaf.write && page.leaf.read && !page.leaf.execute);
        let block = walker.walk(&tables, Ipa(0x4060_1234)).unwrap();
        assert_eq!((block.pa, block.leaf.size), (Pa(0x8860_1234), 0x20_0000));
        assert!(!block.leaf.write && block.leaf.execute);
        assert_eq!(
            walker.walk(&tables, Ipa(0x4040_2000)),
            Err(Fault::Translation(3))
        );
        assert_eq!(walker.walk(&tables, Ipa(0)), Err(Fault::Translation(1)));
        assert_eq!(
            walker.walk(&tables, Ipa(1 << 39)),
            Err(Fault::Translation(0))
        );
        tables.write(three, 3, 0x8877_6000 | 0x3ff);
        assert_eq!(
            walker.walk(&tables, Ipa(0x4040_3000)),
            Err(Fault::AccessFlag(3))
        );
    }

    fn one_table(table: Mfn) -> u64 {
        table.address().0 | 3
    }
}
