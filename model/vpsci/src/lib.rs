//! PSCI (Arm DEN0022) and the other standard calls of SMCCC (Arm DEN0028) as a guest sees them:
//! random numbers (Arm DEN0098), stolen time (Arm DEN0057) and who the hypervisor is; and
//! Underpin's own calls ([`abi::hypercall`]).
//!
//! [`decode`] checks everything that the call itself says. What it can answer it does; the rest is
//! a [`Call`] for EL2 to act on. Results are sign-extended to 64 bits, whichever width was called.
#![no_std]
#![forbid(unsafe_code)]

mod function;
mod power;
mod random;

pub use power::Power;
pub use random::Random;

use abi::firmware::{
    AFFINITY_INFO, AFFINITY_INFO_64, CPU_OFF, CPU_ON, CPU_ON_64, CPU_SUSPEND, CPU_SUSPEND_64,
    IS_64_BIT, MIGRATE_INFO_TYPE, PSCI_FEATURES, PSCI_VERSION, SMCCC_ARCH_FEATURES, SMCCC_VERSION,
    SYSTEM_OFF, SYSTEM_RESET, SYSTEM_RESET2, SYSTEM_RESET2_64, TRNG_RND32, TRNG_RND64,
    TRNG_VERSION,
};
use abi::hypercall::{AGAIN, NEVER, NEVER_SHARE};
use function::{
    HYPERVISOR_REVISION, HYPERVISOR_UID, NO_MIGRATION_NEEDED, PSCI_VERSION_1_1, PV_TIME_FEATURES,
    PV_TIME_ST, SMCCC_VERSION_1_2, UNDERPIN_UUID, WARM_RESET, is_psci,
};
use model_addr::{FRAME_SIZE, Ipa};

/// What PSCI answers when it refuses (DEN0022, 5.2.2). As a result: [`Refusal::reply`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i8)]
pub enum Refusal {
    /// There is no such call: SMCCC's answer too.
    NotSupported = -1,
    /// An argument means nothing here.
    InvalidParameters = -2,
    /// The vCPU is on.
    AlreadyOn = -4,
    /// The vCPU is about to start.
    OnPending = -5,
    /// The entry point is not executable memory of the guest.
    InvalidAddress = -9,
}

impl Refusal {
    /// What the guest reads.
    pub const fn reply(self) -> Reply {
        Reply::X0(self as i64 as u64)
    }
}

/// The registers that a call changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// X0 alone.
    X0(u64),
    /// X0 to X3.
    X0To3([u64; 4]),
}

impl Reply {
    /// Zero: done.
    pub const SUCCESS: Self = Self::X0(0);
}

/// What EL2 can offer to the vCPU that calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// There is entropy for the guest.
    pub entropy: bool,
    /// Each vCPU has a stolen-time structure.
    pub stolen_time: bool,
}

/// What a guest asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Answered already.
    Answered(Reply),
    /// Start a vCPU: [`Power::turn_on`].
    CpuOn {
        /// Which, as `Aff3.Aff2.Aff1.Aff0`. Nobody has it: [`Refusal::InvalidParameters`].
        target: u32,
        /// Where it starts.
        entry: Ipa,
        /// Its X0.
        context: u64,
    },
    /// Stop the vCPU that calls, without an answer.
    CpuOff,
    /// Wait for an interrupt as WFI does, then answer [`Reply::SUCCESS`].
    Standby,
    /// Answer with [`Power::affinity_info`].
    AffinityInfo {
        /// Which, as `Aff3.Aff2.Aff1.Aff0`. Nobody has it: [`Refusal::InvalidParameters`].
        target: u32,
    },
    /// End the VM.
    SystemOff,
    /// Reset the VM.
    SystemReset,
    /// Answer with [`Random::reply`], or [`Random::NO_ENTROPY`].
    Random(Random),
    /// Answer with the address of the stolen-time structure of the vCPU that calls, which is kept
    /// up to date from now on.
    StolenTime,
    /// Mark pages as never to be shared, or as shareable again: answer how many are done, or a refusal.
    NeverShare {
        /// The first page.
        first: Ipa,
        /// How many, 1 or more; their bytes are no more than a `u64` tells.
        pages: u64,
        /// Whether they are not to be shared.
        never: bool,
    },
    /// There is no such call: answer [`Refusal::NotSupported`], and count it.
    Unknown,
}

/// Decodes the call `function` (X0) with `arguments` (X1 to X3), by HVC or SMC with immediate 0.
#[inline]
pub fn decode(function: u64, arguments: [u64; 3], capabilities: Capabilities) -> Call {
    // The identifier is W0; calls of the 32-bit kind have 32-bit arguments.
    let function = function as u32;
    if function == PSCI_VERSION {
        return answer(PSCI_VERSION_1_1);
    }
    let arguments = if function & IS_64_BIT == 0 {
        arguments.map(|argument| argument & 0xffff_ffff)
    } else {
        arguments
    };
    decode_others(function, arguments, capabilities)
}

fn decode_others(function: u32, arguments: [u64; 3], capabilities: Capabilities) -> Call {
    let [first, second, third] = arguments;
    match function {
        CPU_ON | CPU_ON_64 => match affinity(first) {
            Some(target) => Call::CpuOn {
                target,
                entry: Ipa(second),
                context: third,
            },
            None => refuse(Refusal::InvalidParameters),
        },
        AFFINITY_INFO | AFFINITY_INFO_64 => match (affinity(first), second) {
            (Some(target), 0) => Call::AffinityInfo { target },
            _ => refuse(Refusal::InvalidParameters),
        },
        CPU_OFF => Call::CpuOff,
        CPU_SUSPEND | CPU_SUSPEND_64 => suspend(first),
        MIGRATE_INFO_TYPE => answer(NO_MIGRATION_NEEDED),
        SYSTEM_OFF => Call::SystemOff,
        SYSTEM_RESET => Call::SystemReset,
        SYSTEM_RESET2 | SYSTEM_RESET2_64 if first == WARM_RESET => Call::SystemReset,
        SYSTEM_RESET2 | SYSTEM_RESET2_64 => refuse(Refusal::InvalidParameters),
        PSCI_FEATURES => answer_support(is_psci(first as u32) || first == u64::from(SMCCC_VERSION)),
        SMCCC_VERSION => answer(SMCCC_VERSION_1_2),
        SMCCC_ARCH_FEATURES => arch_features(first as u32, capabilities),
        TRNG_VERSION..=TRNG_RND32 | TRNG_RND64 if capabilities.entropy => {
            random::decode(function, first)
        }
        HYPERVISOR_UID => Call::Answered(Reply::X0To3(uuid_registers(UNDERPIN_UUID))),
        HYPERVISOR_REVISION => Call::Answered(Reply::X0To3([0, 1, 0, 0])),
        PV_TIME_FEATURES if capabilities.stolen_time => {
            answer_support(matches!(first as u32, PV_TIME_FEATURES | PV_TIME_ST))
        }
        PV_TIME_ST if capabilities.stolen_time => Call::StolenTime,
        NEVER_SHARE => never_share(first, second, third),
        _ => Call::Unknown,
    }
}

/// Pages are whole, and their addresses do not wrap.
fn never_share(first: u64, pages: u64, mark: u64) -> Call {
    let bytes = pages.checked_mul(FRAME_SIZE);
    let end = bytes.and_then(|bytes| first.checked_add(bytes));
    let is_whole = pages > 0 && Ipa(first).is_aligned(FRAME_SIZE) && end.is_some();
    match (is_whole, mark) {
        (true, NEVER | AGAIN) => Call::NeverShare {
            first: Ipa(first),
            pages,
            never: mark == NEVER,
        },
        _ => refuse(Refusal::InvalidParameters),
    }
}

/// The affinity fields of an MPIDR value as one word; `None` where other bits are set.
const fn affinity(mpidr: u64) -> Option<u32> {
    if mpidr & !0xff_00ff_ffff != 0 {
        return None;
    }
    Some((mpidr & 0xff_ffff) as u32 | (mpidr >> 32 << 24) as u32)
}

/// CPU_SUSPEND with a power state in the original format (DEN0022, 5.4.2). A power-down state is
/// entered as standby with everything retained: the specification lets a shallower state be chosen,
/// and the vCPU returns with success, as from a power-down that was cut short by its wake-up.
const fn suspend(power_state: u64) -> Call {
    const STATE_ID: u64 = 0xffff;
    const POWER_DOWN: u64 = 1 << 16;
    const POWER_LEVEL: u64 = 3 << 24;
    if power_state & !(STATE_ID | POWER_DOWN | POWER_LEVEL) == 0 {
        Call::Standby
    } else {
        refuse(Refusal::InvalidParameters)
    }
}

const fn arch_features(function: u32, capabilities: Capabilities) -> Call {
    match function {
        SMCCC_VERSION | SMCCC_ARCH_FEATURES => answer(0),
        PV_TIME_FEATURES => answer_support(capabilities.stolen_time),
        _ => refuse(Refusal::NotSupported),
    }
}

const fn answer(value: u64) -> Call {
    Call::Answered(Reply::X0(value))
}

const fn refuse(refusal: Refusal) -> Call {
    Call::Answered(refusal.reply())
}

const fn answer_support(is_supported: bool) -> Call {
    if is_supported {
        answer(0)
    } else {
        refuse(Refusal::NotSupported)
    }
}

/// A UUID as SMCCC returns it: W0 to W3, the first byte of each lowest (DEN0028, 5.4).
fn uuid_registers(uuid: [u8; 16]) -> [u64; 4] {
    core::array::from_fn(|i| {
        let word: [u8; 4] = core::array::from_fn(|byte| uuid[4 * i + byte]);
        u32::from_le_bytes(word).into()
    })
}
