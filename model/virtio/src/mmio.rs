//! The virtio-mmio transport, version 2 (virtio 4.2): the registers of one device.

use crate::{Queue, QueueError};
use abi::state::{self, queue};
use bitflags::bitflags;
use machine_contract::GuestMemory;
use model_addr::Gfn;

/// Most queues of a device.
pub(crate) const MAX_QUEUES: usize = 9;

const MAGIC: u32 = 0x7472_6976;
const VERSION: u32 = 2;
/// "UNDP": virtio leaves the vendor to itself.
const VENDOR: u32 = 0x5044_4e55;

/// `VIRTIO_F_INDIRECT_DESC`.
pub const F_INDIRECT_DESC: u64 = 1 << 28;
/// `VIRTIO_F_EVENT_IDX`.
pub const F_EVENT_IDX: u64 = 1 << 29;
/// `VIRTIO_F_VERSION_1`.
pub const F_VERSION_1: u64 = 1 << 32;

/// Register offsets (virtio 4.2.2).
mod reg {
    pub const MAGIC_VALUE: u64 = 0x000;
    pub const VERSION: u64 = 0x004;
    pub const DEVICE_ID: u64 = 0x008;
    pub const VENDOR_ID: u64 = 0x00c;
    pub const DEVICE_FEATURES: u64 = 0x010;
    pub const DEVICE_FEATURES_SEL: u64 = 0x014;
    pub const DRIVER_FEATURES: u64 = 0x020;
    pub const DRIVER_FEATURES_SEL: u64 = 0x024;
    pub const QUEUE_SEL: u64 = 0x030;
    pub const QUEUE_SIZE_MAX: u64 = 0x034;
    pub const QUEUE_SIZE: u64 = 0x038;
    /// Of the legacy interface (virtio 4.2.4): where a queue lies, in pages.
    pub const LEGACY_QUEUE_PFN: u64 = 0x040;
    pub const QUEUE_READY: u64 = 0x044;
    pub const QUEUE_NOTIFY: u64 = 0x050;
    pub const INTERRUPT_STATUS: u64 = 0x060;
    pub const INTERRUPT_ACK: u64 = 0x064;
    pub const STATUS: u64 = 0x070;
    pub const QUEUE_DESC_LOW: u64 = 0x080;
    pub const QUEUE_DESC_HIGH: u64 = 0x084;
    pub const QUEUE_DRIVER_LOW: u64 = 0x090;
    pub const QUEUE_DRIVER_HIGH: u64 = 0x094;
    pub const QUEUE_DEVICE_LOW: u64 = 0x0a0;
    pub const QUEUE_DEVICE_HIGH: u64 = 0x0a4;
    pub const SHM_LEN_LOW: u64 = 0x0b0;
    pub const SHM_BASE_HIGH: u64 = 0x0bc;
    pub const CONFIG_GENERATION: u64 = 0x0fc;
    pub const CONFIG: u64 = 0x100;
}

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
}

/// Bits of the interrupt status register (virtio 4.2.2).
const USED_BUFFER: u32 = 1;
const CONFIG_CHANGE: u32 = 2;

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

    /// A load of `size` bytes at `offset` into the register window. Registers are 32 bits wide,
    /// the configuration space is read by any width; anything else reads as zero.
    pub fn read(&self, offset: u64, size: usize) -> u64 {
        if offset >= reg::CONFIG {
            self.read_config(offset - reg::CONFIG, size)
        } else if size == 4 {
            u64::from(self.read_register(offset))
        } else {
            0
        }
    }

    /// A store of `size` bytes of `value` at `offset` into the register window. What is not a
    /// 32-bit store to a writable register, or one of 32 bits or less to the configuration space,
    /// is ignored.
    pub fn write(&mut self, offset: u64, size: usize, value: u64) -> Effect {
        if let Some(at) = offset.checked_sub(reg::CONFIG) {
            if let (Ok(at), 1 | 2 | 4) = (usize::try_from(at), size) {
                self.device.write_config(at, &value.to_le_bytes()[..size]);
            }
            return Effect::None;
        }
        if size != 4 {
            return Effect::None;
        }
        let value = value as u32;
        match offset {
            reg::DEVICE_FEATURES_SEL => self.registers.device_features_sel = value,
            reg::DRIVER_FEATURES_SEL => self.registers.driver_features_sel = value,
            reg::DRIVER_FEATURES => self.write_driver_features(value),
            reg::QUEUE_SEL => self.registers.queue_sel = value,
            reg::QUEUE_NOTIFY => return self.notify(value),
            reg::INTERRUPT_ACK => self.registers.interrupt &= !value,
            reg::STATUS => return self.write_status(value),
            reg::QUEUE_READY => self.write_queue_ready(value),
            reg::LEGACY_QUEUE_PFN if value != 0 => _ = self.settle::<()>(Err(QueueError::Legacy)),
            _ => self.write_queue_setup(offset, value),
        }
        Effect::None
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

    /// Whether a queue lies in this guest frame, or a part of it.
    pub fn uses(&self, gfn: Gfn) -> bool {
        self.queues.iter().any(|queue| queue.uses(gfn))
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

    /// Raises the interrupt if the driver wants one for what was pushed to queue `index`.
    pub(crate) fn signal(&mut self, memory: &impl GuestMemory, index: usize) {
        if !self.is_live() {
            return;
        }
        let wanted = self.queues[index].needs_interrupt(memory);
        if self.settle(wanted) == Some(true) {
            self.registers.interrupt |= USED_BUFFER;
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

    fn read_config(&self, at: u64, size: usize) -> u64 {
        let mut bytes = [0; 8];
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let config = self.device.config().get(at..).unwrap_or_default();
        let n = size.min(bytes.len()).min(config.len());
        bytes[..n].copy_from_slice(&config[..n]);
        u64::from_le_bytes(bytes)
    }

    fn read_register(&self, offset: u64) -> u32 {
        match offset {
            reg::MAGIC_VALUE => MAGIC,
            reg::VERSION => VERSION,
            reg::DEVICE_ID => D::ID,
            reg::VENDOR_ID => VENDOR,
            reg::DEVICE_FEATURES => half(self.features(), self.registers.device_features_sel),
            reg::QUEUE_SIZE_MAX => {
                let sizes = self.device.queue_sizes();
                let size = self.selected().and_then(|queue| sizes.get(queue));
                size.map_or(0, |&max| u32::from(max))
            }
            reg::QUEUE_READY => u32::from(
                self.selected()
                    .is_some_and(|queue| self.queues[queue].is_ready()),
            ),
            reg::INTERRUPT_STATUS => self.registers.interrupt,
            reg::STATUS => self.registers.status,
            // No shared memory region exists: each has length and base -1 (virtio 4.2.2.1).
            reg::SHM_LEN_LOW..=reg::SHM_BASE_HIGH => u32::MAX,
            reg::CONFIG_GENERATION => self.registers.config_generation,
            _ => 0,
        }
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

    fn write_queue_setup(&mut self, offset: u64, value: u32) {
        let Some(queue) = self.selected() else { return };
        if self.queues[queue].is_ready() {
            return;
        }
        let setup = &mut self.queues[queue].state;
        match offset {
            reg::QUEUE_SIZE => setup.size = value,
            reg::QUEUE_DESC_LOW => set_half(&mut setup.descriptors, 0, value),
            reg::QUEUE_DESC_HIGH => set_half(&mut setup.descriptors, 1, value),
            reg::QUEUE_DRIVER_LOW => set_half(&mut setup.driver, 0, value),
            reg::QUEUE_DRIVER_HIGH => set_half(&mut setup.driver, 1, value),
            reg::QUEUE_DEVICE_LOW => set_half(&mut setup.device, 0, value),
            reg::QUEUE_DEVICE_HIGH => set_half(&mut setup.device, 1, value),
            _ => {}
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
        self.resets = self.resets.wrapping_add(1);
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
