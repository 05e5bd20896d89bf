//! The EL1 physical timer as a guest sees it (Arm ARM D12.2, `CNTP_*_EL0`).
//!
//! A guest has its virtual timer in hardware. The physical one traps, since EL2 has other uses for
//! what it counts, and few guests touch it. All times are counts of the physical counter, which
//! guests read in `CNTPCT_EL0` without a trap; the caller says what it is now.
//!
//! Nothing here knows when time passes: whoever keeps the [`PhysicalTimer`] looks at it again at
//! its [`PhysicalTimer::deadline`], and drives its interrupt line as [`PhysicalTimer::line`] says.
#![no_std]
#![forbid(unsafe_code)]

/// `CNTP_CTL_EL0.ENABLE`: the timer counts.
const ENABLE: u64 = 1 << 0;
/// `CNTP_CTL_EL0.IMASK`: its line stays low.
const IMASK: u64 = 1 << 1;
/// `CNTP_CTL_EL0.ISTATUS`: its time has come. Read-only.
const ISTATUS: u64 = 1 << 2;

/// The timer's registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// `CNTP_CTL_EL0`.
    Control,
    /// `CNTP_CVAL_EL0`: the count at which its time comes.
    Compare,
    /// `CNTP_TVAL_EL0`: the same, as 32 signed bits from now.
    Value,
}

/// The timer of one vCPU; off when it is new.
#[derive(Clone, Copy, Debug, Default)]
pub struct PhysicalTimer {
    /// ENABLE and IMASK.
    control: u64,
    compare: u64,
    /// The line was high when it was last looked at.
    high: bool,
}

impl PhysicalTimer {
    /// `CNTP_CTL_EL0`, without ISTATUS, and `CNTP_CVAL_EL0`.
    pub const fn registers(&self) -> [u64; 2] {
        [self.control, self.compare]
    }

    /// The timer with these registers; its line was not looked at.
    pub const fn of([control, compare]: [u64; 2]) -> Self {
        Self {
            control: control & (ENABLE | IMASK),
            compare,
            high: false,
        }
    }

    /// Its time comes so many counts later: it goes on where the count is another.
    pub const fn put_off(&mut self, counts: u64) {
        self.compare = self.compare.wrapping_add(counts);
    }

    /// What the guest reads at count `now`.
    pub const fn read(&self, register: Register, now: u64) -> u64 {
        match register {
            Register::Control if self.has_come(now) => self.control | ISTATUS,
            Register::Control => self.control,
            Register::Compare => self.compare,
            Register::Value => self.compare.wrapping_sub(now) & 0xffff_ffff,
        }
    }

    /// The guest writes `value` at count `now`; [`Self::line`] may have changed.
    pub const fn write(&mut self, register: Register, value: u64, now: u64) {
        match register {
            Register::Control => self.control = value & (ENABLE | IMASK),
            Register::Compare => self.compare = value,
            Register::Value => self.compare = now.wrapping_add_signed(value as i32 as i64),
        }
    }

    /// Whether its line is high at count `now`: to be asked after each write, and at the deadline.
    pub const fn line(&mut self, now: u64) -> bool {
        self.high = self.has_come(now) && self.control & IMASK == 0;
        self.high
    }

    /// When its line becomes high, unless the guest writes before; `None` if it will not, or
    /// already was when [`Self::line`] was last asked.
    pub const fn deadline(&self) -> Option<u64> {
        if self.control == ENABLE && !self.high {
            Some(self.compare)
        } else {
            None
        }
    }

    /// The timer's condition: an unsigned comparison.
    const fn has_come(&self, now: u64) -> bool {
        self.control & ENABLE != 0 && now >= self.compare
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_is_signed() {
        let mut timer = PhysicalTimer::default();
        timer.write(Register::Value, 100, 1000);
        assert_eq!(timer.read(Register::Compare, 1000), 1100);
        // The upper half of what is written means nothing.
        timer.write(Register::Value, 0x1234_5678_ffff_fff6, 1000);
        assert_eq!(timer.read(Register::Compare, 1000), 990);
        assert_eq!(timer.read(Register::Value, 1000), 0xffff_fff6);
        assert_eq!(timer.read(Register::Value, 980), 10);
    }

    #[test]
    fn control_shows_the_condition() {
        let mut timer = PhysicalTimer::default();
        assert_eq!(timer.read(Register::Control, 5), 0);
        timer.write(Register::Compare, 10, 5);
        timer.write(Register::Control, u64::MAX, 5);
        assert_eq!(timer.read(Register::Control, 9), ENABLE | IMASK);
        assert_eq!(timer.read(Register::Control, 10), ENABLE | IMASK | ISTATUS);
        assert!(!timer.line(10));
        timer.write(Register::Control, ENABLE, 10);
        assert!(timer.line(10));
        timer.write(Register::Control, 0, 10);
        assert!(!timer.line(10));
    }

    #[test]
    fn a_line_that_is_high_has_no_deadline() {
        let mut timer = PhysicalTimer::default();
        assert_eq!(timer.deadline(), None);
        timer.write(Register::Compare, 10, 0);
        timer.write(Register::Control, ENABLE, 0);
        assert!(!timer.line(9));
        assert_eq!(timer.deadline(), Some(10));
        assert!(timer.line(11));
        assert_eq!(timer.deadline(), None);
        timer.write(Register::Compare, 20, 12);
        assert!(!timer.line(12));
        assert_eq!(timer.deadline(), Some(20));
        timer.write(Register::Control, ENABLE | IMASK, 12);
        assert_eq!(timer.deadline(), None);
    }
}
