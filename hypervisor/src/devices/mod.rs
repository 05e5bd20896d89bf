//! The devices of a VM: model crates wired to its memory, its interrupt lines and the world.

pub mod balloon;
pub mod block;
pub mod clock;
pub mod control_port;
pub mod disk;
pub mod net;
pub mod network;
pub mod power_button;
pub mod terminal;
pub mod uart;
pub mod virtio;
