//! Malformed virtqueues (virtio 1.2, sections 2.7 and 4.2), in memory that is only theirs.

use machine_bare::device::Device;
use machine_bare::memory::Scratch;
use machine_bare::verdict::{Verdict, equal};

use crate::virtio::{
    AVAILABLE, BUFFERS, DRIVER_FEATURES, DRIVER_FEATURES_SELECT, DRIVER_OK, INDIRECT,
    INDIRECT_FEATURE, NEXT, NOWHERE, QUEUE_MEMORY, QUEUE_NOTIFY, QUEUE_READY, QUEUE_SELECT,
    QUEUE_SIZE, STATUS, TABLE, USED, VERSION_1, WRITE, kick, start_with,
};

/// One descriptor: address, length, flags, next.
pub type Descriptor = (u64, u32, u16, u16);

/// A way to be wrong: its name, the queue's size, descriptors, and the available ring's index and
/// first entries.
pub struct Shape {
    /// What is wrong.
    pub name: &'static str,
    /// The queue's size.
    pub size: u32,
    /// What is at the table's start.
    pub descriptors: &'static [Descriptor],
    /// The available ring's index.
    pub index: u16,
    /// Its first entries.
    pub heads: &'static [u16],
}

impl Shape {
    /// A chain of these descriptors, from the first on.
    pub const fn chain(name: &'static str, descriptors: &'static [Descriptor]) -> Self {
        Self {
            name,
            size: 8,
            descriptors,
            index: 1,
            heads: &[0],
        }
    }
}

/// What drivers should not do. Addresses below [`QUEUE_MEMORY`] mean the queue's own memory.
pub const SHAPES: [Shape; 17] = [
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
pub const SIZES: [u32; 4] = [0, 3, 0x1_0000, u32::MAX];

/// Resets the device, brings it up with the shape in one queue, and notifies it.
///
/// # Errors
/// It does not reset.
pub fn present(device: &Device, queue: u32, shape: &Shape, memory: &Scratch) -> Verdict {
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
    start_with(
        device,
        queue,
        shape.size,
        [base + TABLE, base + AVAILABLE, base + USED],
        [INDIRECT_FEATURE, VERSION_1],
    )?;
    kick(device, queue);
    Ok(())
}

/// Resets the device and brings it up with one queue whose rings are all at `base`, and notifies it.
///
/// # Errors
/// It does not reset.
pub fn present_rings(device: &Device, queue: u32, base: u64) -> Verdict {
    start_with(device, queue, 8, [base; 3], [INDIRECT_FEATURE, VERSION_1])?;
    kick(device, queue);
    Ok(())
}

/// Registers out of order and of range; then a reset must still work.
///
/// # Errors
/// It does not reset.
pub fn strange_registers(device: &Device) -> Verdict {
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
