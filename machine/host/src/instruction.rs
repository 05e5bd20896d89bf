//! The instructions that guests know: those of A64 that a program of a test needs (Arm ARM C4 and C6), as words and as
//! what they do.

/// What an instruction does. Registers are numbers; 31 is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// `MOVZ`, or with `keep` `MOVK`: 16 bits at `shift`.
    Move {
        /// The destination.
        to: u8,
        /// What is moved.
        bits: u16,
        /// Where it goes: 0, 16, 32 or 48.
        shift: u8,
        /// The other bits stay.
        keep: bool,
    },
    /// `ADD`, `SUB`, `SUBS`, `EOR`, `AND`, `ORR` of two registers.
    Calculate(Operation, u8, u8, u8),
    /// `ADD`, `SUB`, `SUBS` of a register and 12 bits.
    CalculateWith(Operation, u8, u8, u16),
    /// `LDR`, `LDRB`, ..., of 2^`size` bytes, zero-extended; `offset` is in bytes.
    Load {
        /// Log2 of the bytes.
        size: u8,
        /// The destination.
        to: u8,
        /// The base register.
        base: u8,
        /// What is added to it.
        offset: u16,
    },
    /// `STR`, `STRB`, ...
    Store {
        /// Log2 of the bytes.
        size: u8,
        /// What is stored.
        from: u8,
        /// The base register.
        base: u8,
        /// What is added to it.
        offset: u16,
    },
    /// `LDXR` of 8 bytes.
    LoadExclusive(u8, u8),
    /// `STXR` of 8 bytes: the result, what is stored, the base register.
    StoreExclusive(u8, u8, u8),
    /// `B`, by so many instructions.
    Branch(i32),
    /// `CBZ` or, with `true`, `CBNZ`: the register and by how many instructions.
    BranchIf(bool, u8, i32),
    /// `HVC`.
    Hypercall(u16),
    /// `HLT`: asks whoever watches the machine.
    Ask(u16),
    /// `WFI`.
    Wait,
    /// `NOP`, `YIELD`, a barrier, or TLB maintenance of stage 1.
    Barrier(u32),
    /// `MRS` or, with `true`, `MSR`: the register, and op0, op1, CRn, CRm, op2.
    System(bool, u8, [u8; 5]),
    /// `ERET`.
    Return,
}

/// What is calculated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The sum.
    Add,
    /// The difference.
    Subtract,
    /// Exclusive or.
    Xor,
    /// And.
    And,
    /// Or.
    Or,
}

use Instruction as I;

const fn field(word: u32, at: u32, bits: u32) -> u32 {
    word >> at & ((1 << bits) - 1)
}

/// A field that has a sign.
const fn signed(word: u32, at: u32, bits: u32) -> i32 {
    (field(word, at, bits) << (32 - bits)) as i32 >> (32 - bits)
}

impl Instruction {
    /// Reads a word; `None` where guests do not know it.
    pub fn decode(word: u32) -> Option<Self> {
        let by_mask = |mask: u32, value: u32| word & mask == value;
        Some(match word {
            0xd503_207f => I::Wait,
            0xd69f_03e0 => I::Return,
            _ if by_mask(0xfc00_0000, 0x1400_0000) => I::Branch(signed(word, 0, 26)),
            _ if by_mask(0xfe00_0000, 0xb400_0000) => {
                let nonzero = field(word, 24, 1) == 1;
                I::BranchIf(nonzero, field(word, 0, 5) as u8, signed(word, 5, 19))
            }
            _ if by_mask(0xffe0_001f, 0xd400_0002) => I::Hypercall(field(word, 5, 16) as u16),
            _ if by_mask(0xffe0_001f, 0xd440_0000) => I::Ask(field(word, 5, 16) as u16),
            _ if by_mask(0xffff_f000, 0xd503_2000)
                || by_mask(0xffff_f000, 0xd503_3000)
                || by_mask(0xffff_f000, 0xd508_8000) =>
            {
                I::Barrier(word)
            }
            _ if by_mask(0xffd0_0000, 0xd510_0000) => I::System(
                field(word, 21, 1) == 0,
                field(word, 0, 5) as u8,
                [
                    field(word, 19, 2) as u8,
                    field(word, 16, 3) as u8,
                    field(word, 12, 4) as u8,
                    field(word, 8, 4) as u8,
                    field(word, 5, 3) as u8,
                ],
            ),
            _ => return Self::decode_data(word),
        })
    }

    /// As [`Self::decode`], of what moves, calculates, loads and stores.
    fn decode_data(word: u32) -> Option<Self> {
        let by_mask = |mask: u32, value: u32| word & mask == value;
        let (to, base) = (field(word, 0, 5) as u8, field(word, 5, 5) as u8);
        let second = field(word, 16, 5) as u8;
        let register_form = [
            (0x8b00_0000, Operation::Add),
            (0xcb00_0000, Operation::Subtract),
            (0xca00_0000, Operation::Xor),
            (0x8a00_0000, Operation::And),
            (0xaa00_0000, Operation::Or),
        ];
        let is_named = |(code, _): &&(u32, Operation)| by_mask(0xffe0_fc00, *code);
        if let Some((_, operation)) = register_form.iter().find(is_named) {
            return Some(I::Calculate(*operation, to, base, second));
        }
        let immediate = field(word, 10, 12) as u16;
        Some(match word {
            _ if by_mask(0xff80_0000, 0xd280_0000) || by_mask(0xff80_0000, 0xf280_0000) => {
                I::Move {
                    to,
                    bits: field(word, 5, 16) as u16,
                    shift: 16 * field(word, 21, 2) as u8,
                    keep: field(word, 29, 2) == 3,
                }
            }
            _ if by_mask(0xffc0_0000, 0x9100_0000) => {
                I::CalculateWith(Operation::Add, to, base, immediate)
            }
            _ if by_mask(0xffc0_0000, 0xd100_0000) => {
                I::CalculateWith(Operation::Subtract, to, base, immediate)
            }
            _ if by_mask(0x3f80_0000, 0x3900_0000) => {
                let size = field(word, 30, 2) as u8;
                let offset = immediate << size;
                if field(word, 22, 1) == 1 {
                    I::Load {
                        size,
                        to,
                        base,
                        offset,
                    }
                } else {
                    I::Store {
                        size,
                        from: to,
                        base,
                        offset,
                    }
                }
            }
            _ if by_mask(0xffff_fc00, 0xc85f_7c00) => I::LoadExclusive(to, base),
            _ if by_mask(0xffe0_fc00, 0xc800_7c00) => I::StoreExclusive(second, to, base),
            _ => return None,
        })
    }

    /// The word that [`Self::decode`] reads.
    pub fn encode(self) -> u32 {
        let pair = |base: u8, to: u8| u32::from(base) << 5 | u32::from(to);
        let form = |operation, is_immediate: bool| match (operation, is_immediate) {
            (Operation::Add, false) => 0x8b00_0000,
            (Operation::Subtract, false) => 0xcb00_0000,
            (Operation::Xor, _) => 0xca00_0000,
            (Operation::And, _) => 0x8a00_0000,
            (Operation::Or, _) => 0xaa00_0000,
            (Operation::Add, true) => 0x9100_0000,
            (Operation::Subtract, true) => 0xd100_0000,
        };
        let memory = |code: u32, size: u8, to: u8, base: u8, offset: u16| {
            code | u32::from(size) << 30 | u32::from(offset >> size) << 10 | pair(base, to)
        };
        match self {
            I::Move {
                to,
                bits,
                shift,
                keep,
            } => {
                let code = if keep { 0xf280_0000 } else { 0xd280_0000 };
                code | u32::from(shift / 16) << 21 | u32::from(bits) << 5 | u32::from(to)
            }
            I::Calculate(operation, to, one, other) => {
                form(operation, false) | u32::from(other) << 16 | pair(one, to)
            }
            I::CalculateWith(operation, to, one, other) => {
                form(operation, true) | u32::from(other) << 10 | pair(one, to)
            }
            I::Load {
                size,
                to,
                base,
                offset,
            } => memory(0x3940_0000, size, to, base, offset),
            I::Store {
                size,
                from,
                base,
                offset,
            } => memory(0x3900_0000, size, from, base, offset),
            I::LoadExclusive(to, base) => 0xc85f_7c00 | pair(base, to),
            I::StoreExclusive(result, from, base) => {
                0xc800_7c00 | u32::from(result) << 16 | pair(base, from)
            }
            I::Branch(by) => 0x1400_0000 | by as u32 & 0x3ff_ffff,
            I::BranchIf(nonzero, register, by) => {
                0xb400_0000
                    | u32::from(nonzero) << 24
                    | (by as u32 & 0x7_ffff) << 5
                    | u32::from(register)
            }
            I::Hypercall(number) => 0xd400_0002 | u32::from(number) << 5,
            I::Ask(number) => 0xd440_0000 | u32::from(number) << 5,
            I::Wait => 0xd503_207f,
            I::Return => 0xd69f_03e0,
            I::Barrier(word) => word,
            I::System(write, register, [op0, op1, crn, crm, op2]) => {
                let read = u32::from(!write) << 21;
                let place = u32::from(op0) << 19 | u32::from(op1) << 16 | u32::from(crn) << 12;
                0xd510_0000
                    | read
                    | place
                    | u32::from(crm) << 8
                    | u32::from(op2) << 5
                    | u32::from(register)
            }
        }
    }
}

/// `DSB SY`.
pub const DSB: Instruction = I::Barrier(0xd503_3f9f);
/// `DMB ISH`.
pub const DMB: Instruction = I::Barrier(0xd503_3bbf);
/// `TLBI VMALLE1`.
pub const TLBI: Instruction = I::Barrier(0xd508_871f);

/// The instructions that put `value` into register `to`.
pub fn put(to: u8, value: u64) -> Vec<Instruction> {
    let piece = |shift: u8| Instruction::Move {
        to,
        bits: (value >> shift) as u16,
        shift,
        keep: shift > 0,
    };
    [0, 16, 32, 48]
        .into_iter()
        .filter(|shift| *shift == 0 || value >> shift & 0xffff != 0)
        .map(piece)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_were_written() {
        let load = I::Load {
            size: 3,
            to: 4,
            base: 5,
            offset: 16,
        };
        let store = I::Store {
            size: 0,
            from: 6,
            base: 7,
            offset: 3,
        };
        let all = [
            put(3, 0x1234_0000_5678)[0],
            put(3, 0x1234_0000_5678)[1],
            I::Calculate(Operation::Xor, 1, 2, 3),
            I::Calculate(Operation::Subtract, 1, 2, 3),
            I::CalculateWith(Operation::Add, 1, 2, 4095),
            I::CalculateWith(Operation::Subtract, 1, 2, 1),
            load,
            store,
            I::LoadExclusive(1, 2),
            I::StoreExclusive(3, 1, 2),
            I::Branch(-7),
            I::BranchIf(true, 9, -2),
            I::BranchIf(false, 9, 3),
            I::Hypercall(0),
            I::Ask(77),
            I::Wait,
            I::Return,
            DSB,
            DMB,
            TLBI,
            I::System(true, 3, [3, 0, 12, 11, 5]),
            I::System(false, 3, [3, 3, 14, 0, 2]),
        ];
        for instruction in all {
            assert_eq!(Instruction::decode(instruction.encode()), Some(instruction));
        }
        // As GNU as writes them: ldr x4, [x5, #16]; strb w6, [x7, #3]; mrs x0, mpidr_el1.
        assert_eq!(load.encode(), 0xf940_08a4);
        assert_eq!(store.encode(), 0x3900_0ce6);
        assert_eq!(I::System(false, 0, [3, 0, 0, 0, 5]).encode(), 0xd538_00a0);
    }
}
