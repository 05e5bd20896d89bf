//! Spin locks, the one written order in which they are taken, and a cell that is set once.
//!
//! EL2 runs with its interrupts masked, so a holder is never interrupted on its own CPU and
//! masking is no business of a lock. No lock is held while waiting for another CPU.
//!
//! # Soundness
//! Unsafe code lives in `spin.rs` (the guard's access to the value) and in `once.rs` (reading
//! the value after it was set). Each use carries its argument.
#![no_std]
#![allow(unsafe_code)]

#[cfg(any(test, feature = "std"))]
extern crate std;

mod once;
mod rank;
mod spin;

pub use once::Once;
pub use rank::{HeldRanks, Rank, RankEvent, RankTracker, set_rank_tracker};
pub use spin::{SpinGuard, SpinLock, lock_pair, set_relax};
