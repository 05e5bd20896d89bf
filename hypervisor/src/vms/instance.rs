//! A VM that runs: from its start to its end or reset. A VM that is started again is a new one.

use crate::devices::net::frame::{Accepted, Incoming};
use crate::devices::network::{End, Plugged};
use crate::devices::{
    Block, RegisterAccess, Slot, balloon::Balloon, clock::Clock, power_button::PowerButton,
    uart::Uart,
};
use crate::guest::{Guest, paging};
use crate::machine::{Kind, stretch};
use crate::memory::Dismantling;
use alloc::{sync::Arc, vec::Vec};
use core::ops::Deref;
use core::sync::atomic::{AtomicU8, Ordering};

/// A running VM.
pub struct Instance {
    guest: Guest,
    /// Its PL011 and console.
    pub uart: Uart,
    /// Its power button.
    pub power_button: PowerButton,
    /// Its clock of the wall.
    pub clock: Clock,
    /// Its virtio devices, in the order of their windows.
    pub virtio: Vec<Slot>,
    /// The first of its devices that goes on with work that was put off.
    next_device: AtomicU8,
}

impl Deref for Instance {
    type Target = Guest;

    #[inline]
    fn deref(&self) -> &Guest {
        &self.guest
    }
}

impl Instance {
    /// A VM about to run.
    pub fn new(guest: Guest, virtio: Vec<Slot>) -> Self {
        stretch::look(Kind::Control);
        Self {
            guest,
            uart: Uart::new(),
            power_button: PowerButton::new(),
            clock: Clock::new(),
            virtio,
            next_device: AtomicU8::new(0),
        }
    }

    fn balloon(&self) -> Option<(usize, &Balloon)> {
        let mut slots = self.virtio.iter().enumerate();
        slots.find_map(|(n, slot)| match slot {
            Slot::Balloon(balloon) => Some((n, balloon)),
            _ => None,
        })
    }

    /// Whether its guest has a driver for its balloon.
    pub fn has_balloon_driver(&self) -> bool {
        self.balloon()
            .is_some_and(|(_, balloon)| balloon.has_driver())
    }

    /// How many of `max` guest frames its guest was asked to keep to; `None` where there is no driver
    /// to ask.
    pub fn target(&self, max: u64) -> Option<u64> {
        let (_, balloon) = self.balloon()?;
        balloon
            .has_driver()
            .then(|| max.saturating_sub(balloon.target().into()))
    }

    /// Asks the guest to keep to `frames` of `max` guest frames; `false` where there is nobody to ask.
    pub fn set_target(&self, frames: u64, max: u64) -> bool {
        let Some((n, balloon)) = self.balloon().filter(|(_, balloon)| balloon.has_driver()) else {
            return false;
        };
        balloon.set_target(self, n, max.saturating_sub(frames) as u32);
        true
    }

    /// What the guest reports free from now on stays bound for so many milliseconds.
    pub fn set_hold(&self, ms: u16) {
        if let Some((_, balloon)) = self.balloon() {
            balloon.set_hold(ms);
        }
    }

    /// Guest frames that the guest gave to its balloon, and that it reported free.
    pub fn given_back(&self) -> [u64; 2] {
        self.balloon().map_or([0; 2], |(_, balloon)| {
            let counts = balloon.counts();
            [counts.inflated, counts.reported]
        })
    }

    /// Its disks.
    pub fn disks(&self) -> impl Iterator<Item = &Block> {
        self.virtio.iter().filter_map(|slot| match slot {
            Slot::Block(block) => Some(block),
            _ => None,
        })
    }

    /// Puts off device work that waited for its time, where that has come.
    pub fn wake_devices(&self) {
        let is_due = |slot: &Slot| match slot {
            Slot::Block(block) => block.is_due(),
            Slot::Net(net) => net.is_due(),
            Slot::Balloon(balloon) => balloon.is_due(),
            Slot::Console(_) | Slot::Rng(_) | Slot::Control(_) => false,
        };
        if self.virtio.iter().any(is_due) {
            self.put_off_device_work();
        }
    }

    /// A vCPU waits or leaves its CPU: devices do what was left for then, and tell the drivers.
    #[inline]
    pub fn tell_drivers(&self) {
        if self.has_untold.load(Ordering::Relaxed) {
            self.tell();
        }
    }

    #[cold]
    fn tell(&self) {
        self.has_untold.store(false, Ordering::Relaxed);
        for (n, slot) in self.virtio.iter().enumerate() {
            if let Slot::Net(net) = slot {
                net.send(self, n);
            }
        }
    }

    /// Goes on with device work that was put off, from the device on that was left out the last time.
    pub fn continue_devices(&self) {
        let first = usize::from(self.next_device.load(Ordering::Relaxed));
        let (later, sooner) = self.virtio.split_at(first.min(self.virtio.len()));
        let in_turn = (first..).zip(sooner).chain((0..).zip(later));
        for (at, (n, slot)) in in_turn.enumerate() {
            if at > 0 && stretch::is_long() {
                self.next_device.store(n as u8, Ordering::Relaxed);
                self.put_off_device_work();
                break;
            }
            slot.proceed(self, n);
        }
        paging::bring_wanted(self);
    }

    /// An access to the virtio windows at `offset`; `None` where there is no device.
    pub fn virtio_access(&self, offset: u64, size: usize, value: Option<u64>) -> Option<u64> {
        let window = model_guest_image::map::VIRTIO_SIZE;
        let n = (offset / window) as usize;
        let slot = self.virtio.get(n)?;
        if value.is_some() {
            stretch::begin_access();
        }
        let access = RegisterAccess {
            offset: offset % window,
            size,
            value,
        };
        let read = slot.access(self, n, access);
        paging::bring_wanted(self);
        Some(read)
    }

    /// Presses its power button; `false` where the guest does not listen to it.
    pub fn press_power_button(&self) -> bool {
        self.power_button.press(self)
    }

    /// Takes it apart, once nothing runs or refers to it.
    pub fn dismantle(self) -> Dismantling {
        self.guest.dismantle()
    }
}

impl Plugged for Instance {
    fn take(&self, window: usize, incoming: Incoming<'_>, waiter: Option<u8>) -> Accepted {
        match self.virtio.get(window) {
            Some(Slot::Net(net)) => net.take(self, window, incoming, waiter),
            _ => Accepted::Over,
        }
    }

    fn send(&self, window: usize) {
        if let Some(Slot::Net(net)) = self.virtio.get(window) {
            net.send(self, window);
        }
    }

    fn pass_over(&self, window: usize) {
        if let Some(Slot::Net(net)) = self.virtio.get(window) {
            net.pass_over();
        }
    }
}

/// A VM is about to run: frames find it.
pub fn connect(vm: &Arc<Instance>) {
    for (window, slot) in vm.virtio.iter().enumerate() {
        if let Slot::Net(net) = slot {
            let vm = Arc::clone(vm);
            let end = End::Vm(vm, window);
            net.cable().lan().set_end(net.cable().port(), Some(end));
        }
    }
}

/// A VM has ended: no frame finds it any more.
pub fn disconnect(vm: &Instance) {
    for slot in &vm.virtio {
        if let Slot::Net(net) = slot {
            net.cable().lan().set_end(net.cable().port(), None);
        }
    }
}
