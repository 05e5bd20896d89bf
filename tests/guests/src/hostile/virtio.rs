//! Malformed virtqueues on every virtio-mmio device (virtio 1.2, sections 2.7 and 4.2). What the
//! device does is not judged: only that this guest, and the machine, live on.

use machine_bare::device::Device;
use machine_bare::machine::Machine;
use machine_bare::memory::Scratch;
use machine_bare::verdict::{Failure, Verdict, check, equal};
use machine_bare::{println, timer};

const MAGIC: usize = 0x000;
const VERSION: usize = 0x004;
const DEVICE_ID: usize = 0x008;
const DRIVER_FEATURES: usize = 0x020;
const DRIVER_FEATURES_SELECT: usize = 0x024;
const QUEUE_SELECT: usize = 0x030;
const QUEUE_SIZE_MAX: usize = 0x034;
const QUEUE_SIZE: usize = 0x038;
const QUEUE_READY: usize = 0x044;
const QUEUE_NOTIFY: usize = 0x050;
const INTERRUPT_ACKNOWLEDGE: usize = 0x064;
const STATUS: usize = 0x070;
const QUEUE_TABLE: usize = 0x080;
const QUEUE_DRIVER: usize = 0x090;
const QUEUE_DEVICE: usize = 0x0a0;
const DISK: u32 = 2;
const MAGIC_VALUE: u32 = 0x7472_6976;
const ACKNOWLEDGE_DRIVER: u32 = 1 | 2;
const FEATURES_OK: u32 = 8;
const DRIVER_OK: u32 = 4;
/// The status of a device that is up.
pub const LIVE: u32 = ACKNOWLEDGE_DRIVER | FEATURES_OK | DRIVER_OK;
const INDIRECT_FEATURE: u32 = 1 << 28;
const VERSION_1: u32 = 1;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// Offsets in the memory that a queue takes, and its size in bytes.
const TABLE: u64 = 0;
const AVAILABLE: u64 = 0x4000;
const USED: u64 = 0x6000;
const BUFFERS: u64 = 0x10_000;
const QUEUE_MEMORY: u64 = 0x20_000;

/// Where no memory is.
const NOWHERE: u64 = 0x0f00_0000;

/// One descriptor: address, length, flags, next.
type Descriptor = (u64, u32, u16, u16);

/// A way to be wrong: its name, the queue's size, descriptors, and the available ring's index and
/// first entries.
struct Shape {
    name: &'static str,
    size: u32,
    descriptors: &'static [Descriptor],
    index: u16,
    heads: &'static [u16],
}

impl Shape {
    const fn chain(name: &'static str, descriptors: &'static [Descriptor]) -> Self {
        Self {
            name,
            size: 8,
            descriptors,
            index: 1,
            heads: &[0],
        }
    }
}

/// Addresses below [`QUEUE_MEMORY`] mean the queue's own memory.
const SHAPES: [Shape; 17] = [
    Shape::chain("a loop of one", &[(BUFFERS, 16, NEXT, 0)]),
    Shape::chain(
        "a loop of two",
        &[(BUFFERS, 16, NEXT, 1), (BUFFERS, 16, NEXT, 0)],
    ),
    Shape::chain("next beyond the table", &[(BUFFERS, 16, NEXT, 0xffff)]),
    Shape::chain("no memory", &[(NOWHERE, 512, 0, 0)]),
    Shape::chain(
        "no memory to write",
        &[(BUFFERS, 16, NEXT, 1), (NOWHERE, 512, WRITE, 0)],
    ),
    Shape::chain(
        "the last address",
        &[(u64::MAX - 7, 16, NEXT, 1), (u64::MAX, 1, WRITE, 0)],
    ),
    Shape::chain("length beyond memory", &[(BUFFERS, u32::MAX, 0, 0)]),
    Shape::chain("length 0", &[(BUFFERS, 0, NEXT, 1), (BUFFERS, 0, WRITE, 0)]),
    Shape::chain(
        "readable behind writable",
        &[(BUFFERS, 16, WRITE | NEXT, 1), (BUFFERS, 16, 0, 0)],
    ),
    Shape::chain("indirect with odd length", &[(BUFFERS, 17, INDIRECT, 0)]),
    Shape::chain("indirect without memory", &[(NOWHERE, 4096, INDIRECT, 0)]),
    Shape::chain(
        "indirect and next",
        &[(BUFFERS, 16, INDIRECT | NEXT, 1), (BUFFERS, 16, 0, 0)],
    ),
    Shape::chain("indirect to the table itself", &[(TABLE, 64, INDIRECT, 0)]),
    Shape::chain("all flags", &[(BUFFERS, 64, 0xffff, 0xffff)]),
    Shape {
        name: "head beyond the table",
        size: 8,
        descriptors: &[],
        index: 1,
        heads: &[0x7fff],
    },
    Shape {
        name: "more available than the queue",
        size: 8,
        descriptors: &[(BUFFERS, 16, 0, 0)],
        index: 0x9000,
        heads: &[0, 0, 0, 0, 0, 0, 0, 0],
    },
    Shape {
        name: "one head many times",
        size: 8,
        descriptors: &[(BUFFERS, 16, WRITE, 0)],
        index: 8,
        heads: &[0, 0, 0, 0, 0, 0, 0, 0],
    },
];

/// Queue sizes that are none: zero, odd, beyond the largest.
const SIZES: [u32; 4] = [0, 3, 0x1_0000, u32::MAX];

/// The virtio-mmio devices of version 2.
pub fn devices(machine: &Machine) -> impl Iterator<Item = &Device> {
    machine.virtio().iter().filter(|device| {
        device.read32(MAGIC) == MAGIC_VALUE
            && device.read32(VERSION) == 2
            && device.read32(DEVICE_ID) != 0
    })
}

/// Every shape and size on every queue of every device, and rings where there is no memory.
pub fn malformed(machine: &'static Machine) -> Verdict {
    let memory = machine.scratch().part(0, QUEUE_MEMORY);
    let mut tried = 0;
    for device in devices(machine) {
        println!(
            "hostile: device {} at {:#x}",
            device.read32(DEVICE_ID),
            device.base()
        );
        for queue in 0..queues(device) {
            for shape in &SHAPES {
                tried += 1;
                println!("hostile: queue {queue}: {}", shape.name);
                present(device, queue, shape, &memory)?;
            }
            for size in SIZES {
                tried += 1;
                let shape = Shape {
                    size,
                    ..Shape::chain("size", &[(BUFFERS, 16, 0, 0)])
                };
                present(device, queue, &shape, &memory)?;
            }
            for base in [NOWHERE, !0xfff, memory.base() + 1] {
                tried += 1;
                start(device, queue, 8, [base; 3])?;
                kick(device, queue);
            }
        }
        strange_registers(device)?;
    }
    println!("hostile: {tried} malformed queues");
    check(tried != 0, "no virtio-mmio device of version 2")
}

/// Shows a disk a ring that leads in a circle.
pub fn break_disk(machine: &'static Machine) -> Verdict {
    let memory = machine.scratch().part(0, QUEUE_MEMORY);
    let disk = devices(machine).find(|device| device.read32(DEVICE_ID) == DISK);
    match disk {
        Some(disk) => present(disk, 0, &SHAPES[0], &memory),
        None => check(false, "no disk"),
    }
}

/// Notifications of all queues, also of those that are not there.
pub fn notify_storm(machine: &'static Machine) -> Verdict {
    let memory = machine.scratch().part(0, QUEUE_MEMORY);
    let end = timer::now() + machine.number("seconds", 1).min(1 << 20) * timer::frequency();
    let mut times = 0;
    for device in devices(machine) {
        present(device, 0, &SHAPES[16], &memory)?;
    }
    while timer::now() < end {
        for device in devices(machine) {
            device.write32(QUEUE_NOTIFY, times % 5);
            times += 1;
        }
        if times == 0 {
            return check(false, "no virtio-mmio device of version 2");
        }
    }
    println!("hostile: {times} notifications");
    Ok(())
}

/// Queues of the device, at most 8.
fn queues(device: &Device) -> u32 {
    (0..8)
        .find(|&queue| {
            device.write32(QUEUE_SELECT, queue);
            device.read32(QUEUE_SIZE_MAX) == 0
        })
        .unwrap_or(8)
}

fn present(device: &Device, queue: u32, shape: &Shape, memory: &Scratch) -> Verdict {
    for (place, &(address, length, flags, next)) in shape.descriptors.iter().enumerate() {
        let descriptor = TABLE + 16 * place as u64;
        let offset = if address < QUEUE_MEMORY {
            memory.base()
        } else {
            0
        };
        memory.write(descriptor, address.wrapping_add(offset));
        memory.write32(descriptor + 8, length);
        memory.write16(descriptor + 12, flags);
        memory.write16(descriptor + 14, next);
    }
    for (place, &head) in shape.heads.iter().enumerate() {
        memory.write16(AVAILABLE + 4 + 2 * place as u64, head);
    }
    memory.write16(AVAILABLE + 2, shape.index);
    memory.write(USED, 0);
    let base = memory.base();
    start(
        device,
        queue,
        shape.size,
        [base + TABLE, base + AVAILABLE, base + USED],
    )?;
    kick(device, queue);
    Ok(())
}

/// Resets the device and brings it up with one queue at the three addresses.
fn start(device: &Device, queue: u32, size: u32, rings: [u64; 3]) -> Verdict {
    start_with(device, queue, size, rings, [INDIRECT_FEATURE, VERSION_1])
}

/// As [`start`], with features in two words.
fn start_with(
    device: &Device,
    queue: u32,
    size: u32,
    rings: [u64; 3],
    features: [u32; 2],
) -> Verdict {
    device.write32(STATUS, 0);
    equal("status after reset", device.read32(STATUS).into(), 0)?;
    device.write32(STATUS, ACKNOWLEDGE_DRIVER);
    for (select, features) in (0..).zip(features) {
        device.write32(DRIVER_FEATURES_SELECT, select);
        device.write32(DRIVER_FEATURES, features);
    }
    device.write32(STATUS, ACKNOWLEDGE_DRIVER | FEATURES_OK);
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
    device.write32(STATUS, ACKNOWLEDGE_DRIVER | FEATURES_OK | DRIVER_OK);
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
fn kick(device: &Device, queue: u32) {
    device.write32(QUEUE_NOTIFY, queue);
    timer::wait_until(200, || false);
    device.write32(INTERRUPT_ACKNOWLEDGE, 3);
}

/// Registers out of order and of range; then a reset must still work.
fn strange_registers(device: &Device) -> Verdict {
    device.write32(STATUS, 0);
    device.write32(QUEUE_SELECT, u32::MAX);
    device.write32(QUEUE_SIZE, u32::MAX);
    device.write32(QUEUE_READY, u32::MAX);
    device.write32(QUEUE_NOTIFY, u32::MAX);
    device.write32(DRIVER_FEATURES_SELECT, u32::MAX);
    device.write32(DRIVER_FEATURES, u32::MAX);
    device.write32(STATUS, DRIVER_OK);
    device.write32(STATUS, u32::MAX);
    device.write32(STATUS, 0);
    equal("status after reset", device.read32(STATUS).into(), 0)
}
