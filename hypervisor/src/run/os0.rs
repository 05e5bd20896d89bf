//! What EL2's CPUs ask of OS-0, with which VMs share them: given at boot by whoever lies beneath it.

use crate::machine::Cpu;
use crate::vcpu::Outcome;
use machine_locks::Once;
use model_gic_forward::Forwarded;

/// OS-0's part in the executing CPU.
pub struct Os0 {
    /// Runs OS-0's vCPU until it must leave; also gives when it is to be woken.
    pub turn: fn(&'static Cpu) -> (Outcome, Option<u64>),
    /// Whether OS-0, which is not in the CPU, has something to take.
    pub has_interrupt: fn() -> bool,
    /// A physical interrupt came while OS-0 is not in the CPU: what is its, is kept for it.
    pub take_away: fn() -> Forwarded,
    /// OS-0 has something to do on this CPU.
    pub call: fn(),
    /// A VM is about to use floating point on this CPU: OS-0's is put aside.
    pub put_fp_aside: fn(),
}

static OS0: Once<Os0> = Once::new();

/// OS-0 is there.
pub fn install(os0: Os0) -> bool {
    OS0.set(os0).is_ok()
}

/// OS-0, where the machine is its.
#[inline]
pub fn get() -> Option<&'static Os0> {
    OS0.get()
}
