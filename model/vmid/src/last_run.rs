//! What a CPU drops of its own TLB before it runs a vCPU.
//!
//! The vCPUs of a VM share its VMID, and their guest's kernel may give each of them other tables under one ASID
//! (or other entries for the same address, as Linux does for what is local to a CPU). What one leaves in a CPU's
//! TLB must not serve another there.

/// The vCPU that a CPU ran last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastRun {
    /// `VTTBR_EL2`: root of stage 2 and VMID. Zero is nobody's.
    pub vttbr: u64,
    /// Its number in its VM.
    pub vcpu: u16,
}

/// The entries that go, all of the VMID that is to be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drops {
    /// None.
    Nothing,
    /// Those of stage 1, and those of both stages together.
    Stage1,
    /// All.
    Both,
}

impl LastRun {
    /// What the CPU that ran `self` last drops before it runs `next`; `is_later_root` where the VM has another root,
    /// made before that of `next`, which may have been in use here. A CPU never goes back to it.
    #[must_use]
    #[inline]
    pub const fn drops_before(self, next: Self, is_later_root: bool) -> Drops {
        if self.vttbr != next.vttbr {
            return if is_later_root {
                // No TLB may know entries of two roots under one VMID.
                Drops::Both
            } else {
                // Another vCPU of this VM may have been the last of this VM here, before other VMs.
                Drops::Stage1
            };
        }
        if self.vcpu == next.vcpu {
            Drops::Nothing
        } else {
            Drops::Stage1
        }
    }
}
