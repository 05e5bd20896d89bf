//! Frames on a network device whose queue is driven as it should be: such as are none, such as are
//! another's, and too many good ones.

use machine_bare::device::Device;
use machine_bare::machine::Machine;
use machine_bare::verdict::{Verdict, check, equal};
use machine_bare::{cpu, println, timer};
use tests_guests::virtio::{self, DEVICE_ID, Queue};

/// The transmit queue.
const TRANSMIT: u32 = 1;
const NETWORK_CARD: u32 = 1;
const CONFIG: usize = 0x100;
/// Checksums, and segments of TCP over IPv4 and IPv6: all that the headers here ask for, in the lower
/// and the upper word; and UDP's.
const FEATURES: [u32; 2] = [1 | 1 << 11 | 1 << 12, 1 | 1 << 24];

/// How often each frame is sent.
const ROUNDS: u32 = 50;
/// Bytes of a frame that is good but for what is said of it.
const BYTES: u32 = 1014;
const ETHERNET: usize = 14;
const TCP: usize = 34;

const NEEDS_CHECKSUM: u8 = 1;
const TCP_V4: u8 = 1;
const TCP_V6: u8 = 4;
const UDP: u8 = 5;
const ECN: u8 = 0x80;

/// What is wrong: its name, bytes of the frame, flags and kind of the header, segment, where the
/// checksum starts and where it is from there, and the first byte of the TCP header's length.
type Bad = (&'static str, u32, [u8; 2], [u16; 3], u8);

const GOOD: [u16; 3] = [1000, TCP as u16, 16];
const BAD: [Bad; 16] = [
    ("no frame", 0, [0, 0], [0; 3], 0x50),
    ("13 bytes", 13, [0, 0], [0; 3], 0x50),
    ("beyond the MTU", 1519, [0, 0], [0; 3], 0x50),
    (
        "beyond the MTU, with a checksum",
        1519,
        [NEEDS_CHECKSUM, 0],
        GOOD,
        0x50,
    ),
    (
        "beyond 64 KiB",
        65_554,
        [NEEDS_CHECKSUM, TCP_V4],
        GOOD,
        0x50,
    ),
    (
        "checksum behind the frame",
        BYTES,
        [NEEDS_CHECKSUM, 0],
        [0, BYTES as u16, 16],
        0x50,
    ),
    (
        "checksum that wraps",
        BYTES,
        [NEEDS_CHECKSUM, 0],
        [0, 0xffff, 0xffff],
        0x50,
    ),
    (
        "checksum of the addresses",
        BYTES,
        [NEEDS_CHECKSUM, 0],
        [0, 6, 16],
        0x50,
    ),
    ("segments without checksum", BYTES, [0, TCP_V4], GOOD, 0x50),
    (
        "segments of no kind",
        BYTES,
        [NEEDS_CHECKSUM, 0x7f],
        GOOD,
        0x50,
    ),
    (
        "segments of 0 bytes",
        BYTES,
        [NEEDS_CHECKSUM, TCP_V4],
        [0, TCP as u16, 16],
        0x50,
    ),
    (
        "segments of another IP",
        BYTES,
        [NEEDS_CHECKSUM, TCP_V6],
        GOOD,
        0x50,
    ),
    (
        "segments of another protocol",
        BYTES,
        [NEEDS_CHECKSUM, UDP],
        GOOD,
        0x50,
    ),
    (
        "segments with ECN unasked",
        BYTES,
        [NEEDS_CHECKSUM, TCP_V4 | ECN],
        GOOD,
        0x50,
    ),
    (
        "TCP header of 0 bytes",
        BYTES,
        [NEEDS_CHECKSUM, TCP_V4],
        GOOD,
        0,
    ),
    (
        "TCP header longer than the frame",
        60,
        [NEEDS_CHECKSUM, TCP_V4],
        GOOD,
        0xf0,
    ),
];

/// A network device with its transmit queue up.
struct Card {
    queue: Queue<'static>,
    mac: [u8; 6],
}

impl Card {
    fn find(machine: &'static Machine) -> Option<Self> {
        let is_card = |device: &&Device| device.read32(DEVICE_ID) == NETWORK_CARD;
        let device = virtio::devices(machine).find(is_card)?;
        let queue = Queue::start(device, TRANSMIT, machine.scratch(), FEATURES).ok()?;
        let mac = core::array::from_fn(|n| device.read8(CONFIG + n));
        Some(Self { queue, mac })
    }

    /// Sends a frame to all from `source`, with that header before it.
    fn send(&mut self, source: [u8; 6], header: [u8; 12], (bytes, tcp): (u32, u8)) -> Verdict {
        let mut all = [0; 96];
        all[..12].copy_from_slice(&header);
        let frame = &mut all[12..];
        frame[..6].fill(0xff);
        frame[6..12].copy_from_slice(&source);
        // IPv4, a header of 20 bytes, TCP.
        frame[ETHERNET - 2..=ETHERNET].copy_from_slice(&[8, 0, 0x45]);
        frame[ETHERNET + 9] = 6;
        frame[TCP + 12] = tcp;
        self.queue.send(&all, 12 + bytes)
    }
}

/// Each of the frames that are none, and frames under another's address: all go back to this driver,
/// whose device goes on.
pub fn malformed(machine: &'static Machine) -> Verdict {
    let mut card = Card::find(machine);
    let Some(card) = &mut card else {
        return check(false, "no network device");
    };
    for (name, bytes, [flags, kind], [size, start, offset], tcp) in BAD {
        let mut header = [0; 12];
        (header[0], header[1]) = (flags, kind);
        for (at, word) in [(4, size), (6, start), (8, offset)] {
            header[at..at + 2].copy_from_slice(&word.to_le_bytes());
        }
        println!("hostile: {name}");
        for _ in 0..ROUNDS {
            card.send(card.mac, header, (bytes, tcp))?;
        }
    }
    for _ in 0..ROUNDS {
        card.send([2, 0, 0, 0xbe, 0xef, 1], [0; 12], (BYTES, 0x50))?;
        card.send([0xff; 6], [0; 12], (BYTES, 0x50))?;
    }
    let (bad, spoofed) = (BAD.len() as u32 * ROUNDS, 2 * ROUNDS);
    println!("hostile: {bad} frames that are none, {spoofed} under other addresses");
    card.send(card.mac, [0; 12], (BYTES, 0x50))?;
    equal(
        "device's status",
        card.queue.status().into(),
        virtio::LIVE.into(),
    )
}

/// Good frames to all, as fast as they go.
pub fn storm(machine: &'static Machine) -> Verdict {
    let mut card = Card::find(machine);
    let Some(card) = &mut card else {
        return check(false, "no network device");
    };
    let end = timer::now() + machine.number("seconds", 1).min(1 << 20) * timer::frequency();
    let mut sent = 0;
    while timer::now() < end {
        card.send(card.mac, [0; 12], (BYTES, 0x50))?;
        sent += 1;
    }
    println!("hostile: {sent} frames to all");
    Ok(())
}

/// A frame for all of 64 KiB in segments of 256 bytes, as fast as they go: for whoever knows no segments, each is
/// cut into 254.
pub fn segments(machine: &'static Machine) -> Verdict {
    let mut card = Card::find(machine);
    let Some(card) = &mut card else {
        return check(false, "no network device");
    };
    let mut header = [0; 12];
    (header[0], header[1]) = (NEEDS_CHECKSUM, TCP_V4);
    for (at, word) in [(4, 256), (6, TCP as u16), (8, 16)] {
        header[at..at + 2].copy_from_slice(&word.to_le_bytes());
    }
    let end = timer::now() + machine.number("seconds", 1).min(1 << 20) * timer::frequency();
    let mut sent = 0;
    while timer::now() < end {
        card.send(card.mac, header, (65_000, 0x50))?;
        sent += 1;
    }
    println!("hostile: {sent} frames of many segments to all");
    Ok(())
}

/// A network device that is up, knows no segments, and takes no frame.
pub fn deaf(machine: &'static Machine) -> Verdict {
    let is_card = |device: &&Device| device.read32(DEVICE_ID) == NETWORK_CARD;
    let Some(device) = virtio::devices(machine).find(is_card) else {
        return check(false, "no network device");
    };
    let _queue = Queue::start(device, 0, machine.scratch(), [0, 1])?;
    println!("hostile: hears nothing");
    loop {
        cpu::wait_for_interrupt();
    }
}
