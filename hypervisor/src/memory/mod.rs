//! The machine's memory: who has which frame, what a VM's addresses mean, and which frames many share.

pub mod address_space;
pub mod frames;
pub mod heap;
pub mod hiding;
pub mod regions;
pub mod sharing;
pub mod vmids;
