//! A VM's canonical map from guest frames to machine frames.
//!
//! The pmap is the truth about a VM's memory; stage-2 tables are caches of it. It says what backs
//! each guest frame and *why* the guest may not write or see it; the rights follow from that by
//! one function, [`Entry::rights`].
//!
//! ```text
//!  root (1 or 2)      region table            leaf
//!  512 x 512 MiB ──►  256 x 2 MiB ──────────► 512 x 4 KiB, 8 bytes each
//!                     16 bytes: the leaf,
//!                     the reserved run, and
//!                     how much of it is used
//! ```
//!
//! A region that was never touched costs its 16 bytes. A region knows at once whether it is one
//! contiguous private run that a 2 MiB block can map ([`Region::block`]).
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod entry;
mod error;
mod map;
mod marks;
mod near;
mod region;
mod teardown;

pub use entry::{Backing, Entry, Reasons, Why};
pub use error::PmapError;
pub use map::{Counts, MAX_RAM_RANGES, Pmap, REGION_FRAMES};
pub use region::{Region, Survey};
pub use teardown::{GivenBack, PmapTeardown};
