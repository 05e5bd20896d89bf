//! What happens, event by event, while somebody wants to know: a ring on each pCPU, which only that
//! CPU writes.
//!
//! Exits are noted where a vCPU has its `attention::TRACE` bit, which the run loop looks at with
//! the others: an exit costs the same as without. All else asks its CPU for the set of classes that
//! are on, one load and one branch.

use crate::machine::cpu::CPUS_MAX;
use abi::control::{NO_VM, TRACE_CPUS};
use alloc::boxed::Box;
use arch::timer;
use core::sync::atomic::{AtomicU32, Ordering};
use machine_locks::Once;
use model_trace::{Ring, Slot};

const _: () = assert!(CPUS_MAX == TRACE_CPUS);

/// The classes that are on, for vCPUs that are about to be made.
static CLASSES: AtomicU32 = AtomicU32::new(0);

/// What a pCPU notes, and where: nothing by default.
#[derive(Default)]
pub struct Trace {
    classes: AtomicU32,
    /// What was noted.
    pub ring: Once<Ring<Box<[Slot]>>>,
}

impl Trace {
    /// Whether events of that kind are wanted.
    #[inline]
    pub fn wants(&self, kind: u8) -> bool {
        self.classes.load(Ordering::Relaxed) & 1 << kind != 0
    }

    /// Whether events of any kind are wanted.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.classes.load(Ordering::Relaxed) != 0
    }

    /// Notes an event that began at `since`, in counts, and ends now, if its kind is wanted: one of
    /// [`abi::control::trace`], which says what detail and value are. `whose` is the VM's slot and the vCPU's
    /// number; `None` for the machine itself. Called by the pCPU itself only.
    #[cold]
    pub fn note(&self, kind: (u8, u8), whose: Option<(u16, u16)>, since: u64, value: u64) {
        let ((kind, detail), (vm, vcpu)) = (kind, whose.unwrap_or((NO_VM, 0)));
        if let Some(ring) = self.ring.get().filter(|_| self.wants(kind)) {
            let what = u64::from(kind)
                | u64::from(detail) << 8
                | u64::from(vcpu) << 16
                | u64::from(vm) << 32;
            ring.push([since, timer::now().saturating_sub(since), value, what]);
        }
    }
}

/// The classes that are on.
pub fn classes() -> u32 {
    CLASSES.load(Ordering::Relaxed)
}

/// These classes are on from now on, on CPUs that have a ring.
pub fn turn_to(classes: u32) {
    CLASSES.store(classes, Ordering::Relaxed);
    for cpu in crate::machine::cpus() {
        cpu.trace.classes.store(classes, Ordering::Release);
    }
}
