//! What the `underpin` command does inside an operating system that Underpin is beneath (OS-0):
//! `doctor`, `attach`, `detach`, `status` and `log`.
//!
//! They are verbs of the one command `underpin`. They talk to the kernel module's `/dev/underpin`
//! (linux/module), which is the one that calls the hypervisor.
#![forbid(unsafe_code)]

pub mod codes;
pub mod doctor;
mod features;
mod machine;
#[cfg(test)]
mod tests;
mod verbs;

pub use doctor::WITHOUT_RANDOM_BITS;
pub use machine::{Asked, DEVICE, Running, System};
pub use verbs::{Clock, Ended, Verb, run};
