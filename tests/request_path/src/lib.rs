//! The whole path of a disk request, on the host:
//!
//! ```text
//!  Driver's store ─► Guest (faults, frames) ─► Transport<Blk> ─► Disk (overlay, image)
//!       ▲                    ▲                                      │
//!       │                    └───────── pages in exchange ◄─────────┤
//!       └── interrupt ◄── list registers ◄── Distributor ◄── completion
//! ```
//!
//! Every part but the machine is the model that EL2 runs; what is written here is what EL2's own
//! wiring does, in its plainest form.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "it is there to fail tests")]

mod disk;
mod driver;
mod exchange;
mod guest;
mod image;
mod interrupts;

pub use disk::Disk;
pub use driver::{Driver, Kind};
pub use guest::Guest;
pub use image::Image;
pub use interrupts::Interrupts;
