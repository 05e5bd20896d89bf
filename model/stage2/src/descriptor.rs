//! Stage-2 descriptors (Arm ARM D8.3.2), and the software's marks in invalid ones.

use model_addr::{FRAME_SHIFT, Mfn, Pa};

/// Entries in a table.
pub(crate) const ENTRIES: usize = 512;
/// Address bits that one level resolves.
const LEVEL_BITS: u32 = 9;

const VALID: u64 = 1;
/// Bit 1: a table at levels 1 and 2, a page at level 3; clear in a block.
const TABLE_OR_PAGE: u64 = 1 << 1;
/// `MemAttr` = 0b1111: normal memory, inner and outer write-back.
const WRITE_BACK: u64 = 0xf << 2;
const S2AP_READ: u64 = 1 << 6;
const S2AP_WRITE: u64 = 1 << 7;
const INNER_SHAREABLE: u64 = 3 << 8;
/// Set from the start: access sampling takes the mapping out instead.
const ACCESS_FLAG: u64 = 1 << 10;
/// `XN` = 0b10: execution at neither EL1 nor EL0.
const EXECUTE_NEVER: u64 = 1 << 54;
/// Bits 47:12.
const ADDRESS: u64 = 0x0000_ffff_ffff_f000;
/// An invalid descriptor whose entry is being replaced, until that is made. Hardware ignores all
/// but bit 0 of an invalid descriptor.
pub(crate) const BROKEN: u64 = 1 << 1;
/// Likewise, but the replacement is not to be made.
pub(crate) const OVERTAKEN: u64 = BROKEN | 1 << 2;

/// What a guest may do with memory that it may read. Memory it may not even read is not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Stores.
    pub write: bool,
    /// Instruction fetches, at EL1 and EL0.
    pub execute: bool,
}

impl Rights {
    /// Loads only.
    pub const READ: Self = Self {
        write: false,
        execute: false,
    };
    /// Loads and stores.
    pub const READ_WRITE: Self = Self {
        write: true,
        execute: false,
    };
    /// Loads and fetches.
    pub const READ_EXECUTE: Self = Self {
        write: false,
        execute: true,
    };
    /// Everything.
    pub const ALL: Self = Self {
        write: true,
        execute: true,
    };
}

/// How much one leaf maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Size {
    /// 4 KiB, at level 3.
    Page,
    /// 2 MiB, at level 2.
    Block2M,
    /// 1 GiB, at level 1.
    Block1G,
}

impl Size {
    /// Bytes.
    pub const fn bytes(self) -> u64 {
        1 << self.shift()
    }

    /// Frames.
    pub const fn frames(self) -> u64 {
        self.bytes() >> FRAME_SHIFT
    }

    pub(crate) const fn shift(self) -> u32 {
        match self {
            Self::Page => FRAME_SHIFT,
            Self::Block2M => FRAME_SHIFT + LEVEL_BITS,
            Self::Block1G => FRAME_SHIFT + 2 * LEVEL_BITS,
        }
    }

    /// The next smaller size; a page has none.
    pub(crate) const fn smaller(self) -> Option<Self> {
        match self {
            Self::Page => None,
            Self::Block2M => Some(Self::Page),
            Self::Block1G => Some(Self::Block2M),
        }
    }
}

/// A descriptor, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Empty,
    /// Being replaced: it belongs to a [`crate::Broken`] or [`crate::Ready`].
    Broken,
    Table(Mfn),
    Leaf(Pa, Rights),
}

/// Decodes an entry whose leaves are of `size`.
pub(crate) fn decode(value: u64, size: Size) -> Entry {
    let address = value & ADDRESS;
    if value & VALID == 0 {
        return if value == 0 {
            Entry::Empty
        } else {
            Entry::Broken
        };
    }
    if size != Size::Page && value & TABLE_OR_PAGE != 0 {
        return Entry::Table(Pa(address).frame());
    }
    let rights = Rights {
        write: value & S2AP_WRITE != 0,
        execute: value & EXECUTE_NEVER == 0,
    };
    Entry::Leaf(Pa(address), rights)
}

/// The descriptor of a leaf of `size` at `pa`.
pub(crate) const fn leaf(pa: Pa, size: Size, rights: Rights) -> u64 {
    let mut value = pa.0 & ADDRESS | VALID | WRITE_BACK | S2AP_READ | INNER_SHAREABLE | ACCESS_FLAG;
    if matches!(size, Size::Page) {
        value |= TABLE_OR_PAGE;
    }
    if rights.write {
        value |= S2AP_WRITE;
    }
    if !rights.execute {
        value |= EXECUTE_NEVER;
    }
    value
}

/// The descriptor of the next level's `table`.
pub(crate) const fn table(table: Mfn) -> u64 {
    table.address().0 & ADDRESS | VALID | TABLE_OR_PAGE
}

/// Whether `pa` is an address that a descriptor can hold.
pub(crate) const fn holds(pa: Pa, size: Size) -> bool {
    pa.0 & !ADDRESS == 0 && pa.is_aligned(size.bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_the_architectures() {
        let page = leaf(Pa(0x1234_5000), Size::Page, Rights::ALL);
        assert_eq!(page, 0x1234_57ff);
        let block = leaf(Pa(0x4020_0000), Size::Block2M, Rights::READ);
        assert_eq!(block, 0x0040_0000_4020_077d);
        assert_eq!(table(Mfn(0x1234)), 0x0123_4003);
    }

    #[test]
    fn a_mark_is_invalid_and_not_empty() {
        for mark in [BROKEN, OVERTAKEN] {
            assert_eq!(mark & VALID, 0);
            assert_eq!(decode(mark, Size::Page), Entry::Broken);
        }
    }
}
