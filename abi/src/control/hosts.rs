//! What EL2 counts of the hosts of its cluster.

use crate::Text;
use crate::cluster::Description;
use crate::control::VmName;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bits of [`HostStatus::flags`].
pub mod host {
    /// The machine that is asked.
    pub const OWN: u32 = 1 << 0;
    /// It is in the membership of the machine that is asked.
    pub const IN: u32 = 1 << 1;
    /// There is a session with it.
    pub const SESSION: u32 = 1 << 2;
    /// Frames between the hosts are neither secret nor authentic.
    pub const OPEN: u32 = 1 << 3;
    /// It has left the cluster, and has not restarted.
    pub const LEFT: u32 = 1 << 4;
    /// Frames of the session with it are sealed by ChaCha20-Poly1305, not by AES-128-GCM.
    pub const CHACHA: u32 = 1 << 5;
}

/// What happened to a host, in [`super::TraceEvent::detail`].
pub mod news {
    /// The link to it has a session.
    pub const UP: u8 = 0;
    /// The session has ended.
    pub const DOWN: u8 = 1;
    /// It does not fit.
    pub const UNFIT: u8 = 2;
    /// The machine that is asked has entered a membership. The event has no number, as it is about all members.
    pub const GROWN: u8 = 3;
    /// What is shared has stopped, as a member is silent. The event has no number.
    pub const STOPPED: u8 = 4;
    /// All members answer again. The event has no number.
    pub const RESUMED: u8 = 5;
    /// The host is lost, and the machine that is asked has left the membership.
    pub const LOST: u8 = 6;
    /// The host has left on purpose.
    pub const LEFT: u8 = 7;
}

/// A host of a cluster, as one of its machines sees it. Counts are of the link to it, since the machine started.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct HostStatus {
    /// Its name.
    pub name: Text<24>,
    /// Its number.
    pub number: u32,
    /// Bits of [`host`].
    pub flags: u32,
    /// Number of the membership of the machine that is asked; 0: it is alone.
    pub epoch: u64,
    /// Nanoseconds for which that machine may still run what it shares; all that there are where it is alone.
    pub runs_ns: u64,
    /// Nanoseconds that CPUs of the machine that is asked have worked for the cluster.
    pub work_ns: u64,
    /// Nanoseconds of a round trip, smoothed; 0: not known.
    pub round_trip_ns: u64,
    /// Frames sent, and sealed frames that were opened.
    pub frames: [u64; 2],
    /// Bytes of them.
    pub bytes: [u64; 2],
    /// Pieces sent again.
    pub resent: u64,
    /// Timeouts.
    pub timeouts: u64,
    /// Sessions that there were.
    pub sessions: u64,
    /// Pieces that came more than once.
    pub repeated: u64,
    /// Frames dropped, by `model_link::Dropped`. Of the machine that is asked: in the first place, those of no host and those
    /// that came at a time of too many that open nothing.
    pub dropped: [u64; 9],
    /// Messages of the latest probe of the link to it that were not sent yet, when the probe began and ended in nanoseconds
    /// (0: it has not), and 1 if all came as they were sent.
    pub probe: [u64; 4],
    /// What it said that it is; zeroes where it has said nothing.
    pub description: Description,
}
const _: () = assert!(size_of::<HostStatus>() == 24 + 8 * (1 + 4 + 4 + 4 + 9 + 4) + 160);

/// Begins a probe of the link to a host, in place of the one before: [`HostStatus::probe`] tells how it goes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ProbeRequest {
    /// Number of the host.
    pub host: u32,
    /// Messages, 1 or more.
    pub messages: u32,
    /// 1: each on the bulk lane with a page. 0: on the urgent lane without.
    pub has_pages: u64,
}
const _: () = assert!(size_of::<ProbeRequest>() == 16);

/// Begins to move a vCPU of a VM that spans hosts to another of them.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SpanMoveRequest {
    /// The VM.
    pub name: VmName,
    /// The vCPU's number.
    pub vcpu: u32,
    /// Number of the host.
    pub host: u32,
}
const _: () = assert!(size_of::<SpanMoveRequest>() == 40);
