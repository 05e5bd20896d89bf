//! Figures of VMs and of the machine, made of what EL2 counts.

use crate::names::MEM_EVENT_COUNT;
use abi::Text;
use abi::control::{
    EXIT_CLASS_COUNT, LATENCY_BUCKETS, MachineStatus, NET_DROP_COUNT, NUMA_LEFT_COUNT, NodeStatus,
    PageCounts, RawVcpu, RawVm, VmName, WHY_COUNT, Work, count, work,
};
use model_address_space::Events;
use model_entitlement::{Claim, Holding, Standing, Terms, stand};
use model_sharing::UNIT;
use std::array;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a frame.
const FRAME: u64 = 4096;
/// More frames than a machine has: sums of numbers below it fit.
const FRAMES_MAX: u64 = 1 << 36;

const fn bytes(frames: u64) -> u64 {
    frames.saturating_mul(FRAME)
}

/// `N` words from that place on.
fn words<const N: usize>(words: &[u64], from: usize) -> [u64; N] {
    array::from_fn(|n| words.get(from + n).copied().unwrap_or(0))
}

/// A VM.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct VmStatus {
    /// Its name.
    pub name: VmName,
    /// The name of its kernel in the bundle.
    pub kernel: Text<40>,
    /// One of [`abi::control::state`].
    pub state: u32,
    /// Its vCPUs.
    pub vcpus: u32,
    /// Its weight.
    pub weight: u32,
    /// Its cap in percent; 0: none.
    pub cap: u32,
    /// Why it ended, as a sentence; empty while it has not.
    pub reason: Text<96>,
    /// Bytes of memory it was given.
    pub memory: u64,
    /// Bytes of it that have a frame of the machine behind them.
    pub touched: u64,
    /// Bytes of memory in overlays of its disks.
    pub overlay: u64,
    /// Bytes that overlays of its disks have on partitions.
    pub stored: u64,
    /// Bytes of translation tables and other bookkeeping that EL2 holds for it.
    pub overhead: u64,
    /// Nanoseconds that its vCPUs ran.
    pub run_ns: u64,
    /// Nanoseconds that its vCPUs could have run and did not.
    pub steal_ns: u64,
    /// Nanoseconds that EL2 worked for it.
    pub hypervisor_ns: u64,
    /// Nanoseconds that its vCPUs had nothing to do.
    pub idle_ns: u64,
    /// Exits of all its vCPUs, by exit class.
    pub exits: [u64; EXIT_CLASS_COUNT],
    /// Nanoseconds at EL2 that they took.
    pub exit_ns: [u64; EXIT_CLASS_COUNT],
    /// Disk requests: reads, writes, flushes, refused.
    pub disk: [u64; 4],
    /// Bytes read from and written to disks.
    pub disk_bytes: [u64; 2],
    /// Frames that its network devices sent and received.
    pub net_frames: [u64; 2],
    /// Bytes in them.
    pub net_bytes: [u64; 2],
    /// Frames that went nowhere, by reason.
    pub net_drops: [u64; NET_DROP_COUNT],
    /// Nanoseconds that frames it sent took, from when EL2 took them from the ring until each was with its
    /// receivers, on its way out, or lost there.
    pub net_ns: u64,
    /// How many of them took how long, by [`abi::control::latency_bucket`].
    pub net_latency: [u64; LATENCY_BUCKETS],
    /// Network devices that it has.
    pub nets: u32,
    /// Of them, in bits, those whose link is down.
    pub links_down: u32,
    /// Disk requests that failed on the machine's side.
    pub disk_errors: u64,
    /// Nanoseconds that disk requests took, from the notification that EL2 acted on to the answer.
    pub disk_ns: u64,
    /// How many of them took how long, by [`abi::control::latency_bucket`].
    pub disk_latency: [u64; LATENCY_BUCKETS],
    /// Bytes it wrote to its console, and those that were dropped of them.
    pub console: [u64; 2],
    /// Events that EL2 counted and went on: unknown registers, refused MMIO, broken queues, unknown calls.
    pub oddities: [u64; 4],
    /// How often TLBs were told of changes of its translation: one CPU's, and those of all CPUs.
    pub invalidations: [u64; 2],
    /// The node where its memory begins.
    pub node: u32,
    /// Counts its starts.
    pub starts: u32,
    /// The hosts of the cluster that it spans, a bit each; 0: it is the machine's alone.
    pub hosts: u64,
}

/// A vCPU.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct VcpuStatus {
    /// One of [`abi::control::vcpu_state`].
    pub state: u32,
    /// The pCPU it runs on or ran on last.
    pub cpu: u32,
    /// Nanoseconds it ran.
    pub run_ns: u64,
    /// Nanoseconds it could have run and did not.
    pub steal_ns: u64,
    /// Nanoseconds that EL2 worked for it.
    pub hypervisor_ns: u64,
    /// Nanoseconds it had nothing to do.
    pub idle_ns: u64,
    /// How often it changed from one pCPU to another.
    pub migrations: u64,
    /// Its program counter when it last left the CPU.
    pub pc: u64,
    /// Exits by exit class.
    pub exits: [u64; EXIT_CLASS_COUNT],
    /// Nanoseconds at EL2 that they took, as far as those tell that were timed: all while exits are
    /// traced, else one after each alarm of EL2's. 0 where none was; in all not more than
    /// [`Self::hypervisor_ns`].
    pub exit_ns: [u64; EXIT_CLASS_COUNT],
}

/// A VM's memory, in bytes where nothing else is said.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MemStatus {
    /// Its name.
    pub name: VmName,
    /// The name of its share group.
    pub group: Text<24>,
    /// What it is sure of.
    pub base: u64,
    /// The most it can have: what its guest sees.
    pub max: u64,
    /// The most it may have now; EL2 enforces it.
    pub limit: u64,
    /// What its guest was asked to keep to.
    pub target: u64,
    /// Guest memory with a frame behind it.
    pub resident: u64,
    /// Of it, frames that nobody else can use.
    pub private: u64,
    /// Of it, frames that others use or could use.
    pub shared: u64,
    /// What it is charged: private frames, its part of shared ones, its overlays, its tables.
    pub charge: u64,
    /// What sharing saves on its account: (n-1)/n of each frame that n use.
    pub entitlement: u64,
    /// Of it, what was given to the guest beyond its base.
    pub drawn: u64,
    /// Entitlement less drawn.
    pub balance: i64,
    /// What it has to give back before it may go on.
    pub owed: u64,
    /// Overlays of its disks in memory.
    pub overlay: u64,
    /// Its translation tables and maps.
    pub tables: u64,
    /// 2 MiB entries of its translation.
    pub blocks: u64,
    /// 4 KiB entries of its translation.
    pub pages: u64,
    /// What EL2 could take from it now without its help: an estimate, as the pages that partitions
    /// hold are counted once a second.
    pub takeable: u64,
    /// How long half of its pages, and 99 of 100, took at most to be read again, in nanoseconds.
    pub refault_ns: [u64; 2],
    /// How long somebody of it waited for frames since it owed, in nanoseconds.
    pub stalled_ns: u64,
    /// What was counted since it started, by kind.
    pub events: [u64; MEM_EVENT_COUNT],
}

/// The machine's memory as VMs share it, in bytes.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MachineMem {
    /// What pools manage.
    pub managed: u64,
    /// Of it, free.
    pub free: u64,
    /// Kept for breaking what is shared.
    pub reserve: u64,
    /// Frames that VMs share, each counted once.
    pub shared: u64,
    /// What VMs would need more if nothing were shared.
    pub saved: u64,
    /// Blocks of disks kept though no VM uses them now.
    pub cached: u64,
    /// The bundle's pages that VMs may use.
    pub images: u64,
    /// Sum of the bases of the VMs that run.
    pub bases: u64,
    /// What was saved and waits for a VM to start with it.
    pub pool: u64,
    /// Records of who uses what.
    pub records: u64,
}

/// Why a VM's memory is not shared.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WhyStatus {
    /// Private frames, by reason.
    pub private: [u64; WHY_COUNT],
    /// Frames that could be shared and have no second user.
    pub no_twin: u64,
    /// Frames with two users or more.
    pub shared: u64,
}

/// How many more VMs of a description would start.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FitStatus {
    /// How many.
    pub count: u64,
    /// What the next one would need, in bytes.
    pub needed: u64,
    /// What there would be for it, in bytes.
    pub there: u64,
    /// What binds: one of [`fit`].
    pub binds: u32,
    /// Zero.
    pub reserved: u32,
}

/// What keeps one more VM from starting, in [`FitStatus::binds`].
pub mod fit {
    /// The machine's memory.
    pub const MEMORY: u32 = 0;
    /// As many VMs as the machine can have.
    pub const VMS: u32 = 1;
    /// As many vCPUs as the machine can have.
    pub const VCPUS: u32 = 2;
    /// A persistent disk that only one VM can have.
    pub const DISK: u32 = 3;
}

/// Where a VM's memory is, and what became of its pages.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NumaStatus {
    /// Its name.
    pub name: VmName,
    /// Bytes on each node.
    pub memory: [u64; 8],
    /// Pages that moved.
    pub moved: u64,
    /// Copies that nodes got of pages that they read.
    pub replicated: u64,
    /// Pages whose copies went since somebody wrote them.
    pub collapsed: u64,
    /// Copies there are now.
    pub copies: u64,
    /// Misses on pages that were hot, on memory of the own node.
    pub local: u64,
    /// As `local`, on other nodes' memory.
    pub remote: u64,
    /// Hot pages that stayed, by [`abi::control::left`].
    pub left: [u64; NUMA_LEFT_COUNT],
    /// 1 where all of it is on its way to a node.
    pub moving: u64,
    /// How misses are known: one of [`abi::control::misses`].
    pub counts: u64,
    /// Nanoseconds of CPUs that went into moving and copying pages, beside `copying_ns`.
    pub moving_ns: u64,
    /// Nanoseconds of CPUs that went into the bytes themselves: caches cleaned, and the copy.
    pub copying_ns: u64,
}

/// Nanoseconds that exits took, by class, as far as those tell that were timed, and not more in all than
/// EL2 worked.
fn exit_ns(used: &Work) -> [u64; EXIT_CLASS_COUNT] {
    let of = |from| words::<EXIT_CLASS_COUNT>(used, from).map(u128::from);
    let [exits, timed, timed_ns] = [work::EXITS, work::TIMED, work::TIMED_NS].map(of);
    let all = u128::from(used[work::HYPERVISOR]);
    let guesses: [u128; EXIT_CLASS_COUNT] = array::from_fn(|class| {
        let guess = (exits[class] * timed_ns[class]).checked_div(timed[class]);
        guess.unwrap_or(0).min(all)
    });
    let sum = guesses.iter().sum::<u128>().max(all).max(1);
    guesses.map(|guess| (guess * all / sum) as u64)
}

fn holding(raw: &RawVm) -> Holding {
    let whole: Holding = zerocopy::transmute!(raw.holding.map(|frames| frames.min(FRAMES_MAX)));
    Holding {
        units: words::<7>(&raw.holding, 0)[3],
        ..whole
    }
}

/// What a VM was promised.
fn terms(raw: &RawVm) -> Terms {
    let [base, max, overlays] = raw.terms.map(|frames| frames.min(FRAMES_MAX));
    Terms {
        base,
        max,
        overlays,
        claim: u8::try_from(raw.claim).map_or(Claim::None, Claim::of),
    }
}

impl From<&RawVm> for VmStatus {
    fn from(raw: &RawVm) -> Self {
        let (used, counts, holding) = (&raw.work, &raw.counts, holding(raw));
        let [registers, accesses, calls] = words(counts, count::ODDITIES);
        Self {
            name: raw.name,
            kernel: raw.kernel,
            state: raw.state,
            vcpus: raw.vcpus,
            weight: raw.weight,
            cap: raw.cap,
            hosts: raw.hosts.into(),
            reason: raw.reason,
            memory: raw.memory,
            touched: bytes(holding.resident()),
            overlay: raw.overlays[0],
            stored: raw.overlays[1],
            overhead: bytes(holding.tables).saturating_add(raw.bookkeeping),
            run_ns: used[work::RUN],
            steal_ns: used[work::STEAL],
            hypervisor_ns: used[work::HYPERVISOR],
            idle_ns: used[work::IDLE],
            exits: words(used, work::EXITS),
            exit_ns: exit_ns(used),
            disk: words(counts, count::DISK),
            disk_bytes: words(counts, count::DISK_BYTES),
            net_frames: words(counts, count::NET_FRAMES),
            net_bytes: words(counts, count::NET_BYTES),
            net_drops: words(counts, count::NET_DROPS),
            net_ns: counts[count::NET_NS],
            net_latency: words(counts, count::NET_LATENCY),
            nets: raw.nets,
            links_down: raw.links_down,
            disk_errors: counts[count::DISK_ERRORS],
            disk_ns: counts[count::DISK_NS],
            disk_latency: words(counts, count::DISK_LATENCY),
            console: raw.console,
            oddities: [registers, accesses, raw.broken_queues, calls],
            invalidations: raw.invalidations,
            node: raw.node,
            starts: raw.starts,
        }
    }
}

impl From<&RawVcpu> for VcpuStatus {
    fn from(raw: &RawVcpu) -> Self {
        Self {
            state: raw.state,
            cpu: raw.cpu,
            run_ns: raw.work[work::RUN],
            steal_ns: raw.work[work::STEAL],
            hypervisor_ns: raw.work[work::HYPERVISOR],
            idle_ns: raw.work[work::IDLE],
            migrations: raw.migrations,
            pc: raw.pc,
            exits: words(&raw.work, work::EXITS),
            exit_ns: exit_ns(&raw.work),
        }
    }
}

impl MemStatus {
    /// The memory of a VM that runs on that machine.
    pub fn of(raw: &RawVm, machine: &MachineStatus) -> Self {
        let (terms, holding) = (terms(raw), holding(raw));
        let standing = stand(terms, holding, machine.is_short != 0);
        let Standing {
            limit,
            drawn,
            balance,
            owed,
            ..
        } = standing;
        let [half, most, stalled_ns, _] = raw.waits;
        Self {
            name: raw.name,
            group: raw.group,
            base: bytes(terms.base),
            max: bytes(terms.max),
            limit: bytes(limit),
            target: raw.target,
            resident: bytes(holding.resident()),
            private: bytes(holding.private),
            shared: bytes(holding.shared),
            charge: bytes(holding.charge()),
            entitlement: bytes(holding.entitlement()),
            drawn: bytes(drawn),
            balance: balance.saturating_mul(FRAME.cast_signed()),
            owed: bytes(owed),
            overlay: bytes(holding.overlay),
            tables: bytes(holding.tables),
            blocks: raw.leaves[0],
            pages: raw.leaves[1],
            takeable: bytes(holding.takeable),
            refault_ns: [half, most],
            stalled_ns,
            events: mem_events(raw),
        }
    }
}

/// In the order of [`crate::MEM_EVENTS`].
fn mem_events(raw: &RawVm) -> [u64; MEM_EVENT_COUNT] {
    let events: Events = zerocopy::transmute!(raw.events);
    let [by_content, races, full, group, never] = words(&raw.counts, count::SHARING);
    let [ballooned, reported] = raw.given_back;
    [
        events.exchanged.saturating_sub(by_content),
        by_content,
        events.at_boot,
        events.entered,
        events.zeroed,
        events.breaks,
        events.claims,
        events.copies_saved,
        races,
        full,
        group,
        never,
        events.flushes,
        ballooned,
        reported,
        events.discarded,
        events.refaults,
        raw.counts[count::FAILED_REREADS],
        events.swapped,
        raw.waits[3],
    ]
}

impl MachineMem {
    /// The memory of a machine with these nodes.
    pub fn of(machine: &MachineStatus, nodes: &[NodeStatus]) -> Self {
        let sum = |of: fn(&NodeStatus) -> u64| nodes.iter().map(of).fold(0, u64::saturating_add);
        let [users, units] = machine.sharing;
        let shared = bytes(units.div_ceil(UNIT));
        Self {
            managed: sum(|node| node.memory),
            free: sum(|node| node.free),
            reserve: sum(|node| node.reserve),
            shared,
            saved: bytes(users).saturating_sub(shared),
            cached: bytes(machine.cached),
            images: bytes(machine.images),
            bases: bytes(machine.bases),
            pool: bytes(machine.pool),
            records: bytes(machine.records),
        }
    }
}

impl From<&PageCounts> for WhyStatus {
    fn from(counts: &PageCounts) -> Self {
        Self {
            private: counts.private,
            no_twin: counts.no_twin,
            shared: counts.shared,
        }
    }
}

impl NumaStatus {
    /// Where the memory of a VM is that runs on that machine.
    pub fn of(raw: &RawVm, pages: &PageCounts, machine: &MachineStatus) -> Self {
        let events: Events = zerocopy::transmute!(raw.events);
        let [local, remote] = words(&raw.counts, count::HOT_MISSES);
        let [spent, copying_ns] = words::<2>(&raw.counts, count::MOVING_NS);
        Self {
            name: raw.name,
            memory: pages.nodes.map(bytes),
            moved: events.moved,
            replicated: events.replicated,
            collapsed: events.collapsed,
            copies: raw.copies,
            local,
            remote,
            left: words(&raw.counts, count::LEFT),
            moving: raw.moving,
            counts: machine.misses,
            moving_ns: spent.saturating_sub(copying_ns),
            copying_ns,
        }
    }
}

/// What one more VM of a kind would need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// What it is promised.
    pub terms: Terms,
    /// Frames for regions that are not there.
    pub regions: u64,
    /// Its vCPUs.
    pub vcpus: u32,
    /// Only one can run: it has a partition for itself.
    pub is_alone: bool,
}

impl From<&RawVm> for Needs {
    fn from(raw: &RawVm) -> Self {
        Self {
            terms: terms(raw),
            regions: raw.regions.min(FRAMES_MAX),
            vcpus: raw.vcpus,
            is_alone: raw.is_alone != 0,
        }
    }
}

impl FitStatus {
    /// How many more VMs with such needs would start on that machine.
    pub fn of(needs: &Needs, machine: &MachineStatus) -> Self {
        let base = needs.terms.promised();
        let (capacity, pool) = (machine.capacity, machine.pool);
        let bases = machine.promised.saturating_add(needs.regions);
        let mut status = Self {
            count: model_entitlement::fit(base, capacity, bases, pool),
            needed: bytes(base),
            there: bytes(capacity.saturating_add(pool).saturating_sub(bases)),
            binds: fit::MEMORY,
            reserved: 0,
        };
        let vcpus = machine.vcpus_left / u64::from(needs.vcpus.max(1));
        let disks = if needs.is_alone { 1 } else { u64::MAX };
        for (most, binds) in [
            (machine.vms_left.into(), fit::VMS),
            (vcpus, fit::VCPUS),
            (disks, fit::DISK),
        ] {
            if most < status.count {
                (status.count, status.binds) = (most, binds);
            }
        }
        status
    }
}

#[cfg(test)]
mod tests;
