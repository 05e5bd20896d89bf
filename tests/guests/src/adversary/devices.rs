//! All virtio devices, as somebody drives them who does not care what becomes of requests.

use machine_bare::device::Device;
use machine_bare::machine::Machine;
use machine_bare::memory::Scratch;
use machine_bare::timer;
use machine_bare::verdict::{Failure, Verdict, check, equal};
use tests_guests::malformed::{SHAPES, present, present_rings, strange_registers};
use tests_guests::random::Random;
use tests_guests::virtio::{
    DEVICE_ID, INDIRECT, INTERRUPT_ACKNOWLEDGE, LIVE, NEXT, NOWHERE, QUEUE_NOTIFY, QUEUE_READY,
    QUEUE_SELECT, STATUS, VERSION_1, WRITE, devices, negotiate, offered, queues, set_queue,
};

use crate::World;
use crate::arena::Arena;

/// Kinds of device.
pub const NETWORK: u32 = 1;
/// A disk.
pub const DISK: u32 = 2;
/// A console.
const CONSOLE: u32 = 3;
/// A balloon.
pub const BALLOON: u32 = 5;

/// The most devices and queues of each that are used.
const DEVICES: usize = 12;
const QUEUES: usize = 4;
/// Bytes of memory that a queue takes.
const RING: u64 = 0x4000;
const TABLE: u64 = 0;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x1800;
/// Where each chain has a part for what it names: headers, numbers of pages.
const PARTS: u64 = 0x2000;
const PART: u64 = 0x800;
/// Chains that are under way at a time, each with so many descriptors of the table.
const CHAINS: u64 = 4;
/// Descriptors of a chain, at most.
pub const CHAIN: usize = 16;
const ENTRIES: u64 = CHAINS * CHAIN as u64;

/// How often a ring is looked at before the device's status is: that is an exit.
const TURNS_TO_A_LOOK: u64 = 64;

/// One descriptor: address, length, flags; they follow one another.
pub type Segment = (u64, u32, u16);

/// A queue.
#[derive(Clone, Copy)]
pub struct Ring {
    device: Device,
    number: u32,
    memory: Scratch,
    index: u16,
}

impl Ring {
    /// Memory for the next chain's header and the like.
    pub fn part(&self) -> (Scratch, u64) {
        (self.memory, PARTS + PART * (u64::from(self.index) % CHAINS))
    }

    /// The address of that part.
    pub fn part_address(&self) -> u64 {
        let (memory, offset) = self.part();
        memory.base() + offset
    }

    /// Makes a chain available and notifies the device, whatever became of those before.
    pub fn submit(&mut self, chain: &[Segment]) {
        let slot = u64::from(self.index) % CHAINS;
        let first = slot * CHAIN as u64;
        let count = chain.len().min(CHAIN);
        for (place, &(address, length, flags)) in chain[..count].iter().enumerate() {
            let at = TABLE + 16 * (first + place as u64);
            let more = if place + 1 < count { NEXT } else { 0 };
            self.memory.write(at, address);
            self.memory.write32(at + 8, length);
            self.memory.write16(at + 12, flags | more);
            self.memory
                .write16(at + 14, (first + place as u64 + 1) as u16);
        }
        let entry = AVAILABLE + 4 + 2 * (u64::from(self.index) % ENTRIES);
        self.memory.write16(entry, first as u16);
        self.index = self.index.wrapping_add(1);
        self.memory.write16(AVAILABLE + 2, self.index);
        self.device.write32(QUEUE_NOTIFY, self.number);
        self.device.write32(INTERRUPT_ACKNOWLEDGE, 3);
    }

    /// Chains that the device has not given back.
    pub fn under_way(&self) -> u16 {
        let used = (self.memory.read(USED) >> 16) as u16;
        self.index.wrapping_sub(used)
    }

    /// Waits until the device has given all back, or is broken, or for so many microseconds, and does `meanwhile`
    /// again and again.
    pub fn wait(&self, microseconds: u64, mut meanwhile: impl FnMut()) {
        let mut turns = 0_u64;
        timer::wait_until(microseconds, || {
            if self.under_way() == 0 {
                return true;
            }
            meanwhile();
            turns += 1;
            turns.is_multiple_of(TURNS_TO_A_LOOK) && self.device.read32(STATUS) != LIVE
        });
    }
}

/// A device and its queues.
pub struct Driver {
    /// The kind of device.
    pub kind: u32,
    device: Device,
    rings: [Ring; QUEUES],
    count: usize,
}

impl Driver {
    /// Resets the device and brings it up.
    fn set_up(&mut self, features: [u32; 2]) -> Verdict {
        negotiate(&self.device, features)?;
        for (number, ring) in self.rings[..self.count].iter_mut().enumerate() {
            ring.index = 0;
            ring.memory.write(AVAILABLE, 0);
            ring.memory.write(USED, 0);
            let rings = [TABLE, AVAILABLE, USED].map(|offset| ring.memory.base() + offset);
            set_queue(&self.device, number as u32, ENTRIES as u32, rings);
        }
        self.device.write32(STATUS, LIVE);
        let status = self.device.read32(STATUS);
        // A device may refuse odd features; good ones it must take.
        if features == self.features() {
            equal(
                "status of a device that was set up",
                status.into(),
                LIVE.into(),
            )?;
        }
        Ok(())
    }

    /// What a good driver takes.
    fn features(&self) -> [u32; 2] {
        let low = match self.kind {
            NETWORK => 1 | 1 << 11 | 1 << 12,
            DISK => 1 << 9 | 1 << 13 | 1 << 14,
            BALLOON => 1 << 5,
            _ => 0,
        };
        let [offered, _] = offered(&self.device);
        [low & offered, VERSION_1]
    }

    /// A queue of it, set up anew where the device is broken or keeps what it was given.
    ///
    /// # Errors
    /// The device does not come up.
    pub fn ring(&mut self, number: usize) -> Result<&mut Ring, Failure> {
        let is_live = self.device.read32(STATUS) == LIVE;
        if !is_live || self.rings[number].under_way() >= CHAINS as u16 {
            self.set_up(self.features())?;
        }
        Ok(&mut self.rings[number])
    }

    /// Its registers.
    pub const fn device(&self) -> &Device {
        &self.device
    }
}

/// All of them.
pub struct Devices {
    drivers: [Option<Driver>; DEVICES],
    count: u64,
}

impl Devices {
    /// Finds them all and brings them up.
    ///
    /// # Errors
    /// One does not come up, or there is none.
    pub fn find(machine: &'static Machine) -> Result<Self, Failure> {
        let memory = crate::arena().queues;
        let mut drivers = [const { None }; DEVICES];
        let mut count = 0;
        for (slot, device) in drivers.iter_mut().zip(devices(machine)) {
            let first = count * QUEUES as u64;
            let ring = |number: usize| Ring {
                device: *device,
                number: number as u32,
                memory: memory.part((first + number as u64) * RING, RING),
                index: 0,
            };
            let driver = slot.insert(Driver {
                kind: device.read32(DEVICE_ID),
                device: *device,
                rings: core::array::from_fn(ring),
                count: (queues(device) as usize).min(QUEUES),
            });
            driver.set_up(driver.features())?;
            count += 1;
        }
        check(count > 0, "no virtio-mmio device of version 2")?;
        Ok(Self { drivers, count })
    }

    /// Any of them.
    pub fn any(&mut self, random: &mut Random) -> Option<&mut Driver> {
        self.drivers[random.below(self.count) as usize].as_mut()
    }

    /// Any of a kind.
    pub fn of(&mut self, kind: u32, random: &mut Random) -> Option<&mut Driver> {
        let is_one = |driver: &Driver| driver.kind == kind;
        let all = self
            .drivers
            .iter()
            .flatten()
            .filter(|driver| is_one(driver));
        let count = all.count() as u64;
        let chosen = random.below(count.max(1)) as usize;
        let mut all = self.drivers.iter_mut().flatten();
        all.by_ref().filter(|driver| is_one(driver)).nth(chosen)
    }

    /// The first of a kind.
    pub fn first(&mut self, kind: u32) -> Option<&mut Driver> {
        self.drivers
            .iter_mut()
            .flatten()
            .find(|driver| driver.kind == kind)
    }
}

/// Chains of anything to any queue of any device.
pub fn chains(world: &mut World) -> Verdict {
    let random = &mut world.random;
    let Some(driver) = world.devices.any(random) else {
        return Ok(());
    };
    // All that a console is told is kept by the host.
    if driver.kind == CONSOLE && random.below(16) != 0 {
        return Ok(());
    }
    let number = random.below(driver.count.max(1) as u64) as usize;
    let ring = driver.ring(number)?;
    for _ in 0..=random.below(3) {
        let mut chain = [(0, 0, 0); CHAIN];
        let count = 1 + random.below(CHAIN as u64) as usize;
        let writable = random.below(count as u64 + 1) as usize;
        for (place, segment) in chain[..count].iter_mut().enumerate() {
            let flags = match random.below(64) {
                0 => INDIRECT,
                1 => WRITE | INDIRECT,
                2 => 0xfff8,
                _ if place >= writable => WRITE,
                _ => 0,
            };
            let (address, length) = (world.arena.address(random), Arena::length(random));
            *segment = (address, length, flags);
        }
        ring.submit(&chain[..count]);
    }
    Ok(())
}

/// A shape that is none, or rings where there is no memory.
pub fn malformed(world: &mut World) -> Verdict {
    let random = &mut world.random;
    let Some(driver) = world.devices.any(random) else {
        return Ok(());
    };
    let queue = random.below(driver.count.max(1) as u64) as u32;
    let memory = &world.arena.malformed;
    if random.below(4) == 0 {
        let bases = [NOWHERE, !0xfff, memory.base() + 1];
        return present_rings(&driver.device, queue, bases[random.below(3) as usize]);
    }
    let shape = &SHAPES[random.below(SHAPES.len() as u64) as usize];
    present(&driver.device, queue, shape, memory)
}

/// Registers out of order and of range.
pub fn registers(world: &mut World) -> Verdict {
    match world.devices.any(&mut world.random) {
        Some(driver) => strange_registers(&driver.device),
        None => Ok(()),
    }
}

/// A device, or a queue of it, is taken away while it works; features of all kinds.
pub fn reset(world: &mut World) -> Verdict {
    let random = &mut world.random;
    let Some(driver) = world.devices.any(random) else {
        return Ok(());
    };
    match random.below(4) {
        0 => {
            let queue = random.below(driver.count.max(1) as u64) as u32;
            driver.device.write32(QUEUE_SELECT, queue);
            driver.device.write32(QUEUE_READY, 0);
            driver.device.write32(QUEUE_NOTIFY, queue);
            driver.set_up(driver.features())
        }
        1 => driver.set_up([random.number() as u32, random.number() as u32 | VERSION_1]),
        2 => {
            driver.device.write32(STATUS, 0);
            Ok(())
        }
        _ => driver.set_up(driver.features()),
    }
}
