//! What goes wrong by a seed: memory that is used up for a moment, disks, interrupts without a reason, CPUs that stay off.

use crate::machine::{self, Machine};
use crate::virtio::Window;

pub use crate::disk::DiskFaults;

/// How often something goes wrong: once in so many; 0: never.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Requests of the disk.
    pub disk: DiskFaults,
    /// Allocations of frames that fail although there are some.
    pub allocations: u64,
    /// Points at which another CPU could go on and an interrupt without a reason comes instead.
    pub interrupts: u64,
}

/// Whether an allocation of frames is to fail.
pub fn allocation_fails() -> bool {
    machine::with(|machine| {
        let often = machine.faults.allocations;
        often > 0 && machine.rng.below(often) == 0
    })
}

impl Machine {
    /// From now on that goes wrong.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
        if let Some(disk) = &mut self.disk {
            disk.model.faults = faults.disk;
        }
    }

    /// A CPU is kicked that nobody needs, or a device raises its interrupt with nothing to tell.
    pub fn disturb(&mut self) {
        let number = self.rng.below(self.cpus.len() as u64 + 2);
        match number.checked_sub(self.cpus.len() as u64) {
            None => self.gic.kick(number as usize),
            Some(0) => self.disk.iter_mut().for_each(Window::interrupt),
            Some(_) => self.port.iter_mut().for_each(Window::interrupt),
        }
        self.drive_devices();
    }
}
