//! What EL2 and the `underpin` command say to each other, over a byte stream (a virtio-console
//! port of the machine).
//!
//! Either side sends frames: a [`FrameHeader`], then `length` bytes. The command sends requests;
//! EL2 answers each with one reply frame of the same tag, in any order, and sends events of its
//! own. A reply begins with a [`ReplyHeader`]; where its code is not [`code::OK`], a sentence in
//! UTF-8 follows, otherwise the records that the request promises.

mod asked;
mod events;
mod hosts;
mod latency;
mod mem;
mod numa;
mod raw;
mod stretch;

pub use asked::Request;
pub use hosts::{HostStatus, ProbeRequest, SpanMoveRequest, host, news};
pub use latency::{LATENCY_BUCKETS, LATENCY_FIRST_NS, latency_bucket};
pub use mem::{
    PageCounts, PageStatus, ReclaimRequest, RecountStatus, RegionStatus, WHY_COUNT, page,
};

pub use events::{
    EventsHeader, EventsRequest, NO_VM, TRACE_ALL, TRACE_CLASS_COUNT, TRACE_CPUS, TraceEvent,
    TraceRequest, TraceStatus, access, off_cpu, share, trace,
};
pub use numa::{MoveRequest, NUMA_LEFT_COUNT, left, misses};
pub use raw::{RawVcpu, RawVm, VM_COUNTS, WORK, Work, count, work};
pub use stretch::{LONG_STRETCH_NS, STRETCH_COUNT};

use crate::Text;
use crate::bundle::{NET_DOWN, VmRecord};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// [`FrameHeader::magic`]: "UPCT".
pub const MAGIC: u32 = u32::from_le_bytes(*b"UPCT");
/// The protocol's version, told by [`request::HELLO`].
pub const VERSION: u32 = 16;
/// The most bytes that may follow a frame's header.
pub const PAYLOAD_MAX: usize = 16 * 1024;
/// How many exit classes there are; `tools_abi::names` has the names of these, as of all kinds that are
/// counted.
pub const EXIT_CLASS_COUNT: usize = 16;

/// How many reasons for a lost frame there are.
pub const NET_DROP_COUNT: usize = 7;

/// Begins every frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FrameHeader {
    /// [`MAGIC`].
    pub magic: u32,
    /// A [`request`], that request with [`REPLY`] set, or an [`event`].
    pub kind: u32,
    /// The asker's; a reply repeats it. Zero in events.
    pub tag: u32,
    /// Bytes that follow, at most [`PAYLOAD_MAX`].
    pub length: u32,
}
const _: () = assert!(size_of::<FrameHeader>() == 16);

impl FrameHeader {
    /// The header of a frame with these parts behind it; `None` where they are more than
    /// [`PAYLOAD_MAX`] bytes.
    pub fn of(kind: u32, tag: u32, parts: &[&[u8]]) -> Option<Self> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        (length <= PAYLOAD_MAX).then_some(Self {
            magic: MAGIC,
            kind,
            tag,
            length: length as u32,
        })
    }
}

/// Set in [`FrameHeader::kind`] of a reply.
pub const REPLY: u32 = 0x8000_0000;

/// Requests, with what follows the header and what the reply brings.
pub mod request {
    /// Nothing; replies a [`super::MachineStatus`].
    pub const HELLO: u32 = 1;
    /// A [`super::ReadRequest`]; replies a [`super::RawVm`] each: of that VM, or of all.
    pub const LIST: u32 = 2;
    /// A [`super::ReadRequest`]; replies a [`super::RawVcpu`] for each vCPU of that VM, none where it does not run.
    pub const SHOW: u32 = 3;
    /// A [`super::VmName`]: starts a VM of the bundle, or one that has ended.
    pub const START: u32 = 4;
    /// A [`super::VmName`]: presses its power button.
    pub const STOP: u32 = 5;
    /// A [`super::VmName`]: ends it now.
    pub const KILL: u32 = 6;
    /// A [`super::VmName`]: its vCPUs stand still until resumed.
    pub const PAUSE: u32 = 7;
    /// A [`super::VmName`].
    pub const RESUME: u32 = 8;
    /// A [`super::VmName`]: as [`RESUME`], and its time goes on where it stood.
    pub const CONTINUE: u32 = 30;
    /// A [`super::VmName`]: as its reset button.
    pub const RESET: u32 = 9;
    /// A [`super::VmName`] and up to 4096 bytes typed at its console; replies how many were
    /// taken, as a `u64`.
    pub const CONSOLE_INPUT: u32 = 10;
    /// A [`super::VmRecord`] whose entry numbers name entries of the machine's bundle: adds the
    /// VM and, with `VM_AUTOSTART`, starts it.
    pub const CREATE: u32 = 11;
    /// A [`super::SetRequest`]: changes some fields of a VM's description.
    pub const SET: u32 = 12;
    /// A [`super::ReadRequest`]; replies a [`super::NodeStatus`] for each node.
    pub const NODES: u32 = 13;
    /// A [`super::ReadRequest`]; replies a [`super::EntryStatus`] for each entry of the bundle.
    pub const ENTRIES: u32 = 14;
    /// Nothing: ends all VMs and powers the machine off.
    pub const POWER_OFF: u32 = 15;
    /// A [`super::ReadRequest`]; replies a [`super::PageCounts`] of some guest frames of that VM.
    pub const PAGE_COUNTS: u32 = 18;
    /// A [`super::ReclaimRequest`]; replies how many bytes were taken, as a `u64`.
    pub const RECLAIM: u32 = 19;
    /// A [`super::ReadRequest`]; replies a [`super::PageStatus`] each for some guest frames of that VM that
    /// something is behind.
    pub const PAGES: u32 = 21;
    /// A [`super::MoveRequest`]: the VM's memory moves to a node while it runs.
    pub const NUMA_MOVE: u32 = 41;
    /// A [`super::TraceRequest`]; replies a [`super::TraceStatus`].
    pub const TRACE: u32 = 50;
    /// A [`super::EventsRequest`]; replies a [`super::EventsHeader`] and a [`super::TraceEvent`]
    /// each, for as many as fit.
    pub const EVENTS: u32 = 51;
    /// A [`super::ReadRequest`]; replies a [`super::CpuStatus`] for each pCPU.
    pub const CPUS: u32 = 52;
    /// A [`super::ReadRequest`]; replies a [`super::HostStatus`] for each host of the machine's cluster, none where it is
    /// in none.
    pub const HOSTS: u32 = 53;
    /// A [`super::ProbeRequest`].
    pub const PROBE: u32 = 54;
    /// By VMs only: a [`super::ReadRequest`] with the name of a member of the cluster and, as its number, that of a request, and then
    /// what belongs to that one, at most 4,000 bytes; replies what the member answers.
    pub const AT_HOST: u32 = 55;
    /// A [`super::SpanMoveRequest`], at the host that has the vCPU: [`SHOW`] tells when another one has it.
    pub const SPAN_MOVE: u32 = 56;
    /// A [`super::VmName`]: the machine begins to leave a VM that goes on, or goes on with that. Replies as two `u64`s the pages
    /// at which it has not looked, and how many there are.
    pub const SPAN_LEAVE: u32 = 57;
    /// Nothing: the machine leaves its cluster until it restarts. Replies as a `u64` 1 once all members go on without it.
    pub const CLUSTER_LEAVE: u32 = 58;
    /// A `u64`: where to go on, 0 at first; looks at some frames more and compares what the frame
    /// table says of them with the maps of VMs. Replies a [`super::RecountStatus`] of all so far. Exact
    /// while all VMs are paused.
    pub const RECOUNT: u32 = 22;
    /// A [`super::ReadRequest`]; replies a [`super::RegionStatus`] for each region of memory that VMs share on purpose.
    pub const REGIONS: u32 = 23;
}

/// Events that EL2 sends by itself.
pub mod event {
    /// A [`super::VmName`] and the bytes that the VM wrote to its console.
    pub const CONSOLE_OUTPUT: u32 = 0x4001;
    /// A [`super::RawVm`]: the VM's state has changed.
    pub const STATE: u32 = 0x4002;
}

/// [`ReplyHeader::code`]: why a request was refused. Stable, and the command's exit status.
pub mod code {
    /// Done.
    pub const OK: u32 = 0;
    /// The frame made no sense: unknown kind, wrong length, text that is not UTF-8.
    pub const MALFORMED: u32 = 10;
    /// No VM has that name.
    pub const NO_SUCH_VM: u32 = 11;
    /// The VM's state does not allow it.
    pub const WRONG_STATE: u32 = 12;
    /// A VM of that name is there.
    pub const EXISTS: u32 = 13;
    /// The machine has no memory left for it.
    pub const NO_MEMORY: u32 = 14;
    /// What the description asks for is impossible here.
    pub const IMPOSSIBLE: u32 = 15;
    /// Another VM uses it: a persistent disk.
    pub const BUSY: u32 = 16;
    /// The VM stands still since it owes memory that cannot be taken from it.
    pub const OWES: u32 = 17;
    /// Whoever asks may not ask that.
    pub const NOT_ALLOWED: u32 = 18;
}

/// Begins every reply.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReplyHeader {
    /// One of [`code`].
    pub code: u32,
    /// How many records follow where the code is [`code::OK`].
    pub count: u32,
    /// The number measured, where the sentence names one; or where the next request goes on.
    pub value: u64,
}
const _: () = assert!(size_of::<ReplyHeader>() == 16);

/// Names a VM.
pub type VmName = Text<32>;

/// A VM's states, in [`RawVm::state`].
pub mod state {
    /// Described and never started.
    pub const DEFINED: u32 = 0;
    /// Its vCPUs run when they have something to do.
    pub const RUNNING: u32 = 1;
    /// Its vCPUs stand still.
    pub const PAUSED: u32 = 2;
    /// It has ended; [`super::RawVm::reason`] says why.
    pub const ENDED: u32 = 3;
    /// It is being taken down: its memory goes back.
    pub const ENDING: u32 = 4;
}

/// The machine.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MachineStatus {
    /// [`VERSION`].
    pub version: u32,
    /// pCPUs that run.
    pub cpus: u32,
    /// NUMA nodes.
    pub nodes: u32,
    /// VMs known.
    pub vms: u32,
    /// Bytes of RAM.
    pub memory: u64,
    /// Bytes of RAM that no one uses.
    pub memory_free: u64,
    /// Bytes of the EL2 image with its zeroed data.
    pub image: u64,
    /// Bytes of the frame table.
    pub frame_table: u64,
    /// Bytes of EL2's heap in use.
    pub heap: u64,
    /// Bytes of the bundle.
    pub bundle: u64,
    /// Nanoseconds since EL2 started.
    pub uptime_ns: u64,
    /// Frames that the network card, or OS-0's, received, sent, and lost for want of room.
    pub card_frames: [u64; 3],
    /// How many frames were cleaned to be shared, and how often all instruction caches were emptied.
    pub caches: [u64; 2],
    /// 1: it has a source of random bits.
    pub seeded: u64,
    /// Frames that VMs may have in all, beside what was saved. This, `promised`, `vcpus_left` and `vms_left` are
    /// 0 for a VM that may only read.
    pub capacity: u64,
    /// Frames that VMs which run, and shared regions, were promised.
    pub promised: u64,
    /// Of them, what the VMs are sure of.
    pub bases: u64,
    /// Frames that were saved and wait for VMs to start with them.
    pub pool: u64,
    /// Users of frames that VMs share, and what they are charged for them in units (`model_sharing::UNIT`).
    pub sharing: [u64; 2],
    /// Frames with blocks of disks, kept though no VM uses them now.
    pub cached: u64,
    /// Frames of the bundle that VMs may use.
    pub images: u64,
    /// Frames with records of who uses what.
    pub records: u64,
    /// How many vCPUs more can run.
    pub vcpus_left: u64,
    /// How many VMs more can be described.
    pub vms_left: u32,
    /// 1: it is short of memory.
    pub is_short: u32,
    /// How misses are known: one of [`misses`].
    pub misses: u64,
}
const _: () = assert!(size_of::<MachineStatus>() == 216);

/// A pCPU.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct CpuStatus {
    /// Its number.
    pub cpu: u32,
    /// Its node.
    pub node: u32,
    /// Nanoseconds that it slept, or zeroed memory ahead of need.
    pub idle_ns: u64,
    /// Nanoseconds that OS-0 had it since it shares it with VMs.
    pub os0_run_ns: u64,
    /// Nanoseconds that OS-0 could have had it since then, and did not.
    pub os0_steal_ns: u64,
    /// Nanoseconds of the longest stretch with interrupts masked, by kind of work.
    pub stretch_ns: [u64; STRETCH_COUNT],
}
const _: () = assert!(size_of::<CpuStatus>() == 32 + 8 * STRETCH_COUNT);

/// A node of the machine.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NodeStatus {
    /// Bytes of its memory that pools manage.
    pub memory: u64,
    /// Bytes free.
    pub free: u64,
    /// Frames given to those who run on it.
    pub local: u64,
    /// Frames given to those who run elsewhere.
    pub remote: u64,
    /// Its pCPUs.
    pub cpus: u32,
    /// vCPUs that it runs or queues now.
    pub vcpus: u32,
    /// Bytes of the free ones that are known to be zero.
    pub zeroed: u64,
    /// Frames ever given that were known to be zero.
    pub zeroed_given: u64,
    /// Bytes of the free ones that are kept for breaking what is shared.
    pub reserve: u64,
}
const _: () = assert!(size_of::<NodeStatus>() == 64);

/// What a vCPU does, in [`RawVcpu::state`].
pub mod vcpu_state {
    /// It is off (PSCI).
    pub const OFF: u32 = 0;
    /// It waits for an interrupt.
    pub const WAITING: u32 = 1;
    /// It waits for a CPU.
    pub const READY: u32 = 2;
    /// It runs.
    pub const RUNNING: u32 = 3;
    /// Another host of its VM has it: that one's number is in [`RawVcpu::cpu`](super::RawVcpu::cpu).
    pub const ELSEWHERE: u32 = 4;
    /// It is about to go over to another host.
    pub const LEAVES: u32 = 5;
}

/// An entry of the machine's bundle.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EntryStatus {
    /// One of [`crate::bundle::kind`].
    pub kind: u32,
    /// Its number.
    pub number: u32,
    /// Its bytes.
    pub size: u64,
    /// Its name.
    pub name: Text<40>,
}
const _: () = assert!(size_of::<EntryStatus>() == 56);

/// Reads what EL2 counts. The number in the reply's header says where to go on; 0 at the end.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReadRequest {
    /// The VM, where it is about one.
    pub name: VmName,
    /// Where to begin: 0, or where the last reply says. Of a VM's memory, a guest-physical address, a multiple
    /// of 4 KiB.
    pub from: u64,
}
const _: () = assert!(size_of::<ReadRequest>() == 40);

/// Changes what can be changed of a VM's description. What only counts when a VM starts is refused while it runs.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SetRequest {
    /// The VM's name, and the fields that change with their new values.
    pub to: VmRecord,
    /// Ones in the bits of `to` that count.
    pub mask: VmRecord,
}

impl SetRequest {
    /// A request about that VM that changes nothing yet.
    pub fn about(name: VmName) -> Self {
        let mut request = Self::new_zeroed();
        request.to.name = name;
        request
    }

    /// The bits that can change: weight, cap, memory, how it is shared, and whether links are down.
    fn changeable() -> VmRecord {
        let mut may = VmRecord::new_zeroed();
        (may.weight, may.cap, may.base, may.memory) = (!0, !0, !0, !0);
        (may.claim, may.blocks, may.never_share, may.hide) = (!0, !0, !0, !0);
        (may.group, may.hold_ms) = (Text::ONES, !0);
        for net in &mut may.nets {
            net.flags = NET_DOWN;
        }
        may
    }

    /// `record` as the request changes it; `None` where it asks for another change than those.
    pub fn applied_to(&self, record: &VmRecord) -> Option<VmRecord> {
        let (mut changed, may) = (*record, Self::changeable());
        let [to, mask, may] = [&self.to, &self.mask, &may].map(|record| record.as_bytes().iter());
        for (byte, ((to, mask), may)) in
            changed.as_mut_bytes().iter_mut().zip(to.zip(mask).zip(may))
        {
            if mask & !may != 0 {
                return None;
            }
            *byte = *byte & !mask | to & mask;
        }
        Some(changed)
    }
}
const _: () = assert!(size_of::<SetRequest>() == 2 * size_of::<VmRecord>());

/// In [`TraceRequest::classes`]: they stay as they are.
pub const KEEP: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bundle::NET_PLAIN;

    #[test]
    fn requests_are_checked() {
        let name = VmName::new("web").unwrap();
        let (from, everybody) = (3, Text::default());
        for (name, is_one) in [(name, true), (everybody, true), (Text::ONES, false)] {
            let asked = ReadRequest { name, from };
            let decoded = Request::decode(request::LIST, asked.as_bytes());
            let found = matches!(decoded, Some(Request::Read(request::LIST, asked))
                if asked.name == name && asked.from == 3);
            assert_eq!(found, is_one);
        }
        assert!(Request::decode(request::LIST, &[]).is_none());
        assert!(matches!(
            Request::decode(request::KILL, name.as_bytes()),
            Some(Request::About(request::KILL, n)) if n == name
        ));
        assert!(Request::decode(request::KILL, &[0; 32]).is_none());
        assert!(Request::decode(request::KILL, &[0xff; 32]).is_none());
        assert!(Request::decode(request::KILL, &name.as_bytes()[..31]).is_none());
        let set = SetRequest::about(name);
        assert!(Request::decode(request::SET, set.as_bytes()).is_some());
        let nobody = SetRequest::about(Text::default());
        assert!(Request::decode(request::SET, nobody.as_bytes()).is_none());
        assert!(Request::decode(request::SET, set.to.as_bytes()).is_none());
        assert!(Request::decode(0, &[]).is_none());
        assert!(Request::decode(REPLY | request::LIST, &[]).is_none());
        let trace = |classes: u32| {
            let reserved = 0;
            Request::decode(
                request::TRACE,
                TraceRequest { classes, reserved }.as_bytes(),
            )
            .is_some()
        };
        assert!(trace(0) && trace(TRACE_ALL) && trace(KEEP) && !trace(TRACE_ALL + 1));
    }

    #[test]
    fn a_request_changes_what_its_mask_says() {
        let mut record = VmRecord::new_zeroed();
        (record.weight, record.cap, record.vcpus) = (256, 50, 4);
        record.nets[1].flags = NET_PLAIN;
        let mut set = SetRequest::about(VmName::new("web").unwrap());
        (set.to.weight, set.to.cap, set.to.vcpus) = (300, 7, 7);
        set.mask.weight = !0;
        set.to.nets[1].flags = !0;
        set.mask.nets[1].flags = NET_DOWN;
        let changed = set.applied_to(&record).unwrap();
        assert_eq!((changed.weight, changed.cap, changed.vcpus), (300, 50, 4));
        assert_eq!(changed.nets[1].flags, NET_PLAIN | NET_DOWN);
        assert!(changed.name.is_empty());
        for forbidden in [
            |mask: &mut VmRecord| mask.vcpus = 1,
            |mask: &mut VmRecord| mask.name = Text::cut("x"),
            |mask: &mut VmRecord| mask.nets[0].flags = NET_PLAIN,
            |mask: &mut VmRecord| mask.control = 1,
        ] {
            let mut set = set;
            forbidden(&mut set.mask);
            assert!(set.applied_to(&record).is_none());
        }
    }
}
