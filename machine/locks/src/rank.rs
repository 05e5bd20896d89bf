//! The order in which locks are taken, and its check in debug builds.

use core::sync::atomic::{AtomicU8, Ordering};

use crate::Once;

/// What a lock protects, in the order in which locks are taken: a CPU that holds one lock may
/// take only locks further down this list.
///
/// The order follows the longest chain there is: a request to a device reads and fills guest
/// memory, which takes frames from a pool; then the device raises an interrupt, which may wake a
/// vCPU. Memory for EL2's own use, and the log, may be wanted anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Rank {
    /// A vCPU's own state, held by the CPU that runs it for as long as it does.
    Vcpu,
    /// Which VMs there are.
    VmTable,
    /// One VM's life: starting, stopping, which of its vCPUs are on.
    Vm,
    /// One device model: its registers and queues.
    Device,
    /// Who is plugged into a virtual switch, and what it knows.
    Switch,
    /// One VM's pmap and stage-2 tables.
    VmMemory,
    /// Which of a shared region is zeroed.
    Region,
    /// What is known of the blocks of one partition.
    Blocks,
    /// Some of the lists by which shared frames are found.
    Index,
    /// The frame table's lists. (A single frame is locked by a bit of its own entry.)
    Frame,
    /// One node's records of who uses which shared frame.
    Slab,
    /// The free frames of one node.
    NodePool,
    /// One VM's interrupt distributor.
    Distributor,
    /// The redistributor of one vCPU.
    Redistributor,
    /// The run queue of one node. Woken vCPUs enter it whatever else is held.
    Scheduler,
    /// What a VM wrote to its consoles.
    Terminal,
    /// A device of the machine that EL2 drives.
    PhysicalDevice,
    /// EL2's own small heap.
    Heap,
    /// The machine's console and log.
    Console,
}

impl Rank {
    const COUNT: usize = Self::Console as usize + 1;
}

/// What happened to a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankEvent {
    /// It is about to be waited for: the order must allow it.
    Lock,
    /// A second lock of the same rank is about to be waited for, as part of an ordered pair.
    LockSecond,
    /// It was free and was taken without waiting, which no order forbids.
    TryLock,
    /// It was given back.
    Unlock,
}

/// Told of every event of every lock in debug builds, on the CPU where it happens.
pub type RankTracker = fn(Rank, RankEvent);

static TRACKER: Once<RankTracker> = Once::new();

/// Installs the function that knows which CPU it runs on and passes the event to that CPU's
/// [`HeldRanks`]. Called once at boot; later calls change nothing. Release builds never call it.
pub fn set_rank_tracker(tracker: RankTracker) {
    // The first one stays.
    let _ = TRACKER.set(tracker);
}

/// Passes `event` to the tracker in debug builds.
#[inline]
#[cfg_attr(not(debug_assertions), allow(unused_variables))]
pub(crate) fn track(rank: Rank, event: RankEvent) {
    #[cfg(debug_assertions)]
    match TRACKER.get() {
        Some(tracker) => tracker(rank, event),
        None => track_by_thread(rank, event),
    }
}

#[cfg(all(debug_assertions, any(test, feature = "std")))]
fn track_by_thread(rank: Rank, event: RankEvent) {
    std::thread_local! {
        static HELD: HeldRanks = const { HeldRanks::new() };
    }
    // A lock may be given back while the thread's own storage is already being torn down.
    let _ = HELD.try_with(|held| held.note(rank, event));
}

#[cfg(all(debug_assertions, not(any(test, feature = "std"))))]
fn track_by_thread(_: Rank, _: RankEvent) {}

/// The ranks one CPU holds. Only that CPU changes it; atomics make it shareable without `unsafe`.
#[derive(Debug, Default)]
pub struct HeldRanks {
    counts: [AtomicU8; Rank::COUNT],
}

impl HeldRanks {
    /// A CPU that holds nothing.
    pub const fn new() -> Self {
        Self {
            counts: [const { AtomicU8::new(0) }; Rank::COUNT],
        }
    }

    /// Records `event`.
    ///
    /// # Panics
    /// Where the written order forbids waiting for a lock of `rank` now: a mistake in EL2.
    pub fn note(&self, rank: Rank, event: RankEvent) {
        let first_forbidden = match event {
            RankEvent::Lock => rank as usize,
            RankEvent::LockSecond => rank as usize + 1,
            RankEvent::TryLock | RankEvent::Unlock => Rank::COUNT,
        };
        for (held, count) in self.counts.iter().enumerate().skip(first_forbidden) {
            let count = count.load(Ordering::Relaxed);
            assert!(
                count == 0,
                "lock order: {rank:?} taken while rank {held} is held"
            );
        }
        let count = &self.counts[rank as usize];
        let held = count.load(Ordering::Relaxed);
        let now = match event {
            RankEvent::Unlock => held.saturating_sub(1),
            _ => held.saturating_add(1),
        };
        count.store(now, Ordering::Relaxed);
    }

    /// Whether nothing is held: true whenever a CPU enters a guest.
    pub fn is_empty(&self) -> bool {
        self.counts
            .iter()
            .all(|count| count.load(Ordering::Relaxed) == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_balanced_run_leaves_nothing() {
        let held = HeldRanks::new();
        held.note(Rank::Device, RankEvent::Lock);
        held.note(Rank::Heap, RankEvent::Lock);
        assert!(!held.is_empty());
        held.note(Rank::Device, RankEvent::Unlock);
        held.note(Rank::Heap, RankEvent::Unlock);
        assert!(held.is_empty());
    }

    #[test]
    #[should_panic(expected = "lock order: Device taken")]
    fn upwards_is_refused() {
        let held = HeldRanks::new();
        held.note(Rank::Console, RankEvent::Lock);
        held.note(Rank::Device, RankEvent::Lock);
    }

    #[test]
    #[should_panic(expected = "lock order: Vm taken")]
    fn the_same_rank_twice_is_refused() {
        let held = HeldRanks::new();
        held.note(Rank::Vm, RankEvent::Lock);
        held.note(Rank::Vm, RankEvent::Lock);
    }

    #[test]
    fn trying_is_always_allowed() {
        let held = HeldRanks::new();
        held.note(Rank::Console, RankEvent::Lock);
        held.note(Rank::Vm, RankEvent::TryLock);
    }
}
