//! Function identifiers and their fixed answers. Bit 31: fast call; bit 30: 64-bit; bits 29 to 24:
//! who owns it (0 architecture, 4 standard, 5 and 6 hypervisor).

pub(crate) const IS_64_BIT: u32 = 1 << 30;

pub(crate) const SMCCC_VERSION: u32 = 0x8000_0000;
pub(crate) const SMCCC_ARCH_FEATURES: u32 = 0x8000_0001;

pub(crate) const PSCI_VERSION: u32 = 0x8400_0000;
pub(crate) const CPU_SUSPEND: u32 = 0x8400_0001;
pub(crate) const CPU_SUSPEND_64: u32 = CPU_SUSPEND | IS_64_BIT;
pub(crate) const CPU_OFF: u32 = 0x8400_0002;
pub(crate) const CPU_ON: u32 = 0x8400_0003;
pub(crate) const CPU_ON_64: u32 = CPU_ON | IS_64_BIT;
pub(crate) const AFFINITY_INFO: u32 = 0x8400_0004;
pub(crate) const AFFINITY_INFO_64: u32 = AFFINITY_INFO | IS_64_BIT;
pub(crate) const MIGRATE_INFO_TYPE: u32 = 0x8400_0006;
pub(crate) const SYSTEM_OFF: u32 = 0x8400_0008;
pub(crate) const SYSTEM_RESET: u32 = 0x8400_0009;
pub(crate) const PSCI_FEATURES: u32 = 0x8400_000a;
pub(crate) const SYSTEM_RESET2: u32 = 0x8400_0012;
pub(crate) const SYSTEM_RESET2_64: u32 = SYSTEM_RESET2 | IS_64_BIT;

pub(crate) const TRNG_VERSION: u32 = 0x8400_0050;
pub(crate) const TRNG_FEATURES: u32 = 0x8400_0051;
pub(crate) const TRNG_GET_UUID: u32 = 0x8400_0052;
pub(crate) const TRNG_RND32: u32 = 0x8400_0053;
pub(crate) const TRNG_RND64: u32 = TRNG_RND32 | IS_64_BIT;

pub(crate) const PV_TIME_FEATURES: u32 = 0xc500_0020;
pub(crate) const PV_TIME_ST: u32 = 0xc500_0021;

pub(crate) const HYPERVISOR_UID: u32 = 0x8600_ff01;
pub(crate) const HYPERVISOR_REVISION: u32 = 0x8600_ff03;

pub(crate) const PSCI_VERSION_1_1: u64 = 0x1_0001;
pub(crate) const SMCCC_VERSION_1_2: u64 = 0x1_0002;
/// `MIGRATE_INFO_TYPE`: no trusted system that has to move.
pub(crate) const NO_MIGRATION_NEEDED: u64 = 2;
/// `SYSTEM_RESET2`: the only reset type of the architecture.
pub(crate) const WARM_RESET: u64 = 0;

/// b3ad1d54-6cf5-4a5c-9a3c-2f1f4f0b7d26: this hypervisor.
pub(crate) const UNDERPIN_UUID: [u8; 16] = [
    0xb3, 0xad, 0x1d, 0x54, 0x6c, 0xf5, 0x4a, 0x5c, 0x9a, 0x3c, 0x2f, 0x1f, 0x4f, 0x0b, 0x7d, 0x26,
];

/// The PSCI calls there are, as `PSCI_FEATURES` tells.
pub(crate) const fn is_psci(function: u32) -> bool {
    matches!(
        function,
        PSCI_VERSION
            | CPU_SUSPEND
            | CPU_SUSPEND_64
            | CPU_OFF
            | CPU_ON
            | CPU_ON_64
            | AFFINITY_INFO
            | AFFINITY_INFO_64
            | MIGRATE_INFO_TYPE
            | SYSTEM_OFF
            | SYSTEM_RESET
            | PSCI_FEATURES
            | SYSTEM_RESET2
            | SYSTEM_RESET2_64
    )
}
