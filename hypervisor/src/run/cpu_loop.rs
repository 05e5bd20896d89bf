//! What each CPU does for ever: housekeeping, its turn at hot pages, and whom the scheduler picks.

use crate::machine::{self, Cpu, Kind, due, stretch};
use crate::memory::frames;
use crate::placement;
use crate::run::{entry, exit, housekeeping, os0};
use crate::vcpu::{add, sched};
use crate::vms::seats;
use abi::control::work;
use arch::{cpu as metal, timer};
use core::sync::atomic::Ordering;
use model_scheduler::Pick;

/// Runs vCPUs for ever.
pub fn run_forever(cpu: &'static Cpu) -> ! {
    loop {
        run_while(cpu, || true);
    }
}

/// Runs vCPUs as long as `goes_on`.
pub fn run_while(cpu: &'static Cpu, goes_on: impl Fn() -> bool) {
    cpu.stretch.restart(timer::now());
    while goes_on() {
        stretch::look(Kind::Switch);
        housekeeping::some();
        placement::take_turn(cpu);
        cpu.reschedule.store(false, Ordering::Relaxed);
        match sched::choose(cpu) {
            Some(pick) => run(cpu, pick),
            None => rest(cpu),
        }
    }
    cpu.stretch.restart(u64::MAX);
}

/// Runs one pick to its end.
fn run(cpu: &'static Cpu, pick: Pick) {
    let Some((vm, index)) = seats::occupant(pick.entity) else {
        return run_os0(cpu, pick);
    };
    let Some(vcpu) = vm.vcpus.get(index) else {
        return;
    };
    let used = || vcpu.stats.get(work::RUN) + vcpu.stats.get(work::HYPERVISOR);
    let before = used();
    due::begin_slice(cpu, pick.slice);
    let outcome = entry::run(cpu, &vm, vcpu);
    let ran = machine::nanoseconds(used().wrapping_sub(before));
    cpu.slice_end.set(u64::MAX);
    let core = vcpu.core.try_lock();
    let deadline = core.and_then(|core| core.deadline(vm.time_offset()));
    let is_called = || vcpu.is_called();
    sched::settle(cpu, pick.entity, (outcome, deadline), ran, is_called);
}

/// Runs OS-0's vCPU of this CPU, which is what a vCPU without a VM is.
fn run_os0(cpu: &'static Cpu, pick: Pick) {
    let began = timer::now();
    due::begin_slice(cpu, pick.slice);
    let Some(os0) = os0::get() else { return };
    let left = (os0.turn)(cpu);
    cpu.slice_end.set(u64::MAX);
    let ran = machine::nanoseconds(timer::now() - began);
    sched::settle(cpu, pick.entity, left, ran, os0.has_interrupt);
}

/// Nobody to run: sleeps until an interrupt, and takes it.
fn rest(cpu: &'static Cpu) {
    if due::is_needed() {
        return;
    }
    let refill = sched::next_event(cpu);
    cpu.slice_end.set(refill.map_or(u64::MAX, machine::counts));
    due::set_alarm(cpu);
    if !cpu.reschedule.load(Ordering::Acquire) {
        sleep(cpu);
    }
    exit::take_interrupts(cpu);
    cpu.slice_end.set(u64::MAX);
}

/// Sleeps until an interrupt is pending, and counts the time; zeroes frames ahead before.
pub fn sleep(cpu: &Cpu) {
    stretch::end();
    let began = timer::now();
    while frames::lacks_zeroed(cpu.node) && !metal::is_interrupt_pending() {
        frames::zero_ahead(cpu.node);
    }
    metal::wait_for_interrupt();
    let woke = timer::now();
    cpu.stretch.begin(woke, Kind::Interrupt);
    add(&cpu.idle, woke - began);
}
