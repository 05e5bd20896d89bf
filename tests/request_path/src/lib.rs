//! The whole path of a disk request, on the host:
//!
//! ```text
//!  driver's store ─► Guest (faults, frames) ─► Transport<Blk> ─► Disk (overlay, base)
//!       ▲                    ▲                                      │
//!       └── interrupt ◄── list registers ◄── Distributor ◄── completion
//! ```
//!
//! Every part but the machine is the model that EL2 runs; what is written here is what EL2's own
//! wiring does, in its plainest form.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "it is there to fail tests")]

mod disk;
mod guest;
mod interrupts;

pub use disk::Disk;
pub use guest::Guest;
pub use interrupts::Interrupts;
