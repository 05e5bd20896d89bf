//! A guest's access to a device's registers, and the device's interrupt line.

use crate::guest::Guest;
use model_virtio::{DeviceCore, Effect, Window as _};

/// A guest's access of `size` bytes to the register at `offset` of a device's window.
#[derive(Clone, Copy)]
pub struct RegisterAccess {
    pub offset: u64,
    pub size: usize,
    /// What is written; `None`: it is read.
    pub value: Option<u64>,
}

impl RegisterAccess {
    /// Does it, by virtio-mmio: what was read, and what is asked of the device.
    #[inline]
    pub fn on(self, core: &mut impl DeviceCore) -> (u64, Effect) {
        match self.value {
            None => (core.read(self.offset, self.size), Effect::None),
            Some(value) => (0, core.write(self.offset, self.size, value)),
        }
    }
}

/// An interrupt line of a VM, as its device drives it.
pub struct IrqLine {
    intid: u32,
    high: bool,
}

impl IrqLine {
    /// A line that is low.
    pub const fn new(intid: u32) -> Self {
        Self { intid, high: false }
    }

    /// Shows the guest a level that may be another than before.
    #[inline]
    pub fn show(&mut self, vm: &Guest, high: bool) {
        if high != self.high {
            self.high = high;
            vm.set_line(self.intid, high);
        }
    }

    /// The interrupt controller has that level already, by its own record.
    pub const fn restore(&mut self, high: bool) {
        self.high = high;
    }
}
