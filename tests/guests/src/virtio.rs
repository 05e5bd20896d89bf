//! Devices by virtio-mmio (virtio 1.2, section 4.2), as drivers and as those who are none use them.

use machine_bare::device::Device;
use machine_bare::machine::Machine;
use machine_bare::memory::Scratch;
use machine_bare::timer;
use machine_bare::verdict::{Failure, Verdict, check, equal};

/// Register: [`MAGIC_VALUE`].
pub const MAGIC: usize = 0x000;
/// Register: 2.
pub const VERSION: usize = 0x004;
/// Register: the kind of device; 0 for none.
pub const DEVICE_ID: usize = 0x008;
/// Register.
pub const DEVICE_FEATURES: usize = 0x010;
/// Register.
pub const DEVICE_FEATURES_SELECT: usize = 0x014;
/// Register.
pub const DRIVER_FEATURES: usize = 0x020;
/// Register.
pub const DRIVER_FEATURES_SELECT: usize = 0x024;
/// Register.
pub const QUEUE_SELECT: usize = 0x030;
/// Register; 0 where there is no such queue.
pub const QUEUE_SIZE_MAX: usize = 0x034;
/// Register.
pub const QUEUE_SIZE: usize = 0x038;
/// Register.
pub const QUEUE_READY: usize = 0x044;
/// Register.
pub const QUEUE_NOTIFY: usize = 0x050;
/// Register.
pub const INTERRUPT_ACKNOWLEDGE: usize = 0x064;
/// Register.
pub const STATUS: usize = 0x070;
/// Register, of 64 bits in two words.
pub const QUEUE_TABLE: usize = 0x080;
/// Register, of 64 bits in two words.
pub const QUEUE_DRIVER: usize = 0x090;
/// Register, of 64 bits in two words.
pub const QUEUE_DEVICE: usize = 0x0a0;
/// What [`MAGIC`] reads as.
pub const MAGIC_VALUE: u32 = 0x7472_6976;
/// Bits of the status.
pub const ACKNOWLEDGE_DRIVER: u32 = 1 | 2;
/// Bit of the status.
pub const FEATURES_OK: u32 = 8;
/// Bit of the status.
pub const DRIVER_OK: u32 = 4;
/// The status of a device that is up.
pub const LIVE: u32 = ACKNOWLEDGE_DRIVER | FEATURES_OK | DRIVER_OK;
/// Feature in the lower word.
pub const INDIRECT_FEATURE: u32 = 1 << 28;
/// Feature in the upper word.
pub const VERSION_1: u32 = 1;

/// Flag of a descriptor.
pub const NEXT: u16 = 1;
/// Flag of a descriptor.
pub const WRITE: u16 = 2;
/// Flag of a descriptor.
pub const INDIRECT: u16 = 4;

/// Where no memory is.
pub const NOWHERE: u64 = 0x0f00_0000;

/// Offset of the descriptors in the memory that a queue takes.
pub const TABLE: u64 = 0;
/// Offset of the available ring.
pub const AVAILABLE: u64 = 0x4000;
/// Offset of the used ring.
pub const USED: u64 = 0x6000;
/// Offset of what is behind the rings.
pub const BUFFERS: u64 = 0x10_000;
/// Bytes of memory that a queue with its buffers takes.
pub const QUEUE_MEMORY: u64 = 0x20_000;

/// The virtio-mmio devices of version 2.
pub fn devices(machine: &Machine) -> impl Iterator<Item = &Device> {
    machine.virtio().iter().filter(|device| {
        device.read32(MAGIC) == MAGIC_VALUE
            && device.read32(VERSION) == 2
            && device.read32(DEVICE_ID) != 0
    })
}

/// Queues of the device, at most 8.
pub fn queues(device: &Device) -> u32 {
    (0..8)
        .find(|&queue| {
            device.write32(QUEUE_SELECT, queue);
            device.read32(QUEUE_SIZE_MAX) == 0
        })
        .unwrap_or(8)
}

/// The features that a device offers, in two words.
pub fn offered(device: &Device) -> [u32; 2] {
    [0, 1].map(|select| {
        device.write32(DEVICE_FEATURES_SELECT, select);
        device.read32(DEVICE_FEATURES)
    })
}

/// Resets a device and tells it which features its driver takes, in two words.
///
/// # Errors
/// It does not reset.
pub fn negotiate(device: &Device, features: [u32; 2]) -> Verdict {
    device.write32(STATUS, 0);
    equal("status after reset", device.read32(STATUS).into(), 0)?;
    device.write32(STATUS, ACKNOWLEDGE_DRIVER);
    for (select, features) in (0..).zip(features) {
        device.write32(DRIVER_FEATURES_SELECT, select);
        device.write32(DRIVER_FEATURES, features);
    }
    device.write32(STATUS, ACKNOWLEDGE_DRIVER | FEATURES_OK);
    Ok(())
}

/// Puts a queue's descriptors, available and used ring at the three addresses.
pub fn set_queue(device: &Device, queue: u32, size: u32, rings: [u64; 3]) {
    device.write32(QUEUE_SELECT, queue);
    device.write32(QUEUE_SIZE, size);
    for (register, address) in [QUEUE_TABLE, QUEUE_DRIVER, QUEUE_DEVICE]
        .into_iter()
        .zip(rings)
    {
        device.write32(register, address as u32);
        device.write32(register + 4, (address >> 32) as u32);
    }
    device.write32(QUEUE_READY, 1);
}

/// Resets a device and brings it up with one queue at the three addresses.
///
/// # Errors
/// It does not reset.
pub fn start_with(
    device: &Device,
    queue: u32,
    size: u32,
    rings: [u64; 3],
    features: [u32; 2],
) -> Verdict {
    negotiate(device, features)?;
    set_queue(device, queue, size, rings);
    device.write32(STATUS, LIVE);
    Ok(())
}

/// A queue that is driven as it should be, one buffer at a time.
pub struct Queue<'a> {
    device: &'a Device,
    number: u32,
    memory: Scratch,
    index: u16,
}

/// Bytes of it that a buffer may have.
const BUFFER_MAX: u64 = 0x20_000;

impl<'a> Queue<'a> {
    /// Brings a device up with this one queue.
    ///
    /// # Errors
    /// The device does not come up.
    pub fn start(
        device: &'a Device,
        number: u32,
        scratch: Scratch,
        features: [u32; 2],
    ) -> Result<Self, Failure> {
        let memory = scratch.part(0, BUFFERS + BUFFER_MAX);
        memory.write(AVAILABLE, 0);
        memory.write(USED, 0);
        let base = memory.base();
        let rings = [base + TABLE, base + AVAILABLE, base + USED];
        start_with(device, number, 8, rings, features)?;
        equal("device's status", device.read32(STATUS).into(), LIVE.into())?;
        Ok(Self {
            device,
            number,
            memory,
            index: 0,
        })
    }

    /// Sends `bytes`, of which these are the first, and waits until the device gives them back.
    ///
    /// # Errors
    /// It does not.
    pub fn send(&mut self, first: &[u8], bytes: u32) -> Verdict {
        for (place, word) in (0..).zip(first.as_chunks().0) {
            self.memory
                .write(BUFFERS + 8 * place, u64::from_le_bytes(*word));
        }
        self.memory.write(TABLE, self.memory.base() + BUFFERS);
        self.memory.write32(TABLE + 8, bytes);
        self.memory.write32(TABLE + 12, 0);
        let entry = AVAILABLE + 4 + 2 * u64::from(self.index % 8);
        self.memory.write16(entry, 0);
        self.index = self.index.wrapping_add(1);
        self.memory.write16(AVAILABLE + 2, self.index);
        self.device.write32(QUEUE_NOTIFY, self.number);
        let used = || (self.memory.read(USED) >> 16) as u16 == self.index;
        check(
            timer::wait_until(1_000_000, used),
            "the device keeps a buffer",
        )?;
        self.device.write32(INTERRUPT_ACKNOWLEDGE, 3);
        Ok(())
    }

    /// The device's status.
    pub fn status(&self) -> u32 {
        self.device.read32(STATUS)
    }
}

/// Notifies the device and gives it a moment.
pub fn kick(device: &Device, queue: u32) {
    device.write32(QUEUE_NOTIFY, queue);
    timer::wait_until(200, || false);
    device.write32(INTERRUPT_ACKNOWLEDGE, 3);
}
