//! Messages between the hosts of one VM about its life, vCPUs and devices (`model/span`), on the urgent lane of the link.
//! Those about its pages are [`crate::coherence`]'s.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{Immutable, IntoBytes, TryFromBytes, Unaligned};

/// The most hosts of a VM.
pub const HOSTS_MAX: usize = 8;

/// Kind of a message, with its sender and receiver. Kinds of [`crate::coherence`] and [`crate::cluster`] are below.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, TryFromBytes, IntoBytes, Immutable, Unaligned,
)]
#[repr(u8)]
pub enum Kind {
    /// First host to others: the VM may run if all have it. `at` is the digest of its description.
    Offer = 0x50,
    /// Others to first: the VM is there and waits. Of life 0, it asks for an offer.
    Ready = 0x51,
    /// First to others: all have it, and it runs.
    Start = 0x52,
    /// Any to any: it has ended, for the reason in `detail` ([`end`]).
    End = 0x53,
    /// Any to any: its vCPUs stand still.
    Pause = 0x54,
    /// Any to any: they go on. `detail` is 1 if the guest's time stood still meanwhile.
    Resume = 0x55,
    /// To the host of vCPU `detail`: PSCI CPU_ON with entry `at` and context `value`.
    CpuOn = 0x56,
    /// To the host of vCPU `detail`: PSCI AFFINITY_INFO.
    AffinityInfo = 0x57,
    /// To the first: vCPU `vcpu` loads `detail` bytes of a device register at `at`.
    Load = 0x58,
    /// To the first: as [`Kind::Load`], a store of `value`.
    Store = 0x59,
    /// To the host of the vCPUs in `at`, a bit each: SGI `detail`, by vCPU `vcpu`; with [`GROUP1_TOO`].
    Sgi = 0x5a,
    /// Answer to those of vCPU `vcpu` from [`Kind::CpuOn`] on; `value` is what it reads.
    Reply = 0x5b,
    /// Host of vCPU `detail` to all others: it goes over to host `at`. They ask nothing of it until they hear where it is.
    Move = 0x5c,
    /// To the host of vCPU `detail`, in answer: nobody here asks anything of it, or `at` is not 0 and it must stay.
    Held = 0x5d,
    /// Who was the host of vCPU `detail` to all but its new one: it is at host `at`, where it was if any refused it.
    Moved = 0x5e,
    /// To the new host of vCPU `detail`: its state follows, an [`crate::state::Vcpu`].
    State = 0x5f,
    /// Leaver to all: nothing of the VM is here any more.
    Leave = 0x70,
    /// In answer: the sender tells it nothing more.
    Left = 0x71,
}

/// In [`Message::detail`] of a [`Kind::Sgi`]: it may be an interrupt of group 1 at the receiver.
pub const GROUP1_TOO: u8 = 1 << 4;

/// Why a VM has ended on a host that has left it.
pub const PARTED: &str = "its vCPUs and pages are on its other hosts";

/// Why a VM ended, in [`Message::detail`] of a [`Kind::End`].
pub mod end {
    /// It powered itself off.
    pub const POWER_OFF: u8 = 0;
    /// It asked for a reset, or somebody did.
    pub const RESET: u8 = 1;
    /// Somebody ended it.
    pub const KILLED: u8 = 2;
    /// It did what no guest may do, or the sender could not go on with it.
    pub const FAILED: u8 = 3;
    /// The sender has another description of it.
    pub const UNLIKE: u8 = 4;
    /// The last of them.
    pub const LAST: u8 = UNLIKE;
}

/// A message. Fields that a kind does not need are zero.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, TryFromBytes, IntoBytes, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Message {
    /// Kind.
    pub kind: Kind,
    /// As the kind says.
    pub detail: u8,
    /// vCPU that asks, by its number in the VM.
    pub vcpu: u8,
    /// Zero.
    pub zero: u8,
    /// Number of the VM's life, by the first host; not 0 but in the first [`Kind::Ready`].
    pub life: U32,
    /// The guest's counter at the sender when the message left.
    pub count: U64,
    /// As the kind says.
    pub at: U64,
    /// As the kind says.
    pub value: U64,
}

const _: () = assert!(size_of::<Message>() == 32);
