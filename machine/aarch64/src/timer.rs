//! The generic timer: time, EL2's own alarm, and the guest's virtual timer.

use crate::cpu::isb;
use core::arch::asm;

/// Counts per second (`CNTFRQ_EL0`).
pub fn frequency() -> u64 {
    read_sysreg!("cntfrq_el0")
}

/// Now, in counts. Not ordered against neighbouring instructions.
#[inline]
pub fn now() -> u64 {
    read_sysreg!("cntpct_el0")
}

/// Returns when [`now`] has reached `at`, always as long after the edge at which the counter changed
/// next: the instruction at which it was called does not show in the one at which it returns.
///
/// Eight reads see one edge, for a counter that changes with every eight instructions (62.5 MHz, as
/// QEMU's `-icount shift=1` has it): how many of them came before it are waited for again. Where the
/// counter is slower or faster than that, what is left is the time of one loop.
pub fn wait_for_edge(at: u64) {
    // SAFETY: reads of a counter, and a jump within this code to one of the `nop`s at its end.
    unsafe {
        asm!(
            "2: mrs {first}, cntpct_el0",
            "cmp {first}, {at}",
            "b.lo 2b",
            "mrs {first}, cntpct_el0",
            "mrs {r1}, cntpct_el0",
            "mrs {r2}, cntpct_el0",
            "mrs {r3}, cntpct_el0",
            "mrs {r4}, cntpct_el0",
            "mrs {r5}, cntpct_el0",
            "mrs {r6}, cntpct_el0",
            "mrs {r7}, cntpct_el0",
            // Reads before the edge, beside the first.
            "mov {at}, xzr",
            "cmp {r1}, {first}",
            "cinc {at}, {at}, eq",
            "cmp {r2}, {first}",
            "cinc {at}, {at}, eq",
            "cmp {r3}, {first}",
            "cinc {at}, {at}, eq",
            "cmp {r4}, {first}",
            "cinc {at}, {at}, eq",
            "cmp {r5}, {first}",
            "cinc {at}, {at}, eq",
            "cmp {r6}, {first}",
            "cinc {at}, {at}, eq",
            "cmp {r7}, {first}",
            "cinc {at}, {at}, eq",
            // So many `nop`s are done: the later the edge came, the more.
            "adr {r1}, 3f",
            "sub {r1}, {r1}, {at}, lsl #2",
            "br {r1}",
            "nop",
            "nop",
            "nop",
            "nop",
            "nop",
            "nop",
            "nop",
            "3:",
            at = inout(reg) at => _,
            first = out(reg) _,
            r1 = out(reg) _,
            r2 = out(reg) _,
            r3 = out(reg) _,
            r4 = out(reg) _,
            r5 = out(reg) _,
            r6 = out(reg) _,
            r7 = out(reg) _,
            options(nomem, nostack)
        );
    }
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
#[derive(Clone, Copy, Debug, Default)]
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
