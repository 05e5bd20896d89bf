//! What a vCPU has used. Written by the CPU that runs it, read by anybody.

use abi::control::EXIT_CLASS_COUNT;
use core::sync::atomic::{AtomicU64, Ordering};

/// Classes of exits, in the order of [`abi::control::VcpuStatus::exits`].
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
#[derive(Default)]
pub struct Stats {
    /// Exits by [`ExitClass`].
    pub exits: [AtomicU64; EXIT_CLASS_COUNT],
    /// Of them, how many were timed, by class.
    timed: [AtomicU64; EXIT_CLASS_COUNT],
    /// How long those took.
    timed_counts: [AtomicU64; EXIT_CLASS_COUNT],
    /// Ran.
    pub run: AtomicU64,
    /// EL2 worked for it.
    pub hypervisor: AtomicU64,
    /// Had nothing to do.
    pub idle: AtomicU64,
    /// Could have run and did not.
    pub steal: AtomicU64,
    /// Changes of CPU.
    pub migrations: AtomicU64,
    /// When it began to wait, in counts: for a CPU or for an interrupt.
    pub waiting_since: AtomicU64,
    /// It waits for a CPU, not for an interrupt.
    pub ready: core::sync::atomic::AtomicBool,
    /// Its program counter when it last left.
    pub pc: AtomicU64,
    /// The CPU it ran on last.
    pub last_cpu: AtomicU64,
}

impl Stats {
    /// All zero, of a vCPU that ran nowhere.
    pub fn new() -> Self {
        Self {
            last_cpu: AtomicU64::new(u64::MAX),
            ..Self::default()
        }
    }

    /// Counts an exit. Only the CPU that runs the vCPU calls this, so a plain load and store do.
    #[inline]
    pub fn count(&self, class: ExitClass) {
        add(&self.exits[class as usize], 1);
    }

    /// How many exits there were, by class.
    pub fn exits(&self) -> Exits {
        core::array::from_fn(|class| self.exits[class].load(Ordering::Relaxed))
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
        add(&self.timed[class], 1);
        add(&self.timed_counts[class], counts);
    }

    /// Counts that exits took, by class, as far as those tell that were timed, and not more in all
    /// than EL2 worked for it.
    pub fn exit_counts(&self) -> Exits {
        let exits = self.exits();
        let all = u128::from(self.hypervisor.load(Ordering::Relaxed));
        let guesses: [u128; EXIT_CLASS_COUNT] = core::array::from_fn(|class| {
            let [timed, counts] = [&self.timed, &self.timed_counts]
                .map(|counters| u128::from(counters[class].load(Ordering::Relaxed)));
            let guess = (u128::from(exits[class]) * counts).checked_div(timed);
            guess.unwrap_or(0).min(all)
        });
        let sum = guesses.iter().sum::<u128>().max(all).max(1);
        guesses.map(|guess| (guess * all / sum) as u64)
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

/// Takes from a counter that only one CPU writes at a time.
#[inline]
pub fn subtract(counter: &AtomicU64, amount: u64) {
    counter.store(
        counter.load(Ordering::Relaxed).wrapping_sub(amount),
        Ordering::Relaxed,
    );
}
