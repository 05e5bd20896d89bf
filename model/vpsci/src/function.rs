//! Function identifiers that are a hypervisor's, and fixed answers; the firmware's are in [`abi::firmware`].

use abi::firmware::{
    AFFINITY_INFO, AFFINITY_INFO_64, CPU_OFF, CPU_ON, CPU_ON_64, CPU_SUSPEND, CPU_SUSPEND_64,
    MIGRATE_INFO_TYPE, PSCI_FEATURES, PSCI_VERSION, SYSTEM_OFF, SYSTEM_RESET, SYSTEM_RESET2,
    SYSTEM_RESET2_64,
};

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
