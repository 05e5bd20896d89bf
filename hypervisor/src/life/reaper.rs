//! What follows a VM's end: its vCPUs leave the scheduler, its memory goes back in bounded pieces,
//! and, after a reset, it starts again.

use crate::devices::{Backing, Block, Devices, VirtualDevice, disk::Remains};
use crate::guest::{self, End, sessions, spanning};
use crate::life::verbs;
use crate::machine::stretch::{self, Kind};
use crate::memory::{Dismantling, VMS_MAX};
use crate::vcpu::{Vcpu, sched};
use crate::vms::{Instance, Vm, instance::disconnect, report, seats, table};
use alloc::{boxed::Box, sync::Arc, vec::Vec};
use core::any::Any;
use machine_locks::{Rank, SpinLock};
use model_addr::VmId;

/// Table entries that are looked at before the clock is, at some 650 instructions each where a frame goes back, and 1,600
/// where 64 users have it; and how often one step does that.
const ENTRIES: u32 = 16;
const LOOKS: u32 = 12;

/// A VM on its way out.
#[expect(clippy::large_enum_variant, reason = "at most one for each VM")]
enum Stage {
    /// Its vCPUs may still run.
    Stopping(VmId),
    /// Nothing runs; somebody may still hold it for a moment.
    Waiting(Arc<Vm>, Arc<Instance>, End),
    /// Its memory goes back.
    Dismantling(Arc<Vm>, Leftovers, End),
}

static LEAVING: SpinLock<Vec<Stage>> = SpinLock::new(Rank::Vm, Vec::new());

/// Makes room for all VMs at once, so that the end of one allocates nothing.
pub fn init() {
    LEAVING.lock().reserve(VMS_MAX);
}

/// Goes on with one VM; whether there is more to do. Not inlined, as VMs on their way out pass through the stack.
#[inline(never)]
pub fn step() -> bool {
    while let Some(id) = guest::take_ended() {
        LEAVING.lock().push(Stage::Stopping(id));
    }
    let stage = {
        let mut leaving = LEAVING.lock();
        if leaving.is_empty() {
            return false;
        }
        leaving.remove(0)
    };
    let next = match stage {
        Stage::Stopping(id) => stopping(id),
        Stage::Waiting(vm, instance, end) => Some(waiting(vm, instance, end)),
        Stage::Dismantling(vm, left, end) => dismantling(vm, left, end),
    };
    let mut leaving = LEAVING.lock();
    leaving.extend(next);
    !leaving.is_empty()
}

/// Takes the vCPUs out of the scheduler; they stand still by themselves.
fn stopping(id: VmId) -> Option<Stage> {
    let instance = table::instance(id)?;
    let stays = |vcpu: &&Vcpu| !sched::leave(vcpu.entity);
    if instance.vcpus.iter().filter(stays).count() > 0 {
        return Some(Stage::Stopping(id));
    }
    for vcpu in &instance.vcpus {
        seats::release(vcpu.entity);
    }
    let end = instance.reason().unwrap_or(End::Killed);
    spanning::ended(&instance, end);
    let vm = table::all().into_iter().find(|vm| vm.slot == id.index)?;
    instance.terminal.flush();
    disconnect(&instance);
    sessions::leave(id);
    drop(instance);
    let instance = vm.take_ended()?;
    log::info!("{} has ended: {}", vm.name, report::reason(end));
    Some(Stage::Waiting(vm, instance, end))
}

/// Waits until nobody else holds the instance, which from now on can only become fewer. Apart, as the instance passes
/// through the stack, on which VMs are made from the same caller.
#[inline(never)]
fn waiting(vm: Arc<Vm>, instance: Arc<Instance>, end: End) -> Stage {
    match Arc::try_unwrap(instance) {
        Ok(instance) => Stage::Dismantling(vm, take_apart(instance), end),
        Err(instance) => Stage::Waiting(vm, instance, end),
    }
}

/// What goes back to the pools step by step: its devices, the disk that is at it, and its memory.
struct Leftovers {
    devices: Devices,
    disk: Option<Remains>,
    space: Dismantling,
}

fn take_apart(mut instance: Instance) -> Leftovers {
    Leftovers {
        devices: core::mem::take(&mut instance.virtio),
        disk: None,
        space: instance.dismantle(),
    }
}

/// What is left of a device that goes back step by step.
fn remains_of(device: Box<dyn VirtualDevice>) -> Option<Remains> {
    let block: Box<Block> = (device as Box<dyn Any>).downcast().ok()?;
    match block.into_backing() {
        Backing::Cow(disk) => Some(disk.dismantle()),
        Backing::ReadOnly(..) | Backing::Partition(_) => None,
    }
}

/// Starts the VM after a reset; whether that went well.
fn starts_again(vm: &Arc<Vm>) -> bool {
    let begun = verbs::begin_again(vm);
    if let Err(refusal) = &begun {
        let name = vm.name;
        log::warn!("{name} does not start again: {}", refusal.sentence);
    }
    begun.is_ok()
}

/// Goes on with something until it is done, or the stretch is long; whether it is done.
fn goes_on(mut step: impl FnMut() -> bool) -> bool {
    for _ in 0..LOOKS {
        if step() {
            return true;
        }
        // A frame with 64 users may come last, and what follows the last of all.
        if stretch::is_past(8) {
            break;
        }
    }
    false
}

fn dismantling(vm: Arc<Vm>, mut left: Leftovers, end: End) -> Option<Stage> {
    if let Some(disk) = &mut left.disk {
        if goes_on(|| disk.step(ENTRIES)) {
            left.disk = None;
        }
    } else if let Some(device) = left.devices.pop() {
        left.disk = remains_of(device);
    } else if goes_on(|| left.space.step(ENTRIES as usize)) {
        // A VM that starts again has a stretch of its own.
        stretch::look(Kind::End);
        if !matches!(end, End::Reset) || !vm.restarts() || !starts_again(&vm) {
            vm.settle();
            report::send_state(&vm);
        }
        return None;
    }
    Some(Stage::Dismantling(vm, left, end))
}
