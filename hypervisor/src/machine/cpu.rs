//! What each pCPU has for itself, found by `TPIDR_EL2`.

use crate::machine::{stretch::Stretch, trace::Trace};
use arch::{cpu as metal, gic};
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use machine_locks::{HeldRanks, Once, Rank, SpinLock};
use model_addr::{CpuId, NodeId};
use model_entropy::Generator;
use model_vmid::LastRun;

/// The most pCPUs that are used.
pub const CPUS_MAX: usize = model_machine_tree::MAX_CPUS;
/// The most vCPUs of the machine; as many may sleep until a time on one pCPU.
pub const ENTITIES_MAX: usize = 256;

/// What follows begins a cache line.
#[repr(align(64))]
struct Line;

/// A pCPU. Lives in memory of its own node, for ever. What others read all the time and nobody changes
/// is in lines of its own.
#[repr(C)]
pub struct Cpu {
    /// Its number.
    pub id: CpuId,
    /// Its node.
    pub node: NodeId,
    /// Its affinity, by which others kick it.
    pub affinity: u64,
    /// Its part of the interrupt controller, once it is up.
    pub redistributor: Once<gic::Redistributor>,
    apart: [Line; 0],
    /// It has come up.
    pub online: AtomicBool,
    /// Somebody wants it to choose again what to run.
    pub reschedule: AtomicBool,
    /// When its vCPU's slice ends, in counts. Its own.
    pub slice_end: Cell<u64>,
    /// When its vCPU's physical timer raises its line, in counts; the end of time if it will not.
    /// Its own.
    pub guest_deadline: Cell<u64>,
    /// When a write began that hides how long it takes, in counts. Its own.
    pub slot_began: Cell<u64>,
    /// Whom it wakes waits until its vCPU has had a while. Its own.
    pub is_patient: Cell<bool>,
    /// The vCPU whose TLB entries it made last.
    pub last_run: Cell<LastRun>,
    /// It sleeps with a guest loaded that waits for an interrupt.
    pub sleeps_in_place: AtomicBool,
    /// vCPUs that fell asleep here until a time.
    pub sleepers: SpinLock<Sleepers>,
    /// Counts it has idled.
    pub idle: AtomicU64,
    /// Counts that OS-0 ran here beside VMs, and that were stolen from it.
    pub os0: [AtomicU64; 2],
    /// How long it has worked without a look at its interrupts.
    pub stretch: Stretch,
    /// What it notes of what happens.
    pub trace: Trace,
    /// Its random bits, once it has used some. Its own.
    pub entropy: Cell<Option<Generator>>,
    /// Locks it holds, in debug builds.
    pub held: HeldRanks,
}

// SAFETY: the `Cell`s are used by the CPU itself only, which finds them through `this`; all else
// is shared by atomics and locks.
unsafe impl Sync for Cpu {}

impl Cpu {
    /// A CPU as it is before it comes up.
    pub fn new(id: CpuId, node: NodeId, affinity: u64) -> Self {
        Self {
            id,
            node,
            affinity,
            redistributor: Once::new(),
            apart: [],
            online: AtomicBool::new(false),
            reschedule: AtomicBool::new(false),
            slice_end: Cell::new(u64::MAX),
            guest_deadline: Cell::new(u64::MAX),
            slot_began: Cell::new(0),
            is_patient: Cell::new(false),
            last_run: Cell::new(LastRun { vttbr: 0, vcpu: 0 }),
            sleeps_in_place: AtomicBool::new(false),
            sleepers: SpinLock::new(Rank::Scheduler, Sleepers::default()),
            idle: AtomicU64::new(0),
            os0: [const { AtomicU64::new(0) }; 2],
            stretch: Stretch::new(),
            trace: Trace::default(),
            entropy: Cell::new(None),
            held: HeldRanks::new(),
        }
    }

    /// Makes the CPU leave its guest, or its sleep, and look at its work.
    pub fn kick(&self) {
        gic::kick(self.affinity);
    }

    /// As [`Self::kick`], and it chooses again what to run.
    pub fn poke(&self) {
        self.reschedule.store(true, Ordering::Release);
        self.kick();
    }
}

/// The executing CPU.
pub fn this() -> &'static Cpu {
    let word = metal::local_word() as usize;
    // SAFETY: `TPIDR_EL2` was set to a `Cpu` that lives for ever before anything else ran on this
    // CPU; see `start`.
    unsafe { &*core::ptr::with_exposed_provenance::<Cpu>(word) }
}

/// vCPUs that sleep until a time, few at a time.
#[derive(Default)]
pub struct Sleepers(heapless::Vec<(u64, u16), ENTITIES_MAX>);

impl Sleepers {
    /// Adds scheduler entity `entity`, to be woken at count `at`. `false` where the list is full:
    /// the vCPU then must not sleep here.
    #[must_use]
    pub fn add(&mut self, at: u64, entity: u16) -> bool {
        self.remove(entity);
        self.0.push((at, entity)).is_ok()
    }

    /// Forgets `entity`.
    fn remove(&mut self, entity: u16) {
        self.0.retain(|&(_, other)| other != entity);
    }

    /// The earliest time anybody is to be woken; the end of time if nobody is.
    pub fn earliest(&self) -> u64 {
        self.0.iter().map(|&(at, _)| at).min().unwrap_or(u64::MAX)
    }

    /// Takes one whose time has come.
    pub fn take_due(&mut self, now: u64) -> Option<u16> {
        let due = self.0.iter().position(|&(at, _)| at <= now)?;
        Some(self.0.swap_remove(due).1)
    }
}
