//! A PL011 UART as a guest sees it (Arm DDI 0183, with the identification of revision r1p5).
//!
//! Transmission takes no time: the FIFO to the line is always empty, and each byte is handed to
//! the caller. Reception has the FIFO of 32 bytes, or the holding register of one while FIFOs are
//! off. Modem lines, DMA and line errors do not exist.
#![no_std]
#![forbid(unsafe_code)]

use abi::state::Uart;
use zerocopy::FromZeros;

/// Bytes in the receive FIFO (r1p5).
pub const FIFO_DEPTH: usize = 32;

const DR: u32 = 0x00;
const RSR_ECR: u32 = 0x04;
const FR: u32 = 0x18;
const ILPR: u32 = 0x20;
const IBRD: u32 = 0x24;
const FBRD: u32 = 0x28;
const LCR_H: u32 = 0x2c;
const CR: u32 = 0x30;
const IFLS: u32 = 0x34;
const IMSC: u32 = 0x38;
const RIS: u32 = 0x3c;
const MIS: u32 = 0x40;
const ICR: u32 = 0x44;
const DMACR: u32 = 0x48;
const PERIPH_ID: u32 = 0xfe0;
/// `UARTPeriphID0..3` and `UARTPCellID0..3`.
const IDENTIFICATION: [u8; 8] = [0x11, 0x10, 0x14, 0x00, 0x0d, 0xf0, 0x05, 0xb1];

const LCR_FIFO_ENABLE: u32 = 1 << 4;
const CR_UART_ENABLE: u32 = 1 << 0;
const CR_LOOPBACK: u32 = 1 << 7;
const CR_TRANSMIT_ENABLE: u32 = 1 << 8;
const CR_RECEIVE_ENABLE: u32 = 1 << 9;
const CR_RESET: u32 = CR_TRANSMIT_ENABLE | CR_RECEIVE_ENABLE;
/// Both FIFOs at one half.
const IFLS_RESET: u32 = 0x12;

// Flags of `UARTFR`.
const FLAGS_ALWAYS: u32 = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 7;
const RECEIVE_EMPTY: u32 = 1 << 4;
const RECEIVE_FULL: u32 = 1 << 6;

// Interrupts as in `UARTIMSC`, `UARTRIS`, `UARTMIS` and `UARTICR`; modem lines and line errors never happen.
const RECEIVE: u32 = 1 << 4;
const TRANSMIT: u32 = 1 << 5;
const RECEIVE_TIMEOUT: u32 = 1 << 6;
const OVERRUN: u32 = 1 << 10;
const INTERRUPTS: u32 = 0x7ff;

/// A PL011 and its receive FIFO, in which the oldest byte is the first.
#[derive(Clone, Debug)]
pub struct Pl011 {
    state: Uart,
}

impl Default for Pl011 {
    /// A UART just out of reset.
    fn default() -> Self {
        let state = Uart {
            control: CR_RESET,
            fifo_levels: IFLS_RESET,
            ..Uart::new_zeroed()
        };
        Self { state }
    }
}

impl Pl011 {
    /// Its record, for images of any version (`abi::state`); what is not the UART's is zero.
    pub fn record(&self) -> Uart {
        self.state
    }

    /// As a record has it; `None` where it has more in its FIFO than fits.
    pub fn of(record: &Uart) -> Option<Self> {
        let state = Uart {
            raw: record.raw & INTERRUPTS,
            mask: record.mask & INTERRUPTS,
            overrun: record.overrun & 1,
            in_use: 0,
            ..*record
        };
        (record.received as usize <= FIFO_DEPTH).then_some(Self { state })
    }

    /// The level of the interrupt line (`UARTINTR`).
    pub const fn irq_level(&self) -> bool {
        self.state.raw & self.state.mask != 0
    }

    /// How many bytes [`Self::receive`] takes now without loss.
    pub const fn room(&self) -> usize {
        self.depth().saturating_sub(self.state.received as usize)
    }

    /// A byte comes in on the line. `false` where there was no room: it is lost, as on the wire.
    /// Callers that can wait ask [`Self::room`] first.
    ///
    /// A receiver that the guest has switched off takes bytes all the same: a guest that is only
    /// just booting finds what was typed before.
    pub fn receive(&mut self, byte: u8) -> bool {
        if self.room() == 0 {
            self.state.overrun = 1;
            self.state.raw |= OVERRUN;
            return false;
        }
        self.state.fifo[self.state.received as usize % FIFO_DEPTH] = byte;
        self.state.received += 1;
        if self.state.received as usize >= self.trigger() {
            self.state.raw |= RECEIVE;
        }
        // The line is quiet for 32 bit times after each byte: there is no time here.
        self.state.raw |= RECEIVE_TIMEOUT;
        true
    }

    /// The guest reads the register at `offset`, whatever the size of its access. Unknown ones
    /// read as zero.
    pub fn read(&mut self, offset: u32) -> u32 {
        match offset {
            FR => self.flags(),
            DR => self.read_data(),
            RSR_ECR => self.state.overrun << 3,
            ILPR => self.state.low_power,
            IBRD => self.state.integer_baud,
            FBRD => self.state.fractional_baud,
            LCR_H => self.state.line_control,
            CR => self.state.control,
            IFLS => self.state.fifo_levels,
            IMSC => self.state.mask,
            RIS => self.state.raw,
            MIS => self.state.raw & self.state.mask,
            DMACR => self.state.dma_control,
            PERIPH_ID..=0xffc if offset.is_multiple_of(4) => {
                IDENTIFICATION[(offset - PERIPH_ID) as usize / 4].into()
            }
            _ => 0,
        }
    }

    /// The guest writes the register at `offset`, whatever the size of its access. Writes to
    /// unknown ones are ignored. A byte that the guest sends is the answer, unless it loops back.
    pub fn write(&mut self, offset: u32, value: u32) -> Option<u8> {
        match offset {
            DR => return self.send(value as u8),
            RSR_ECR => self.state.overrun = 0,
            ILPR => self.state.low_power = value & 0xff,
            IBRD => self.state.integer_baud = value & 0xffff,
            FBRD => self.state.fractional_baud = value & 0x3f,
            LCR_H => self.set_line_control(value & 0xff),
            CR => self.state.control = value & 0xff87,
            IFLS => self.state.fifo_levels = value & 0x3f,
            IMSC => self.state.mask = value & INTERRUPTS,
            ICR => self.state.raw &= !value,
            DMACR => self.state.dma_control = value & 0x7,
            _ => {}
        }
        None
    }

    fn flags(&self) -> u32 {
        let is = |is: bool, flag: u32| if is { flag } else { 0 };
        let empty = is(self.state.received == 0, RECEIVE_EMPTY);
        FLAGS_ALWAYS | empty | is(self.room() == 0, RECEIVE_FULL)
    }

    /// Takes the oldest byte; zero where there is none.
    fn read_data(&mut self) -> u32 {
        if self.state.received == 0 {
            return 0;
        }
        let byte = self.state.fifo[0];
        self.state.fifo.copy_within(1.., 0);
        self.state.received -= 1;
        if (self.state.received as usize) < self.trigger() {
            self.state.raw &= !RECEIVE;
        }
        if self.state.received == 0 {
            self.state.raw &= !RECEIVE_TIMEOUT;
        }
        byte.into()
    }

    /// Sends `byte`, which is gone at once: the FIFO falls through its trigger level. A guest
    /// that never switches the transmitter on is heard all the same, as its early consoles expect.
    /// The guest sends a byte, as by [`Self::write`]: the answer, unless it loops back.
    pub fn send(&mut self, byte: u8) -> Option<u8> {
        self.state.raw |= TRANSMIT;
        if self.state.control & CR_LOOPBACK != 0 && self.state.control & CR_UART_ENABLE != 0 {
            self.receive(byte);
            return None;
        }
        Some(byte)
    }

    fn set_line_control(&mut self, value: u32) {
        if (self.state.line_control ^ value) & LCR_FIFO_ENABLE != 0 {
            // Switching the FIFOs on or off flushes them.
            self.state.received = 0;
            self.state.raw &= !(RECEIVE | RECEIVE_TIMEOUT);
        }
        self.state.line_control = value;
    }

    const fn has_fifo(&self) -> bool {
        self.state.line_control & LCR_FIFO_ENABLE != 0
    }

    const fn depth(&self) -> usize {
        if self.has_fifo() { FIFO_DEPTH } else { 1 }
    }

    /// The number of bytes from which on the receive interrupt is raised.
    const fn trigger(&self) -> usize {
        if !self.has_fifo() {
            return 1;
        }
        match self.state.fifo_levels >> 3 & 7 {
            0 => FIFO_DEPTH / 8,
            1 => FIFO_DEPTH / 4,
            3 => FIFO_DEPTH / 4 * 3,
            4 => FIFO_DEPTH / 8 * 7,
            _ => FIFO_DEPTH / 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifies_itself_as_a_pl011() {
        let mut uart = Pl011::default();
        let read: [u32; 8] = core::array::from_fn(|i| uart.read(PERIPH_ID + 4 * i as u32));
        assert_eq!(read, [0x11, 0x10, 0x14, 0x00, 0x0d, 0xf0, 0x05, 0xb1]);
    }

    #[test]
    fn sends_at_once_and_says_so() {
        let mut uart = Pl011::default();
        assert_eq!(uart.write(DR, 0x1_41), Some(0x41));
        assert_eq!(uart.read(FR) & (1 << 7 | 1 << 5 | 1 << 3), 1 << 7);
        assert!(!uart.irq_level());
        uart.write(IMSC, 1 << 5);
        assert!(uart.irq_level());
        uart.write(ICR, 1 << 5);
        assert!(!uart.irq_level());
    }

    #[test]
    fn receives_in_order_and_lowers_its_interrupts() {
        let mut uart = Pl011::default();
        uart.write(LCR_H, 0x70);
        uart.write(IMSC, 1 << 4 | 1 << 6);
        for byte in 0..FIFO_DEPTH as u8 {
            assert!(uart.receive(byte));
            assert_eq!(uart.read(MIS), 1 << 6 | u32::from(byte >= 15) << 4);
        }
        assert!(!uart.receive(99));
        assert_eq!(uart.read(RIS) >> 10 & 1, 1);
        assert_eq!(uart.read(RSR_ECR), 8);
        for byte in 0..FIFO_DEPTH as u32 {
            assert!(uart.irq_level());
            assert_eq!(uart.read(DR), byte);
        }
        assert!(!uart.irq_level());
        assert_eq!(uart.read(DR), 0);
        assert_eq!(uart.read(FR) >> 4 & 1, 1);
    }

    #[test]
    fn without_fifos_holds_one_byte() {
        let mut uart = Pl011::default();
        assert!(uart.receive(1));
        assert_eq!((uart.room(), uart.read(RIS) >> 4 & 1), (0, 1));
        uart.write(LCR_H, LCR_FIFO_ENABLE);
        assert_eq!((uart.room(), uart.read(RIS)), (FIFO_DEPTH, 0));
    }

    #[test]
    fn loops_back_where_asked() {
        let mut uart = Pl011::default();
        uart.write(CR, CR_RESET | CR_LOOPBACK | CR_UART_ENABLE);
        assert_eq!(uart.write(DR, 7), None);
        assert_eq!(uart.read(DR), 7);
    }
}
