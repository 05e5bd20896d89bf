//! The control channel: frames of `abi::control` between commands, the broker and the hypervisor.
//!
//! One `sim` process owns the stream to the hypervisor and serves many commands: [`Broker`]. Each
//! command speaks to it as if it were the hypervisor: [`Client`].

mod broker;
mod client;
mod codec;
pub mod console_log;
pub mod guest_port;

pub use broker::Broker;
pub use client::{Client, Reply, runs, state_event, vm_name};
pub use codec::{Codec, Frame, encode};

/// Requests that the broker answers by itself.
pub mod local {
    /// An `abi::control::VmName`: from now on, tell this command when the VM has written to its
    /// console, by an empty `CONSOLE_OUTPUT` event; the bytes are in the console's log file by
    /// then. A slow command is told less often and misses nothing.
    pub const WATCH: u32 = 0x2001;
    /// An event, the last one: the machine has been shut down.
    pub const SHUT_DOWN: u32 = 0x2002;
}
