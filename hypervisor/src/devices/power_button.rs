//! A VM's power button, on its PL061.

use crate::devices::register::IrqLine;
use crate::guest::{Guest, layout};
use abi::state;
use machine_locks::{Rank, SpinLock};
use model_vgpio::PowerButton as Button;

struct State {
    button: Button,
    line: IrqLine,
}

/// A power button and the PL061 by which the guest feels it.
pub struct PowerButton {
    state: SpinLock<State>,
}

impl PowerButton {
    /// A button that is not pressed.
    pub fn new() -> Self {
        let state = State {
            button: Button::new(layout::POWER_BUTTON_LINE),
            line: IrqLine::new(layout::GPIO_INTID),
        };
        Self {
            state: SpinLock::new(Rank::Device, state),
        }
    }

    /// The guest reads the register at `offset`, or writes it.
    pub fn access(&self, vm: &Guest, offset: u32, value: Option<u64>) -> u64 {
        let mut state = self.state.lock();
        let read = match value {
            None => state.button.read(offset).into(),
            Some(value) => {
                state.button.write(offset, value as u32);
                0
            }
        };
        state.update_line(vm);
        read
    }

    /// Its record, for the image that takes this one's place.
    pub fn record(&self) -> state::Button {
        self.state.lock().button.record()
    }

    /// As a record has it.
    pub fn restore(&self, record: &state::Button) {
        let button = Button::of(record, layout::POWER_BUTTON_LINE);
        let mut state = self.state.lock();
        state.line.restore(button.irq_level());
        state.button = button;
    }

    /// Somebody presses it; `false` where the guest does not listen to it.
    pub fn press(&self, vm: &Guest) -> bool {
        let mut state = self.state.lock();
        let heard = state.button.press();
        state.update_line(vm);
        heard
    }
}

impl State {
    fn update_line(&mut self, vm: &Guest) {
        self.line.show(vm, self.button.irq_level());
    }
}
