//! The whole path of a disk request, on the host:
//!
//! ```text
//!  Driver's store ─► Guest (faults, frames) ─► Transport<Blk> ─► Disk ─► physical disk
//!       ▲                    ▲                                      │
//!       │                    └───────── pages in exchange ◄─────────┤
//!       └── interrupt ◄── list registers ◄── Distributor ◄── completion
//! ```
//!
//! Every part but the machine is what EL2 runs, the disk's requests (`model_disk`) included. What is written
//! here is the machine below them: frames of the fake machine, and physical disks that answer at once.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "it is there to fail tests")]

mod disk;
mod driver;
mod guest;
mod host;
mod image;
mod interrupts;
pub mod world;

pub use disk::{Disk, Kind as DiskKind};
pub use driver::{Driver, Kind};
pub use guest::{Guest, vm};
pub use host::{Host, Medium, Partition};
pub use image::Image;
pub use interrupts::Interrupts;
