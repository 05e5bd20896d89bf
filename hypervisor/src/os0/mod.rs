//! OS-0: the operating system that owns the machine, with EL2 resident beneath it.
//!
//! It is started by the boot loader's modules ([`boot`]) and then runs at EL1 with all memory but
//! EL2's and with all devices, *detached*: there is no stage 2, interrupts go straight to it, and
//! only its SMCs come here ([`calls`]), since a CPU that it starts must pass through EL2. EL2 drives
//! no device meanwhile, the console included.

mod boot;
mod calls;
mod run;

pub use boot::start;
pub use run::arrive;

use crate::cpu::{self, CPUS_MAX, Cpu};
use core::sync::atomic::AtomicU64;
use machine_aarch64::boot::SecondaryRecord;
use machine_locks::{Once, Rank, SpinLock};
use model_addr::{Ipa, PaRange};
use model_firmware_calls::PowerStateFormat;
use model_vpsci::Power;

/// What was found at boot and never changes again.
struct Os0 {
    /// What EL2 keeps.
    hidden: PaRange,
    /// How the firmware writes power states.
    power_states: PowerStateFormat,
    /// `VTCR_EL2` and `VTTBR_EL2`: the VMID under which OS-0's TLB entries are from the beginning.
    stage2: (u64, u64),
}

/// A CPU as OS-0 has it.
struct Os0Cpu {
    /// EL2's own part.
    cpu: &'static Cpu,
    /// What EL2 finds when the CPU is started.
    record: SecondaryRecord,
    /// Whether it is on, and where OS-0 wants it to start.
    power: SpinLock<PowerState>,
    /// How often it came to EL2 since it was started.
    entries: AtomicU64,
}

struct PowerState {
    state: Power,
    entry: Ipa,
    context: u64,
}

impl Os0Cpu {
    fn new(cpu: &'static Cpu, record: SecondaryRecord) -> Self {
        let power = PowerState {
            state: Power::Off,
            entry: Ipa(0),
            context: 0,
        };
        Self {
            cpu,
            record,
            power: SpinLock::new(Rank::Vm, power),
            entries: AtomicU64::new(0),
        }
    }
}

static OS0: Once<Os0> = Once::new();
static CPUS: [Once<&'static Os0Cpu>; CPUS_MAX] = [const { Once::new() }; CPUS_MAX];

/// Whether this machine belongs to OS-0.
pub fn is_here() -> bool {
    OS0.get().is_some()
}

fn get() -> &'static Os0 {
    match OS0.get() {
        Some(os0) => os0,
        None => machine_aarch64::cpu::halt(),
    }
}

/// The executing CPU.
fn this() -> &'static Os0Cpu {
    match CPUS[usize::from(cpu::this().id.0)].get() {
        Some(cpu) => cpu,
        None => machine_aarch64::cpu::halt(),
    }
}

/// The CPU with that affinity.
fn by_affinity(affinity: u64) -> Option<&'static Os0Cpu> {
    let mut cpus = CPUS.iter().filter_map(|cpu| cpu.get().copied());
    cpus.find(|cpu| cpu.cpu.affinity == affinity)
}
