//! The generic timer: time, EL2's own alarm, and the guest's virtual timer.

use crate::cpu::isb;
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub use crate::edge::wait_for_edge;

/// Counts per second (`CNTFRQ_EL0`).
pub fn frequency() -> u64 {
    read_sysreg!("cntfrq_el0")
}

/// Now, in counts. Not ordered against neighbouring instructions.
#[inline]
pub fn now() -> u64 {
    read_sysreg!("cntpct_el0")
}

/// Sets EL2's alarm (`CNTHP`) to fire when [`now`] reaches `at`.
pub fn set_alarm(at: u64) {
    // SAFETY: the alarm raises EL2's own PPI and nothing else.
    unsafe {
        write_sysreg!("cnthp_cval_el2", at);
        write_sysreg!("cnthp_ctl_el2", 1);
    }
}

/// Stops EL2's alarm.
pub fn clear_alarm() {
    // SAFETY: as above.
    unsafe { write_sysreg!("cnthp_ctl_el2", 0) }
    isb();
}

/// A virtual timer's registers, as they were when the vCPU left the CPU.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct VirtualTimer {
    /// `CNTV_CTL_EL0`: bit 0 ENABLE, bit 1 IMASK.
    pub control: u64,
    /// `CNTV_CVAL_EL0`, in virtual counts.
    pub compare: u64,
}

impl VirtualTimer {
    /// When the timer raises its interrupt, in virtual counts; `None` if it will not.
    pub fn deadline(self) -> Option<u64> {
        (self.control & 3 == 1).then_some(self.compare)
    }

    /// Takes the timer out of the hardware, which then is silent.
    pub fn save() -> Self {
        let timer = Self {
            control: read_sysreg!("cntv_ctl_el0"),
            compare: read_sysreg!("cntv_cval_el0"),
        };
        // SAFETY: the vCPU that owned the timer is off this CPU.
        unsafe { write_sysreg!("cntv_ctl_el0", 0) }
        timer
    }

    /// Puts the timer into the hardware, for a VM whose time runs `offset` counts late.
    pub fn load(self, offset: u64) {
        // SAFETY: these registers belong to the vCPU that is being loaded.
        unsafe {
            write_sysreg!("cntvoff_el2", offset);
            write_sysreg!("cntv_cval_el0", self.compare);
            write_sysreg!("cntv_ctl_el0", self.control);
        }
    }

    /// Whether the timer that is in the hardware now raises its interrupt (`CNTV_CTL_EL0.ISTATUS`
    /// and not masked).
    pub fn is_loaded_asserted() -> bool {
        read_sysreg!("cntv_ctl_el0") & 7 == 5
    }

    /// The deadline of the timer that is in the hardware now, in virtual counts.
    pub fn loaded_deadline() -> Option<u64> {
        Self {
            control: read_sysreg!("cntv_ctl_el0"),
            compare: read_sysreg!("cntv_cval_el0"),
        }
        .deadline()
    }
}
