//! A vCPU: what it is when no CPU runs it, what others may ask of it, and what it has used.

pub mod sched;
mod state;
pub mod stats;

pub use stats::{ExitClass, Exits, add};

use arch::guest::{El1State, FpState};
use arch::{entry::GuestContext, list_registers::VirtualInterface, timer::VirtualTimer};
use core::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use machine_locks::{Rank, SpinLock};
use model_addr::Ipa;
use model_scheduler::EntityId;
use model_trap::MmioAccess;
use model_vgic::{ListFile, Redistributor};
use model_vpsci::{Power, Refusal};
use model_vtimer::PhysicalTimer;
use stats::Stats;

/// "On no CPU", in [`Vcpu::running_on`].
pub const NOWHERE: u16 = u16::MAX;

/// Reasons for which a vCPU must do something before it runs on; bits of [`Vcpu::attention`].
pub mod attention {
    /// Interrupts may have become deliverable: look at the list registers.
    pub const DELIVER: u32 = 1 << 0;
    /// Another vCPU wants to read what the list registers say.
    pub const PUBLISH: u32 = 1 << 1;
    /// It must stand still: its VM is paused, ends or restarts.
    pub const STAND_STILL: u32 = 1 << 2;
    /// A device has more of its work to do on this vCPU.
    pub const DEVICE: u32 = 1 << 3;
    /// What it waits for in memory may be there: it tries again.
    pub const PAGE: u32 = 1 << 4;
    /// Its exits are traced: stays set.
    pub const TRACE: u32 = 1 << 5;
    /// Its next exit is timed: stays set until one is.
    pub const SAMPLE: u32 = 1 << 6;
    /// What only observes it, and wakes nobody.
    pub const OBSERVED: u32 = TRACE | SAMPLE;
    /// Another host waits for a page that it keeps until its instruction has retired.
    pub const LEASE: u32 = 1 << 7;
    /// Its VM spans hosts: it may run only while they promise. Stays set.
    pub const SPANS: u32 = 1 << 8;
    /// It waits for another host: stays set until the answer is there.
    pub const REMOTE: u32 = 1 << 9;
    /// The guest's counter has changed.
    pub const CLOCK: u32 = 1 << 10;
    /// What stays set, and wakes nobody.
    pub const STAYS: u32 = OBSERVED | SPANS | REMOTE;

    /// What vCPUs have while events of these classes are traced.
    pub const fn of_trace(classes: u32) -> u32 {
        if classes & 1 << abi::control::trace::EXIT != 0 {
            TRACE
        } else {
            0
        }
    }
}

/// Why a vCPU left its CPU. As wide as a register is returned: no exit masks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Outcome {
    /// Its slice is over, or somebody more urgent came.
    Preempted,
    /// It waits for an interrupt.
    Waiting,
    /// It has turned itself off.
    Off,
    /// Its VM is paused, ends or restarts.
    Stopped,
}

/// The state of a vCPU that only the CPU that runs it may touch: whoever holds the lock has it,
/// for as long as it is loaded.
#[derive(Default)]
pub struct Core {
    /// General registers.
    pub context: GuestContext,
    /// EL1 registers, while not loaded.
    pub el1: El1State,
    /// Floating point, while not in the registers.
    pub fp: FpState,
    /// Floating point is in the registers.
    pub fp_loaded: bool,
    /// The virtual timer, while not loaded.
    pub timer: VirtualTimer,
    /// The physical timer, which traps.
    pub physical_timer: PhysicalTimer,
    /// The virtual CPU interface, while not loaded.
    pub interface: VirtualInterface,
    /// Which interrupts are in which list register.
    pub lists: ListFile,
    /// What it asked another host for, and waits for.
    pub asked: Option<Asked>,
    /// The stolen time that the guest was shown, in counts; `None` where it never asked.
    pub stolen_shown: Option<u64>,
}

/// Whether a vCPU, or a CPU of OS-0, is on.
#[derive(Default)]
pub struct PowerState {
    /// On, off, or about to be on.
    pub state: Power,
    /// Where it begins.
    pub entry: Ipa,
    /// Its first x0.
    pub context: u64,
}

/// What a vCPU asked another host for, and what becomes of the answer.
#[derive(Clone, Copy)]
pub enum Asked {
    /// A call, whose instruction is behind it: its X0.
    Call,
    /// An access to a device: its register.
    Access(MmioAccess),
    /// Nothing yet: it has an SGI to send.
    Sgi((u8, u64)),
}

/// A vCPU of a running VM.
pub struct Vcpu {
    /// Its number in the VM.
    pub index: u16,
    /// Its affinity as the guest sees it, as `MPIDR_EL1` has it.
    pub mpidr: u64,
    /// What the scheduler knows it by.
    pub entity: EntityId,
    /// Its state; held by the CPU that runs it.
    pub core: SpinLock<Core>,
    /// Its SGIs and PPIs.
    pub redistributor: SpinLock<Redistributor>,
    /// What it must do before it runs on: bits of [`attention`].
    pub attention: AtomicU32,
    /// The CPU that has it loaded, or [`NOWHERE`].
    pub running_on: AtomicU16,
    /// Whether it is on (PSCI), and where it begins when it is turned on.
    pub power: SpinLock<PowerState>,
    /// What it has used.
    pub stats: Stats,
}

impl PowerState {
    /// PSCI CPU_ON: it begins at `entry` with `context` in x0. `is_memory` says whether there is memory at the entry.
    pub fn turn_on(&mut self, entry: Ipa, is_memory: bool, context: u64) -> Result<(), Refusal> {
        self.state.turn_on(entry, is_memory)?;
        (self.entry, self.context) = (entry, context);
        Ok(())
    }
}

impl Core {
    /// A vCPU that has never run.
    pub fn new(mpidr: u64) -> Self {
        Self {
            el1: El1State::reset(mpidr),
            ..Self::default()
        }
    }

    /// As after reset, about to run at `entry` with `argument` in x0 (PSCI CPU_ON; booting.rst):
    /// EL1 with SP_EL1, everything masked, MMU off.
    pub fn start_at(&mut self, mpidr: u64, entry: u64, argument: u64) {
        const EL1H_MASKED: u64 = 0x3c5;
        *self = Self {
            fp_loaded: self.fp_loaded,
            ..Self::new(mpidr)
        };
        self.context.pc = entry;
        self.context.pstate = EL1H_MASKED;
        self.context.set_register(0, argument);
    }

    /// When one of the timers has something to say, in counts of the machine, while the vCPU is
    /// not loaded; its virtual time runs `offset` counts late, or, where it began on another machine, may be ahead.
    pub fn deadline(&self, offset: u64) -> Option<u64> {
        let here = |at: u64| at.saturating_add_signed(offset.cast_signed());
        let of_virtual = self.timer.deadline().map(here);
        let deadlines = [of_virtual, self.physical_timer.deadline()];
        deadlines.into_iter().flatten().min()
    }
}

impl Vcpu {
    /// A vCPU that is off.
    pub fn new(index: u16, mpidr: u64, entity: EntityId, redistributor: Redistributor) -> Self {
        Self {
            index,
            mpidr,
            entity,
            core: SpinLock::new(Rank::Vcpu, Core::new(mpidr)),
            redistributor: SpinLock::new(Rank::Redistributor, redistributor),
            attention: AtomicU32::new(attention::of_trace(crate::machine::trace::classes())),
            running_on: AtomicU16::new(NOWHERE),
            power: SpinLock::new(Rank::Vm, PowerState::default()),
            stats: Stats::new(),
        }
    }

    /// PSCI CPU_ON: it begins at `entry` with `context` in x0. `is_memory` says whether the VM
    /// has memory at the entry.
    pub fn turn_on(&self, entry: Ipa, is_memory: bool, context: u64) -> Result<(), Refusal> {
        self.power.lock().turn_on(entry, is_memory, context)?;
        crate::vcpu::sched::wake(self.entity);
        Ok(())
    }

    /// Whether it has anything to do before it runs on.
    pub fn is_called(&self) -> bool {
        self.attention.load(Ordering::SeqCst) & !attention::STAYS != 0
    }

    /// The CPU that has it loaded.
    pub fn running_on(&self) -> Option<u16> {
        let cpu = self.running_on.load(Ordering::SeqCst);
        (cpu != NOWHERE).then_some(cpu)
    }

    /// Asks it to do what `bits` of [`attention`] say before it runs on, and makes it look.
    ///
    /// Either this sees the vCPU on a CPU and kicks that CPU, or the vCPU, about to sleep, sees
    /// the bits: both sides write first and read then.
    pub fn call(&self, bits: u32) {
        self.attention.fetch_or(bits, Ordering::SeqCst);
        match self.running_on() {
            None => crate::vcpu::sched::wake(self.entity),
            Some(cpu) if cpu == crate::machine::cpu::this().id.0 => {}
            Some(cpu) => {
                if let Some(cpu) = crate::machine::cpu(cpu) {
                    cpu.kick();
                }
            }
        }
    }
}
