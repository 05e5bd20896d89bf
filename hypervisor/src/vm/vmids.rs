//! The VMIDs of the VMs there are.

use super::table::VMS_MAX;
use machine_locks::{Rank, SpinLock};
use model_vmid::{Tag, Vmids};

/// VMIDs of 8 bits, which every CPU has.
const COUNT: usize = 256;
// Each VM keeps its number from start to end, and as many again may be on their way out.
const _: () = assert!(VMS_MAX * 2 < COUNT);

static VMIDS: SpinLock<Vmids<COUNT>> = SpinLock::new(Rank::Vm, Vmids::new());

/// A VMID that is one VM's, until this is dropped: then no TLB has an entry of it any more.
pub struct Vmid(Tag);

impl Vmid {
    /// A VMID that nobody has; `None` where there is none.
    pub fn take() -> Option<Self> {
        VMIDS.lock().take().map(Self)
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
