//! The machine's memory: who has which frame, what a VM's addresses mean, and which frames many share.

pub mod address_space;
pub mod frames;
pub mod heap;
pub mod hiding;
#[cfg(feature = "test_hooks")]
pub mod hooks;
#[cfg(not(feature = "test_hooks"))]
#[path = "no_hooks.rs"]
pub mod hooks;
pub mod regions;
pub mod sharing;
pub mod shortage;
pub mod state;
pub mod vmids;

pub use frames::{Metal, Tables};
pub use vmids::{VMS_MAX, Vmid};

pub use address_space::{Access, AddressSpace, Dismantling, Filled, Gets};
