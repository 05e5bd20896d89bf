//! How an exception that EL2 makes up enters EL1 (Arm ARM: `AArch64.TakeException`).

/// PSTATE and SPSR fields.
mod pstate {
    /// N, Z, C, V.
    pub const FLAGS: u64 = 0xf << 28;
    pub const DIT: u64 = 1 << 24;
    pub const PAN: u64 = 1 << 22;
    pub const SS: u64 = 1 << 21;
    pub const SSBS: u64 = 1 << 12;
    pub const BTYPE: u64 = 3 << 10;
    /// D, A, I, F.
    pub const MASKS: u64 = 0xf << 6;
    /// M[4]: AArch32.
    pub const AARCH32: u64 = 1 << 4;
    /// M[3:0]: exception level and stack pointer.
    pub const MODE: u64 = 0xf;
    pub const EL1T: u64 = 0b0100;
    pub const EL1H: u64 = 0b0101;
}

/// SCTLR_EL1.SPAN: 0 sets PSTATE.PAN on an exception to EL1.
const SCTLR_SPAN: u64 = 1 << 23;
/// SCTLR_EL1.DSSBS: PSTATE.SSBS after an exception to EL1.
const SCTLR_DSSBS: u64 = 1 << 44;

/// Whether a PSTATE is of AArch32 (`M[4]`).
#[inline]
pub const fn is_aarch32(pstate: u64) -> bool {
    pstate & pstate::AARCH32 != 0
}

/// ESR_EL1.IL: a 32-bit instruction.
const ESR_IL: u64 = 1 << 25;
/// DFSC and IFSC: synchronous external abort, not on a walk.
const FSC_EXTERNAL: u64 = 0x10;

/// What decides how EL1 is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct El1State {
    /// Where the guest was: ELR_EL2.
    pub pc: u64,
    /// Its PSTATE: SPSR_EL2.
    pub pstate: u64,
    /// Its vector base: VBAR_EL1.
    pub vbar: u64,
    /// Its SCTLR_EL1.
    pub sctlr: u64,
}

/// The exceptions that EL2 makes up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injection {
    /// The instruction is undefined.
    Undefined,
    /// There is nothing at the address that was loaded from or stored to.
    DataAbort {
        /// The virtual address.
        va: u64,
        /// Whether it was a store.
        write: bool,
    },
    /// There is nothing at the address that was fetched from.
    InstructionAbort {
        /// The virtual address.
        va: u64,
    },
}

/// What to load before the guest goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct El1Entry {
    /// The vector: ELR_EL2.
    pub pc: u64,
    /// PSTATE in the handler: SPSR_EL2.
    pub pstate: u64,
    /// Where the handler returns to: ELR_EL1.
    pub elr: u64,
    /// PSTATE it returns with: SPSR_EL1.
    pub spsr: u64,
    /// The syndrome: ESR_EL1.
    pub esr: u64,
    /// The address: FAR_EL1; `None` leaves it as it is.
    pub far: Option<u64>,
}

/// How `exception` enters EL1 from `state`.
///
/// The handler starts as after any exception: at EL1 with SP_EL1, all masks set, no single step,
/// PAN and SSBS as SCTLR_EL1 says. Flags and DIT stay; SPSR_EL2 has both at the same bits for
/// AArch32. TCO is left clear: guests are not shown MTE.
pub fn enter_el1(state: El1State, exception: Injection) -> El1Entry {
    let kept = state.pstate & (pstate::FLAGS | pstate::DIT | pstate::PAN);
    let mut handler = kept | pstate::MASKS | pstate::EL1H;
    if state.sctlr & SCTLR_SPAN == 0 {
        handler |= pstate::PAN;
    }
    if state.sctlr & SCTLR_DSSBS != 0 {
        handler |= pstate::SSBS;
    }
    let (esr, far) = syndrome(exception, from_el0(state.pstate));
    El1Entry {
        pc: state.vbar.wrapping_add(vector_offset(state.pstate)),
        pstate: handler,
        elr: state.pc,
        spsr: state.pstate,
        esr,
        far,
    }
}

/// Steps over a trapped A64 instruction: the new ELR_EL2 and SPSR_EL2 for the old ones. Executing
/// an instruction clears BTYPE and ends a single step.
pub const fn skip_instruction(pc: u64, pstate: u64) -> (u64, u64) {
    (pc.wrapping_add(4), pstate & !(pstate::BTYPE | pstate::SS))
}

const fn from_el0(pstate: u64) -> bool {
    pstate & pstate::AARCH32 != 0 || pstate & pstate::MODE == 0
}

/// The synchronous vector's offset from VBAR_EL1 (Arm ARM table D1-6).
const fn vector_offset(pstate: u64) -> u64 {
    if pstate & pstate::AARCH32 != 0 {
        return 0x600;
    }
    match pstate & pstate::MODE {
        pstate::EL1T => 0x000,
        pstate::EL1H => 0x200,
        _ => 0x400,
    }
}

/// ESR_EL1 and FAR_EL1.
const fn syndrome(exception: Injection, from_el0: bool) -> (u64, Option<u64>) {
    // An abort from EL1 itself has the next class.
    let same_level = if from_el0 { 0 } else { 1 };
    let (class, iss, far) = match exception {
        Injection::Undefined => (0x00, 0, None),
        Injection::DataAbort { va, write } => (
            0x24 + same_level,
            (write as u64) << 6 | FSC_EXTERNAL,
            Some(va),
        ),
        Injection::InstructionAbort { va } => (0x20 + same_level, FSC_EXTERNAL, Some(va)),
    };
    (class << 26 | ESR_IL | iss, far)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VBAR: u64 = 0xffff_8000_0801_0800;

    fn state(pstate: u64, sctlr: u64) -> El1State {
        El1State {
            pc: 0x40_0123,
            pstate,
            vbar: VBAR,
            sctlr,
        }
    }

    #[test]
    fn the_vector_follows_the_mode() {
        let from = |pstate| enter_el1(state(pstate, 0), Injection::Undefined).pc - VBAR;
        assert_eq!(from(0x0), 0x400);
        assert_eq!(from(0x4), 0x000);
        assert_eq!(from(0x6000_03c5), 0x200);
        assert_eq!(from(0x1f), 0x600);
        assert_eq!(from(0x10), 0x600);
    }

    #[test]
    fn the_handler_starts_masked() {
        let user =
            pstate::FLAGS | pstate::SS | pstate::BTYPE | pstate::SSBS | pstate::DIT | 1 << 20;
        let entry = enter_el1(state(user, 0), Injection::Undefined);
        assert_eq!((entry.elr, entry.spsr, entry.far), (0x40_0123, user, None));
        assert_eq!(
            entry.pstate,
            pstate::FLAGS | pstate::DIT | pstate::PAN | 0x3c5
        );
        let entry = enter_el1(state(0, SCTLR_SPAN | SCTLR_DSSBS), Injection::Undefined);
        assert_eq!(entry.pstate, pstate::SSBS | 0x3c5);
        assert_eq!(entry.esr, 0x0200_0000);
        let pan = enter_el1(
            state(pstate::PAN | pstate::EL1H, SCTLR_SPAN),
            Injection::Undefined,
        );
        assert_eq!(pan.pstate, pstate::PAN | 0x3c5);
    }

    #[test]
    fn aborts_tell_the_level_they_came_from() {
        let data = Injection::DataAbort {
            va: 0x1000,
            write: false,
        };
        // What Linux prints as "synchronous external abort: 0000000096000010".
        assert_eq!(enter_el1(state(0x5, 0), data).esr, 0x9600_0010);
        assert_eq!(enter_el1(state(0x0, 0), data).esr, 0x9200_0010);
        assert_eq!(enter_el1(state(0x0, 0), data).far, Some(0x1000));
        let store = Injection::DataAbort { va: 0, write: true };
        assert_eq!(enter_el1(state(0x4, 0), store).esr, 0x9600_0050);
        let fetch = Injection::InstructionAbort { va: 0x2000 };
        assert_eq!(enter_el1(state(0x5, 0), fetch).esr, 0x8600_0010);
        assert_eq!(enter_el1(state(0x10, 0), fetch).esr, 0x8200_0010);
    }

    #[test]
    fn skipping_ends_a_step() {
        assert_eq!(skip_instruction(u64::MAX - 3, 5), (0, 5));
        assert_eq!(
            skip_instruction(0x1000, pstate::SS | pstate::BTYPE | 5),
            (0x1004, 5)
        );
    }
}
