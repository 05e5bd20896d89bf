//! The life of VMs: from a description, or a record, to an instance, and to its end.

pub mod create;
#[cfg(not(target_os = "none"))]
pub mod moving;
pub mod reaper;
pub mod state;
mod verbs;

pub use verbs::{
    define, flush_terminals, kill, leave, move_vcpu, pause, reset, resume, set, settle, start, stop,
};

/// Describes the bundle's VMs, and starts those that are to start by themselves.
pub fn init() {
    reaper::init();
    verbs::init();
}
