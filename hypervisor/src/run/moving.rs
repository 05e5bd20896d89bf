//! vCPUs that go over to another host of their VM: [`model_span`] says when, and what others are told.

use crate::cluster::{self, span};
use crate::guest::{Guest, layout::TIMER_PPI};
use crate::life::create;
use crate::machine::{self, due};
use crate::vcpu::{Vcpu, attention, sched};
use crate::vms::{Instance, seats, table};
use abi::state;
use alloc::sync::Arc;
use arch::timer;
use model_vgic::VcpuSet;

/// How long a vCPU that cannot leave yet goes on before that is tried again.
const AGAIN_NS: u64 = 1_000_000;

/// Lets the vCPU go that is to leave, if it has nothing under way and no CPU runs it.
pub fn go_on(vm: &Arc<Instance>) {
    // Its vCPUs leave the scheduler for good.
    if vm.is_ending() {
        return;
    }
    let leaves = vm.with_session(|session, _| {
        let (vcpu, _) = session.leaves()?;
        Some((usize::from(vcpu), session.is_idle(vcpu)))
    });
    let Some((vcpu, is_idle)) = leaves.flatten() else {
        return;
    };
    let Some(vcpu) = vm.vcpus.get(vcpu) else {
        return;
    };
    if is_idle && sched::leave(vcpu.entity) {
        if leave(vm, vcpu) {
            return;
        }
        sit_down(vm, vcpu);
    } else if is_idle {
        vcpu.call(attention::STAND_STILL);
    }
    due::request_at(timer::now().saturating_add(machine::counts(AGAIN_NS)));
}

/// Takes a vCPU that is in no queue out of this host; `false` if it goes on here.
fn leave(vm: &Instance, vcpu: &Vcpu) -> bool {
    let Some(span) = &vm.span else { return false };
    if vcpu.core.lock().asked.is_some() {
        return false;
    }
    let concerned = vcpu.give_back_interrupts(&vm.distributor);
    let (given, groups) = {
        let mut distributor = vm.distributor.lock();
        let given = distributor.give_away(vcpu.index as u8);
        (given, distributor.groups())
    };
    let first = VcpuSet::only(0);
    let concerned = concerned.or(if given == Some(true) {
        first
    } else {
        VcpuSet::NONE
    });
    vm.call_vcpus(concerned, attention::DELIVER);
    if given.is_none() {
        // Its guest may need another vCPU to come to the end of that, and that one may wait for it.
        vm.with_session(|session, send| session.stays(send));
        try_again(vm);
        return false;
    }
    span::seat(vcpu.index, false);
    let mut record = vcpu.take(groups, vm.vcpus.len(), || span.seat(vcpu.index, false));
    // The counter of its next host is another.
    record.physical_timer[1] = record.physical_timer[1].wrapping_sub(vm.time_offset());
    cluster::depart(&record);
    vm.with_session(|session, send| session.left(send));
    try_again(vm);
    log::info!("{}: vCPU {} has left", vm.name(), vcpu.index);
    true
}

/// A vCPU has come, with its state.
pub fn arrive(vm: &Arc<Instance>, index: u8) {
    let (Some(span), Some(vcpu)) = (&vm.span, vm.vcpus.get(usize::from(index))) else {
        return;
    };
    if vm.is_ending() {
        return;
    }
    span::seat(vcpu.index, true);
    let groups = vm.distributor.lock().groups();
    let is_sound = cluster::arrival().is_some_and(|mut record| {
        record.physical_timer[1] = record.physical_timer[1].wrapping_add(vm.time_offset());
        own_timer_only(&mut record);
        vcpu.restore_with(&record, groups, || span.seat(vcpu.index, true))
    });
    if !is_sound {
        return vm.end(format_args!("the state of vCPU {index} makes no sense"));
    }
    {
        // They may have changed meanwhile.
        let distributor = vm.distributor.lock();
        let mut redistributor = vcpu.redistributor.lock();
        redistributor.set_groups(distributor.groups());
    }
    vm.with_session(|session, _| session.arrived(index));
    sit_down(vm, vcpu);
    try_again(vm);
    log::info!("{}: vCPU {index} has come", vm.name());
}

/// Of physical interrupts, a guest has its timer's alone, which has a number of its own on each machine.
fn own_timer_only(record: &mut state::Vcpu) {
    let local = &mut record.private.local;
    local.physical_active &= 1 << TIMER_PPI;
    local.physical = [0; 32];
    local.physical[TIMER_PPI as usize] = machine::get().tree.timer.virtual_timer.intid as u8;
}

/// Gives a vCPU its place in the scheduler, awake.
fn sit_down(vm: &Arc<Instance>, vcpu: &Vcpu) {
    let vms = table::all();
    let Some(described) = vms.iter().find(|it| it.slot == vm.id.index) else {
        return;
    };
    let parameters = create::parameters(&described.record());
    match seats::enter(vcpu.entity, vm, vcpu.index, vm.home, parameters) {
        Ok(()) => vcpu.call(attention::DELIVER),
        Err(refused) => vm.end(format_args!("vCPU {} cannot run: {refused}", vcpu.index)),
    }
}

/// vCPUs that waited for one on its way look again.
pub fn try_again(vm: &Guest) {
    vm.call_vcpus(VcpuSet::first(vm.vcpus.len()), attention::PAGE);
}
