//! Which CPUs may have a VM's entries in their TLBs.
//!
//! Most VMs have one vCPU, and many run for long where they are: their invalidations need not reach the whole
//! machine. Kept is one CPU for each VMID, or that it may be several. Who begins to run a VM beside, or after,
//! that one drops the VM's entries on all CPUs first; so whatever another CPU has left over, or walks ahead of
//! need, is gone before a guest could use it. A VM with one vCPU is one CPU's again once it has stayed there,
//! which takes that once more; one that goes from CPU to CPU does not do so each time.

use core::sync::atomic::{AtomicU32, Ordering, fence};

/// No CPU.
const NOBODY: u32 = 0;
/// Perhaps several. Anything between is a CPU's number plus one.
const SEVERAL: u32 = u32::MAX;
/// The same, and nobody has dropped all entries since: others may have old ones.
const JOINING: u32 = u32::MAX - 1;

/// The same for each of the VMIDs below `N`.
pub struct Reach<const N: usize, const STAYS: u16> {
    holders: [AtomicU32; N],
    /// Of VMs with one vCPU: the CPU that ran it last, and how often without another between, in the low half.
    streaks: [AtomicU32; N],
}

impl<const N: usize, const STAYS: u16> Reach<N, STAYS> {
    /// No VM has run. One with a single vCPU is one CPU's again after it ran there `STAYS` times in a row.
    pub const fn empty() -> Self {
        Self {
            holders: [const { AtomicU32::new(NOBODY) }; N],
            streaks: [const { AtomicU32::new(0) }; N],
        }
    }

    fn holder(&self, vmid: u16) -> &AtomicU32 {
        &self.holders[usize::from(vmid) % N]
    }

    /// The VMID is another VM's from now on.
    pub fn forget(&self, vmid: u16) {
        self.holder(vmid).store(NOBODY, Ordering::Relaxed);
    }

    /// CPU `cpu` is about to run a VM, which it does `alone` where it has one vCPU. Gives whether the VM's entries
    /// must be dropped on all CPUs before it does, which also puts this before its walks; then [`Self::dropped`].
    #[must_use]
    #[inline]
    pub fn run_on(&self, vmid: u16, cpu: u16, alone: bool) -> bool {
        let now = self.holder(vmid).load(Ordering::Relaxed);
        if now == own(cpu) {
            return false;
        }
        if now != SEVERAL {
            self.join(vmid, cpu);
            return true;
        }
        let narrows = alone && self.stays(vmid, cpu);
        if narrows {
            self.holder(vmid).store(own(cpu), Ordering::Relaxed);
        }
        narrows
    }

    /// Whether a VM that may have entries anywhere, and runs on one CPU at a time, has been on this one for long.
    fn stays(&self, vmid: u16, cpu: u16) -> bool {
        let streak = &self.streaks[usize::from(vmid) % N];
        let now = streak.load(Ordering::Relaxed);
        let is_same = now >> 16 == u32::from(cpu);
        let times = if is_same { now as u16 } else { 0 };
        let stays = times + 1 >= STAYS;
        let times = if stays { 0 } else { times + 1 };
        streak.store(u32::from(cpu) << 16 | u32::from(times), Ordering::Relaxed);
        stays
    }

    #[cold]
    fn join(&self, vmid: u16, cpu: u16) {
        let joined = |now| match now {
            NOBODY => Some(own(cpu)),
            SEVERAL => None,
            _ => Some(JOINING),
        };
        let order = Ordering::Relaxed;
        let _ = self.holder(vmid).fetch_update(order, order, joined);
    }

    /// The VM's entries were dropped on all CPUs.
    pub fn dropped(&self, vmid: u16) {
        let (order, holder) = (Ordering::Relaxed, self.holder(vmid));
        let _ = holder.compare_exchange(JOINING, SEVERAL, order, order);
    }

    /// Whether what CPU `cpu` took out of a VM's tables need be dropped nowhere else.
    #[inline]
    pub fn is_only(&self, vmid: u16, cpu: u16) -> bool {
        // Who runs it next either is seen here, or sees the tables as they are now.
        fence(Ordering::SeqCst);
        let now = self.holder(vmid).load(Ordering::Relaxed);
        now == own(cpu) || now == NOBODY
    }
}

/// How a CPU is kept.
const fn own(cpu: u16) -> u32 {
    cpu as u32 + 1
}
