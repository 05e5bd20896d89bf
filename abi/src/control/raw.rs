//! What EL2 counts of VMs, as it counts it: the command makes figures of it.

use super::{EXIT_CLASS_COUNT, LATENCY_BUCKETS, NET_DROP_COUNT, NUMA_LEFT_COUNT, VmName};
use crate::Text;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Places in [`Work`].
pub mod work {
    use super::EXIT_CLASS_COUNT;

    /// Nanoseconds that vCPUs ran.
    pub const RUN: usize = 0;
    /// Nanoseconds that they could have run and did not.
    pub const STEAL: usize = 1;
    /// Nanoseconds that EL2 worked for them.
    pub const HYPERVISOR: usize = 2;
    /// Nanoseconds that they had nothing to do.
    pub const IDLE: usize = 3;
    /// Exits by exit class.
    pub const EXITS: usize = 4;
    /// How many of them were timed: all while exits are traced, else one after each alarm of EL2's.
    pub const TIMED: usize = EXITS + EXIT_CLASS_COUNT;
    /// Nanoseconds at EL2 that those took.
    pub const TIMED_NS: usize = TIMED + EXIT_CLASS_COUNT;
}
/// How many counters there are in [`Work`].
pub const WORK: usize = work::TIMED_NS + EXIT_CLASS_COUNT;
/// What a vCPU, or all of a VM, used; see [`work`].
pub type Work = [u64; WORK];

/// Places in [`RawVm::counts`].
pub mod count {
    use super::{LATENCY_BUCKETS, NET_DROP_COUNT, NUMA_LEFT_COUNT};

    /// Disk requests: reads, writes, flushes, refused.
    pub const DISK: usize = 0;
    /// Disk requests that were answered unread: bad ones.
    pub const DISK_REFUSED: usize = DISK + 3;
    /// Bytes read from and written to disks.
    pub const DISK_BYTES: usize = 4;
    /// Disk requests that failed on the machine's side.
    pub const DISK_ERRORS: usize = 6;
    /// Nanoseconds that disk requests took, from the notification that EL2 acted on to the answer.
    pub const DISK_NS: usize = 7;
    /// Frames that its network devices sent and received.
    pub const NET_FRAMES: usize = 8;
    /// Bytes in them.
    pub const NET_BYTES: usize = 10;
    /// Nanoseconds that frames it sent took, from when EL2 took them from the ring until each was with its
    /// receivers, on its way out, or lost there.
    pub const NET_NS: usize = 12;
    /// Events that EL2 counted and went on: unknown registers, refused MMIO, unknown calls.
    pub const ODDITIES: usize = 13;
    /// Writes refused, since there was no room for them.
    pub const REFUSED_WRITES: usize = 16;
    /// Pages that were read from disks: found equal to a frame that others use; private since something
    /// changed meanwhile, the frame had all users it may have, the block is another share group's, or the
    /// disk or the VM shares nothing.
    pub const SHARING: usize = 17;
    /// Pages that could not be read again.
    pub const FAILED_REREADS: usize = 22;
    /// Misses on pages that were hot, on memory of the own node and of others.
    pub const HOT_MISSES: usize = 23;
    /// Nanoseconds of CPUs that went into moving and copying pages, and of those, into the bytes themselves.
    pub const MOVING_NS: usize = 25;
    /// Hot pages that stayed, by [`super::super::left`].
    pub const LEFT: usize = 27;
    /// Frames that went nowhere, by reason.
    pub const NET_DROPS: usize = LEFT + NUMA_LEFT_COUNT;
    /// How many disk requests took how long, by [`super::super::latency_bucket`].
    pub const DISK_LATENCY: usize = NET_DROPS + NET_DROP_COUNT;
    /// How many frames that it sent took how long.
    pub const NET_LATENCY: usize = DISK_LATENCY + LATENCY_BUCKETS;
}
/// How many counters there are in [`RawVm::counts`].
pub const VM_COUNTS: usize = count::NET_LATENCY + LATENCY_BUCKETS;

/// A VM. Of one that has ended, what was counted last.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawVm {
    /// Its name.
    pub name: VmName,
    /// The name of its kernel in the bundle.
    pub kernel: Text<40>,
    /// The name of its share group.
    pub group: Text<24>,
    /// Why it ended, as a sentence; empty while it has not.
    pub reason: Text<96>,
    /// One of [`super::state`].
    pub state: u32,
    /// Its vCPUs.
    pub vcpus: u32,
    /// Its weight.
    pub weight: u32,
    /// Its cap in percent; 0: none.
    pub cap: u32,
    /// Network devices that it has.
    pub nets: u32,
    /// Of them, in bits, those whose link is down.
    pub links_down: u32,
    /// The node where its memory begins.
    pub node: u32,
    /// Counts its starts.
    pub starts: u32,
    /// Who gets what sharing saves: one of [`crate::bundle::claim`].
    pub claim: u32,
    /// 1: only one VM of this description can run, as it has a partition for itself.
    pub is_alone: u16,
    /// The hosts of the cluster that it spans, a bit each; 0: it is the machine's alone.
    pub hosts: u16,
    /// Frames that it was promised: its base, the most it can have, and its overlays.
    pub terms: [u64; 3],
    /// Frames that the shared regions of its description would take beyond those that are there.
    pub regions: u64,
    /// Bytes of memory that its guest found.
    pub memory: u64,
    /// Bytes that its guest was asked to keep to.
    pub target: u64,
    /// `model_entitlement::Holding`.
    pub holding: [u64; 7],
    /// 2 MiB and 4 KiB entries of its translation.
    pub leaves: [u64; 2],
    /// Bytes of EL2's memory for it, beside tables.
    pub bookkeeping: u64,
    /// Bytes that overlays of its disks have in memory, and on partitions.
    pub overlays: [u64; 2],
    /// How often TLBs were told of changes of its translation: one CPU's, and those of all CPUs.
    pub invalidations: [u64; 2],
    /// Copies of pages that nodes have now.
    pub copies: u64,
    /// 1: all of its memory is on its way to a node.
    pub moving: u64,
    /// How long half of its pages, and 99 of 100, took at most to be read again, and how long somebody of it waited
    /// for frames, in nanoseconds; how often that was.
    pub waits: [u64; 4],
    /// Pages that its guest gave to its balloon, and that it reported free.
    pub given_back: [u64; 2],
    /// Bytes it wrote to its console, and those that were dropped of them.
    pub console: [u64; 2],
    /// Queues that its drivers broke.
    pub broken_queues: u64,
    /// `model_address_space::Events`.
    pub events: [u64; 15],
    /// What its vCPUs used.
    pub work: Work,
    /// What it and its devices did; see [`count`].
    pub counts: [u64; VM_COUNTS],
}
const _: () = assert!(size_of::<RawVm>() == 232 + 8 * (46 + WORK + VM_COUNTS));

/// A vCPU.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawVcpu {
    /// One of [`super::vcpu_state`].
    pub state: u32,
    /// The pCPU it runs on or ran on last.
    pub cpu: u32,
    /// How often it changed from one pCPU to another.
    pub migrations: u64,
    /// Its program counter when it last left the CPU.
    pub pc: u64,
    /// What it used.
    pub work: Work,
}
const _: () = assert!(size_of::<RawVcpu>() == 24 + 8 * WORK);
