//! What a VM that runs has of the machine's memory.

use crate::memory::sharing;
use crate::vms::instance::Instance;
use model_addr::FRAME_SIZE;
use model_entitlement::Holding;

/// The guest frames that a guest found when it started.
pub fn size(instance: &Instance) -> u64 {
    instance.space.range().size / FRAME_SIZE
}

/// What a VM holds.
pub fn holding(instance: &Instance) -> Holding {
    let (counts, tables) = instance.space.holds();
    let account = sharing::accounts().get(instance.id.index);
    Holding {
        private: counts.private,
        shared: counts.shared,
        users: account.users,
        units: account.units,
        overlay: instance.virtio.iter().map(|device| device.frames()).sum(),
        tables,
        takeable: instance.paging.takeable(counts.private, counts.shared),
    }
}

/// Bytes that the guest was asked to keep to.
pub fn target(instance: &Instance) -> u64 {
    let all = size(instance);
    instance.target(all).unwrap_or(all) * FRAME_SIZE
}
