//! Drivers that reset their devices while requests are under way, and use the memory for other things then: it is
//! not the device's any more (virtio 1.2, section 2.4).

use core::sync::atomic::{Ordering, fence};

use machine_bare::device::Device;
use machine_bare::machine::Machine;
use machine_bare::memory::Scratch;
use machine_bare::verdict::{Failure, Verdict, check, equal};
use machine_bare::{println, timer};
use tests_guests::virtio::{
    self, AVAILABLE, DEVICE_ID, INTERRUPT_ACKNOWLEDGE, NEXT, QUEUE_MEMORY, QUEUE_NOTIFY, STATUS,
    TABLE, USED, VERSION_1, WRITE,
};

const DISK: u32 = 2;
const NETWORK_CARD: u32 = 1;
const CONFIG: usize = 0x100;
/// Entries of a ring.
const ENTRIES: u64 = 64;
/// Requests at a time: more than EL2 has buffers for.
const REQUESTS: u64 = 16;
/// Bytes of each, in two segments: of twice what a buffer of EL2's holds.
const BYTES: u64 = 128 << 10;
const SECTORS: u64 = BYTES / 512;
const ROUNDS: u64 = 12;
/// Microseconds after which nothing is under way any more.
const A_WHILE: u64 = 30_000;
const PATIENCE: u64 = 60_000_000;
/// Where headers and statuses are, in a queue's memory.
const HEADERS: u64 = 0x8000;
const STATUSES: u64 = 0x9000;
/// What the disk holds, and what the memory holds before a request and after a reset.
const ON_DISK: u64 = 0x0123_4567_89ab_cdef;
const BEFORE: u64 = 0x5555_aaaa_5555_aaaa;
const AFTER: u64 = 0xfeed_f00d_dead_beef;

/// A disk with a queue of many requests.
struct Queue<'a> {
    device: &'a Device,
    rings: Scratch,
    data: Scratch,
}

impl Queue<'_> {
    fn start(&self) -> Verdict {
        self.rings.write(AVAILABLE, 0);
        self.rings.write(USED, 0);
        let base = self.rings.base();
        let rings = [base + TABLE, base + AVAILABLE, base + USED];
        virtio::start_with(self.device, 0, ENTRIES as u32, rings, [0, VERSION_1])
    }

    fn fill(&self, value: u64) {
        for offset in (0..REQUESTS * BYTES).step_by(8) {
            self.data.write(offset, value);
        }
    }

    fn holds(&self, what: &'static str, value: u64) -> Verdict {
        let all = (0..REQUESTS * BYTES).step_by(8);
        let other = all
            .map(|offset| self.data.read(offset))
            .find(|word| *word != value);
        equal(what, other.unwrap_or(value), value)
    }

    /// Makes all requests available at once: reads (0) or writes (1).
    fn ask(&self, kind: u64) {
        let (rings, base) = (&self.rings, self.rings.base());
        let access = if kind == 0 { WRITE } else { 0 };
        for n in 0..REQUESTS {
            rings.write(HEADERS + 16 * n, kind);
            rings.write(HEADERS + 16 * n + 8, n * SECTORS);
            rings.write(STATUSES + 8 * n, AFTER);
            let data = self.data.base() + n * BYTES;
            let parts = [
                (base + HEADERS + 16 * n, 16, NEXT),
                (data, BYTES / 2, NEXT | access),
                (data + BYTES / 2, BYTES / 2, NEXT | access),
                (base + STATUSES + 8 * n, 1, WRITE),
            ];
            for (place, (address, bytes, flags)) in (4 * n..).zip(parts) {
                let descriptor = TABLE + 16 * place;
                rings.write(descriptor, address);
                rings.write32(descriptor + 8, bytes as u32);
                rings.write16(descriptor + 12, flags);
                rings.write16(descriptor + 14, place as u16 + 1);
            }
            rings.write16(AVAILABLE + 4 + 2 * n, 4 * n as u16);
        }
        fence(Ordering::SeqCst);
        rings.write16(AVAILABLE + 2, REQUESTS as u16);
        fence(Ordering::SeqCst);
        self.device.write32(QUEUE_NOTIFY, 0);
    }

    fn done(&self) -> u64 {
        self.rings.read(USED) >> 16 & 0xffff
    }

    /// All requests, to their end.
    fn finish(&self, kind: u64) -> Verdict {
        self.start()?;
        self.ask(kind);
        let all = || self.done() == REQUESTS;
        check(
            timer::wait_until(PATIENCE, all),
            "requests are never answered",
        )?;
        fence(Ordering::SeqCst);
        self.device.write32(INTERRUPT_ACKNOWLEDGE, 3);
        let failed = (0..REQUESTS).find(|n| self.rings.read(STATUSES + 8 * n) & 0xff != 0);
        equal("request that failed", failed.unwrap_or(REQUESTS), REQUESTS)
    }

    /// All requests, and a reset as soon as they were taken; how many were answered before.
    fn abandon(&self, kind: u64) -> Result<u64, Failure> {
        self.start()?;
        self.ask(kind);
        self.device.write32(STATUS, 0);
        fence(Ordering::SeqCst);
        let answered = self.done();
        self.fill(AFTER);
        for offset in [HEADERS, STATUSES, USED] {
            for n in 0..REQUESTS {
                self.rings.write(offset + 8 * n, AFTER);
            }
        }
        timer::wait_until(A_WHILE, || false);
        self.holds("data after a reset", AFTER)?;
        for offset in [STATUSES, USED] {
            for n in 0..REQUESTS {
                equal(
                    "status or ring after a reset",
                    self.rings.read(offset + 8 * n),
                    AFTER,
                )?;
            }
        }
        Ok(answered)
    }
}

/// Reads and writes of a disk, finished in every second round and abandoned in the others; and a frame that waits.
pub fn under_way(machine: &'static Machine) -> Verdict {
    let scratch = machine.scratch();
    let disk = virtio::devices(machine).find(|device| device.read32(DEVICE_ID) == DISK);
    check(disk.is_some(), "no disk")?;
    let queue = Queue {
        device: disk.unwrap_or(&Device::NONE),
        rings: scratch.part(0, QUEUE_MEMORY),
        data: scratch.part(QUEUE_MEMORY, REQUESTS * BYTES),
    };
    queue.fill(ON_DISK);
    queue.finish(1)?;
    let mut unanswered = 0;
    let mut round = 0;
    // How much a disk answers before the reset is up to QEMU's host.
    while round < ROUNDS || unanswered < ROUNDS && round < 8 * ROUNDS {
        queue.fill(BEFORE);
        queue.finish(0)?;
        queue.holds("data of a disk", ON_DISK)?;
        // What is written is what the disk holds; what the memory holds later never gets there.
        unanswered += REQUESTS - queue.abandon(round % 2)?;
        queue.fill(ON_DISK);
        if round % 2 == 1 {
            queue.finish(0)?;
            queue.holds("data of a disk after a reset", ON_DISK)?;
        }
        round += 1;
    }
    println!("hostile: {unanswered} requests were abandoned");
    check(unanswered >= ROUNDS, "no request was under way at a reset")?;
    frames(machine)
}

/// A frame waits for a receiver without buffers. Its sender lets it wait, or resets its device meanwhile.
fn frames(machine: &'static Machine) -> Verdict {
    let mut cards =
        virtio::devices(machine).filter(|device| device.read32(DEVICE_ID) == NETWORK_CARD);
    let (Some(sender), Some(receiver)) = (cards.next(), cards.next()) else {
        return check(false, "not two network devices");
    };
    let scratch = machine.scratch();
    let [from, to] = [0, QUEUE_MEMORY].map(|offset| scratch.part(offset, QUEUE_MEMORY));
    for resets in [false, true] {
        for (device, queue, memory) in [(receiver, 0, &to), (sender, 1, &from)] {
            memory.write(AVAILABLE, 0);
            memory.write(USED, 0);
            let base = memory.base();
            let rings = [base + TABLE, base + AVAILABLE, base + USED];
            virtio::start_with(device, queue, ENTRIES as u32, rings, [0, VERSION_1])?;
        }
        let mac = |device: &Device| {
            let [low, high] = [0, 4].map(|at| u64::from(device.read32(CONFIG + at)));
            low | (high & 0xffff) << 32
        };
        // A header of 12 bytes, then receiver, sender, and a type for experiments.
        let (own, other) = (mac(sender), mac(receiver));
        let words = [
            0,
            other << 32,
            other >> 32 | own << 16,
            0xb588,
            BEFORE,
            BEFORE,
            BEFORE,
            BEFORE,
        ];
        for (n, word) in (0..).zip(words) {
            from.write(HEADERS + 8 * n, word);
        }
        offer(sender, 1, &from, (76, 0));
        if resets {
            sender.write32(STATUS, 0);
            for n in 4..10 {
                from.write(HEADERS + 8 * n, AFTER);
            }
        }
        for n in 0..10 {
            to.write(HEADERS + 8 * n, 0);
        }
        offer(receiver, 0, &to, (2048, WRITE));
        let came = || to.read(USED) >> 16 & 0xffff == 1;
        let has_come = timer::wait_until(A_WHILE, came);
        let word = to.read(HEADERS + 40);
        check(has_come || resets, "a frame that waited does not come")?;
        equal(
            "what came of a frame",
            word,
            if resets { 0 } else { BEFORE },
        )?;
    }
    Ok(())
}

/// Makes a buffer available that is a queue's only one.
fn offer(device: &Device, queue: u32, memory: &Scratch, (bytes, flags): (u32, u16)) {
    memory.write(TABLE, memory.base() + HEADERS);
    memory.write32(TABLE + 8, bytes);
    memory.write16(TABLE + 12, flags);
    memory.write16(TABLE + 14, 0);
    memory.write16(AVAILABLE + 4, 0);
    fence(Ordering::SeqCst);
    memory.write16(AVAILABLE + 2, 1);
    fence(Ordering::SeqCst);
    device.write32(QUEUE_NOTIFY, queue);
}
