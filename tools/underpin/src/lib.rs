//! The `underpin` command: VM files, bundles, the simulated machine, and everything that people
//! ask of a running one.
//!
//! The command is a thin layer over this library, so that tests start machines the same way.
#![forbid(unsafe_code)]

pub mod analysis;
pub mod beneath;
pub mod bundle;
pub mod cli;
pub mod cluster;
pub mod codes;
pub mod control;
pub mod failure;
mod hosts;
mod layout;
pub mod metrics;
mod misses;
mod order;
pub mod output;
pub mod progress;
pub mod report;
pub mod sim;
pub mod trace;
pub mod units;
mod verbs;
pub mod vmfile;
pub mod watch;

pub use verbs::run;
