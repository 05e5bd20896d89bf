//! What the operating system that owns the machine (OS-0) can ask of EL2, by SMC or HVC.
//!
//! Fast calls of SMCCC (Arm DEN0028) in the range of a vendor's hypervisor. Who asks tries
//! `UID` (0x8600_ff01) by SMC first: firmware answers NOT_SUPPORTED where no Underpin is there, and
//! an HVC would be undefined. X0 is the answer: zero, a positive number where that is said, or a
//! negative refusal.

/// How EL2 stands: X1 is a [`State`], X2 how often CPUs have entered EL2, each since it was started,
/// X3 the bytes that EL2 keeps for itself, X4 how many CPUs it is beneath, X5 how often a new image took
/// the place of the one before.
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

/// What EL2 knows of itself, and of the CPU that asks, with interrupts masked and X1 as for [`ATTACH`]:
/// X1 is [`REVISION`], X2 EL2's version (major in bits 31:16, minor in 15:0), X3 and X4 where the
/// memory lies that it keeps and how many bytes, X5 the CPU's list registers, X6 how many bits of an
/// address stage 2 reaches, X7 how many a physical address has, X8 the GIC's architecture version,
/// X9 [`flag`]s, X10 the refusal that ATTACH would answer here now, or zero, X11 the highest shared
/// interrupt.
pub const FACTS: u32 = 0xc600_0043;

/// The ID registers of the CPU that asks, as EL2 reads them: X1 to X16 are those of
/// [`ID_REGISTERS_GIVEN`].
pub const ID_REGISTERS: u32 = 0xc600_0044;

/// Bytes of EL2's log from position X1 on, or from the oldest that is left: X1 is the position behind
/// them, X2 how many they are (0: no more), X3 to X17 carry them, first byte lowest.
pub const LOG: u32 = 0xc600_0045;

/// The next switch fails on CPU X2 (EL2's number) at step X1, once; or [`NOT_SUPPORTED`], unless EL2 has hooks for tests
/// and its command line `inject`.
pub const FAIL: u32 = 0xc600_0046;

/// A piece of a new image of EL2 ([`crate::upgrade`]): X2 is how many bytes were given before, X3 how many
/// are now, at X1 and in one page of OS-0's; all but the last are whole pages. X2 zero begins anew, X3 zero
/// says that all was given: EL2 checks it.
pub const GIVE_IMAGE: u32 = 0xc600_0047;

/// Every CPU that is on calls this at the same time with interrupts masked, X1 saying how many they are,
/// detached, and where memory is lent for VMs that are parked: the image that was given takes EL2's place and answers. Or it does not,
/// and then all have the same refusal and EL2 is as it was.
pub const UPGRADE: u32 = 0xc600_0048;

/// SMCCC's answer to a call that there is not.
pub const NOT_SUPPORTED: u64 = -1i64 as u64;

/// The revision of these calls.
pub const REVISION: u64 = 1;

/// The most bytes that one [`LOG`] carries.
pub const LOG_BYTES: usize = 15 * 8;

/// X9 of [`FACTS`].
pub mod flag {
    /// There is firmware at EL3, by the CPU's ID registers.
    pub const EL3: u64 = 1;
    /// The CPU could have an EL2 of the Secure state.
    pub const SECURE_EL2: u64 = 1 << 1;
    /// An SMMU is under EL2: devices reach only what they are given.
    pub const SMMU: u64 = 1 << 2;
    /// The machine has a source of random bits.
    pub const SEEDED: u64 = 1 << 3;
}

/// CRm and op2 (op0 3, op1 0, CRn 0) of what [`ID_REGISTERS`] gives: `ID_AA64PFR0` to `PFR2`, `ZFR0`,
/// `SMFR0`, `DFR0`, `DFR1`, `ISAR0` to `ISAR3`, `MMFR0` to `MMFR4`.
pub const ID_REGISTERS_GIVEN: [(u8, u8); 16] = [
    (4, 0),
    (4, 1),
    (4, 2),
    (4, 4),
    (4, 5),
    (5, 0),
    (5, 1),
    (6, 0),
    (6, 1),
    (6, 2),
    (6, 3),
    (7, 0),
    (7, 1),
    (7, 2),
    (7, 3),
    (7, 4),
];

/// OS-0 lends the memory from X1 on, X2 bytes, in whole blocks of 2 MiB: while EL2 is beneath it, and
/// until all of it is back, it is nothing to OS-0.
pub const LEND: u32 = 0xc600_0050;

/// OS-0 asks for the loan that begins at X1: EL2 zeroes some of it and answers [`MORE`], or [`DONE`] if
/// all is OS-0's again.
pub const REPAY: u32 = 0xc600_0051;

/// EL2 readies all that is lent for VMs. X1 is where a bundle lies in it, which it reads; X2 its bytes.
/// X3 is where the area of disks lies that OS-0 serves ([`crate::served`]), or zero; X4 the shared
/// interrupt that tells OS-0 of a request.
pub const OPEN: u32 = 0xc600_0052;

/// EL2 forgets all VMs, none of which may run, and what it made of lent memory.
pub const CLOSE: u32 = 0xc600_0053;

/// Every CPU calls it, with interrupts masked: with X1 1, EL2 shares the CPU between OS-0 and VMs from
/// now on, if it is beneath all that are on; with 0, OS-0 has it for itself. Then no VM may run: all have ended or
/// are paused, and nothing is asked of disks. Where all CPUs are OS-0's alone it may detach, with memory still lent.
pub const SHARE: u32 = 0xc600_0054;

/// Bytes for EL2's control port (`abi::control`), X2 of them at X1, in one page: how many it took.
pub const TELL: u32 = 0xc600_0055;

/// Bytes of EL2's control port, at most X2 of them to X1, in one page: how many there were.
pub const HEAR: u32 = 0xc600_0056;

/// OS-0 has answered requests to disks that it serves: EL2 takes one answer, and says [`MORE`] if there
/// was one, or [`DONE`].
pub const SERVED: u32 = 0xc600_0057;

/// OS-0 lends a run as [`LEND`] has it, which holds the system that EL2 starts in its place when it ends
/// while VMs are there ([`crate::stage`]). It stays as it is until OS-0 asks for it by [`UNSTAGE`].
pub const STAGE: u32 = 0xc600_0058;

/// OS-0 asks for what [`STAGE`] took, as by [`REPAY`].
pub const UNSTAGE: u32 = 0xc600_0059;

/// What is lent, for a system that was started in the place of another: X1 is the number of a run, from
/// 0 on; the answer has its first byte in X1, its bytes in X2, and in X3 1 where it is what [`STAGE`] took.
/// [`Refusal::NotLent`] behind the last.
pub const LOANED: u32 = 0xc600_005a;

/// Another area for the disks that OS-0 serves, of the system that was started in the place of another:
/// X1 is where it lies, X2 the interrupt. What was asked and not answered is in it, as are the offers.
pub const SERVE: u32 = 0xc600_005b;

/// OS-0 is about to end: EL2 says so where people see it. Nothing else comes of it.
pub const DYING: u32 = 0xc600_005c;

/// OS-0 gives an area for frames of a network device of its own ([`crate::uplink`]), which is the way out of
/// VMs' switches until [`CLOSE`], or until it ends: X1 is where it lies, X2 the shared interrupt that tells
/// OS-0. EL2 zeroes it. [`Refusal::InUse`] where it has one.
pub const UPLINK: u32 = 0xc600_005d;

/// OS-0 has put frames into that area, and shares its CPUs: EL2 takes some, and says [`MORE`] if there may be
/// others, or [`DONE`].
pub const FRAMES: u32 = 0xc600_005e;

/// OS-0 lends pages of the block of 2 MiB that begins at X1: X2 to X9 have a bit for each, first page lowest, that
/// says whether it is lent. As [`LEND`] otherwise: [`REPAY`] of the block gives all of them back.
pub const LEND_PAGES: u32 = 0xc600_005f;

/// Answers of [`REPAY`], [`SERVED`] and [`FRAMES`].
pub const DONE: u64 = 0;
/// See [`DONE`].
pub const MORE: u64 = 1;

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
    /// A test asked for it: [`FAIL`].
    Injected = 10,
    /// What is lent is not in whole blocks of 2 MiB.
    NoBlocks = 11,
    /// What is lent, or named, is not OS-0's memory.
    NoMemory = 12,
    /// Some of it is lent already.
    LentAlready = 13,
    /// There are as many loans as there can be.
    TooManyLoans = 14,
    /// No loan begins there.
    NotLent = 15,
    /// Lent memory is in use for VMs.
    InUse = 16,
    /// Nothing is made of lent memory.
    NotOpen = 17,
    /// There is too little of it for what is to lie in it.
    TooLittle = 18,
    /// VMs run, or have not quite ended.
    VmsRun = 19,
    /// Not all CPUs are on.
    CpusOff = 20,
    /// OS-0 may use a feature of the CPU that EL2 cannot keep for it while a VM runs.
    NotCovered = 21,
    /// Memory is lent.
    Lent = 22,
    /// What is to tell OS-0 is no shared interrupt of the machine.
    NoInterrupt = 23,
    /// What was given is no image of Underpin's, or not all of one.
    NoImage = 24,
    /// The new image does not read what this one would leave for it.
    Misfit = 25,
    /// The new image failed before it had answered.
    NewFailed = 26,
    /// What is staged is no system that could be started.
    NotStaged = 27,
    /// A parked VM has what no record says, so that no other image could go on with it.
    NotRecorded = 28,
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
