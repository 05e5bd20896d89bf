//! Virtual machines: what is described, what runs, and how one becomes the other.

mod address_space;
mod create;
mod guest_memory;
mod instance;
pub mod layout;
mod memory;
mod oddities;
pub mod parked;
pub mod reaper;
mod report;
mod table;
pub mod vmids;

pub use address_space::{Access, Filled, Gets};
pub use guest_memory::DeviceView;
pub use instance::{End, Instance};
pub use memory::{fit, may_wait_for_frames, mem_status, pool, reclaim, somebody_owes, tick};
pub use report::{vcpu_status, vm_status};
pub use table::{
    Refusal, Vm, all, define, find, flush_terminals, forget, init, instance, is_quiet, kill,
    no_such, pause, reset, resume, set, stand_still, start, stop,
};
pub use vmids::Vmid;
