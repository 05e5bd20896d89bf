//! The driver side of a split virtqueue and of virtio-mmio, as plain as can be.

use abi::state::{self, queue};
use machine_fake::FakeGuest;
use model_addr::Ipa;
use model_virtio::{Device, Effect, Transport, Window as _};

pub const RAM: Ipa = Ipa(0x4000_0000);
pub const RAM_SIZE: usize = 0x20_0000;
/// Rings of queue n start at RAM + n * 0x4000.
const RINGS: u64 = 0x4000;
/// Indirect tables, one per descriptor.
const TABLES: u64 = RAM.0 + 0x2_4000;
const TABLE_STRIDE: u64 = 0x880;
/// Where tests put their buffers.
pub const DATA: Ipa = Ipa(RAM.0 + 0x10_0000);

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    pub ipa: Ipa,
    pub len: u32,
    pub writable: bool,
}

/// How a chain is laid out in descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Direct,
    Indirect,
    /// One direct descriptor, the rest in a table.
    Mixed,
}

pub fn ram() -> FakeGuest {
    FakeGuest::new(RAM, RAM_SIZE)
}

/// Which ring features were negotiated.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueFeatures {
    pub event_idx: bool,
    pub indirect: bool,
}

pub struct Driver {
    pub setup: state::Queue,
    pub features: QueueFeatures,
    size: u16,
    free: Vec<u16>,
    /// The descriptors each outstanding head holds.
    held: Vec<Vec<u16>>,
    pub next_avail: u16,
    pub last_used: u16,
    /// `next_avail` when a kick was last considered.
    kicked: u16,
}

impl Driver {
    pub fn new(number: u64, size: u16, features: QueueFeatures) -> Self {
        let start = RAM.0 + number * RINGS;
        let event_idx = u32::from(features.event_idx) * queue::EVENT_IDX;
        let indirect = u32::from(features.indirect) * queue::INDIRECT;
        let setup = state::Queue {
            size: u32::from(size),
            flags: queue::READY | event_idx | indirect,
            descriptors: start,
            driver: start + 0x1000,
            device: start + 0x2000,
            ..state::Queue::ZERO
        };
        Self {
            setup,
            features,
            size,
            free: (0..size).collect(),
            held: vec![Vec::new(); usize::from(size)],
            next_avail: 0,
            last_used: 0,
            kicked: 0,
        }
    }

    pub fn write_descriptor(guest: &FakeGuest, at: u64, buffer: Buffer, flags: u16, next: u16) {
        let mut raw = [0; 16];
        raw[..8].copy_from_slice(&buffer.ipa.0.to_le_bytes());
        raw[8..12].copy_from_slice(&buffer.len.to_le_bytes());
        raw[12..14].copy_from_slice(&flags.to_le_bytes());
        raw[14..].copy_from_slice(&next.to_le_bytes());
        guest.put(Ipa(at), &raw);
    }

    /// Puts a chain into the descriptors and its head into the available ring; not yet visible.
    /// `None` where descriptors are short.
    pub fn add(&mut self, guest: &FakeGuest, buffers: &[Buffer], shape: Shape) -> Option<u16> {
        let shape = if self.features.indirect {
            shape
        } else {
            Shape::Direct
        };
        let direct = match shape {
            Shape::Direct => buffers.len(),
            Shape::Indirect => 0,
            Shape::Mixed => 1.min(buffers.len() - 1),
        };
        let table = usize::from(direct < buffers.len());
        if self.free.len() < direct + table {
            return None;
        }
        let held: Vec<u16> = (0..direct + table)
            .map(|_| self.free.pop().unwrap())
            .collect();
        for n in 0..direct {
            let last = n + 1 == held.len();
            let next = if last { 0xdead } else { held[n + 1] };
            let flags = flags_of(buffers[n], last);
            let at = self.setup.descriptors + 16 * u64::from(held[n]);
            Self::write_descriptor(guest, at, buffers[n], flags, next);
        }
        if table == 1 {
            self.write_table(guest, held[direct], &buffers[direct..]);
        }
        let head = held[0];
        let slot = u64::from(self.next_avail % self.size);
        guest.put(Ipa(self.setup.driver + 4 + 2 * slot), &head.to_le_bytes());
        self.next_avail = self.next_avail.wrapping_add(1);
        self.held[usize::from(head)] = held;
        Some(head)
    }

    fn write_table(&self, guest: &FakeGuest, descriptor: u16, buffers: &[Buffer]) {
        let table = TABLES + TABLE_STRIDE * u64::from(descriptor);
        let len = 16 * buffers.len() as u32;
        let entry = Buffer {
            ipa: Ipa(table),
            len,
            writable: false,
        };
        let at = self.setup.descriptors + 16 * u64::from(descriptor);
        Self::write_descriptor(guest, at, entry, INDIRECT, 0xdead);
        for (n, buffer) in buffers.iter().enumerate() {
            let last = n + 1 == buffers.len();
            let flags = flags_of(*buffer, last);
            Self::write_descriptor(guest, table + 16 * n as u64, *buffer, flags, n as u16 + 1);
        }
    }

    /// Makes all that was added visible.
    pub fn publish(&self, guest: &FakeGuest) {
        guest.put(Ipa(self.setup.driver + 2), &self.next_avail.to_le_bytes());
    }

    /// Whether the device wants a kick for what was published since this was last asked.
    pub fn wants_kick(&mut self, guest: &FakeGuest) -> bool {
        let old = std::mem::replace(&mut self.kicked, self.next_avail);
        if !self.features.event_idx {
            return old != self.next_avail && word(guest, self.setup.device) & 1 == 0;
        }
        let event = word(guest, self.setup.device + 4 + 8 * u64::from(self.size));
        self.next_avail.wrapping_sub(event).wrapping_sub(1) < self.next_avail.wrapping_sub(old)
    }

    pub fn has_used(&self, guest: &FakeGuest) -> bool {
        word(guest, self.setup.device + 2) != self.last_used
    }

    /// Takes the next used element: head and length.
    pub fn reap(&mut self, guest: &FakeGuest) -> Option<(u16, u32)> {
        if !self.has_used(guest) {
            return None;
        }
        let slot = u64::from(self.last_used % self.size);
        let raw = guest.get(Ipa(self.setup.device + 4 + 8 * slot), 8);
        let raw = u64::from_le_bytes(raw.try_into().unwrap());
        self.last_used = self.last_used.wrapping_add(1);
        let head = raw as u16;
        let held = std::mem::take(&mut self.held[usize::from(head)]);
        assert!(!held.is_empty(), "head {head} was not outstanding");
        self.free.extend(held);
        Some((head, (raw >> 32) as u32))
    }

    /// Asks for an interrupt when the next element is used, or for none.
    pub fn set_interrupts(&self, guest: &FakeGuest, on: bool) {
        if self.features.event_idx {
            if on {
                let used_event = self.setup.driver + 4 + 2 * u64::from(self.size);
                guest.put(Ipa(used_event), &self.last_used.to_le_bytes());
            }
        } else {
            guest.put(Ipa(self.setup.driver), &u16::from(!on).to_le_bytes());
        }
    }
}

fn flags_of(buffer: Buffer, last: bool) -> u16 {
    (if buffer.writable { WRITE } else { 0 }) | (if last { 0 } else { NEXT })
}

fn word(guest: &FakeGuest, at: u64) -> u16 {
    u16::from_le_bytes(guest.get(Ipa(at), 2).try_into().unwrap())
}

/// Reads all features, accepts them but for `without`, and sets the queues up, as virtio 3.1.1.
pub fn start<D: Device>(device: D, without: u64, size: u16) -> (Transport<D>, Vec<Driver>) {
    let mut transport = Transport::new(device);
    let drivers = start_again(&mut transport, without, size);
    (transport, drivers)
}

/// As [`start`], of a device that was reset.
pub fn start_again<D: Device>(
    transport: &mut Transport<D>,
    without: u64,
    size: u16,
) -> Vec<Driver> {
    let mut features = 0;
    for half in 0..2 {
        transport.write(0x014, 4, half);
        features |= transport.read(0x010, 4) << (32 * half);
    }
    features &= !without;
    transport.write(0x070, 4, 1);
    transport.write(0x070, 4, 3);
    for half in 0..2 {
        transport.write(0x024, 4, half);
        transport.write(0x020, 4, features >> (32 * half) & 0xffff_ffff);
    }
    transport.write(0x070, 4, 0xb);
    assert_eq!(transport.read(0x070, 4), 0xb);
    let ring = QueueFeatures {
        event_idx: features >> 29 & 1 == 1,
        indirect: features >> 28 & 1 == 1,
    };
    let mut drivers = Vec::new();
    let sizes = transport.device().queue_sizes();
    for (queue, most) in (0..).zip(sizes) {
        let size = size.min(*most);
        let driver = Driver::new(queue, size, ring);
        set_up_queue(transport, queue, &driver.setup);
        assert_eq!(transport.read(0x044, 4), 1);
        drivers.push(driver);
    }
    assert_eq!(transport.write(0x070, 4, 0xf), Effect::Live);
    drivers
}

pub fn set_up_queue<D: Device>(transport: &mut Transport<D>, queue: u64, setup: &state::Queue) {
    transport.write(0x030, 4, queue);
    transport.write(0x038, 4, u64::from(setup.size));
    for (at, address) in [
        (0x080, setup.descriptors),
        (0x090, setup.driver),
        (0x0a0, setup.device),
    ] {
        transport.write(at, 4, address & 0xffff_ffff);
        transport.write(at + 4, 4, address >> 32);
    }
    transport.write(0x044, 4, 1);
}
