//! A PL031 real-time clock as a guest sees it (Arm DDI 0224): seconds since 1970 began.
//!
//! What time it is, the caller says at each access; the clock is as far from that as the guest has
//! set it. It has no alarm: the match register and the interrupt registers read as zero, writes to
//! them are ignored, and the guest's device tree names no interrupt, upon which Linux offers none.
#![no_std]
#![forbid(unsafe_code)]

use abi::state::Clock;

const DATA: u32 = 0x000;
const LOAD: u32 = 0x008;
const CONTROL: u32 = 0x00c;
const PERIPH_ID: u32 = 0xfe0;
/// `RTCPeriphID0..3` and `RTCPCellID0..3`.
const IDENTIFICATION: [u8; 8] = [0x31, 0x10, 0x04, 0x00, 0x0d, 0xf0, 0x05, 0xb1];

/// A PL031 without an alarm.
///
/// The default is a clock that is right. Its state is its record; any is one that a guest can have set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pl031(pub Clock);

impl Pl031 {
    /// Reads the register at `offset` at the time `now`.
    pub fn read(&self, offset: u32, now: u32) -> u32 {
        match offset {
            DATA => now.wrapping_add(self.0.ahead),
            LOAD => self.0.load,
            // It runs and cannot be stopped.
            CONTROL => 1,
            PERIPH_ID..=0xffc if offset.is_multiple_of(4) => {
                IDENTIFICATION[(offset - PERIPH_ID) as usize / 4].into()
            }
            _ => 0,
        }
    }

    /// Writes the register at `offset` at the time `now`.
    pub fn write(&mut self, offset: u32, value: u32, now: u32) {
        if offset == LOAD {
            self.0.load = value;
            self.0.ahead = value.wrapping_sub(now);
        }
    }
}
