//! All CPUs change together from one way of running to another, or none does.
//!
//! Each CPU makes a [`Visit`] to one [`Meeting`]. It takes its steps, each of which can be undone
//! and is noted in the visit's [`Journal`] before the next begins; then it votes. The vote that
//! completes the number is the *point of no return*: from it on every CPU commits, and nobody can
//! fail any more. A CPU whose step fails, or that has waited too long for the others, fails the
//! meeting instead, if it is not past that point; then every CPU undoes what its journal holds,
//! latest first, and all give the same reason.
//!
//! All that the CPUs share is one word, changed by compare-and-swap, so that exactly one order of
//! votes and failures exists. The logic is pure: [`Visit::poll`] is called until it is done, on
//! metal in a loop with interrupts masked, in tests in every order.
#![no_std]
#![forbid(unsafe_code)]

mod meeting;
mod visit;

pub use meeting::{Meeting, Reason};
pub use visit::{Journal, Poll, Side, Visit};

/// The most CPUs that can meet.
pub const MAX_CPUS: u32 = 255;
/// The most steps of a side.
pub const MAX_STEPS: usize = 32;
