//! virtio devices as a guest sees them (virtio 1.2, "virtio" below; no legacy interface).
//!
//! - [`queue`]: the device side of a split virtqueue, and the [`Chain`]s of buffers it yields.
//! - [`Transport`]: the registers and queues of one device, which is a [`DeviceCore`] to the front that shows them:
//!   [`Window`], of virtio-mmio, version 2.
//! - [`blk`], [`console`], [`port`], [`net`], [`rng`], [`balloon`]: the devices, each a set of methods on its
//!   [`Transport`].
//!
//! ```text
//!  guest's store ──> Window::write ──> Effect::Notify(queue) ──> owner
//!                                                                     │ next_request, transmit..
//!  guest's rings <── Queue::push_used <── Transport <─────────────────┘ complete, receive..
//!                                            └─ irq_level ──> the VM's interrupt controller
//! ```
//!
//! The owner (EL2) holds one lock around a transport, moves the data, and sets the interrupt line
//! to [`Transport::irq_level`] after every call. All that a driver writes is an allegation: rings
//! and descriptors are checked before use, every call is bounded, and a driver that breaks the
//! rules gets a device that says `DEVICE_NEEDS_RESET` and does nothing more until it is reset.
#![no_std]
#![forbid(unsafe_code)]

pub mod balloon;
pub mod blk;
mod chain;
pub mod console;
mod error;
pub mod net;
pub mod port;
pub mod queue;
pub mod rng;
mod stream;
mod transport;
mod window;

pub use chain::{Chain, MAX_SEGMENTS, Runs, Segment};
pub use error::QueueError;
pub use queue::{MAX_QUEUE_SIZE, Queue};
pub use transport::{Causes, Device, DeviceCore, Effect, Status, Transport, register};
pub use window::Window;

/// What one bounded call on a byte-moving device did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes moved.
    pub bytes: usize,
    /// The budget ended before the queue did: call again, no notification will come.
    pub more: bool,
}

/// What walking one descriptor takes from a call's byte budget, so that chains of many tiny
/// buffers do not buy more time at EL2 than bulk data does.
const DESCRIPTOR_COST: usize = 16;
