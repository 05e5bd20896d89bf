//! What a guest leaves behind when it leaves, and why it did.

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A guest's general registers, as `entry.S` knows them.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct GuestContext {
    /// x0 to x30.
    pub registers: [u64; 31],
    /// The program counter.
    pub pc: u64,
    /// PSTATE, in the form of SPSR.
    pub pstate: u64,
}
const _: () = assert!(core::mem::offset_of!(GuestContext, pc) == 248);
const _: () = assert!(core::mem::offset_of!(GuestContext, pstate) == 256);

impl GuestContext {
    /// Register `n`: x0 to x30, or zero for 31 (Arm ARM: XZR).
    #[inline]
    pub fn register(&self, n: u8) -> u64 {
        self.registers.get(usize::from(n)).copied().unwrap_or(0)
    }

    /// Sets register `n`; 31 is nowhere.
    #[inline]
    pub fn set_register(&mut self, n: u8, value: u64) {
        if let Some(register) = self.registers.get_mut(usize::from(n)) {
            *register = value;
        }
    }
}

/// Why a guest left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// An instruction of its own; `ESR_EL2` says which.
    Synchronous,
    /// A physical interrupt.
    Interrupt,
    /// A physical fast interrupt, which nobody uses here.
    FastInterrupt,
    /// A system error.
    SystemError,
    /// It ran in AArch32, which it cannot.
    Aarch32,
}

/// What the hardware says about the last exception taken to EL2.
#[derive(Clone, Copy, Debug)]
pub struct Syndrome {
    /// `ESR_EL2`.
    pub esr: u64,
    /// `FAR_EL2`.
    pub far: u64,
    /// `HPFAR_EL2`.
    pub hpfar: u64,
}

impl Syndrome {
    /// Reads the executing CPU's.
    #[inline]
    pub fn read() -> Self {
        Self {
            esr: Self::esr(),
            far: read_sysreg!("far_el2"),
            hpfar: read_sysreg!("hpfar_el2"),
        }
    }

    /// `ESR_EL2` alone, where the addresses may mean nothing.
    #[inline]
    pub fn esr() -> u64 {
        read_sysreg!("esr_el2")
    }

    /// `FAR_EL2` and `HPFAR_EL2` of what [`Self::esr`] calls an abort.
    #[inline]
    pub fn addresses() -> [u64; 2] {
        [read_sysreg!("far_el2"), read_sysreg!("hpfar_el2")]
    }
}
