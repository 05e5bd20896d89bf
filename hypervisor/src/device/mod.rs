//! The devices of a VM: model crates wired to its memory, its interrupt lines and the world.

pub mod balloon;
pub mod block;
pub mod control_port;
mod exchange;
pub mod net;
pub mod overlay;
pub mod power_button;
pub mod request;
pub mod terminal;
pub mod uart;
pub mod virtio;
