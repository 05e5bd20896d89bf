//! Watches a machine: what its counters say now, and what they say of the time between.
//!
//! Everything is read from EL2; no guest is asked.

pub mod rates;
mod sample;

pub use sample::{Sample, VmSample, os0_times};
