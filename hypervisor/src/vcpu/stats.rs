//! What a vCPU has used. Written by the CPU that runs it, read by anybody.

use crate::machine::nanoseconds;
use abi::control::{EXIT_CLASS_COUNT, WORK, Work, work};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Classes of exits, in the order of [`abi::control::Work`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum ExitClass {
    /// HVC.
    Hypercall,
    /// SMC.
    Smc,
    /// A read of a CPU feature register.
    IdRegister,
    /// Another trapped system register.
    SystemRegister,
    /// An SGI to send.
    Sgi,
    /// The distributor or a redistributor.
    Gic,
    /// The PL011.
    Uart,
    /// A virtio device.
    Virtio,
    /// Memory that was not there yet.
    Memory,
    /// A physical interrupt.
    Interrupt,
    /// The vCPU's timer.
    Timer,
    /// WFI and WFE.
    WaitForInterrupt,
    /// The first use of floating point.
    FloatingPoint,
    /// An access that was answered with an abort.
    Abort,
    /// List registers ran empty.
    Maintenance,
    /// Anything else.
    Other,
}

/// Counters of one vCPU. Times in counts of the system counter.
pub struct Stats {
    /// What it used, by [`work`]: times in counts.
    pub work: [AtomicU64; WORK],
    /// Changes of CPU.
    pub migrations: AtomicU64,
    /// When it began to wait, in counts: for a CPU or for an interrupt.
    pub waiting_since: AtomicU64,
    /// It waits for a CPU, not for an interrupt.
    pub ready: AtomicBool,
    /// Its program counter when it last left.
    pub pc: AtomicU64,
    /// The CPU it ran on last.
    pub last_cpu: AtomicU64,
}

impl Stats {
    /// All zero, of a vCPU that ran nowhere.
    pub const fn new() -> Self {
        Self {
            work: [const { AtomicU64::new(0) }; WORK],
            migrations: AtomicU64::new(0),
            waiting_since: AtomicU64::new(0),
            ready: AtomicBool::new(false),
            pc: AtomicU64::new(0),
            last_cpu: AtomicU64::new(u64::MAX),
        }
    }

    /// Notes a use ([`work`]). Only the CPU that runs the vCPU calls this, so a plain load and store do.
    #[inline]
    pub fn add(&self, place: usize, amount: u64) {
        add(&self.work[place], amount);
    }

    /// What it used so far of one kind.
    #[inline]
    pub fn get(&self, place: usize) -> u64 {
        self.work[place].load(Ordering::Relaxed)
    }

    /// Counts an exit.
    #[inline]
    pub fn count(&self, class: ExitClass) {
        self.add(work::EXITS + class as usize, 1);
    }

    /// How many exits there were, by class.
    pub fn exits(&self) -> Exits {
        core::array::from_fn(|class| self.get(work::EXITS + class))
    }

    /// What the exit was since `before`. A wait in the CPU also counts the interrupts that ended it,
    /// and some exits are of no class.
    pub fn class_since(&self, before: &Exits) -> Option<usize> {
        const WAIT: usize = ExitClass::WaitForInterrupt as usize;
        let now = self.exits();
        let differs = |class: &usize| now[*class] != before[*class];
        Some(WAIT)
            .filter(differs)
            .or_else(|| (0..EXIT_CLASS_COUNT).find(differs))
    }

    /// An exit of that class took so many counts.
    pub fn time(&self, class: usize, counts: u64) {
        self.add(work::TIMED + class, 1);
        self.add(work::TIMED_NS + class, counts);
    }

    /// What it used, times in nanoseconds.
    pub fn used(&self) -> Work {
        core::array::from_fn(|place| {
            let amount = self.get(place);
            let is_number = (work::EXITS..work::TIMED_NS).contains(&place);
            if is_number {
                amount
            } else {
                // What was slept in an exit is taken from EL2's time first, and added with all of the exit at its end.
                nanoseconds(amount.cast_signed().max(0).cast_unsigned())
            }
        })
    }
}

/// A number for each class of exits.
pub type Exits = [u64; EXIT_CLASS_COUNT];

/// Adds to a counter that only one CPU writes at a time.
#[inline]
pub fn add(counter: &AtomicU64, amount: u64) {
    counter.store(
        counter.load(Ordering::Relaxed).wrapping_add(amount),
        Ordering::Relaxed,
    );
}
