//! Loads and stores for which the syndrome describes no access: those with write-back and those
//! of a pair of registers (Arm ARM section C4.1.94, "Loads and Stores").
//!
//! Only loads and stores of general-purpose registers are decoded. Whatever else a guest may do
//! to a device (SIMD, exclusives, atomics, cache maintenance) gives `None`, and the guest has an
//! external abort: the architecture allows it for device memory, and nothing emulates it.

use crate::MmioAccess;

/// The general-purpose register number that means SP as a base and zero as data.
const SP_OR_ZERO: u8 = 31;

/// A load or store of one or two registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MmioInstruction {
    /// The register at the address.
    pub first: MmioAccess,
    /// The register behind it, which has the same size.
    pub second: Option<MmioAccess>,
    /// The register that holds the base address; 31 is SP.
    pub base: u8,
    /// What is added to the base.
    pub offset: Offset,
    /// When it is added.
    pub indexing: Indexing,
}

/// What is added to the base address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offset {
    /// A number of bytes.
    Immediate(i16),
    /// A register, extended and shifted.
    Register {
        /// The register; 31 is zero.
        index: u8,
        /// Whether only its lower half counts.
        half: bool,
        /// Whether that half is sign-extended.
        signed: bool,
        /// The shift to the left, 0 to 3.
        shift: u8,
    },
}

/// When the offset is added, and whether the base register keeps the sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexing {
    /// Before the access; the base register stays.
    Offset,
    /// Before the access; the base register keeps the sum.
    Pre,
    /// After the access; the base register keeps the sum.
    Post,
}

impl MmioInstruction {
    /// The register whose value [`Self::address`] and [`Self::written_back`] call `index`, if
    /// there is one.
    pub const fn index(&self) -> Option<u8> {
        match self.offset {
            Offset::Register { index, .. } if index != SP_OR_ZERO => Some(index),
            _ => None,
        }
    }

    /// The virtual address of the first access, for these values of the base register and of the
    /// index register (0 where there is none).
    pub const fn address(&self, base: u64, index: u64) -> u64 {
        match self.indexing {
            Indexing::Offset | Indexing::Pre => self.sum(base, index),
            Indexing::Post => base,
        }
    }

    /// What the base register holds afterwards; `None` where it stays.
    pub const fn written_back(&self, base: u64, index: u64) -> Option<u64> {
        match self.indexing {
            Indexing::Offset => None,
            Indexing::Pre | Indexing::Post => Some(self.sum(base, index)),
        }
    }

    const fn sum(&self, base: u64, index: u64) -> u64 {
        let offset = match self.offset {
            Offset::Immediate(bytes) => bytes as i64 as u64,
            Offset::Register {
                half,
                signed,
                shift,
                ..
            } => {
                let index = match (half, signed) {
                    (false, _) => index,
                    (true, false) => index as u32 as u64,
                    (true, true) => index as i32 as i64 as u64,
                };
                index << (shift & 3)
            }
        };
        base.wrapping_add(offset)
    }
}

/// Decodes an instruction word; `None` where it is no load or store of general-purpose registers,
/// or one whose outcome the architecture leaves open.
pub fn decode(word: u32) -> Option<MmioInstruction> {
    let simd = word >> 26 & 1 != 0;
    let instruction = match word >> 27 & 7 {
        0b101 if !simd => pair(word)?,
        0b111 if !simd => single(word)?,
        _ => return None,
    };
    let writes_back = instruction.indexing != Indexing::Offset;
    let uses_base = |access: MmioAccess| access.rt == instruction.base;
    let base_is_data = uses_base(instruction.first) || instruction.second.is_some_and(uses_base);
    // Writing back to a register that is loaded or stored is CONSTRAINED UNPREDICTABLE.
    let open = writes_back && instruction.base != SP_OR_ZERO && base_is_data;
    (!open).then_some(instruction)
}

/// LDP, LDPSW, LDNP, STP, STNP.
fn pair(word: u32) -> Option<MmioInstruction> {
    let write = word >> 22 & 1 == 0;
    let size = match word >> 30 {
        0b00 => 4,
        // LDPSW; its store would be STGP.
        0b01 if !write => 4,
        0b10 => 8,
        _ => return None,
    };
    let sign_extend = word >> 30 == 0b01;
    let indexing = match word >> 23 & 7 {
        // There is no non-temporal LDPSW.
        0b000 if sign_extend => return None,
        0b000 | 0b010 => Indexing::Offset,
        0b001 => Indexing::Post,
        0b011 => Indexing::Pre,
        _ => return None,
    };
    let access = |rt: u32| MmioAccess {
        size,
        write,
        sign_extend,
        wide: size == 8 || sign_extend,
        rt: register(rt),
    };
    let (first, second) = (access(word), access(word >> 10));
    if !write && first.rt == second.rt {
        // CONSTRAINED UNPREDICTABLE.
        return None;
    }
    let scaled = signed(word >> 15, 7) * i16::from(size);
    Some(MmioInstruction {
        first,
        second: Some(second),
        base: register(word >> 5),
        offset: Offset::Immediate(scaled),
        indexing,
    })
}

/// LDR, STR and their narrower and sign-extending forms, with every kind of offset.
fn single(word: u32) -> Option<MmioInstruction> {
    let log2_size = word >> 30;
    let access = single_access(word, log2_size)?;
    let unscaled = Offset::Immediate(signed(word >> 12, 9));
    let (offset, indexing) = match (word >> 24 & 3, word >> 21 & 1, word >> 10 & 3) {
        (0b01, _, _) => {
            let scaled = (word >> 10 & 0xfff) << log2_size;
            (Offset::Immediate(scaled as i16), Indexing::Offset)
        }
        // Unscaled (LDUR) and unprivileged (LDTR).
        (0b00, 0, 0b00 | 0b10) => (unscaled, Indexing::Offset),
        (0b00, 0, 0b01) => (unscaled, Indexing::Post),
        (0b00, 0, 0b11) => (unscaled, Indexing::Pre),
        (0b00, 1, 0b10) => (register_offset(word, log2_size)?, Indexing::Offset),
        _ => return None,
    };
    Some(MmioInstruction {
        first: access,
        second: None,
        base: register(word >> 5),
        offset,
        indexing,
    })
}

fn single_access(word: u32, log2_size: u32) -> Option<MmioAccess> {
    let (write, sign_extend, wide) = match (word >> 22 & 3, log2_size) {
        (0b00, _) => (true, false, log2_size == 3),
        (0b01, _) => (false, false, log2_size == 3),
        (0b10, 0..=2) => (false, true, true),
        (0b11, 0..=1) => (false, true, false),
        // PRFM, which cannot abort, and what is not allocated.
        _ => return None,
    };
    Some(MmioAccess {
        size: 1 << log2_size,
        write,
        sign_extend,
        wide,
        rt: register(word),
    })
}

fn register_offset(word: u32, log2_size: u32) -> Option<Offset> {
    let (half, signed) = match word >> 13 & 7 {
        0b010 => (true, false),
        0b011 => (false, false),
        0b110 => (true, true),
        0b111 => (false, true),
        _ => return None,
    };
    let shift = if word >> 12 & 1 != 0 {
        log2_size as u8
    } else {
        0
    };
    Some(Offset::Register {
        index: register(word >> 16),
        half,
        signed,
        shift,
    })
}

/// A register number from the lowest five bits.
const fn register(field: u32) -> u8 {
    (field & 31) as u8
}

/// A signed number from the lowest `bits` bits (at most 16).
const fn signed(field: u32, bits: u32) -> i16 {
    let unused = 32 - bits;
    (((field << unused) as i32) >> unused) as i16
}
