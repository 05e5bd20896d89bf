//! Requests with memory that runs out anywhere: what the status says happened, and nothing else.
#![allow(clippy::unwrap_used, reason = "a test")]

use machine_fake::FakeFrames;
use model_addr::{FRAME_SIZE, FrameRange, Ipa, IpaRange, Mfn};
use model_virtio::Effect;
use proptest::prelude::*;
use tests_request_path::{Disk, Guest, Interrupts};

const RAM: IpaRange = IpaRange {
    start: Ipa(0x4000_0000),
    size: 0x60_0000,
};
const RINGS: Ipa = RAM.start;
const DRIVER: u64 = RINGS.0 + 0x1000;
const DEVICE: u64 = RINGS.0 + 0x2000;
const HEADER: Ipa = Ipa(RINGS.0 + 0x3000);
const STATUS: Ipa = Ipa(RINGS.0 + 0x3800);
/// Data are anywhere in the second half.
const DATA: u64 = RAM.start.0 + 0x20_0000;
const QUEUE_SIZE: u64 = 8;
const BLOCKS: usize = 24;
/// A disk's own blocks are fewer than it has.
const LIMIT: u64 = 16;
const NODES: [FrameRange; 1] = [FrameRange {
    start: Mfn(0x8_0000),
    count: 4 * 512,
}];

/// Registers of the transport (virtio 4.2.2).
mod reg {
    pub const DRIVER_FEATURES: u64 = 0x020;
    pub const DRIVER_FEATURES_SEL: u64 = 0x024;
    pub const QUEUE_SIZE: u64 = 0x038;
    pub const QUEUE_READY: u64 = 0x044;
    pub const QUEUE_NOTIFY: u64 = 0x050;
    pub const INTERRUPT_STATUS: u64 = 0x060;
    pub const INTERRUPT_ACK: u64 = 0x064;
    pub const STATUS: u64 = 0x070;
    pub const QUEUE_DESC_LOW: u64 = 0x080;
    pub const QUEUE_DRIVER_LOW: u64 = 0x090;
    pub const QUEUE_DEVICE_LOW: u64 = 0x0a0;
}

#[derive(Clone, Debug)]
struct Sent {
    write: bool,
    sector: u64,
    sectors: u64,
    /// Where the data are, not aligned.
    at: u64,
    seed: u8,
    /// The allocations that succeed before all fail: of frames, of the overlay's tables.
    frames: Option<u64>,
    tables: Option<u64>,
}

fn sent() -> impl Strategy<Value = Sent> {
    let some = || prop::option::weighted(0.4, 0..5_u64);
    let place = (0..BLOCKS as u64 * 8 + 4, 1..40_u64, 0..0x3e_0000_u64);
    (any::<bool>(), place, any::<u8>(), some(), some()).prop_map(
        |(write, (sector, sectors, at), seed, frames, tables)| Sent {
            write,
            sector,
            sectors,
            at,
            seed,
            frames,
            tables,
        },
    )
}

struct World<'a> {
    frames: &'a FakeFrames,
    guest: Guest<'a>,
    disk: Disk<'a>,
    interrupts: Interrupts,
    requests: u16,
    /// What the disk must contain.
    expected: Vec<u8>,
}

impl<'a> World<'a> {
    fn new(frames: &'a FakeFrames) -> Self {
        let base: Vec<u8> = (0..BLOCKS * 4096).map(|n| (n / 97) as u8).collect();
        let mut world = Self {
            frames,
            guest: Guest::new(frames, RAM),
            disk: Disk::new(frames, base.clone(), LIMIT),
            interrupts: Interrupts::new(),
            requests: 0,
            expected: base,
        };
        assert!(world.guest.put(RINGS, &[0; 0x4000]));
        world.start();
        world
    }

    /// The driver finds the device and sets its queue up (virtio 3.1.1).
    fn start(&mut self) {
        let transport = &mut self.disk.transport;
        let mut write = |register, value| transport.write(register, 4, value);
        for status in [1, 3] {
            write(reg::STATUS, status);
        }
        // VIRTIO_F_VERSION_1.
        write(reg::DRIVER_FEATURES_SEL, 1);
        write(reg::DRIVER_FEATURES, 1);
        write(reg::STATUS, 0xb);
        write(reg::QUEUE_SIZE, QUEUE_SIZE);
        for (register, at) in [
            (reg::QUEUE_DESC_LOW, RINGS.0),
            (reg::QUEUE_DRIVER_LOW, DRIVER),
            (reg::QUEUE_DEVICE_LOW, DEVICE),
        ] {
            write(register, at & 0xffff_ffff);
            write(register + 4, at >> 32);
        }
        write(reg::QUEUE_READY, 1);
        assert_eq!(write(reg::STATUS, 0xf), Effect::Live);
    }

    /// The driver puts a request into the ring.
    fn submit(&mut self, sent: &Sent, data: Ipa, len: u64) {
        let mut header = [0; 16];
        header[0] = u8::from(sent.write);
        header[8..].copy_from_slice(&sent.sector.to_le_bytes());
        let buffers = [
            (HEADER, 16, false),
            (data, len, !sent.write),
            (STATUS, 1, true),
        ];
        let mut descriptors = Vec::new();
        for (n, (ipa, len, device_writes)) in (1_u16..).zip(buffers) {
            descriptors.extend(ipa.0.to_le_bytes());
            descriptors.extend((len as u32).to_le_bytes());
            let flags = u16::from(n < 3) | u16::from(device_writes) << 1;
            descriptors.extend(flags.to_le_bytes());
            descriptors.extend(n.to_le_bytes());
        }
        let slot = DRIVER + 4 + 2 * (u64::from(self.requests) % QUEUE_SIZE);
        self.requests = self.requests.wrapping_add(1);
        let stores: [(Ipa, &[u8]); 5] = [
            (HEADER, &header),
            (STATUS, &[0xff]),
            (RINGS, &descriptors),
            (Ipa(slot), &[0, 0]),
            (Ipa(DRIVER + 2), &self.requests.to_le_bytes()),
        ];
        // What is stored here was touched before: it needs no memory.
        assert!(
            stores
                .iter()
                .all(|(ipa, bytes)| self.guest.put(*ipa, bytes))
        );
    }

    /// The vCPU exits for the doorbell; the driver then waits for its interrupt. The status.
    fn ring(&mut self) -> u8 {
        let effect = self.disk.transport.write(reg::QUEUE_NOTIFY, 4, 0);
        assert_eq!(effect, Effect::Notify(0));
        self.disk.serve(&self.guest);
        self.interrupts.set_line(self.disk.transport.irq_level());
        let taken = self.interrupts.acknowledge();
        assert!(taken.is_some(), "the interrupt is lost");
        let intid = taken.unwrap();
        let transport = &mut self.disk.transport;
        let reasons = transport.read(reg::INTERRUPT_STATUS, 4);
        assert_eq!(reasons, 1, "a buffer was used, and no error");
        transport.write(reg::INTERRUPT_ACK, 4, reasons);
        self.interrupts.set_line(transport.irq_level());
        self.interrupts.end(intid);
        assert_eq!(self.interrupts.acknowledge(), None, "once");
        assert_eq!(
            self.guest.get(Ipa(DEVICE + 2), 2),
            self.requests.to_le_bytes()
        );
        self.guest.get(STATUS, 1)[0]
    }

    fn request(&mut self, sent: &Sent) {
        let (data, len) = (Ipa(DATA + sent.at), sent.sectors * 512);
        let pattern: Vec<u8> = (0..len).map(|n| (n / 5) as u8 ^ sent.seed).collect();
        if sent.write && !self.guest.put(data, &pattern) {
            return;
        }
        self.submit(sent, data, len);
        self.frames.fail_after(sent.frames);
        self.disk.fail_tables_after(sent.tables);
        let status = self.ring();
        self.frames.fail_after(None);
        self.disk.fail_tables_after(None);
        let from = (sent.sector * 512) as usize;
        let fits = from + len as usize <= self.expected.len();
        let may_fail = sent.frames.is_some() || sent.tables.is_some() || sent.write;
        match (status, fits) {
            (0, true) => {
                let run = from..from + len as usize;
                if sent.write {
                    self.expected[run].copy_from_slice(&pattern);
                } else {
                    assert_eq!(self.guest.get(data, len as usize), self.expected[run]);
                }
            }
            (1, true) => {
                assert!(may_fail);
                self.settle(sent.write, from, &pattern);
            }
            (status, fits) => assert_eq!((status, fits), (1, false)),
        }
        assert!(
            self.disk.contents() == self.expected,
            "the disk is what was acknowledged"
        );
    }

    /// After a write that failed, each block has its old contents or its new ones.
    fn settle(&mut self, is_write: bool, from: usize, pattern: &[u8]) {
        let now = self.disk.contents();
        let mut at = 0;
        while is_write && at < pattern.len() {
            let block = FRAME_SIZE as usize;
            let piece = (pattern.len() - at).min(block - (from + at) % block);
            let new = &pattern[at..at + piece];
            let run = from + at..from + at + piece;
            if now[run.clone()] == *new {
                self.expected[run].copy_from_slice(new);
            }
            at += piece;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn the_status_says_what_happened(requests in prop::collection::vec(sent(), 1..40)) {
        let frames = FakeFrames::new(&NODES);
        let free = frames.counts()[0].free;
        let mut world = World::new(&frames);
        for sent in &requests {
            world.request(sent);
        }
        // Memory is back: whatever failed before succeeds now, within the disk's limit.
        world.request(&Sent {
            write: false,
            sector: 0,
            sectors: BLOCKS as u64 * 8,
            at: 0,
            seed: 0,
            frames: None,
            tables: None,
        });
        prop_assert_eq!(world.guest.get(STATUS, 1), [0]);
        prop_assert_eq!((world.disk.end(), world.guest.end()), (0, 0), "tables are left");
        prop_assert_eq!(frames.counts()[0].free, free, "frames are left");
    }
}
