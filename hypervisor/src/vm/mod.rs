//! Virtual machines: what is described, what runs, and how one becomes the other.

mod address_space;
mod create;
mod guest_memory;
mod instance;
pub mod layout;
mod memory;
pub mod parked;
pub mod reaper;
mod report;
mod table;
pub mod vmids;

pub use address_space::{Access, Filled, Gets};
pub use guest_memory::DeviceView;
pub use instance::{End, Instance};
pub use memory::{
    bases, capacity, is_short, may_wait_for_frames, pool, reclaim, somebody_owes, tick,
};
pub use report::{read_vcpu, read_vm};
pub use table::{
    Refusal, VMS_MAX, Vm, all, define, find, flush_terminals, forget, init, instance, is_quiet,
    is_settled, kill, no_such, pause, reset, resume, set, settle, stand_still, start, stop,
};
pub use vmids::Vmid;
