//! Faults that wait, since their VM owes or the machine has no frame.

use crate::housekeeping;
use crate::vm::Instance;
use core::sync::atomic::{AtomicU32, Ordering};
use machine_aarch64::timer;
use model_addr::Gfn;
use model_pmap::Backing;

/// Whether a guest that owes may take a frame of the emergency reserve now.
pub fn may_use_emergency(vm: &Instance) -> bool {
    one_less(&vm.paging.emergency)
}

/// Takes one of what is left; whether there was one.
fn one_less(left: &AtomicU32) -> bool {
    let less = |left: u32| left.checked_sub(1);
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
        .is_ok()
}

/// Whether a vCPU that needs a frame must wait for it, since its VM owes, or it is to be seen whether it
/// does; it is called then.
pub fn must_wait(vm: &Instance, gfn: Gfn, writes: bool, vcpu: u16) -> bool {
    let allowance = &vm.paging.allowance;
    if allowance.load(Ordering::Relaxed) == u32::MAX {
        return false;
    }
    if one_less(allowance) {
        return false;
    }
    let needs = match vm.space.entry(gfn).backing {
        Backing::Private(_) => false,
        Backing::Shared(_) => writes,
        Backing::Absent | Backing::Discarded(_) => true,
    };
    if !needs {
        return false;
    }
    stall(vm, 1 << vcpu);
    if !vm.paging.is_slowed.load(Ordering::Relaxed) {
        housekeeping::request_at(timer::now());
    }
    true
}

/// Somebody waits for a frame until the next go: a vCPU's bit, or [`DEVICES`].
pub fn stall(vm: &Instance, waiter: u64) {
    vm.paging.waits.stall();
    vm.paging.stalled.fetch_or(waiter, Ordering::SeqCst);
}
