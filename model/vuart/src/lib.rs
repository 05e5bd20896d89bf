//! A PL011 UART as a guest sees it (Arm DDI 0183, with the identification of revision r1p5).
//!
//! Transmission takes no time: the FIFO to the line is always empty, and each byte is handed to
//! the caller. Reception has the FIFO of 32 bytes, or the holding register of one while FIFOs are
//! off. Modem lines, DMA and line errors do not exist.
#![no_std]
#![forbid(unsafe_code)]

mod parked;

use bitflags::bitflags;

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

bitflags! {
    /// Flags of `UARTFR`.
    #[derive(Clone, Copy)]
    struct Flags: u32 {
        const CLEAR_TO_SEND = 1 << 0;
        const DATA_SET_READY = 1 << 1;
        const CARRIER = 1 << 2;
        const RECEIVE_EMPTY = 1 << 4;
        const RECEIVE_FULL = 1 << 6;
        const TRANSMIT_EMPTY = 1 << 7;
    }

    /// Interrupts as in `UARTIMSC`, `UARTRIS`, `UARTMIS` and `UARTICR`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct Interrupts: u32 {
        const RECEIVE = 1 << 4;
        const TRANSMIT = 1 << 5;
        const RECEIVE_TIMEOUT = 1 << 6;
        const OVERRUN = 1 << 10;
        /// Modem lines and line errors, which never happen.
        const OTHERS = 0b1111 | 0b111 << 7;
    }
}

/// A PL011 and its receive FIFO.
#[derive(Clone, Debug)]
pub struct Pl011 {
    fifo: [u8; FIFO_DEPTH],
    /// Where the oldest byte is.
    first: u8,
    len: u8,
    /// A byte came while the FIFO was full, since `UARTECR` was last written.
    overrun: bool,
    raw: Interrupts,
    mask: Interrupts,
    line_control: u32,
    control: u32,
    fifo_levels: u32,
    integer_baud: u32,
    fractional_baud: u32,
    low_power: u32,
    dma_control: u32,
}

impl Default for Pl011 {
    fn default() -> Self {
        Self::new()
    }
}

impl Pl011 {
    /// A UART just out of reset.
    pub const fn new() -> Self {
        Self {
            fifo: [0; FIFO_DEPTH],
            first: 0,
            len: 0,
            overrun: false,
            raw: Interrupts::empty(),
            mask: Interrupts::empty(),
            line_control: 0,
            control: CR_RESET,
            fifo_levels: IFLS_RESET,
            integer_baud: 0,
            fractional_baud: 0,
            low_power: 0,
            dma_control: 0,
        }
    }

    /// The level of the interrupt line (`UARTINTR`).
    pub const fn irq_level(&self) -> bool {
        self.raw.bits() & self.mask.bits() != 0
    }

    /// How many bytes [`Self::receive`] takes now without loss.
    pub const fn room(&self) -> usize {
        self.depth().saturating_sub(self.len as usize)
    }

    /// A byte comes in on the line. `false` where there was no room: it is lost, as on the wire.
    /// Callers that can wait ask [`Self::room`] first.
    ///
    /// A receiver that the guest has switched off takes bytes all the same: a guest that is only
    /// just booting finds what was typed before.
    pub fn receive(&mut self, byte: u8) -> bool {
        if self.room() == 0 {
            self.overrun = true;
            self.raw |= Interrupts::OVERRUN;
            return false;
        }
        let last = (usize::from(self.first) + usize::from(self.len)) % FIFO_DEPTH;
        self.fifo[last] = byte;
        self.len += 1;
        if usize::from(self.len) >= self.trigger() {
            self.raw |= Interrupts::RECEIVE;
        }
        // The line is quiet for 32 bit times after each byte: there is no time here.
        self.raw |= Interrupts::RECEIVE_TIMEOUT;
        true
    }

    /// The guest reads the register at `offset`, whatever the size of its access. Unknown ones
    /// read as zero.
    pub fn read(&mut self, offset: u32) -> u32 {
        match offset {
            FR => self.flags().bits(),
            DR => self.read_data(),
            RSR_ECR => u32::from(self.overrun) << 3,
            ILPR => self.low_power,
            IBRD => self.integer_baud,
            FBRD => self.fractional_baud,
            LCR_H => self.line_control,
            CR => self.control,
            IFLS => self.fifo_levels,
            IMSC => self.mask.bits(),
            RIS => self.raw.bits(),
            MIS => (self.raw & self.mask).bits(),
            DMACR => self.dma_control,
            PERIPH_ID..0x1000 if offset.is_multiple_of(4) => {
                let index = (offset - PERIPH_ID) / 4;
                IDENTIFICATION
                    .get(index as usize)
                    .copied()
                    .unwrap_or(0)
                    .into()
            }
            _ => 0,
        }
    }

    /// The guest writes the register at `offset`, whatever the size of its access. Writes to
    /// unknown ones are ignored. A byte that the guest sends is the answer, unless it loops back.
    pub fn write(&mut self, offset: u32, value: u32) -> Option<u8> {
        match offset {
            DR => return self.send(value as u8),
            RSR_ECR => self.overrun = false,
            ILPR => self.low_power = value & 0xff,
            IBRD => self.integer_baud = value & 0xffff,
            FBRD => self.fractional_baud = value & 0x3f,
            LCR_H => self.set_line_control(value & 0xff),
            CR => self.control = value & 0xff87,
            IFLS => self.fifo_levels = value & 0x3f,
            IMSC => self.mask = Interrupts::from_bits_truncate(value),
            ICR => self.raw -= Interrupts::from_bits_truncate(value),
            DMACR => self.dma_control = value & 0x7,
            _ => {}
        }
        None
    }

    fn flags(&self) -> Flags {
        let mut flags =
            Flags::TRANSMIT_EMPTY | Flags::CLEAR_TO_SEND | Flags::DATA_SET_READY | Flags::CARRIER;
        flags.set(Flags::RECEIVE_EMPTY, self.len == 0);
        flags.set(Flags::RECEIVE_FULL, self.room() == 0);
        flags
    }

    /// Takes the oldest byte; zero where there is none.
    fn read_data(&mut self) -> u32 {
        if self.len == 0 {
            return 0;
        }
        let byte = self.fifo[usize::from(self.first)];
        self.first = (self.first + 1) % FIFO_DEPTH as u8;
        self.len -= 1;
        if usize::from(self.len) < self.trigger() {
            self.raw -= Interrupts::RECEIVE;
        }
        if self.len == 0 {
            self.raw -= Interrupts::RECEIVE_TIMEOUT;
        }
        byte.into()
    }

    /// Sends `byte`, which is gone at once: the FIFO falls through its trigger level. A guest
    /// that never switches the transmitter on is heard all the same, as its early consoles expect.
    fn send(&mut self, byte: u8) -> Option<u8> {
        self.raw |= Interrupts::TRANSMIT;
        if self.control & CR_LOOPBACK != 0 && self.control & CR_UART_ENABLE != 0 {
            self.receive(byte);
            return None;
        }
        Some(byte)
    }

    fn set_line_control(&mut self, value: u32) {
        if (self.line_control ^ value) & LCR_FIFO_ENABLE != 0 {
            // Switching the FIFOs on or off flushes them.
            self.first = 0;
            self.len = 0;
            self.raw -= Interrupts::RECEIVE | Interrupts::RECEIVE_TIMEOUT;
        }
        self.line_control = value;
    }

    const fn has_fifo(&self) -> bool {
        self.line_control & LCR_FIFO_ENABLE != 0
    }

    const fn depth(&self) -> usize {
        if self.has_fifo() { FIFO_DEPTH } else { 1 }
    }

    /// The number of bytes from which on the receive interrupt is raised.
    const fn trigger(&self) -> usize {
        if !self.has_fifo() {
            return 1;
        }
        match self.fifo_levels >> 3 & 7 {
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
        let mut uart = Pl011::new();
        let read: [u32; 8] = core::array::from_fn(|i| uart.read(PERIPH_ID + 4 * i as u32));
        assert_eq!(read, [0x11, 0x10, 0x14, 0x00, 0x0d, 0xf0, 0x05, 0xb1]);
    }

    #[test]
    fn sends_at_once_and_says_so() {
        let mut uart = Pl011::new();
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
        let mut uart = Pl011::new();
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
        let mut uart = Pl011::new();
        assert!(uart.receive(1));
        assert_eq!((uart.room(), uart.read(RIS) >> 4 & 1), (0, 1));
        uart.write(LCR_H, LCR_FIFO_ENABLE);
        assert_eq!((uart.room(), uart.read(RIS)), (FIFO_DEPTH, 0));
    }

    #[test]
    fn loops_back_where_asked() {
        let mut uart = Pl011::new();
        uart.write(CR, CR_RESET | CR_LOOPBACK | CR_UART_ENABLE);
        assert_eq!(uart.write(DR, 7), None);
        assert_eq!(uart.read(DR), 7);
    }
}
