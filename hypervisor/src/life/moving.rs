//! VMs that leave their machine as bytes and go on at another (`abi::state`). No part of the image: nobody asks it yet.

use crate::economy::ledger;
use crate::life::state::{all, fill_instance, make_instance, write_vm};
use crate::life::{create, verbs};
use crate::machine;
use crate::memory::regions;
use crate::vms::instance::{connect, disconnect};
use crate::vms::{Instance, Vm, report, table::find};
use abi::bundle::VmRecord;
use abi::control::{VmName, code};
use abi::state::{self, Origin, Sink, Source, kind, life};
use abi::{Text, upgrade::checksum};
use alloc::sync::Arc;
use arch::timer;
use core::sync::atomic::Ordering;
use model_control::Refusal;
use zerocopy::IntoBytes;

fn refuse(code: u32, value: u64, what: core::fmt::Arguments<'_>) -> Refusal {
    Refusal::new(code, value, what)
}

/// What a VM of this description finds here.
fn origin(record: &VmRecord) -> Origin {
    let register = |n: usize| machine::guest_id((n / 8) as u8, (n % 8) as u8);
    let features: [u64; 64] = core::array::from_fn(register);
    Origin {
        frequency: timer::frequency(),
        count: timer::now(),
        features: checksum(features.as_bytes()),
        images: create::images(record),
    }
}

/// Whether all vCPUs of a VM have left their CPUs, as somebody paused it.
fn stands_still(vm: &Instance) -> bool {
    let mut vcpus = vm.vcpus.iter();
    vm.is_paused() && !vm.is_ending() && vcpus.all(|vcpu| vcpu.running_on().is_none())
}

/// Writes all of a VM that is paused, which then may end; until then it is as it was.
///
/// # Errors
/// It still runs; it has what cannot leave the machine: a shared region, a disk at work, pages or blocks on a partition.
pub fn save(name: VmName, to: &mut impl Sink) -> Result<(), Refusal> {
    let vm = find(name)?;
    let instance = vm.running()?;
    if !stands_still(&instance) {
        let what = format_args!("{name} is not paused, or a vCPU of it still runs");
        return Err(refuse(code::BUSY, 0, what));
    }
    // Nobody writes its memory meanwhile: no frame finds it, and no device is at work.
    disconnect(&instance);
    write(&vm, &instance, to).inspect_err(|_| connect(&instance))
}

fn write(vm: &Vm, instance: &Instance, to: &mut impl Sink) -> Result<(), Refusal> {
    let (name, record) = (vm.name, vm.record());
    let no = |code, what| {
        let what = format_args!("{name} cannot leave this machine: it has {what}");
        Err(refuse(code, 0, what))
    };
    if regions::records(&record).next().is_some() {
        return no(code::WRONG_STATE, "a shared region");
    }
    // Its disks tell nothing by themselves while it is paused.
    instance.disks().for_each(|block| block.end_held(instance));
    if let Some(what) = instance.virtio.iter().find_map(|it| it.record().err()) {
        return no(code::BUSY, what);
    }
    to.put(kind::ORIGIN, &origin(&record));
    write_vm(vm, to).or_else(|what| no(code::WRONG_STATE, what))
}

/// What of the machine that a VM comes from is missing here.
fn compare(from: &Origin, here: &Origin) -> Result<(), Refusal> {
    let (theirs, ours) = (from.frequency, here.frequency);
    let no = |what| Err(refuse(code::IMPOSSIBLE, 0, what));
    if theirs != ours {
        return no(format_args!(
            "its machine counts at {theirs} Hz, and this one at {ours} Hz"
        ));
    }
    if from.features != here.features {
        return no(format_args!(
            "its machine's CPUs have other features than these"
        ));
    }
    if from.images != here.images {
        return no(format_args!(
            "its kernel or initial RAM disk is another one here"
        ));
    }
    Ok(())
}

/// Makes a VM of what was saved, which stays paused; what its clock and its timers count stood still meanwhile.
///
/// # Errors
/// What is wrong with what was saved, or missing here. A VM that was made by then ends.
pub fn restore<S: Source>(records: &mut S) -> Result<VmName, Refusal> {
    let from: Origin = records.one(kind::ORIGIN)?;
    let mut head: state::Vm = records.one(kind::VM)?;
    let record: VmRecord = records.one(kind::DESCRIPTION)?;
    all(head.life == life::PARKED, kind::VM)?;
    create::check(&record)?;
    compare(&from, &origin(&record))?;
    let vm = find(record.name).or_else(|_| verbs::describe(&record))?;
    if !vm.is_settled() {
        let what = format_args!("{} is already running, or its end is not complete", vm.name);
        return Err(refuse(code::WRONG_STATE, 0, what));
    }
    create::adopt(&record)?;
    *vm.record.lock() = record;
    ledger::admit(&vm)?;
    let now = timer::now();
    let passed = now.wrapping_sub(head.paused_at);
    head.time_offset = head.time_offset.wrapping_add(passed);
    (head.paused_at, head.debt, head.complaint) = (now, [0; 2], Text::default());
    let before = vm.starts.load(Ordering::Relaxed);
    head.starts = head.starts.max(before.saturating_add(1));
    let instance = make_instance(&vm, &head, records)?;
    vm.take_over(head.starts, Some(Arc::clone(&instance)), None);
    let filled = fill_instance(&instance, &record, &head, records);
    let ended = filled.and_then(|()| Ok(records.end()?));
    ended
        .inspect_err(|refusal| instance.end(format_args!("not restored: {}", refusal.sentence)))?;
    for vcpu in &instance.vcpus {
        vcpu.core.lock().physical_timer.put_off(passed);
    }
    ledger::tick();
    report::send_state(&vm);
    Ok(record.name)
}
