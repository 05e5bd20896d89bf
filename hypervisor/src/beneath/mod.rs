//! OS-0: the operating system that owns the machine, with EL2 resident beneath it.
//!
//! It is started by the boot loader's modules ([`boot`]) and then runs at EL1 with all memory but
//! EL2's and with all devices, *detached*: there is no stage 2, interrupts go straight to it, and
//! only its SMCs come here ([`calls`]), since a CPU that it starts must pass through EL2. EL2 drives
//! no device meanwhile, the console included. When OS-0 asks, EL2 goes beneath it ([`attach`]): stage 2
//! hides EL2's memory, and OS-0's interrupts are handed on by EL2 ([`interrupts`]). Of memory that OS-0
//! lends then ([`loans`]), VMs are made, which share its CPUs with it ([`world`]), and outlive it ([`restart`]).

mod attach;
mod boot;
mod calls;
mod facts;
mod filter;
mod handover;
mod interrupts;
mod loans;
mod restart;
mod run;
mod stage2;
mod take_over;
mod upgrade;
mod world;

pub use boot::start;
pub use run::arrive;
pub use take_over::take_over;

use crate::machine::{CPUS_MAX, Cpu, cpu, give_up};
use crate::vcpu::PowerState;
use arch::boot::SecondaryRecord;
use arch::gic::{Distributor, Redistributor};
use core::{cell::Cell, sync::atomic::AtomicU64};
use interrupts::{Beside, OwnGic};
use machine_locks::{Once, Rank, SpinLock};
use model_addr::PaRange;
use model_firmware_calls::PowerStateFormat;
use model_gic_forward::{Forwarder, SavedLists};
use model_machine_tree::Machine;
use model_native_el1::Native;
use model_scheduler::EntityId;
use restart::Course;
use world::{Fp, World};

/// What was found at boot and never changes again.
struct Os0 {
    /// The machine's device tree.
    tree: &'static Machine,
    /// What EL2 keeps.
    home: Home,
    /// How the firmware writes power states.
    power_states: PowerStateFormat,
    /// `VTCR_EL2` and `VTTBR_EL2`: the VMID under which OS-0's TLB entries are from the beginning.
    stage2: (u64, u64),
    /// The interrupt controller, which is OS-0's.
    distributor: Distributor,
    /// The maintenance interrupt, which is EL2's.
    maintenance: u32,
    /// Its pages that EL2 looks at while it is beneath.
    filtered: filter::Pages,
    /// Whether stage 2 reaches all memory.
    is_in_reach: bool,
}

/// What EL2 keeps, and what of it is whose.
#[derive(Clone, Copy)]
struct Home {
    /// All of it.
    hidden: PaRange,
    /// The half that this image runs in.
    own: PaRange,
    /// The other half, for the next one.
    spare: PaRange,
    /// The machine's device tree as the boot loader left it.
    tree: PaRange,
    /// How many images ran before this one.
    upgrades: u64,
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
    /// EL2 is beneath OS-0 here. Its own, as all that follow.
    attached: Cell<bool>,
    /// EL2's registers while it is not.
    native: Cell<Native>,
    /// VMs share the CPU.
    shares: Cell<bool>,
    /// What OS-0's vCPU does while they do.
    course: Course,
    /// What the scheduler knows OS-0's vCPU by.
    entity: EntityId,
    /// OS-0's vCPU.
    world: SpinLock<World>,
    /// Its list registers while it is not in the CPU.
    lists: Cell<SavedLists>,
    /// Its floating point.
    fp: SpinLock<Fp>,
    /// Hands its interrupts on.
    forwarder: Cell<Forwarder>,
    /// Its redistributor, once it has arrived.
    redistributor: Cell<Option<Redistributor>>,
}

// SAFETY: the `Cell`s are used by the CPU itself only, which finds them through `this`; all else is
// shared by atomics and locks.
unsafe impl Sync for Os0Cpu {}

impl Os0Cpu {
    fn new(cpu: &'static Cpu, record: SecondaryRecord, entity: EntityId) -> Self {
        Self {
            cpu,
            record,
            power: SpinLock::new(Rank::Vm, PowerState::default()),
            entries: AtomicU64::new(0),
            attached: Cell::new(false),
            native: Cell::new(Native::of(|_, _| 0)),
            shares: Cell::new(false),
            course: Course::default(),
            entity,
            world: SpinLock::new(Rank::Vcpu, World::default()),
            lists: Cell::new(SavedLists::default()),
            fp: SpinLock::new(Rank::Device, Fp::NEW),
            forwarder: Cell::new(Forwarder::new(0)),
            redistributor: Cell::new(None),
        }
    }

    /// The executing CPU's part of the GIC.
    fn gic(&self, beside: Beside) -> OwnGic {
        let os0 = get();
        let Some(redistributor) = self.redistributor.get() else {
            give_up(format_args!("{} has no redistributor", self.cpu.id));
        };
        OwnGic {
            distributor: os0.distributor,
            redistributor,
            maintenance: os0.maintenance,
            beside,
        }
    }

    /// Nothing is handed on or held back.
    fn forget_forwarding(&self) {
        self.forwarder.set(Forwarder::new(get().maintenance));
    }
}

static OS0: Once<Os0> = Once::new();
static CPUS: [Once<&'static Os0Cpu>; CPUS_MAX] = [const { Once::new() }; CPUS_MAX];

fn get() -> &'static Os0 {
    match OS0.get() {
        Some(os0) => os0,
        None => arch::cpu::halt(),
    }
}

/// The executing CPU.
fn this() -> &'static Os0Cpu {
    match CPUS[usize::from(cpu::this().id.0)].get() {
        Some(cpu) => cpu,
        None => arch::cpu::halt(),
    }
}

/// All CPUs.
fn cpus() -> impl Iterator<Item = &'static Os0Cpu> {
    CPUS.iter().filter_map(|cpu| cpu.get().copied())
}

/// The CPU with that affinity.
fn by_affinity(affinity: u64) -> Option<&'static Os0Cpu> {
    cpus().find(|cpu| cpu.cpu.affinity == affinity)
}
