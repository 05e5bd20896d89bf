//! One virtio device with its queues, as each transport of virtio shows it: [`DeviceCore`]. A front
//! ([`crate::Window`] for virtio-mmio) knows where a driver finds which [`register`], and no more.

use crate::{Queue, QueueError};
use abi::state::{self, queue};
use bitflags::bitflags;
use machine_contract::GuestMemory;
use model_addr::Gfn;

/// Most queues of a device.
pub(crate) const MAX_QUEUES: usize = 9;

/// `VIRTIO_F_INDIRECT_DESC`.
const F_INDIRECT_DESC: u64 = 1 << 28;
/// `VIRTIO_F_EVENT_IDX`.
const F_EVENT_IDX: u64 = 1 << 29;
/// `VIRTIO_F_VERSION_1`.
const F_VERSION_1: u64 = 1 << 32;

bitflags! {
    /// The device status field (virtio 2.1).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Status: u32 {
        /// The guest has noticed the device.
        const ACKNOWLEDGE = 1;
        /// The guest knows how to drive it.
        const DRIVER = 2;
        /// The driver is set up: the device is live.
        const DRIVER_OK = 4;
        /// Features are agreed upon.
        const FEATURES_OK = 8;
        /// The device has given up on this driver.
        const DEVICE_NEEDS_RESET = 64;
        /// The driver has given up on the device.
        const FAILED = 128;
    }

    /// Why the driver is to be interrupted: the interrupt status register (virtio 4.2.2, 4.1.4.5), and above it
    /// bit 16 + n for what was used of queue n, for a front that has an interrupt for each queue.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Causes: u32 {
        /// Buffers of some queue were used.
        const USED_BUFFER = 1;
        /// The configuration space has changed.
        const CONFIG_CHANGE = 2;
        /// Which queues it was: see [`Self::of_queue`].
        const QUEUES = ((1 << MAX_QUEUES) - 1) << 16;
    }
}

const USED_BUFFER: u32 = Causes::USED_BUFFER.bits();
const CONFIG_CHANGE: u32 = Causes::CONFIG_CHANGE.bits();

impl Causes {
    /// Buffers of queue `index` were used.
    pub const fn of_queue(index: usize) -> Self {
        Self::USED_BUFFER.union(Self::from_bits_truncate(1 << (16 + index)))
    }
}

/// Registers, by the numbers that are their offsets in virtio-mmio (virtio 4.2.2); another front has offsets of its own.
pub mod register {
    /// The device type.
    pub const DEVICE_ID: u64 = 0x008;
    /// The half of the features that the next names.
    pub const DEVICE_FEATURES: u64 = 0x010;
    /// Which half.
    pub const DEVICE_FEATURES_SEL: u64 = 0x014;
    /// The half of the accepted features that the next names.
    pub const DRIVER_FEATURES: u64 = 0x020;
    /// Which half.
    pub const DRIVER_FEATURES_SEL: u64 = 0x024;
    /// The queue that registers of a queue mean.
    pub const QUEUE_SEL: u64 = 0x030;
    /// The most entries of the queue; 0 where there is no such queue.
    pub const QUEUE_SIZE_MAX: u64 = 0x034;
    /// Its entries.
    pub const QUEUE_SIZE: u64 = 0x038;
    /// Of the legacy interface (virtio 4.2.4): where a queue lies, in pages.
    pub const LEGACY_QUEUE_PFN: u64 = 0x040;
    /// Whether the device may use it.
    pub const QUEUE_READY: u64 = 0x044;
    /// The driver has put work into that queue.
    pub const QUEUE_NOTIFY: u64 = 0x050;
    /// The device status field.
    pub const STATUS: u64 = 0x070;
    /// Where the queue's descriptors are: the lower half; the upper one is 4 further on.
    pub const QUEUE_DESC: u64 = 0x080;
    /// Where the driver's area is, likewise.
    pub const QUEUE_DRIVER: u64 = 0x090;
    /// Where the device's area is, likewise.
    pub const QUEUE_DEVICE: u64 = 0x0a0;
    /// Changes with the configuration space.
    pub const CONFIG_GENERATION: u64 = 0x0fc;
}

/// A device without its front: status, features, queues, configuration space and causes of interrupts.
pub trait DeviceCore {
    /// What a [`register`] holds; one that is only written reads as zero.
    fn load(&self, register: u64) -> u32;
    /// Stores to a [`register`]; one that is only read does not change.
    fn store(&mut self, register: u64, value: u32) -> Effect;
    /// The device configuration space.
    fn config(&self) -> &[u8];
    /// Stores one, two or four bytes at `at` into it.
    fn write_config(&mut self, at: usize, bytes: &[u8]);
    /// Why the driver is to be interrupted.
    fn causes(&self) -> Causes;
    /// The driver knows of these.
    fn acknowledge(&mut self, causes: Causes);
}

/// What a device type adds to the transport.
pub trait Device {
    /// The device type (virtio 5).
    const ID: u32;
    /// The largest size of each queue, at most [`crate::MAX_QUEUE_SIZE`]; one to nine queues.
    const QUEUE_SIZES: &'static [u16];

    /// Those of them that this one has: the first so many.
    fn queue_sizes(&self) -> &'static [u16] {
        Self::QUEUE_SIZES
    }

    /// The device's own feature bits.
    fn features(&self) -> u64;
    /// The device configuration space, as the driver reads it.
    fn config(&self) -> &[u8];
    /// The driver stores `bytes`, one, two or four, at `at` into the configuration space. Most
    /// devices have nothing in it that is writable.
    fn write_config(&mut self, _at: usize, _bytes: &[u8]) {}
    /// Forgets all requests: the driver starts over.
    fn reset(&mut self);

    /// What is the device's own in a record.
    fn own(&self) -> [u64; 2] {
        [0; 2]
    }

    /// Sets what [`Self::own`] gives; `false` where no device of this type, whose driver accepted these features,
    /// can have come to that.
    fn set_own(&mut self, own: [u64; 2], _accepted: u64) -> bool {
        own == [0; 2]
    }

    /// Puts back what was taken of `queues` and not answered; what was done of it is done again, or is its own.
    fn put_back(&mut self, _queues: &mut [Queue]) {}
}

/// What a register write asks of the owner, beside setting the interrupt line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// The driver has put work into this queue.
    Notify(u16),
    /// The driver is set up: look at every queue once.
    Live,
    /// The driver starts over. Stop what is in flight before the guest goes on: its memory is no
    /// longer the device's (virtio 2.4).
    Reset,
}

/// One virtio device behind its registers.
#[derive(Clone, Debug)]
pub struct Transport<D> {
    pub(crate) device: D,
    pub(crate) queues: [Queue; MAX_QUEUES],
    registers: state::Registers,
    /// Bit n: buffers of queue n were used, and the driver has not acknowledged that.
    used: u32,
    /// The level of the interrupt line that was shown last.
    line: bool,
    resets: u32,
    errors: u32,
    last_error: Option<QueueError>,
}

impl<D: Device> Transport<D> {
    /// `device` as after power-on.
    pub fn new(device: D) -> Self {
        const { assert!(!D::QUEUE_SIZES.is_empty() && D::QUEUE_SIZES.len() <= MAX_QUEUES) };
        Self {
            device,
            queues: Default::default(),
            registers: state::Registers::ZERO,
            used: 0,
            line: false,
            resets: 0,
            errors: 0,
            last_error: None,
        }
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Whether the interrupt line is up (level-triggered).
    pub fn irq_level(&self) -> bool {
        self.registers.interrupt != 0
    }

    /// The level that the interrupt line is to have, where that has changed since this was asked last.
    #[inline]
    pub fn line_changed(&mut self) -> Option<bool> {
        let level = self.irq_level();
        (core::mem::replace(&mut self.line, level) != level).then_some(level)
    }

    /// The device status field.
    pub fn status(&self) -> Status {
        Status::from_bits_retain(self.registers.status)
    }

    fn has(&self, status: Status) -> bool {
        self.status().contains(status)
    }

    fn set(&mut self, status: Status) {
        self.registers.status |= status.bits();
    }

    /// How often a driver broke the device since power-on, and how it did last.
    pub fn errors(&self) -> (u32, Option<QueueError>) {
        (self.errors, self.last_error)
    }

    /// Whether there is a driver whose queues the device may touch.
    pub fn is_live(&self) -> bool {
        self.has(Status::DRIVER_OK) && !self.has(Status::DEVICE_NEEDS_RESET)
    }

    /// Counts resets: a request from before one must not be completed after it.
    pub(crate) fn resets(&self) -> u32 {
        self.resets
    }

    /// Whether the driver accepted all of `features`.
    pub(crate) fn has_negotiated(&self, features: u64) -> bool {
        self.registers.driver_features & features == features
    }

    /// What the driver accepted.
    pub(crate) fn negotiated(&self) -> u64 {
        self.registers.driver_features
    }

    /// Whether a queue lies in this guest frame, or a part of it. Those of a device that is broken, or not live yet, are
    /// not touched: a driver that breaks it while a chain comes to be at hand would keep all its pages.
    pub fn uses(&self, gfn: Gfn) -> bool {
        self.is_live() && self.queues.iter().any(|queue| queue.uses(gfn))
    }

    /// Keeps no page for a chain that was not all at hand: nobody comes back to it soon.
    pub fn let_go(&mut self) {
        self.queues.iter_mut().for_each(Queue::let_go);
    }

    /// Its record. What it had taken of its queues and not answered is in them again.
    pub fn record(&mut self) -> state::Device {
        self.device.put_back(&mut self.queues);
        state::Device {
            kind: D::ID,
            reserved: 0,
            registers: self.registers,
            own: self.device.own(),
            queues: self.queues.each_ref().map(|queue| queue.state),
        }
    }

    /// As a record has it: a device that was just made. `false` where it is none that such a device could
    /// have come to.
    #[must_use]
    pub fn restore(&mut self, record: &state::Device) -> bool {
        self.registers = record.registers;
        // The interrupt controller has it so, too, by its own record.
        self.line = self.irq_level();
        let (sizes, flags) = (self.device.queue_sizes(), self.queue_flags() | queue::MUTED);
        let mut queues = self.queues.iter_mut().zip(&record.queues).enumerate();
        let are_valid = queues.all(|(n, (queue, record))| {
            let made = Queue::of(*record, sizes.get(n).copied().unwrap_or(0));
            made.is_ok_and(|made| {
                *queue = made;
                record.flags & !flags == 0
            })
        });
        are_valid
            && (record.kind, record.reserved) == (D::ID, 0)
            && Status::from_bits(record.registers.status).is_some()
            && record.registers.interrupt & !(USED_BUFFER | CONFIG_CHANGE) == 0
            && if self.has(Status::FEATURES_OK) {
                self.can_agree()
            } else {
                !self.has(Status::DRIVER_OK) && !self.queues.iter().any(Queue::is_ready)
            }
            && self
                .device
                .set_own(record.own, record.registers.driver_features)
    }

    /// Whether the device can go by what the driver accepted.
    fn can_agree(&self) -> bool {
        self.negotiated() & !self.features() == 0 && self.has_negotiated(F_VERSION_1)
    }

    /// The flags of a queue that the driver sets up.
    fn queue_flags(&self) -> u32 {
        let [indirect, event_idx] =
            [F_INDIRECT_DESC, F_EVENT_IDX].map(|it| self.has_negotiated(it));
        let ring = queue::INDIRECT * u32::from(indirect) + queue::EVENT_IDX * u32::from(event_idx);
        queue::READY | ring
    }

    /// Passes on what an operation gave, or breaks the device with its error.
    pub(crate) fn settle<T>(&mut self, result: Result<T, QueueError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.errors = self.errors.saturating_add(1);
                self.last_error = Some(error);
                self.set(Status::DEVICE_NEEDS_RESET);
                if self.has(Status::DRIVER_OK) {
                    self.registers.interrupt |= CONFIG_CHANGE;
                }
                None
            }
        }
    }

    /// As [`Self::settle`], of the chain that queue `n` gave last: where memory is to come first, it is the next one again.
    pub(crate) fn settle_chain<T>(&mut self, n: usize, result: Result<T, QueueError>) -> Option<T> {
        if result.as_ref().is_err_and(QueueError::is_want_of_memory) {
            self.queues[n].put_back(1);
            return None;
        }
        self.settle(result)
    }

    /// Lets the device do `work` with queue `index` of a driver that is there, and raises the interrupt if the driver
    /// wants one.
    pub(crate) fn with_queue<T: Default>(
        &mut self,
        memory: &impl GuestMemory,
        index: usize,
        work: impl FnOnce(&mut D, &mut Queue) -> Result<T, QueueError>,
    ) -> T {
        if !self.is_live() {
            return T::default();
        }
        let done = work(&mut self.device, &mut self.queues[index]);
        let done = self.settle_chain(index, done).unwrap_or_default();
        self.signal(memory, index);
        done
    }

    /// Raises the interrupt if the driver wants one for what was pushed to queue `index`.
    pub(crate) fn signal(&mut self, memory: &impl GuestMemory, index: usize) {
        if !self.is_live() {
            return;
        }
        let wanted = self.queues[index].needs_interrupt(memory);
        // One too many does no harm.
        let or_wait = |error: QueueError| error.is_want_of_memory().then_some(true).ok_or(error);
        if self.settle(wanted.or_else(or_wait)) == Some(true) {
            self.registers.interrupt |= USED_BUFFER;
            self.used |= 1 << index;
        }
    }

    /// Tells the driver that the configuration space has changed.
    pub(crate) fn config_changed(&mut self) {
        self.registers.config_generation = self.registers.config_generation.wrapping_add(1);
        if self.is_live() {
            self.registers.interrupt |= CONFIG_CHANGE;
        }
    }

    fn features(&self) -> u64 {
        self.device.features() | F_VERSION_1 | F_EVENT_IDX | F_INDIRECT_DESC
    }

    /// The queue that the queue registers mean; `None` if the device has no such queue.
    fn selected(&self) -> Option<usize> {
        let queue = self.registers.queue_sel as usize;
        (queue < self.device.queue_sizes().len()).then_some(queue)
    }

    fn write_driver_features(&mut self, value: u32) {
        if !self.has(Status::FEATURES_OK) {
            set_half(
                &mut self.registers.driver_features,
                self.registers.driver_features_sel,
                value,
            );
        }
    }

    fn write_queue_setup(&mut self, register: u64, value: u32) {
        let Some(queue) = self.selected() else { return };
        if self.queues[queue].is_ready() {
            return;
        }
        let setup = &mut self.queues[queue].state;
        let half = (register >> 2 & 1) as u32;
        match register {
            register::QUEUE_SIZE => setup.size = value,
            _ => match register & !4 {
                register::QUEUE_DESC => set_half(&mut setup.descriptors, half, value),
                register::QUEUE_DRIVER => set_half(&mut setup.driver, half, value),
                register::QUEUE_DEVICE => set_half(&mut setup.device, half, value),
                _ => {}
            },
        }
    }

    fn write_queue_ready(&mut self, value: u32) {
        let Some(index) = self.selected() else { return };
        let state = self.queues[index].state;
        if value & 1 == 0 {
            self.queues[index] = Queue::stopped(&state);
        } else if !self.queues[index].is_ready() && self.has(Status::FEATURES_OK) {
            let flags = self.queue_flags();
            let queue = Queue::of(state::Queue { flags, ..state }, D::QUEUE_SIZES[index]);
            if let Some(queue) = self.settle(queue) {
                self.queues[index] = queue;
            }
        }
    }

    fn notify(&mut self, value: u32) -> Effect {
        match self.queues.get(value as usize) {
            Some(queue) if queue.is_ready() && self.is_live() => Effect::Notify(value as u16),
            _ => Effect::None,
        }
    }

    /// Drivers only ever add bits, in the order of virtio 3.1.1, or reset by writing zero.
    fn write_status(&mut self, value: u32) -> Effect {
        if value == 0 {
            self.reset();
            return Effect::Reset;
        }
        let asked = Status::from_bits_truncate(value).difference(self.status());
        let simple = Status::ACKNOWLEDGE | Status::DRIVER | Status::FAILED;
        self.set(asked.intersection(simple));
        if asked.contains(Status::FEATURES_OK) && self.has(Status::DRIVER) && self.can_agree() {
            self.set(Status::FEATURES_OK);
        }
        if !asked.contains(Status::DRIVER_OK) {
            return Effect::None;
        }
        if !self.has(Status::FEATURES_OK) {
            self.settle::<()>(Err(QueueError::Legacy));
            return Effect::None;
        }
        self.set(Status::DRIVER_OK);
        if !self.is_live() {
            // It broke while it was set up, and the driver was not to be interrupted then.
            self.registers.interrupt |= CONFIG_CHANGE;
        }
        Effect::Live
    }

    fn reset(&mut self) {
        self.device.reset();
        self.queues = Default::default();
        self.registers = state::Registers {
            config_generation: self.registers.config_generation,
            ..state::Registers::ZERO
        };
        self.used = 0;
        self.resets = self.resets.wrapping_add(1);
    }
}

impl<D: Device> DeviceCore for Transport<D> {
    #[inline]
    fn load(&self, register: u64) -> u32 {
        let queue = self.selected();
        match register {
            register::DEVICE_ID => D::ID,
            register::DEVICE_FEATURES => half(self.features(), self.registers.device_features_sel),
            register::QUEUE_SIZE_MAX => queue.map_or(0, |n| self.device.queue_sizes()[n].into()),
            register::QUEUE_READY => queue.is_some_and(|n| self.queues[n].is_ready()).into(),
            register::STATUS => self.registers.status,
            register::CONFIG_GENERATION => self.registers.config_generation,
            _ => 0,
        }
    }

    #[inline]
    fn store(&mut self, register: u64, value: u32) -> Effect {
        match register {
            register::DEVICE_FEATURES_SEL => self.registers.device_features_sel = value,
            register::DRIVER_FEATURES_SEL => self.registers.driver_features_sel = value,
            register::DRIVER_FEATURES => self.write_driver_features(value),
            register::QUEUE_SEL => self.registers.queue_sel = value,
            register::QUEUE_NOTIFY => return self.notify(value),
            register::STATUS => return self.write_status(value),
            register::QUEUE_READY => self.write_queue_ready(value),
            register::LEGACY_QUEUE_PFN if value != 0 => {
                self.settle::<()>(Err(QueueError::Legacy));
            }
            _ => self.write_queue_setup(register, value),
        }
        Effect::None
    }

    fn config(&self) -> &[u8] {
        self.device.config()
    }

    fn write_config(&mut self, at: usize, bytes: &[u8]) {
        self.device.write_config(at, bytes);
    }

    fn causes(&self) -> Causes {
        Causes::from_bits_truncate(self.registers.interrupt | self.used << 16)
    }

    fn acknowledge(&mut self, causes: Causes) {
        self.registers.interrupt &= !causes.bits();
        if causes.contains(Causes::USED_BUFFER) {
            self.used = 0;
        }
    }
}

/// Bits `32 * which..` of `word`; there are two halves, further ones are empty.
fn half(word: u64, which: u32) -> u32 {
    match which {
        0 => word as u32,
        1 => (word >> 32) as u32,
        _ => 0,
    }
}

/// Sets what [`half`] reads. A bit in a half that does not exist is forgotten: no device offers
/// it, so no driver can have accepted it.
fn set_half(word: &mut u64, which: u32, value: u32) {
    match which {
        0 => *word = *word & !0xffff_ffff | u64::from(value),
        1 => *word = *word & 0xffff_ffff | u64::from(value) << 32,
        _ => {}
    }
}
