//! What the plugin must know of guest instructions.

/// What to do when an instruction is executed, beside counting it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// A region begins whose number is in `x0`.
    Begin,
    /// It ends.
    End,
    /// Translations may change.
    Translation,
    /// The CPU waits for an interrupt.
    Wait,
}

/// Recognises an instruction. Marks are `HINT #96` and `HINT #97`, of the unallocated hints, which
/// do nothing at every exception level (Arm ARM, C6.2, HINT). Translations may change at each TLB
/// maintenance (`SYS` with CRn 8) and each write to a register with CRn 1 or 2, among which are
/// SCTLR, HCR, TCR, TTBR and VTTBR (Arm ARM, D22).
pub fn special(instruction: u32) -> Option<Special> {
    const HINT: u32 = 0xd503_201f;
    match instruction & 0xfff8_f000 {
        0xd508_8000 | 0xd518_1000 | 0xd518_2000 => return Some(Special::Translation),
        _ => {}
    }
    match instruction.checked_sub(HINT)? {
        number if number == 3 << 5 => Some(Special::Wait),
        number if number == 96 << 5 => Some(Special::Begin),
        number if number == 97 << 5 => Some(Special::End),
        _ => None,
    }
}

/// Instructions of a block that are on one page: where their lines begin, how many lines, and how
/// many instructions the whole block has. One word, because that is what QEMU gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The number of the first line.
    pub line: u64,
    /// How many lines; 0 where instructions are not in a node's memory.
    pub lines: u64,
    /// How many instructions.
    pub instructions: u64,
}

impl Run {
    const FIELD: u32 = 12;
    const MASK: u64 = (1 << Self::FIELD) - 1;

    /// The run as one word. QEMU's blocks have at most 512 instructions, and physical addresses
    /// fewer than 44 bits, so nothing is lost.
    pub fn pack(self) -> u64 {
        self.line << (2 * Self::FIELD)
            | (self.lines & Self::MASK) << Self::FIELD
            | self.instructions & Self::MASK
    }

    /// The run of such a word.
    pub fn unpack(word: u64) -> Self {
        Self {
            line: word >> (2 * Self::FIELD),
            lines: word >> Self::FIELD & Self::MASK,
            instructions: word & Self::MASK,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_recognised() {
        for (instruction, expected) in [
            (0xd503_2c1f, Some(Special::Begin)),
            (0xd503_2c3f, Some(Special::End)),
            (0xd503_201f, None),                       // nop
            (0xd503_207f, Some(Special::Wait)),        // wfi
            (0xd508_871f, Some(Special::Translation)), // tlbi vmalle1
            (0xd50c_83df, Some(Special::Translation)), // tlbi vmalls12e1is
            (0xd51c_2100, Some(Special::Translation)), // msr vttbr_el2, x0
            (0xd518_1000, Some(Special::Translation)), // msr sctlr_el1, x0
            (0xd53c_2100, None),                       // mrs x0, vttbr_el2
            (0xd50b_7e20, None),                       // dc civac, x0
            (0xd51b_4200, None),                       // msr nzcv, x0
            (0, None),
        ] {
            assert_eq!(special(instruction), expected, "{instruction:#x}");
        }
    }

    #[test]
    fn runs_survive_packing() {
        let run = Run {
            line: (1 << 38) + 5,
            lines: 33,
            instructions: 512,
        };
        assert_eq!(Run::unpack(run.pack()), run);
    }
}
