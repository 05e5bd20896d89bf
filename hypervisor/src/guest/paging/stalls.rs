//! Faults that wait, since their VM owes or the machine has no frame.

use crate::guest::{Guest, paging::DEVICES};
use crate::machine::due;
use arch::timer;
use core::sync::atomic::{AtomicU32, Ordering};
use model_addr::Gfn;
use model_entitlement::REQUEST_FAULTS;
use model_pmap::Backing;

/// Whether a guest that owes may have one more fault filled, by a frame of the emergency reserve if need be.
pub fn may_use_emergency(vm: &Guest) -> bool {
    less(&vm.paging.emergency, 1)
}

/// Takes up to `count` of what is left; whether there was any.
fn less(left: &AtomicU32, count: u32) -> bool {
    let less = |left: u32| (left > 0).then(|| left.saturating_sub(count));
    left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
        .is_ok()
}

/// Takes some faults of what a VM may have until the next go; whether it may have them.
fn may_fill(vm: &Guest, faults: u32) -> bool {
    let allowance = &vm.paging.allowance;
    allowance.load(Ordering::Relaxed) == u32::MAX || less(allowance, faults)
}

/// Lets somebody wait until the next go, which comes soon.
fn wait_for_go(vm: &Guest, waiter: u64) {
    stall(vm, waiter);
    if !vm.paging.is_slowed.load(Ordering::Relaxed) {
        due::tick_at(timer::now());
    }
}

/// Whether a vCPU that needs a frame must wait for it, since its VM owes, or it is to be seen whether it
/// does; it is called then.
pub fn must_wait(vm: &Guest, gfn: Gfn, writes: bool, vcpu: u16) -> bool {
    if may_fill(vm, 1) {
        return false;
    }
    let needs = match vm.space.entry(gfn).backing {
        Backing::Private(_) => false,
        Backing::Shared(_) => writes,
        Backing::Absent | Backing::Discarded(_) => true,
    };
    if !needs || may_use_emergency(vm) {
        return false;
    }
    wait_for_go(vm, 1 << vcpu);
    true
}

/// Whether a device of the VM may begin with a request, which may put frames behind pages as faults do; it
/// is told when to ask again.
pub fn may_begin_request(vm: &Guest) -> bool {
    let may = may_fill(vm, REQUEST_FAULTS) || less(&vm.paging.emergency, REQUEST_FAULTS);
    if !may {
        wait_for_go(vm, DEVICES);
    }
    may
}

/// A pass of a device has filled so many pages: they are paid for as faults are, beside those that
/// [`may_begin_request`] took.
pub fn charge_request(vm: &Guest, pages: u32) {
    may_fill(vm, pages.saturating_sub(REQUEST_FAULTS));
}

/// Somebody waits for a frame until the next go: a vCPU's bit, or [`DEVICES`].
pub fn stall(vm: &Guest, waiter: u64) {
    vm.paging.waits.stall();
    vm.paging.stalled.fetch_or(waiter, Ordering::SeqCst);
}
