//! What several bare guests use.
#![no_std]
#![forbid(unsafe_code)]

pub mod base;
pub mod disk;
pub mod malformed;
pub mod random;
pub mod virtio;
