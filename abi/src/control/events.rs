//! What happened, event by event: what EL2 keeps in a ring per pCPU while somebody wants it.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// How many classes of events there are; bit n of a set of classes is the class with the number n in
/// [`trace`].
pub const TRACE_CLASS_COUNT: usize = 7;
/// The set of all classes.
pub const TRACE_ALL: u32 = (1 << TRACE_CLASS_COUNT) - 1;
/// [`TraceEvent::vm`] of what happened for no VM.
pub const NO_VM: u16 = u16::MAX;

/// What an event is, in [`TraceEvent::kind`].
pub mod trace {
    /// A vCPU left its guest and went back, or off the CPU: `detail` is the exit's class, `span_ns` the time at EL2, `value` the guest's program
    /// counter.
    pub const EXIT: u8 = 0;
    /// Memory was not there, or with fewer rights: `detail` is one of [`super::access`], `value` the
    /// guest-physical address, `span_ns` the time until it was there.
    pub const FAULT: u8 = 1;
    /// A page changed who uses it: `detail` is one of [`super::share`], `value` its guest-physical
    /// address.
    pub const SHARE: u8 = 2;
    /// A vCPU was on a CPU: from the event's time on for `span_ns`; `detail` is one of
    /// [`super::off_cpu`], `value` its program counter at the end.
    pub const SWITCH: u8 = 3;
    /// A CPU took a physical interrupt: `value` is its number (INTID).
    pub const INTERRUPT: u8 = 4;
    /// A CPU worked for the hypervisor for longer than [`crate::control::LONG_STRETCH_NS`] without a look at
    /// its interrupts: `detail` is the kind of work.
    pub const STRETCH: u8 = 5;
    /// Something happened to a host of the cluster: `detail` is one of [`crate::control::news`], `value` its number,
    /// or 0.
    pub const HOST: u8 = 6;
}

/// What a fault was for, in [`TraceEvent::detail`].
pub mod access {
    /// A load or an instruction fetch.
    pub const READ: u8 = 0;
    /// A store.
    pub const WRITE: u8 = 1;
    /// The first store of a loop that overwrites the page.
    pub const OVERWRITE: u8 = 2;
    /// An access to a page that another host of the VM has: this, and 1 more if it writes. The wait follows.
    pub const AWAY: u8 = 3;
}

/// What became of a page, in [`TraceEvent::detail`].
pub mod share {
    /// It got a frame that others use, or might.
    pub const MAPPED: u8 = 0;
    /// Nothing is behind it: it reads as zeroes.
    pub const ZEROES: u8 = 1;
    /// Its own frame may be used by others from now on.
    pub const OFFERED: u8 = 2;
    /// It was read from a disk, and is the VM's alone.
    pub const PRIVATE: u8 = 3;
    /// A write got a frame of its own.
    pub const BROKEN: u8 = 4;
    /// A write of the only user: the frame is the VM's alone.
    pub const CLAIMED: u8 = 5;
}

/// Why a vCPU left its CPU, in [`TraceEvent::detail`].
pub mod off_cpu {
    /// Somebody else's turn.
    pub const PREEMPTED: u8 = 0;
    /// It waits for an interrupt.
    pub const WAITING: u8 = 1;
    /// It turned itself off.
    pub const OFF: u8 = 2;
    /// Its VM is paused, ends or restarts.
    pub const STOPPED: u8 = 3;
}

/// Turns tracing on and off.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TraceRequest {
    /// The classes wanted from now on, as a set; none turns it off. [`super::KEEP`] only asks.
    pub classes: u32,
    /// Zero.
    pub reserved: u32,
}
const _: () = assert!(size_of::<TraceRequest>() == 8);

/// What is traced.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TraceStatus {
    /// The classes, as a set.
    pub classes: u32,
    /// How many events the ring of a pCPU holds; 0 where nothing was ever traced.
    pub capacity: u32,
    /// Nanoseconds since EL2 started.
    pub now_ns: u64,
    /// The number that the next event of each pCPU will have.
    pub next: [u64; TRACE_CPUS],
}
const _: () = assert!(size_of::<TraceStatus>() == 16 + 8 * TRACE_CPUS);

/// The most pCPUs of a machine.
pub const TRACE_CPUS: usize = 64;

/// Asks for events of a pCPU.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EventsRequest {
    /// The pCPU.
    pub cpu: u32,
    /// Zero.
    pub reserved: u32,
    /// The number of the first event that is wanted.
    pub from: u64,
}
const _: () = assert!(size_of::<EventsRequest>() == 16);

/// Comes before the events that were asked for.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EventsHeader {
    /// The number to ask for next.
    pub next: u64,
    /// Events from the one asked for on that had been overwritten.
    pub lost: u64,
}
const _: () = assert!(size_of::<EventsHeader>() == 16);

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct TraceEvent {
    /// When it began, in nanoseconds since EL2 started.
    pub at_ns: u64,
    /// How long it took, in nanoseconds.
    pub span_ns: u64,
    /// An address or a number, by its kind.
    pub value: u64,
    /// One of [`trace`].
    pub kind: u8,
    /// What it was in detail, by its kind.
    pub detail: u8,
    /// The vCPU's number in its VM.
    pub vcpu: u16,
    /// The VM's place in the list of VMs, or [`NO_VM`].
    pub vm: u16,
    /// Zero.
    pub reserved: u16,
}
const _: () = assert!(size_of::<TraceEvent>() == 32);
