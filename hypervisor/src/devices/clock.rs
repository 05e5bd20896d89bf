//! A VM's clock of the wall, a PL031 on the machine's own.

use crate::machine;
use arch::{gic, timer};
use machine_locks::{Rank, SpinGuard, SpinLock};
use model_vrtc::Pl031;

/// A clock that shows the machine's time, as far off as its guest has set it.
pub struct Clock(SpinLock<Pl031>);

impl Clock {
    /// A clock that is right.
    pub fn new() -> Self {
        Self(SpinLock::new(Rank::Device, Pl031::default()))
    }

    /// The guest reads the register at `offset`, or writes it.
    pub fn access(&self, offset: u32, value: Option<u64>) -> u64 {
        let (mut clock, now) = (self.0.lock(), now());
        let Some(value) = value else {
            return clock.read(offset, now).into();
        };
        clock.write(offset, value as u32, now);
        0
    }

    /// Its record, to be read or replaced.
    pub fn state(&self) -> SpinGuard<'_, Pl031> {
        self.0.lock()
    }
}

/// Seconds since 1970 began, by the machine's PL031, which is read each time: beside OS-0 it is OS-0 that
/// sets it. A machine without one counts from when it was switched on.
fn now() -> u32 {
    match machine::get().tree.rtc {
        // SAFETY: the device tree says that a PL031 is there, and it was mapped; its data register is at its
        // beginning, and reading it changes nothing, whoever drives it.
        Some(rtc) => unsafe { gic::read_register(rtc, 4) as u32 },
        None => (timer::now() / timer::frequency()) as u32,
    }
}
