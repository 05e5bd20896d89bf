//! VMs that are parked, as one image of the hypervisor leaves them for the next: what a guest could tell
//! of its machine, in the words of the Arm and virtio specifications, and which frames are whose. Nothing
//! depends on how an image is laid out inside.
//!
//! A [`Header`], then items, each with its kind and length, in one order:
//!
//! ```text
//! MACHINE LOANS ROOM SAID  { REGION REGION_RUNS }..  { VM DESCRIPTION [ENDED] [TREE VCPU.. SPIS UART TYPED BUTTON CLOCK DEVICES
//!   [ASKED ANSWERS] TEXT RUNS OVERLAY..] }..  END
//! ```
//!
//! A VM that leaves its machine goes over as bytes ([`ByteSink`]): ORIGIN, then what a VM that is parked has, with the
//! contents of pages and blocks, in as many RUNS and OVERLAY as they take, and END.
//!
//! What is read is an allegation. Whether lengths, numbers and the checksum fit is decided here; whether a
//! frame may be whose it is said to be, by whoever has the frames.

mod bytes;
mod records;
mod stream;
#[cfg(test)]
mod tests;

pub use bytes::{ByteSink, ByteSource, ROOM};
pub use records::{
    Button, Clock, Device, Header, Interrupts, Local, Machine, Origin, Preamble, Private, Queue,
    Range, Registers, Run, Runs, Section, Spis, Uart, Vcpu, Vm, kind, life, power, queue, run,
};
pub use stream::{Reader, Sink, Source, Unreadable, Writer};

/// The version of the records that this source writes.
pub const VERSION: u32 = 10;
/// The oldest that it reads: those of before have words of blocks apart from runs.
pub const OLDEST: u32 = 10;
/// How they begin.
pub const MAGIC: [u8; 8] = *b"UNDPPARK";
/// How they begin where they are bytes.
pub const SAVED: [u8; 8] = *b"UNDPSAVE";
