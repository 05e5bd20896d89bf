//! A PL011 as a record, for images of any version (`abi::parked`).

use crate::{FIFO_DEPTH, Interrupts, Pl011};
use abi::parked::Uart;

impl Pl011 {
    /// Its record, but for what is not the UART's.
    pub fn record(&self) -> Uart {
        let mut fifo = [0; FIFO_DEPTH];
        for (n, byte) in fifo.iter_mut().enumerate().take(self.len.into()) {
            *byte = self.fifo[(usize::from(self.first) + n) % FIFO_DEPTH];
        }
        Uart {
            raw: self.raw.bits(),
            mask: self.mask.bits(),
            line_control: self.line_control,
            control: self.control,
            fifo_levels: self.fifo_levels,
            integer_baud: self.integer_baud,
            fractional_baud: self.fractional_baud,
            low_power: self.low_power,
            dma_control: self.dma_control,
            overrun: self.overrun.into(),
            received: self.len.into(),
            in_use: 0,
            fifo,
        }
    }

    /// As a record has it; `None` where it has more in its FIFO than fits.
    pub fn of(record: &Uart) -> Option<Self> {
        let len = u8::try_from(record.received).ok()?;
        (usize::from(len) <= FIFO_DEPTH).then(|| Self {
            fifo: record.fifo,
            first: 0,
            len,
            overrun: record.overrun & 1 != 0,
            raw: Interrupts::from_bits_truncate(record.raw),
            mask: Interrupts::from_bits_truncate(record.mask),
            line_control: record.line_control,
            control: record.control,
            fifo_levels: record.fifo_levels,
            integer_baud: record.integer_baud,
            fractional_baud: record.fractional_baud,
            low_power: record.low_power,
            dma_control: record.dma_control,
        })
    }
}
