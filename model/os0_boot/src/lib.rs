//! What OS-0 finds when it starts: [`lay_out`] says which memory EL2 keeps and where the kernel
//! runs; [`rewrite`] makes the machine's device tree the one that OS-0 reads.
//!
//! OS-0 owns the machine: it gets the firmware's own tree with all devices. Only EL2's memory is
//! cut out of `/memory`, and `/chosen` says what OS-0's boot loader would have said. [`place`] is for a
//! system that starts in its place.
#![no_std]
#![forbid(unsafe_code)]

mod layout;
mod restart;
mod tree;

pub use layout::{Given, Layout, LayoutError, lay_out};
pub use restart::{SOON, STARTS_MAX, Starts, is_startable, place};
pub use tree::{Chosen, RewriteError, rewrite, used};
