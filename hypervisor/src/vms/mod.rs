//! Virtual machines: what is described, what runs, and how one becomes the other.

pub mod create;
pub mod guest_memory;
pub mod instance;
pub mod layout;
pub mod reaper;
pub mod report;
pub mod state;
pub mod table;

pub use table::{
    Refusal, VMS_MAX, Vm, all, define, find, flush_terminals, forget, init, instance, is_quiet,
    is_settled, kill, no_such, pause, reset, resume, set, settle, stand_still, start, stop,
};
