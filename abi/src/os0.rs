//! What the operating system that owns the machine (OS-0) can ask of EL2, by SMC or HVC.
//!
//! Fast calls of SMCCC (Arm DEN0028) in the range of a vendor's hypervisor. Who asks tries
//! `UID` (0x8600_ff01) by SMC first: firmware answers NOT_SUPPORTED where no Underpin is there, and
//! an HVC would be undefined. X0 is the answer: zero, a positive number where that is said, or a
//! negative refusal.

/// How EL2 stands: X1 is a [`State`], X2 how often this CPU has entered EL2 since it was started,
/// X3 the bytes that EL2 keeps for itself.
pub const STATUS: u32 = 0xc600_0040;

/// Whether EL2 is between OS-0 and the machine, on the CPU that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum State {
    /// It is not: OS-0 has the machine for itself.
    Detached = 0,
    /// It is.
    Attached = 1,
}

/// Every CPU that is on calls this at the same time with interrupts masked, X1 saying how many they
/// are: EL2 goes beneath OS-0 on all of them, or on none, and then all have the same refusal.
pub const ATTACH: u32 = 0xc600_0041;

/// The CPU that calls, with interrupts masked, has the machine for itself again; or [`BUSY`]: it
/// unmasks its interrupts and calls again. X1 is 1 where it does so at once.
pub const DETACH: u32 = 0xc600_0042;

/// The answer to [`DETACH`] where OS-0 has yet to take a message-signalled interrupt.
pub const BUSY: u64 = 1;

/// Why a switch is not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Refusal {
    /// The CPU's interrupts are not masked.
    InterruptsOpen = 1,
    /// The CPU is in the middle of handling an interrupt.
    HandlingInterrupt = 2,
    /// The CPU has fewer than two list registers.
    TooFewListRegisters = 3,
    /// Not all CPUs came in time.
    Late = 4,
    /// X1 is not the number of CPUs that are on.
    WrongNumber = 5,
    /// EL2 is beneath OS-0 already.
    AlreadyAttached = 6,
    /// EL2 is not beneath OS-0.
    NotAttached = 7,
    /// Another switch is being made.
    Elsewhere = 8,
    /// The machine has memory where stage 2 does not reach.
    MemoryOutOfReach = 9,
}

impl Refusal {
    /// X0.
    pub const fn code(self) -> u64 {
        code(self as u16)
    }
}

/// X0 for refusal number `number`: -0x100 and downwards, away from SMCCC's own.
pub const fn code(number: u16) -> u64 {
    (-0x100 - number as i64) as u64
}
