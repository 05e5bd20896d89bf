//! VMs that are parked, as one image of the hypervisor leaves them for the next: what a guest could tell
//! of its machine, in the words of the Arm and virtio specifications, and which frames are whose. Nothing
//! depends on how an image is laid out inside.
//!
//! A [`Header`], then items, each with its kind and length, in one order:
//!
//! ```text
//! MACHINE LOANS ROOM SAID  { REGION REGION_RUNS }..  { VM DESCRIPTION [ENDED] [TREE RUNS WORDS VCPU.. SPIS UART TYPED BUTTON CLOCK DEVICES
//!   {OVERLAY WORDS}.. [ASKED ANSWERS] TEXT] }..  END
//! ```
//!
//! What is read is an allegation. Whether lengths, numbers and the checksum fit is decided here; whether a
//! frame may be whose it is said to be, by whoever has the frames.

mod records;
mod stream;
#[cfg(test)]
mod tests;

pub use records::{
    Button, Clock, Device, Header, Interrupts, Local, Machine, Private, Queue, Range, Registers,
    Run, Spis, Uart, Vcpu, Vm, kind, life, power, queue, run,
};
pub use stream::{Reader, Unreadable, Writer};

/// The version of the records that this source writes.
pub const VERSION: u32 = 9;
/// The oldest that it reads: those of before have other records of devices.
pub const OLDEST: u32 = 9;
/// How they begin.
pub const MAGIC: [u8; 8] = *b"UNDPPARK";
