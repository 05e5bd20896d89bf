//! The generic timer: the counters and EL1's timers, virtual and physical (Arm ARM D12).

use core::arch::asm;

/// Interrupt of the virtual timer: PPI 11.
pub const VIRTUAL_INTID: u32 = 27;

/// Interrupt of the physical timer: PPI 14.
pub const PHYSICAL_INTID: u32 = 30;

/// CNTVCT_EL0, not ordered with what surrounds it.
#[inline]
pub fn counter() -> u64 {
    let value: u64;
    // SAFETY: reads a counter.
    unsafe { asm!("mrs {}, cntvct_el0", out(reg) value, options(nostack)) };
    value
}

/// CNTVCT_EL0 after everything before it.
#[inline]
pub fn now() -> u64 {
    let value: u64;
    // SAFETY: reads a counter.
    unsafe { asm!("isb", "mrs {}, cntvct_el0", out(reg) value, options(nostack)) };
    value
}

/// Ticks of the counter per second; never 0.
pub fn frequency() -> u64 {
    let value: u64;
    // SAFETY: reads a constant register.
    unsafe { asm!("mrs {}, cntfrq_el0", out(reg) value, options(nomem, nostack)) };
    value.max(1)
}

/// Ticks in `microseconds`.
pub fn ticks(microseconds: u64) -> u64 {
    (u128::from(microseconds) * u128::from(frequency()) / 1_000_000) as u64
}

/// Whether `holds` becomes true within `microseconds`.
pub fn wait_until(microseconds: u64, mut holds: impl FnMut() -> bool) -> bool {
    let end = now().saturating_add(ticks(microseconds));
    while !holds() {
        if now() > end {
            return holds();
        }
        crate::cpu::yield_now();
    }
    true
}

/// Lets the virtual timer fire when the counter reaches `deadline`, and from then on until it is
/// moved or stopped.
#[inline]
pub fn fire_at(deadline: u64) {
    // SAFETY: programs a timer; its interrupt is the guest's to handle.
    unsafe {
        asm!("msr cntv_cval_el0, {}", "msr cntv_ctl_el0, {}", "isb", in(reg) deadline, in(reg) 1u64,
            options(nostack));
    }
}

/// Stops the virtual timer.
#[inline]
pub fn stop() {
    // SAFETY: turns a timer off.
    unsafe { asm!("msr cntv_ctl_el0, xzr", "isb", options(nostack)) };
}

/// The deadline it was last given.
#[inline]
pub fn deadline() -> u64 {
    let value: u64;
    // SAFETY: reads a timer register.
    unsafe { asm!("mrs {}, cntv_cval_el0", out(reg) value, options(nostack)) };
    value
}

/// Whether it is on and its deadline has passed.
#[inline]
pub fn is_firing() -> bool {
    let control: u64;
    // SAFETY: reads a timer register.
    unsafe { asm!("mrs {}, cntv_ctl_el0", out(reg) control, options(nostack)) };
    control & 0b101 == 0b101
}

/// The EL1 physical timer, register by register.
pub mod physical {
    use core::arch::asm;

    /// CNTP_CTL_EL0: the timer is on.
    pub const ENABLE: u64 = 1 << 0;
    /// CNTP_CTL_EL0: it does not interrupt.
    pub const IMASK: u64 = 1 << 1;
    /// CNTP_CTL_EL0: its time has come.
    pub const ISTATUS: u64 = 1 << 2;

    macro_rules! registers {
        ($($(#[$doc:meta])* $read:ident, $write:ident, $register:literal;)*) => {$(
            $(#[$doc])*
            pub fn $read() -> u64 {
                let value: u64;
                // SAFETY: reads a timer register.
                unsafe {
                    asm!("isb", concat!("mrs {}, ", $register), out(reg) value, options(nostack));
                }
                value
            }

            /// Writes the register of the same name.
            pub fn $write(value: u64) {
                // SAFETY: programs a timer; its interrupt is the guest's to handle.
                unsafe {
                    asm!(concat!("msr ", $register, ", {}"), "isb", in(reg) value, options(nostack));
                }
            }
        )*};
    }

    registers! {
        /// CNTP_CTL_EL0.
        control, set_control, "cntp_ctl_el0";
        /// CNTP_CVAL_EL0: the count at which its time comes.
        compare, set_compare, "cntp_cval_el0";
        /// CNTP_TVAL_EL0: the same, as 32 signed bits from now.
        value, set_value, "cntp_tval_el0";
    }

    /// CNTPCT_EL0 after everything before it.
    pub fn now() -> u64 {
        let value: u64;
        // SAFETY: reads a counter.
        unsafe { asm!("isb", "mrs {}, cntpct_el0", out(reg) value, options(nostack)) };
        value
    }
}
