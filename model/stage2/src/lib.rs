//! Second-stage translation tables: map, split, merge, protect, unmap.
//!
//! VMSAv8-64 stage 2 with the 4 KiB granule (Arm ARM DDI 0487, D8): a root of 1 to 16
//! concatenated tables at level 1, leaves of 4 KiB, 2 MiB and 1 GiB.
//!
//! The tables are a cache of the pmap, which is the truth. Whatever is missing here is a fault
//! that fills it again, so an operation may always take out more than it was asked to: unmapping
//! or protecting a part of a block takes out the block.
//!
//! What the hardware may still remember is a value here, not a comment:
//!
//! ```text
//!  unmap, protect ──► FlushDebt ──pay──►                         frames may be reused
//!  begin_merge    ──► Broken ─────pay──► Ready ──make──►         old table freed at `pay`
//!  begin_split        (faults until made)
//!  retire         ──► Retired ────pay──► Teardown ──step..──►    all tables freed
//! ```
//!
//! Paying calls the machine's invalidation; a table taken out is given back only by paying.
//! One caller at a time edits a translation (it holds the VM's lock); the lock may be dropped
//! between `begin_` and `make`. Meanwhile the entry is busy: the guest's faults on it are retried,
//! and an unmap of it wins over the replacement.
#![no_std]
#![forbid(unsafe_code)]

mod debt;
mod descriptor;
mod registers;
mod replace;
mod tables;
mod teardown;

pub use debt::{FlushDebt, Invalidation, MOST_ADDRESSES, Run};
pub use descriptor::{Rights, Size};
pub use registers::{IpaSize, VmidBits, vtcr};
pub use replace::{Broken, Overtaken, Ready};
pub use tables::{MapError, Mapping, Stage2};
pub use teardown::{Retired, Teardown};
