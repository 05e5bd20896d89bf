//! What a VM that runs has of the machine's memory.

use crate::devices::disk::CowDisk;
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
    let (counts, _) = instance.space.counts();
    let account = sharing::accounts().get(instance.id.index);
    let overlays = instance
        .disks()
        .map(|disk| disk.of_overlay(CowDisk::private) / FRAME_SIZE);
    Holding {
        private: counts.private,
        shared: counts.shared,
        users: account.users,
        units: account.units,
        overlay: overlays.sum(),
        tables: instance.space.usage().1 / FRAME_SIZE,
        takeable: instance.paging.takeable(counts.private, counts.shared),
    }
}

/// Bytes that the guest was asked to keep to.
pub fn target(instance: &Instance) -> u64 {
    let all = size(instance);
    instance.target(all).unwrap_or(all) * FRAME_SIZE
}
