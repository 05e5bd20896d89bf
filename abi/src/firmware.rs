//! Numbers of calls to firmware (SMCCC, Arm DEN0028; PSCI, DEN0022; TRNG, DEN0098): guests make them to EL2, OS-0 makes
//! them past it, and EL2 itself to what is below. Bit 31: fast call; bit 30: 64-bit; bits 29 to 24: who owns it (0
//! architecture, 4 standard, 5 and 6 hypervisor).
#![expect(missing_docs, reason = "the names are those of the specifications")]

pub const IS_64_BIT: u32 = 1 << 30;

pub const SMCCC_VERSION: u32 = 0x8000_0000;
pub const SMCCC_ARCH_FEATURES: u32 = 0x8000_0001;

pub const PSCI_VERSION: u32 = 0x8400_0000;
pub const CPU_SUSPEND: u32 = 0x8400_0001;
pub const CPU_SUSPEND_64: u32 = CPU_SUSPEND | IS_64_BIT;
pub const CPU_OFF: u32 = 0x8400_0002;
pub const CPU_ON: u32 = 0x8400_0003;
pub const CPU_ON_64: u32 = CPU_ON | IS_64_BIT;
pub const AFFINITY_INFO: u32 = 0x8400_0004;
pub const AFFINITY_INFO_64: u32 = AFFINITY_INFO | IS_64_BIT;
pub const MIGRATE_INFO_TYPE: u32 = 0x8400_0006;
pub const SYSTEM_OFF: u32 = 0x8400_0008;
pub const SYSTEM_RESET: u32 = 0x8400_0009;
pub const PSCI_FEATURES: u32 = 0x8400_000a;
pub const CPU_DEFAULT_SUSPEND: u32 = 0x8400_000c;
pub const SYSTEM_SUSPEND: u32 = 0x8400_000e;
pub const SYSTEM_RESET2: u32 = 0x8400_0012;
pub const SYSTEM_RESET2_64: u32 = SYSTEM_RESET2 | IS_64_BIT;

pub const TRNG_VERSION: u32 = 0x8400_0050;
pub const TRNG_FEATURES: u32 = 0x8400_0051;
pub const TRNG_GET_UUID: u32 = 0x8400_0052;
pub const TRNG_RND32: u32 = 0x8400_0053;
pub const TRNG_RND64: u32 = TRNG_RND32 | IS_64_BIT;
