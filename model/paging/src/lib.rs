//! Pages that are on a disk instead of in a frame.
//!
//! A guest frame whose contents were taken away has a [`Token`] in the VM's map: the block of a
//! partition where they are. What they must be when they come back is a hash, one [`Words`] entry
//! for each block of a partition. For a partition that VMs are swapped to, the same table says which
//! blocks are in use: those with a hash. How long pages took to come back is kept in [`Times`].
#![no_std]
#![forbid(unsafe_code)]

mod times;
mod token;
mod words;

pub use times::Times;
pub use token::{Store, Token};
pub use words::{Full, Words};
