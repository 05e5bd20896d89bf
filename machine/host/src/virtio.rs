//! Devices of the machine behind virtio-mmio windows (virtio 1.2, 4.2): registers, queues, interrupts. What a device
//! does with its queues is its [`Model`]'s.

use crate::ram::Ram;
use crate::rng::Rng;
use model_addr::Pa;

/// Where the first device is, and bytes of each window.
pub const WINDOW: u64 = 0x0a00_0000;
/// See [`WINDOW`].
pub const WINDOW_SIZE: u64 = 0x200;
/// The first device's interrupt, a level; the others' follow.
pub const INTERRUPT: u32 = 48;
/// Devices that there may be: a disk, a port, a card.
pub const WINDOWS: usize = 3;
const VERSION_1: u64 = 1;
const NEXT: u64 = 1;
const WRITE: u64 = 2;
/// Descriptors that a queue has at most.
const QUEUE_MAX: u64 = 256;

/// What a device is and does.
pub(crate) trait Model {
    /// Device ID (virtio 1.2, 5).
    const ID: u64;
    /// Queues.
    const QUEUES: usize;
    /// The lower 32 feature bits.
    const FEATURES: u64;

    /// The first 8 bytes of its configuration.
    fn configuration(&self) -> u64 {
        0
    }

    /// The driver says that there is something in a queue.
    fn notice(&mut self, queues: &mut [Queue], which: usize, ram: &Ram, now: u64, rng: &mut Rng);

    /// Does what is due; whether it has used a buffer.
    fn work(&mut self, queues: &mut [Queue], ram: &mut Ram, now: u64, rng: &mut Rng) -> bool;

    /// When something is due, if it is.
    fn next(&self) -> Option<u64>;

    /// Forgets what is under way.
    fn reset(&mut self);
}

/// A buffer's part: address, bytes.
pub(crate) type Part = (u64, u64);

/// A queue (virtio 1.2, 2.7).
#[derive(Debug, Default)]
pub(crate) struct Queue {
    size: u64,
    ready: u64,
    descriptors: u64,
    available: u64,
    used: u64,
    seen: u16,
    done: u16,
}

impl Queue {
    /// The next buffer that the driver has made available.
    pub(crate) fn take(&mut self, ram: &Ram) -> Option<u16> {
        let word = |at: u64| ram.read(Pa(at), 2).unwrap_or(0);
        let is_empty = self.ready != 1 || self.seen == word(self.available + 2) as u16;
        let slot = u64::from(self.seen) % self.size.max(1);
        (!is_empty).then(|| {
            self.seen = self.seen.wrapping_add(1);
            word(self.available + 4 + 2 * slot) as u16
        })
    }

    /// The parts of a buffer that the device reads, and those that it writes.
    pub(crate) fn parts(&self, ram: &Ram, head: u16) -> Option<(Vec<Part>, Vec<Part>)> {
        let (mut read, mut written) = (Vec::new(), Vec::new());
        let mut number = u64::from(head);
        for _ in 0..QUEUE_MAX {
            let at = self.descriptors + 16 * number;
            let (address, word) = (ram.read(Pa(at), 8)?, ram.read(Pa(at + 8), 8)?);
            let flags = word >> 32 & 0xffff;
            let parts = if flags & WRITE == 0 {
                &mut read
            } else {
                &mut written
            };
            parts.push((address, word & 0xffff_ffff));
            if flags & NEXT == 0 {
                break;
            }
            number = word >> 48;
        }
        Some((read, written))
    }

    /// Gives a buffer back, of which so many bytes were written.
    pub(crate) fn give_back(&mut self, ram: &mut Ram, head: u16, written: u64) {
        let slot = u64::from(self.done) % self.size.max(1);
        let at = self.used + 4 + 8 * slot;
        let _ = ram.write(Pa(at), 8, u64::from(head) | written << 32);
        self.done = self.done.wrapping_add(1);
        let _ = ram.write(Pa(self.used + 2), 2, self.done.into());
    }

    fn set(&mut self, offset: u64, value: u64) {
        let set_half = |place: &mut u64, high: bool| {
            let shift = 32 * u32::from(high);
            *place = *place & !(0xffff_ffff << shift) | value << shift;
        };
        match offset {
            0x38 => self.size = value,
            0x44 => self.ready = value,
            0x80 | 0x84 => set_half(&mut self.descriptors, offset == 0x84),
            0x90 | 0x94 => set_half(&mut self.available, offset == 0x94),
            0xa0 | 0xa4 => set_half(&mut self.used, offset == 0xa4),
            _ => {}
        }
    }
}

/// A device in its window.
pub(crate) struct Device<M> {
    /// What it does.
    pub(crate) model: M,
    queues: Vec<Queue>,
    chosen: usize,
    features_page: u64,
    status: u64,
    interrupt: u64,
}

/// A device, whichever it is.
pub(crate) trait Window {
    /// Whether its interrupt's line is high.
    fn line(&self) -> bool;
    /// Raises its interrupt without a reason.
    fn interrupt(&mut self);
    /// When something is due, if it is.
    fn next(&self) -> Option<u64>;
    /// Does what is due.
    fn work(&mut self, ram: &mut Ram, now: u64, rng: &mut Rng);
    /// The driver reads a register.
    fn read(&self, offset: u64, size: usize) -> u64;
    /// The driver writes one.
    fn write(&mut self, offset: u64, value: u64, ram: &Ram, now: u64, rng: &mut Rng);
}

impl<M: Model> Device<M> {
    pub(crate) fn new(model: M) -> Self {
        Self {
            model,
            queues: (0..M::QUEUES).map(|_| Queue::default()).collect(),
            chosen: 0,
            features_page: 0,
            status: 0,
            interrupt: 0,
        }
    }

    fn reset(&mut self) {
        self.queues = (0..M::QUEUES).map(|_| Queue::default()).collect();
        (self.chosen, self.features_page) = (0, 0);
        (self.status, self.interrupt) = (0, 0);
        self.model.reset();
    }
}

impl<M: Model> Window for Device<M> {
    fn line(&self) -> bool {
        self.interrupt != 0
    }

    fn interrupt(&mut self) {
        self.interrupt |= u64::from(self.status & 4 != 0);
    }

    fn next(&self) -> Option<u64> {
        self.model.next()
    }

    fn work(&mut self, ram: &mut Ram, now: u64, rng: &mut Rng) {
        if self.model.work(&mut self.queues, ram, now, rng) {
            self.interrupt |= 1;
        }
    }

    fn read(&self, offset: u64, size: usize) -> u64 {
        match offset {
            0x00 => 0x7472_6976,
            0x04 => 2,
            0x08 => M::ID,
            0x10 if self.features_page == 0 => M::FEATURES,
            0x10 => VERSION_1,
            0x34 => QUEUE_MAX,
            0x44 => self.queues.get(self.chosen).map_or(0, |queue| queue.ready),
            0x60 => self.interrupt,
            0x70 => self.status,
            0x100.. => {
                let shift = 8 * (offset - 0x100) as u32;
                let shifted = self.model.configuration().checked_shr(shift).unwrap_or(0);
                shifted & (u64::MAX >> (64 - 8 * size))
            }
            _ => 0,
        }
    }

    fn write(&mut self, offset: u64, value: u64, ram: &Ram, now: u64, rng: &mut Rng) {
        match offset {
            0x14 => self.features_page = value,
            0x30 => self.chosen = value as usize,
            0x50 => {
                let Self { model, queues, .. } = self;
                model.notice(queues, value as usize, ram, now, rng);
            }
            0x64 => self.interrupt &= !value,
            0x70 if value == 0 => self.reset(),
            0x70 => self.status = value,
            _ => {
                if let Some(queue) = self.queues.get_mut(self.chosen) {
                    queue.set(offset, value);
                }
            }
        }
    }
}
