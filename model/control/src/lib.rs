//! Requests before anybody acts on them: a stream of bytes cut into frames ([`Inbox`]), and who may
//! ask what ([`right`]).
//!
//! The other side may be a guest, which can send anything: every call is bounded by the bytes that
//! it is given, and what begins no frame is skipped.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod inbox;
mod refusal;
mod rights;

pub use inbox::{FRAME_MAX, Inbox};
pub use refusal::Refusal;
pub use rights::{Caller, Denied, Right, right};
