//! The machine's PL011, for EL2's own log (Arm DDI 0183).

use crate::mmio::register;
use core::fmt;
use model_addr::Pa;

const DATA: usize = 0x00;
const FLAGS: usize = 0x18;
const CONTROL: usize = 0x30;
const FLAG_TX_FULL: u32 = 1 << 5;
const CONTROL_ENABLE_TX: u32 = 1 << 8 | 1;

/// A PL011 that only speaks.
#[derive(Clone, Copy, Debug)]
pub struct Uart {
    base: Pa,
}

impl Uart {
    /// The UART whose registers are at `base`.
    ///
    /// # Safety
    ///
    /// A PL011 is there, EL2 has mapped it as Device memory (or the MMU is off), and nobody else
    /// drives it.
    pub unsafe fn new(base: Pa) -> Self {
        let control = register::<u32>(base, CONTROL);
        // SAFETY: a register of the PL011 that the caller promises. Line settings stay as the
        // firmware left them.
        unsafe { control.write_volatile(control.read_volatile() | CONTROL_ENABLE_TX) }
        Self { base }
    }

    /// Sends a byte; waits while the transmit FIFO is full.
    pub fn put(self, byte: u8) {
        let flags = register::<u32>(self.base, FLAGS);
        let data = register::<u32>(self.base, DATA);
        // SAFETY: registers of the PL011 that `new` was promised.
        unsafe {
            while flags.read_volatile() & FLAG_TX_FULL != 0 {
                core::hint::spin_loop();
            }
            data.write_volatile(byte.into());
        }
    }
}

impl fmt::Write for Uart {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            if byte == b'\n' {
                self.put(b'\r');
            }
            self.put(byte);
        }
        Ok(())
    }
}
