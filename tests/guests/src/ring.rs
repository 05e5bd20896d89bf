//! Hosts in a ring, each of which pings the others in turn and answers their pings, by virtio-net: what `sim/wire` is tested
//! with, on plain QEMU. All that a host learns goes into one digest: each stamp of its own counter, and each frame.
//!
//! Command line, times in counts of the counter: `hosts=N` (2), `rounds=N` pings (1000), `length=N` bytes of a ping (0: 60 to
//! 1459), `pause=N` at most before a ping (50000), `patience=N` for an answer (10000000), `busy=N` turns of a loop before a
//! ping (0), `link`: frames look like those of the link between hosts, `spin`: poll instead of WFI, `second`: CPU 1 works beside it, `end=N`: when it asks no more and prints its line
//! (0: as soon as its pings are over).
//!
//! With `flood=foreign`, `flood=hellos` or `flood=sealed` it is one that floods host 1 of a cluster in the name of host 2, without
//! their key: `length=N` bytes of a frame (60), `busy=N` turns of a loop before each, from `from=N` counts on. `sealed` names the
//! session of the two, once it has overheard it.
#![no_std]
#![no_main]
#![forbid(unsafe_code)]
#![expect(
    clippy::inline_always,
    reason = "tests of the wire know how many instructions a ping takes, whoever else calls these"
)]

#[path = "ring/flood.rs"]
mod flood;

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use machine_bare::device::Device;
use machine_bare::machine::Machine;
use machine_bare::memory::Scratch;
use machine_bare::timer::{self, VIRTUAL_INTID};
use machine_bare::verdict::{Failure, Verdict, check};
use machine_bare::{cpu, gic, image, println};
use tests_guests::virtio::{
    AVAILABLE, BUFFERS, DEVICE_ID, INTERRUPT_ACKNOWLEDGE, LIVE, QUEUE_NOTIFY, STATUS, TABLE, USED,
    VERSION_1, WRITE, devices, negotiate, set_queue,
};

image!("ring", main);

const NETWORK_CARD: u32 = 1;
const FEATURE_MAC: u32 = 1 << 5;
/// The last byte of the card's address, in its configuration.
const ADDRESS_END: usize = 0x105;
/// Where QEMU's `virt` has virtio-mmio, how far apart, and the interrupt of the first.
const MMIO_BASE: usize = 0x0a00_0000;
const MMIO_STEP: usize = 0x200;
const MMIO_INTID: u32 = 48;

/// Local experimental 2 (IEEE 802), and the first one, which is the link's between hypervisors of a cluster.
const ETHERTYPES: [[u8; 2]; 2] = [[0x88, 0xb6], [0x88, 0xb5]];
const RING: u16 = 64;
const SLOT_BYTES: u64 = 2048;
const QUEUE_BYTES: u64 = BUFFERS + RING as u64 * SLOT_BYTES;
/// The virtio-net header, and where it begins in a slot: so that frames are aligned.
const HEADER_BYTES: u64 = 12;
const HEADER_AT: u64 = 4;
const FRAME_AT: u64 = HEADER_AT + HEADER_BYTES;

const PING: u8 = 1;
const PONG: u8 = 2;

/// What CPU 1 and CPU 0 both change.
static WORD: AtomicU64 = AtomicU64::new(0);

/// One queue of the card.
struct Queue {
    device: Device,
    number: u32,
    memory: Scratch,
    given: u16,
    taken: u16,
}

impl Queue {
    fn new(device: Device, number: u32, memory: Scratch) -> Self {
        memory.write(AVAILABLE, 0);
        memory.write(USED, 0);
        let base = memory.base();
        let rings = [base + TABLE, base + AVAILABLE, base + USED];
        set_queue(&device, number, RING.into(), rings);
        Self {
            device,
            number,
            memory,
            given: 0,
            taken: 0,
        }
    }

    fn slot(slot: u16) -> u64 {
        BUFFERS + u64::from(slot) * SLOT_BYTES
    }

    /// Gives the card a slot: `length` bytes from its header on.
    fn give(&mut self, slot: u16, length: u32, flags: u16) {
        let entry = TABLE + 16 * u64::from(slot);
        let address = self.memory.base() + Self::slot(slot) + HEADER_AT;
        self.memory.write(entry, address);
        let flags = u64::from(flags) << 32;
        self.memory.write(entry + 8, flags | u64::from(length));
        let place = AVAILABLE + 4 + 2 * u64::from(self.given % RING);
        self.memory.write16(place, slot);
        self.given = self.given.wrapping_add(1);
    }

    fn show(&self) {
        self.memory.write16(AVAILABLE + 2, self.given);
        let wants_no_kick = self.memory.read(USED) & 1 != 0;
        if !wants_no_kick {
            self.device.write32(QUEUE_NOTIFY, self.number);
        }
    }

    fn used(&self) -> u16 {
        (self.memory.read(USED) >> 16) as u16
    }

    /// The next slot that the card gives back, and its bytes.
    fn take(&mut self) -> Option<(u16, u64)> {
        if self.taken == self.used() {
            return None;
        }
        let entry = USED + 8 * u64::from(self.taken % RING);
        self.taken = self.taken.wrapping_add(1);
        let slot = (self.memory.read(entry) >> 32) as u16 % RING;
        let bytes = self.memory.read(entry + 8) & 0xffff_ffff;
        Some((slot, bytes.saturating_sub(HEADER_BYTES)))
    }
}

/// A frame's words: addresses, kind and sender, round, the asker's stamp, the answerer's.
type Words = [u64; 5];

struct Host {
    me: u8,
    ethertype: [u8; 2],
    hosts: u64,
    receives: Queue,
    sends: Queue,
    line: gic::Line,
    spins: bool,
    digest: u64,
    frames: u64,
}

impl Host {
    fn new(machine: &'static Machine) -> Result<Self, Failure> {
        let card = devices(machine).find(|device| device.read32(DEVICE_ID) == NETWORK_CARD);
        let Some(card) = card.copied() else {
            check(false, "there is no network card")?;
            unreachable!();
        };
        negotiate(&card, [FEATURE_MAC, VERSION_1])?;
        let memory = machine.scratch();
        let mut receives = Queue::new(card, 0, memory.part(0, QUEUE_BYTES));
        let sends = Queue::new(card, 1, memory.part(QUEUE_BYTES, QUEUE_BYTES));
        card.write32(STATUS, LIVE);
        for slot in 0..RING {
            receives.give(slot, (SLOT_BYTES - HEADER_AT) as u32, WRITE);
        }
        receives.show();
        gic::init_distributor();
        gic::init_cpu();
        gic::Line::new(VIRTUAL_INTID).enable();
        let number = (card.base() - MMIO_BASE) / MMIO_STEP;
        let line = gic::Line::new(MMIO_INTID + number as u32);
        line.set_edge(true);
        line.set_up();
        Ok(Self {
            me: card.read8(ADDRESS_END),
            ethertype: ETHERTYPES[usize::from(machine.flag("link"))],
            hosts: machine.number("hosts", 2).max(2),
            receives,
            sends,
            line,
            spins: machine.flag("spin"),
            digest: 0xcbf2_9ce4_8422_2325,
            frames: 0,
        })
    }

    fn learn(&mut self, number: u64) {
        self.digest = (self.digest ^ number).wrapping_mul(0x100_0000_01b3);
        self.digest ^= self.digest >> 29;
    }

    fn send(&mut self, to: u8, kind: u8, [round, first, second]: [u64; 3], bytes: u64) {
        let [high, low] = self.ethertype;
        let words: Words = [
            u64::from_le_bytes([0x52, 0x54, 0, 0, 0, to, 0x52, 0x54]),
            u64::from_le_bytes([0, 0, 0, self.me, high, low, kind, self.me]),
            round,
            first,
            second,
        ];
        self.put(words, bytes);
    }

    /// Sends a frame that begins with these words.
    #[inline(always)]
    fn put(&mut self, words: Words, bytes: u64) {
        let slot = self.sends.given % RING;
        // The card is faster than this host, but for a wire that is busy.
        while self.sends.given.wrapping_sub(self.sends.used()) >= RING {}
        let place = Queue::slot(slot);
        for (n, word) in (0..).zip(words) {
            self.sends.memory.write(place + FRAME_AT + 8 * n, word);
        }
        self.sends.give(slot, (HEADER_BYTES + bytes) as u32, 0);
        self.sends.show();
    }

    /// The next frame, its bytes, and when it was seen.
    #[inline(always)]
    fn receive(&mut self) -> Option<(Words, u64, u64)> {
        let (slot, bytes) = self.receives.take()?;
        let place = Queue::slot(slot);
        let memory = self.receives.memory;
        let words = [0, 1, 2, 3, 4].map(|n| memory.read(place + FRAME_AT + 8 * n));
        self.receives
            .give(slot, (SLOT_BYTES - HEADER_AT) as u32, WRITE);
        self.receives.show();
        let now = timer::now();
        self.frames += 1;
        for number in [now, bytes].into_iter().chain(words) {
            self.learn(number);
        }
        Some((words, bytes, now))
    }

    /// Sleeps until the timer or the card interrupts.
    fn rest(&self) {
        if self.spins {
            return;
        }
        cpu::wait_for_interrupt();
        let intid = gic::acknowledge();
        if intid == self.line.intid() {
            self.receives.device.write32(INTERRUPT_ACKNOWLEDGE, 3);
        }
        if intid != gic::SPURIOUS {
            gic::end(intid);
        }
    }
}

/// What became of the pings.
#[derive(Default)]
struct Pings {
    answered: u64,
    unanswered: u64,
    /// Answers that come twice, late, or with another stamp than was sent.
    strays: u64,
    sum: u64,
    least: u64,
    most: u64,
}

impl Pings {
    fn note(&mut self, time: u64) {
        self.least = if self.answered == 0 {
            time
        } else {
            self.least.min(time)
        };
        self.most = self.most.max(time);
        self.sum += time;
        self.answered += 1;
    }
}

fn main(machine: &'static Machine) -> Verdict {
    let begin = timer::now();
    let mut host = Host::new(machine)?;
    if machine.flag("second") {
        check(cpu::start_others(fight).is_ok(), "CPU_ON is refused")?;
    }
    if let Some(kind) = machine.option("flood") {
        flood::run(machine, &mut host, kind);
    }
    let pings = ping(machine, &mut host);
    let mean = pings.sum / pings.answered.max(1);
    println!(
        "ring: host={} pings={} unanswered={} strays={} frames={} least={} mean={mean} most={} began={begin} ended={} digest={:016x}",
        host.me,
        pings.answered,
        pings.unanswered,
        pings.strays,
        host.frames,
        pings.least,
        pings.most,
        timer::now(),
        host.digest
    );
    Ok(())
}

/// Pings until all rounds are over, and answers until the end.
fn ping(machine: &Machine, host: &mut Host) -> Pings {
    let [rounds, length, pause, patience, busy, end] = [
        ("rounds", 1000),
        ("length", 0),
        ("pause", 50_000),
        ("patience", 10_000_000),
        ("busy", 0),
        ("end", 0),
    ]
    .map(|(key, usual)| machine.number(key, usual));
    let fights = machine.flag("second");
    let mut pings = Pings::default();
    let (mut round, mut asked) = (0, None);
    let mut chance = 12_345 + u64::from(host.me) * 777;
    // All come up meanwhile.
    timer::fire_at(1_000_000);
    loop {
        if timer::is_firing() {
            timer::stop();
            if asked.take().is_some() {
                pings.unanswered += 1;
                round += 1;
            }
            let now = timer::now();
            if round >= rounds || (end > 0 && now >= end) {
                if now >= end {
                    return pings;
                }
                timer::fire_at(end);
                continue;
            }
            cpu::spin(busy);
            if fights {
                host.learn(WORD.fetch_add(5, Relaxed));
            }
            let me = u64::from(host.me);
            let to = (me + 1 + round % (host.hosts - 1)) % host.hosts;
            let bytes = match length {
                0 => 60 + (round * 97 + me * 13) % 1400,
                bytes => bytes,
            };
            let now = timer::now();
            host.learn(now);
            host.send(to as u8, PING, [round, now, 0], bytes);
            asked = Some(now);
            timer::fire_at(now + patience);
        }
        let Some(([_, who, of, first, _], bytes, now)) = host.receive() else {
            host.rest();
            continue;
        };
        let [.., kind, from] = who.to_le_bytes();
        match kind {
            PING => host.send(from, PONG, [of, first, now], bytes),
            PONG if asked == Some(first) && of == round => {
                asked = None;
                pings.note(now - first);
                round += 1;
                chance = chance.wrapping_mul(1_664_525).wrapping_add(1_013_904_223) & 0xffff_ffff;
                let rest = (chance >> 8).checked_rem(pause).unwrap_or(0);
                timer::fire_at(timer::now() + 1 + rest);
            }
            _ => pings.strays += 1,
        }
    }
}

/// What CPU 1 does: it takes the word from CPU 0, and lets go of it now and then.
fn fight(_: usize) {
    loop {
        if WORD.fetch_add(1, Relaxed) % 7 == 3 {
            cpu::spin(20);
        }
    }
}
