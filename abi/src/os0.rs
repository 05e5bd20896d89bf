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
