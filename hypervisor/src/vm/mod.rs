//! Virtual machines: what is described, what runs, and how one becomes the other.

mod address_space;
mod create;
mod guest_memory;
mod instance;
pub mod layout;
mod oddities;
pub mod reaper;
mod report;
mod table;
mod vmids;

pub use address_space::Filled;
pub use instance::{End, Instance};
pub use report::{vcpu_status, vm_status};
pub use table::{
    Refusal, all, define, find, flush_terminals, init, instance, kill, pause, reset, resume, set,
    start, stop,
};
