//! PSCI (Arm DEN0022) and SMCCC (Arm DEN0028) by HVC.

use core::arch::asm;

/// PSCI_VERSION.
pub const VERSION: u32 = 0x8400_0000;
/// CPU_OFF.
pub const CPU_OFF: u32 = 0x8400_0002;
/// CPU_ON, SMC64.
pub const CPU_ON: u32 = 0xc400_0003;
/// AFFINITY_INFO, SMC64.
pub const AFFINITY_INFO: u32 = 0xc400_0004;
/// MIGRATE_INFO_TYPE.
pub const MIGRATE_INFO_TYPE: u32 = 0x8400_0006;
/// SYSTEM_OFF.
pub const SYSTEM_OFF: u32 = 0x8400_0008;
/// SYSTEM_RESET.
pub const SYSTEM_RESET: u32 = 0x8400_0009;
/// PSCI_FEATURES.
pub const FEATURES: u32 = 0x8400_000a;
/// SMCCC_VERSION.
pub const SMCCC_VERSION: u32 = 0x8000_0000;
/// SYSTEM_SUSPEND, SMC64.
pub const SYSTEM_SUSPEND: u32 = 0xc400_000e;
/// What an unknown function gives, sign-extended: NOT_SUPPORTED.
pub const NOT_SUPPORTED: i64 = -1;

/// A refusal: one of the negative codes of DEN0022 section 5.2.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error(pub i64);

impl Error {
    /// INVALID_PARAMETERS.
    pub const INVALID_PARAMETERS: Self = Self(-2);
    /// ALREADY_ON.
    pub const ALREADY_ON: Self = Self(-4);
    /// ON_PENDING.
    pub const ON_PENDING: Self = Self(-5);
    /// INVALID_ADDRESS.
    pub const INVALID_ADDRESS: Self = Self(-9);
}

/// State that AFFINITY_INFO gives for a CPU.
pub const ON: i64 = 0;
/// As [`ON`].
pub const OFF: i64 = 1;

/// Calls `function` by HVC; 32-bit results are sign-extended.
///
/// It takes any function: those that start CPUs are this module's own business.
fn call(function: u32, arguments: [u64; 3]) -> i64 {
    let result: u64;
    // SAFETY: SMCCC keeps x18 to x30; a CPU that is started enters at this crate's own code.
    unsafe {
        asm!("hvc #0", inout("x0") u64::from(function) => result,
            inout("x1") arguments[0] => _, inout("x2") arguments[1] => _,
            inout("x3") arguments[2] => _, out("x4") _, out("x5") _, out("x6") _, out("x7") _,
            out("x8") _, out("x9") _, out("x10") _, out("x11") _, out("x12") _, out("x13") _,
            out("x14") _, out("x15") _, out("x16") _, out("x17") _, options(nostack));
    }
    i64::from(result as i32)
}

/// A call without arguments, of any number: unknown ones give [`NOT_SUPPORTED`].
#[inline]
pub fn query(function: u32) -> i64 {
    call(function, [0; 3])
}

/// The same by SMC, which a guest's machine may not have.
pub fn query_by_smc(function: u32) -> i64 {
    let result: u64;
    // SAFETY: as for `call`; an SMC that is UNDEFINED is skipped by `probe::catch`.
    unsafe {
        asm!("smc #0", inout("x0") u64::from(function) => result, out("x1") _, out("x2") _,
            out("x3") _, out("x4") _, out("x5") _, out("x6") _, out("x7") _,
            out("x8") _, out("x9") _, out("x10") _, out("x11") _, out("x12") _, out("x13") _,
            out("x14") _, out("x15") _, out("x16") _, out("x17") _, options(nostack));
    }
    i64::from(result as i32)
}

/// Any function with any arguments, but those that end, stop or start CPUs or the machine: they give
/// [`NOT_SUPPORTED`] here.
pub fn any(function: u32, arguments: [u64; 3]) -> i64 {
    // CPU_SUSPEND, CPU_OFF, CPU_ON, SYSTEM_OFF, SYSTEM_RESET, CPU_FREEZE, CPU_DEFAULT_SUSPEND, SYSTEM_SUSPEND,
    // SYSTEM_OFF2, SYSTEM_RESET2.
    let ends_or_starts = matches!(
        function & 0xff,
        1..=3 | 8 | 9 | 0xb | 0xc | 0xe | 0x12 | 0x15
    );
    if ends_or_starts && function & 0x3f00_ff00 == 0x0400_0000 {
        return NOT_SUPPORTED;
    }
    call(function, arguments)
}

/// PSCI_FEATURES for `function`.
pub fn features(function: u32) -> i64 {
    call(FEATURES, [u64::from(function), 0, 0])
}

/// AFFINITY_INFO of the CPU `affinity` at level `level`.
pub fn affinity_info(affinity: u64, level: u64) -> i64 {
    call(AFFINITY_INFO, [affinity, level, 0])
}

/// CPU_ON as a guest sees it, for CPUs that must not start; [`crate::cpu::start`] for others.
///
/// # Errors
/// The negative code that came back.
pub fn cpu_on(affinity: u64, entry: u64, context: u64) -> Result<(), Error> {
    match call(CPU_ON, [affinity, entry, context]) {
        0 => Ok(()),
        code => Err(Error(code)),
    }
}

/// Underpin's own call that marks pages from an address on as never to be shared, or as shareable
/// again: how many it did.
///
/// # Errors
/// The negative code that came back.
pub fn never_share(first: u64, pages: u64, mark: u64) -> Result<u64, Error> {
    let done = call(0xc600_0020, [first, pages, mark]);
    u64::try_from(done).map_err(|_| Error(done))
}

/// Underpin's own call for benches that leaves so many of the machine's frames free: how many are.
///
/// # Errors
/// The negative code that came back.
pub fn set_aside(left: u64) -> Result<u64, Error> {
    let free = call(0xc600_0021, [left, 0, 0]);
    u64::try_from(free).map_err(|_| Error(free))
}

/// PV_TIME_ST (Arm DEN0057): the address of this CPU's record of stolen time, in a guest whose memory ends
/// below 2 GiB.
///
/// # Errors
/// The negative code that came back.
pub fn stolen_time() -> Result<u64, Error> {
    let record = call(0xc500_0021, [0; 3]);
    u64::try_from(record).map_err(|_| Error(record))
}

/// CPU_OFF: gives a code only when it is refused.
pub fn cpu_off() -> i64 {
    query(CPU_OFF)
}

/// SYSTEM_OFF.
pub fn system_off() -> ! {
    query(SYSTEM_OFF);
    loop {
        crate::cpu::wait_for_interrupt();
    }
}

/// SYSTEM_RESET.
pub fn system_reset() -> ! {
    query(SYSTEM_RESET);
    loop {
        crate::cpu::wait_for_interrupt();
    }
}
