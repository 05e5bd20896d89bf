//! The devices of a VM: model crates wired to its memory, its interrupt lines and the world.

pub mod balloon;
pub mod block;
pub mod clock;
pub mod control_port;
pub mod disk;
pub mod net;
pub mod network;
pub mod power_button;
pub mod register;
pub mod uart;
pub mod virtio;

pub use register::RegisterAccess;
pub use virtio::{Console, Devices, Rng, VirtualDevice};

pub use net::Net;
pub use network::Cable;

pub use block::Block;
pub use disk::{Backing, Near};
