//! The VMIDs of the VMs there are.

use arch::tlb::{self, Reaches};
use machine_locks::{Rank, SpinLock};
use model_addr::CpuId;
use model_vmid::{Reach, Tag, Vmids};

/// The most VMs that are described at a time.
pub const VMS_MAX: usize = 64;
/// VMIDs of 8 bits, which every CPU has.
const COUNT: usize = 256;
// Each VM keeps its number from start to end, and as many again may be on their way out.
const _: () = assert!(VMS_MAX * 2 < COUNT);

static VMIDS: SpinLock<Vmids<COUNT>> = SpinLock::new(Rank::Vm, Vmids::empty());
/// How often a VM runs on one CPU in a row until that is thought to be its own.
const STAYS: u16 = 64;
static REACH: Reach<COUNT, STAYS> = Reach::empty();

/// A VMID that is one VM's, until this is dropped: then no CPU runs a guest on an entry of it any more.
pub struct Vmid(Tag);

impl Vmid {
    /// A VMID that nobody has; `None` where there is none.
    pub fn take() -> Option<Self> {
        let tag = VMIDS.lock().take()?;
        REACH.forget(tag.vmid());
        Some(Self(tag))
    }

    /// The number, for `VTTBR_EL2`.
    pub fn number(&self) -> u16 {
        self.0.vmid()
    }
}

impl Drop for Vmid {
    fn drop(&mut self) {
        VMIDS.lock().release(self.0);
    }
}

/// This CPU, which has the VMID loaded, is about to run its VM; `alone` where that has one vCPU.
#[inline]
pub fn run_on(vmid: u16, cpu: CpuId, alone: bool) {
    if REACH.run_on(vmid, cpu.0, alone) {
        tlb::flush_vmid(Reaches::AllCpus);
        REACH.dropped(vmid);
    }
}

/// Which CPUs may have entries of a VMID that this CPU has just taken out of its tables.
#[inline]
pub fn reach(vmid: u16, cpu: CpuId) -> Reaches {
    if REACH.is_only(vmid, cpu.0) {
        Reaches::Here
    } else {
        Reaches::AllCpus
    }
}
