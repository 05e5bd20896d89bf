//! Requests with memory that runs out anywhere: what the status says happened, and nothing else.
#![allow(clippy::unwrap_used, reason = "a test")]

use machine_fake::FakeFrames;
use model_addr::{FRAME_SIZE, FrameRange, Ipa, IpaRange, Mfn, VmId};
use model_address_space::Policy;
use proptest::prelude::*;
use tests_request_path::{Disk, Driver, Guest, Image, Kind};

const RAM: IpaRange = IpaRange {
    start: Ipa(0x4000_0000),
    size: 0x60_0000,
};
/// Data are anywhere in the second half.
const DATA: u64 = RAM.start.0 + 0x20_0000;
const BLOCKS: usize = 24;
/// A disk's own blocks are fewer than it has.
const LIMIT: u64 = 16;
const NODES: [FrameRange; 1] = [FrameRange {
    start: Mfn(0x8_0000),
    count: 4 * 512,
}];
const IMAGE: Mfn = Mfn(0x10_0000);
const POLICY: Policy = Policy {
    share: true,
    keep_blocks: false,
    hide: false,
};

#[derive(Clone, Debug)]
struct Sent {
    write: bool,
    sector: u64,
    sectors: u64,
    /// Where the data are, not aligned.
    at: u64,
    seed: u8,
    /// The allocations that succeed before all fail: of frames, of the overlay's tables, of the
    /// records of users.
    frames: Option<u64>,
    tables: Option<u64>,
    records: Option<u64>,
}

fn sent() -> impl Strategy<Value = Sent> {
    let some = || prop::option::weighted(0.4, 0..5_u64);
    // Many requests are of whole pages.
    let at = prop_oneof![0..0x3e_0000_u64, (0..0x3e0_u64).prop_map(|page| page << 12)];
    let sector = prop_oneof![
        0..BLOCKS as u64 * 8 + 4,
        (0..BLOCKS as u64).prop_map(|block| block * 8)
    ];
    let place = (sector, 1..40_u64, at);
    let fails = (some(), some(), some());
    (any::<bool>(), place, 0..4_u8, fails).prop_map(
        |(write, (sector, sectors, at), seed, (frames, tables, records))| Sent {
            write,
            sector,
            sectors,
            at,
            seed,
            frames,
            tables,
            records,
        },
    )
}

struct World<'a> {
    frames: &'a FakeFrames,
    guest: Guest<'a>,
    disk: Disk<'a>,
    driver: Driver,
    /// What the disk must contain.
    expected: Vec<u8>,
}

impl<'a> World<'a> {
    fn new(frames: &'a FakeFrames, image: &'a Image, expected: Vec<u8>) -> Self {
        let vm = VmId::default();
        let guest = Guest::new(frames, vm, RAM, POLICY);
        let mut disk = Disk::new(frames, image, vm, LIMIT);
        let driver = Driver::start(&guest, &mut disk, RAM.start);
        Self {
            frames,
            guest,
            disk,
            driver,
            expected,
        }
    }

    fn request(&mut self, sent: &Sent) {
        let (data, len) = (Ipa(DATA + sent.at), sent.sectors * 512);
        let pattern: Vec<u8> = (0..len).map(|n| (n / 5) as u8 ^ sent.seed).collect();
        if sent.write && !self.guest.put(data, &pattern) {
            return;
        }
        let kind = if sent.write { Kind::Write } else { Kind::Read };
        let what = (kind, sent.sector);
        self.driver.submit(&self.guest, what, &[(data, len)]);
        self.frames.fail_after(sent.frames);
        self.frames.fail_records_after(sent.records);
        self.disk.fail_tables_after(sent.tables);
        let status = self.driver.ring(&self.guest, &mut self.disk);
        self.frames.fail_after(None);
        self.frames.fail_records_after(None);
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
        let base: Vec<u8> = (0..BLOCKS * 4096).map(|n| (n / 97) as u8).collect();
        let image = Image::new(IMAGE, &base);
        let frames = image.machine(&NODES);
        let free = frames.counts()[0].free;
        let mut world = World::new(&frames, &image, base);
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
            records: None,
        });
        prop_assert_eq!((world.disk.end(), world.guest.end()), (0, 0), "tables are left");
        prop_assert_eq!(frames.counts()[0].free, free, "frames are left");
        prop_assert_eq!(frames.record_frames(), 0, "records are left");
    }
}
