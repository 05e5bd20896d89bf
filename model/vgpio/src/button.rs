//! A power button on a line of the PL061.

use crate::{DATA_END, Pl061, bit};
use abi::state::Button;

/// A PL061 with a power button on one of its lines, which is high while it is pressed.
///
/// A guest that is interrupted looks at the line a little later, when the contact of a real button
/// would have settled. So the button stays pressed until the guest has looked, however late that
/// is, and no time need pass here.
#[derive(Clone, Debug)]
pub struct PowerButton {
    gpio: Pl061,
    line: u8,
    pressed: bool,
}

impl PowerButton {
    /// Its record, for images of any version (`abi::state`).
    pub fn record(&self) -> Button {
        Button {
            gpio: zerocopy::transmute!(self.gpio.clone()),
            pressed: self.pressed as u8,
            reserved: [0; 6],
        }
    }

    /// As a record has it, on line `line`.
    pub fn of(record: &Button, line: u8) -> Self {
        Self {
            gpio: zerocopy::transmute!(record.gpio),
            line,
            pressed: record.pressed != 0,
        }
    }

    /// A button that is not pressed, on line `line` of a PL061 just out of reset.
    pub fn new(line: u8) -> Self {
        Self {
            gpio: Pl061::default(),
            line,
            pressed: false,
        }
    }

    /// Presses the button. `false` where the guest does not listen to it: the interrupt of its
    /// line is off, and nothing is pressed.
    pub fn press(&mut self) -> bool {
        if !self.gpio.is_enabled(self.line) {
            return false;
        }
        // A guest that never looked feels the button anew.
        self.set_pressed(false);
        self.set_pressed(true);
        true
    }

    /// The level of the interrupt line.
    pub const fn irq_level(&self) -> bool {
        self.gpio.irq_level()
    }

    /// The guest reads the register at `offset`: see [`Pl061::read`]. Where it sees the button
    /// pressed, the button is let go.
    pub fn read(&mut self, offset: u32) -> u32 {
        let value = self.gpio.read(offset);
        let shows_line = offset < DATA_END && value & u32::from(bit(self.line)) != 0;
        if self.pressed && shows_line {
            self.set_pressed(false);
        }
        value
    }

    /// The guest writes the register at `offset`: see [`Pl061::write`].
    pub fn write(&mut self, offset: u32, value: u32) {
        self.gpio.write(offset, value);
    }

    fn set_pressed(&mut self, pressed: bool) {
        self.pressed = pressed;
        self.gpio.set_input(self.line, pressed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{IBE, IC, IE, MIS};

    const LINE: u32 = 1 << 3;

    #[test]
    fn nobody_listens_after_reset() {
        let mut button = PowerButton::new(3);
        assert!(!button.press() && !button.irq_level());
        assert_eq!(button.read(0x3fc), 0);
    }

    #[test]
    fn a_guest_sees_one_press_and_one_release() {
        let mut button = PowerButton::new(3);
        // As Linux's gpio-keys sets it up: both edges.
        button.write(IBE, LINE);
        button.write(IE, LINE);
        assert!(button.press() && button.irq_level());
        assert_eq!(button.read(MIS), LINE);
        button.write(IC, LINE);
        assert!(!button.irq_level());
        // A look at another line changes nothing.
        assert_eq!(button.read(1 << 2), 0);
        assert!(!button.irq_level());
        assert_eq!(button.read(LINE << 2), LINE);
        assert!(button.irq_level());
        button.write(IC, LINE);
        assert_eq!(button.read(LINE << 2), 0);
        assert!(!button.irq_level());
    }

    #[test]
    fn a_record_says_all_of_it() {
        let mut button = PowerButton::new(3);
        for (offset, value) in [
            (0x400, 0x21),
            (0x404, 2),
            (IBE, LINE),
            (IE, LINE),
            (0x84, 0x21),
        ] {
            button.write(offset, value);
        }
        assert!(button.press());
        let mut other = PowerButton::of(&button.record(), 3);
        assert!(other.irq_level());
        for offset in [
            0x400, 0x404, IBE, 0x40c, IE, 0x414, MIS, 0x420, 0x3fc, 0x3fc,
        ] {
            assert_eq!(other.read(offset), button.read(offset), "{offset:#x}");
        }
    }

    #[test]
    fn a_press_that_nobody_saw_can_be_repeated() {
        let mut button = PowerButton::new(3);
        button.write(IBE, LINE);
        button.write(IE, LINE);
        assert!(button.press());
        button.write(IC, LINE);
        assert!(button.press() && button.irq_level());
        assert_eq!(button.read(LINE << 2), LINE);
    }
}
