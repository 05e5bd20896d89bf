//! A PL061 GPIO as a guest sees it (Arm DDI 0190), by which it feels its power button.
//!
//! Eight lines. What comes in on a line is the caller's; a line that the guest drives reads as it
//! is driven, and nothing hangs on it. Hardware control (`GPIOAFSEL`) is stored and means nothing.
//!
//! [`PowerButton`] is a button on one of the lines, as QEMU's `virt` machine has it.
#![no_std]
#![forbid(unsafe_code)]

mod button;

pub use button::PowerButton;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Lines of a PL061.
pub const LINES: u8 = 8;

const DATA_END: u32 = 0x400;
const DIR: u32 = 0x400;
const IS: u32 = 0x404;
const IBE: u32 = 0x408;
const IEV: u32 = 0x40c;
const IE: u32 = 0x410;
const RIS: u32 = 0x414;
const MIS: u32 = 0x418;
const IC: u32 = 0x41c;
const AFSEL: u32 = 0x420;
const PERIPH_ID: u32 = 0xfe0;
/// `GPIOPeriphID0..3` and `GPIOPCellID0..3`.
const IDENTIFICATION: [u8; 8] = [0x61, 0x10, 0x04, 0x00, 0x0d, 0xf0, 0x05, 0xb1];

/// A PL061; bit n of each field is line n. The default is one just out of reset, all lines low inputs. Its
/// bytes are what a record has of it, so the order of the fields stays.
#[derive(Clone, Debug, Default, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Pl061 {
    /// What comes in from outside.
    input: u8,
    /// What the guest drives where [`Self::direction`] says that it does.
    output: u8,
    direction: u8,
    /// Levels interrupt, not edges.
    level_sense: u8,
    both_edges: u8,
    /// Rising edges or high levels interrupt, not falling or low ones.
    rising: u8,
    enabled: u8,
    /// Edges seen and not cleared.
    edges: u8,
    alternate: u8,
}

impl Pl061 {
    /// The level of the interrupt line (`GPIOINTR`).
    pub const fn irq_level(&self) -> bool {
        self.raw() & self.enabled != 0
    }

    /// Whether line `line` can interrupt the guest: it waits for something there.
    pub const fn is_enabled(&self, line: u8) -> bool {
        self.enabled & bit(line) != 0
    }

    /// Something outside drives line `line` to a level. Lines that do not exist are ignored.
    pub fn set_input(&mut self, line: u8, high: bool) {
        let others = self.input & !bit(line);
        let before = self.pins();
        self.input = others | if high { bit(line) } else { 0 };
        self.note_edges(before);
    }

    /// The guest reads the register at `offset`, whatever the size of its access. Unknown ones
    /// read as zero.
    pub fn read(&self, offset: u32) -> u32 {
        let value = match offset {
            0..DATA_END => self.pins() & data_mask(offset),
            DIR => self.direction,
            IS => self.level_sense,
            IBE => self.both_edges,
            IEV => self.rising,
            IE => self.enabled,
            RIS => self.raw(),
            MIS => self.raw() & self.enabled,
            AFSEL => self.alternate,
            PERIPH_ID..=0xffc if offset.is_multiple_of(4) => {
                IDENTIFICATION[(offset - PERIPH_ID) as usize / 4]
            }
            _ => 0,
        };
        value.into()
    }

    /// The guest writes the register at `offset`, whatever the size of its access. Writes to
    /// unknown ones are ignored.
    pub fn write(&mut self, offset: u32, value: u32) {
        let value = value as u8;
        let before = self.pins();
        match offset {
            0..DATA_END => {
                let mask = data_mask(offset);
                self.output = self.output & !mask | value & mask;
            }
            DIR => self.direction = value,
            IS => self.level_sense = value,
            IBE => self.both_edges = value,
            IEV => self.rising = value,
            IE => self.enabled = value,
            IC => self.edges &= !value,
            AFSEL => self.alternate = value,
            _ => {}
        }
        self.note_edges(before);
    }

    /// The level of each line.
    const fn pins(&self) -> u8 {
        self.input & !self.direction | self.output & self.direction
    }

    /// `GPIORIS`: levels as they are, edges until they are cleared.
    const fn raw(&self) -> u8 {
        let levels = !(self.pins() ^ self.rising);
        levels & self.level_sense | self.edges & !self.level_sense
    }

    /// Remembers the edges between the levels `before` and now that are looked for.
    const fn note_edges(&mut self, before: u8) {
        let now = self.pins();
        let wanted = self.both_edges | !(now ^ self.rising);
        self.edges |= (before ^ now) & wanted & !self.level_sense;
    }
}

/// The bit of line `line`; none for one that does not exist.
const fn bit(line: u8) -> u8 {
    if line < LINES { 1 << line } else { 0 }
}

/// The lines that an access to `GPIODATA` concerns: address bits 9 to 2.
const fn data_mask(offset: u32) -> u8 {
    (offset >> 2) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifies_itself_as_a_pl061() {
        let gpio = Pl061::default();
        let read: [u32; 8] = core::array::from_fn(|i| gpio.read(PERIPH_ID + 4 * i as u32));
        assert_eq!(read, [0x61, 0x10, 0x04, 0x00, 0x0d, 0xf0, 0x05, 0xb1]);
    }

    #[test]
    fn data_is_masked_by_the_address() {
        let mut gpio = Pl061::default();
        gpio.write(DIR, 0x0f);
        gpio.write(0x5 << 2, 0xff);
        assert_eq!(gpio.read(0xff << 2), 0x05);
        gpio.set_input(7, true);
        // What a line that the guest drives gets from outside does not show.
        gpio.set_input(1, true);
        assert_eq!(gpio.read(0xff << 2), 0x85);
        assert_eq!(gpio.read(0x81 << 2), 0x81);
        assert_eq!(gpio.read(0), 0);
        gpio.write(DIR, 0);
        assert_eq!(gpio.read(0xff << 2), 0x82);
    }

    #[test]
    fn edges_stay_until_cleared_and_levels_as_long_as_they_last() {
        let mut gpio = Pl061::default();
        gpio.write(IEV, 1 << 2);
        gpio.write(IS, 1 << 2);
        gpio.write(IE, 1 << 2 | 1 << 3);
        gpio.set_input(2, true);
        assert_eq!((gpio.read(RIS), gpio.irq_level()), (1 << 2, true));
        gpio.write(IC, 0xff);
        assert!(gpio.irq_level());
        gpio.set_input(2, false);
        assert!(!gpio.irq_level());
        // Line 3 waits for a falling edge.
        gpio.set_input(3, true);
        assert!(!gpio.irq_level());
        gpio.set_input(3, false);
        gpio.set_input(3, true);
        assert_eq!((gpio.read(MIS), gpio.irq_level()), (1 << 3, true));
        gpio.write(IC, 1 << 3);
        assert!(!gpio.irq_level());
    }

    #[test]
    fn there_is_no_ninth_line() {
        let mut gpio = Pl061::default();
        gpio.write(IBE, 0xff);
        gpio.write(IE, 0xff);
        gpio.set_input(8, true);
        assert!(!gpio.irq_level() && !gpio.is_enabled(8));
    }
}
