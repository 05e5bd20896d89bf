//! The frame table and its pools.
#![allow(clippy::unwrap_used, reason = "a test")]

mod against_sets;
mod directed;
mod machine;
