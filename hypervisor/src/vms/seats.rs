//! Which vCPU is behind an entity of the scheduler.

use crate::machine::ENTITIES_MAX;
use crate::vcpu::sched;
use crate::vms::instance::Instance;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU8, Ordering};
use machine_locks::{Rank, SpinLock};
use model_addr::NodeId;
use model_scheduler::{EntityId, Parameters, Refused};

/// Who is behind an entity.
static OCCUPANTS: [SpinLock<Option<Arc<Instance>>>; ENTITIES_MAX] =
    [const { SpinLock::new(Rank::Scheduler, None) }; ENTITIES_MAX];
/// The vCPU's number in its VM.
static INDICES: [AtomicU8; ENTITIES_MAX] = [const { AtomicU8::new(0) }; ENTITIES_MAX];

/// Puts vCPU `index` of `vm` into the queue of `node`, its home, asleep.
pub fn enter(
    entity: EntityId,
    vm: &Arc<Instance>,
    index: u16,
    node: NodeId,
    parameters: Parameters,
) -> Result<(), Refused> {
    let place = usize::from(entity.0);
    *OCCUPANTS[place].lock() = Some(Arc::clone(vm));
    INDICES[place].store(index as u8, Ordering::Relaxed);
    sched::enter(entity, node, parameters).inspect_err(|_| *OCCUPANTS[place].lock() = None)
}

/// Gives back an entity that never entered a queue, or that has left it.
pub fn release(entity: EntityId) {
    *OCCUPANTS[usize::from(entity.0)].lock() = None;
    sched::release(entity);
}

/// The VM and the number of the vCPU behind an entity; `None` where that is OS-0's.
pub fn occupant(entity: EntityId) -> Option<(Arc<Instance>, usize)> {
    let place = usize::from(entity.0);
    let vm = OCCUPANTS[place].lock().clone()?;
    Some((vm, INDICES[place].load(Ordering::Relaxed).into()))
}
