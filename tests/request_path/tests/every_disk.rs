//! Every kind of disk against plain bytes: reads, writes, zeroes, discards and flushes from and to any sector,
//! with any number of segments at any address and of any length.
#![allow(clippy::unwrap_used, reason = "a test")]

use machine_fake::FakeFrames;
use model_addr::{FRAME_SIZE, FrameRange, Ipa, IpaRange, Mfn, VmId};
use model_address_space::Policy;
use proptest::prelude::*;
use tests_request_path::{Disk, DiskKind, Driver, Guest, Host, Image, Kind, Partition};

const RAM: IpaRange = IpaRange {
    start: Ipa(0x4000_0000),
    size: 0x60_0000,
};
const RANGES: u64 = RAM.start.0 + 0x4000;
const DATA: u64 = RAM.start.0 + 0x20_0000;
const DATA_BYTES: u64 = 0xc_0000;
const PAGE: usize = FRAME_SIZE as usize;
/// Larger than some transfers, and no whole number of them.
const BLOCKS: usize = 44;
const SECTORS: u64 = BLOCKS as u64 * 8;
const NODES: [FrameRange; 1] = [FrameRange {
    start: Mfn(0x8_0000),
    count: 8 * 512,
}];
const IMAGE: Mfn = Mfn(0x10_0000);
const KINDS: usize = 6;
const SHARES: Policy = Policy {
    share: true,
    keep_blocks: false,
    hide: false,
};

#[derive(Clone, Debug)]
enum Step {
    /// Segments, and where in the disk they go or come from.
    Transfer(bool, u64, Vec<(u64, u64)>),
    Zero(bool, Vec<(u64, u64)>),
    Flush,
    /// The guest stores to some pages.
    Store(u64, u64, u8),
}

/// Segments whose lengths add up to whole sectors.
fn segments() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let at = || prop_oneof![0..0xa0_u64, Just(0)].prop_map(|page| page * FRAME_SIZE);
    let shift =
        prop_oneof![3 => Just(0), 1 => (0..8_u64).prop_map(|n| n * 512), 1 => 0..FRAME_SIZE];
    let whole = (at(), 1..20_u64).prop_map(|(at, pages)| (at, pages * FRAME_SIZE));
    let sectors = (at(), shift, 1..150_u64).prop_map(|(at, shift, n)| (at + shift, n * 512));
    let bytes = (0..DATA_BYTES - 0x2000, 1..5000_u64);
    let one = prop_oneof![3 => whole, 4 => sectors, 1 => bytes];
    prop::collection::vec(one, 1..6).prop_map(|mut segments| {
        let odd: u64 = segments.iter().map(|(_, len)| len).sum::<u64>() % 512;
        if odd > 0 {
            let last = segments.len() - 1;
            segments[last].1 += 512 - odd;
        }
        segments
    })
}

fn step() -> impl Strategy<Value = Step> {
    let sector = || prop_oneof![2 => 0..SECTORS, 1 => (0..SECTORS / 8).prop_map(|block| block * 8)];
    let count = prop_oneof![1 => 1..8_u64, 1 => 1..SECTORS];
    let ranges = prop::collection::vec((sector(), count), 1..4);
    prop_oneof![
        4 => (sector(), segments()).prop_map(|(at, data)| Step::Transfer(false, at, data)),
        5 => (sector(), segments()).prop_map(|(at, data)| Step::Transfer(true, at, data)),
        2 => (any::<bool>(), ranges).prop_map(|(discard, ranges)| Step::Zero(discard, ranges)),
        1 => Just(Step::Flush),
        3 => (0..0xb0_u64, 1..16_u64, any::<u8>()).prop_map(|(page, n, byte)| Step::Store(page, n, byte)),
    ]
}

/// Blocks that differ, some of which are zero.
fn base(seed: usize) -> Vec<u8> {
    let byte = |n: usize| match n / PAGE % 7 {
        3 => 0,
        _ => (n / 61 + n / PAGE * 5 + seed) as u8 | 1,
    };
    (0..BLOCKS * PAGE).map(byte).collect()
}

struct World<'a> {
    guest: Guest<'a>,
    disk: Disk<'a>,
    driver: Driver,
    blocks: Vec<u8>,
    memory: Vec<u8>,
    /// Whether it takes writes, and discards.
    takes: (bool, bool),
}

impl World<'_> {
    fn step(&mut self, step: &Step) {
        match step {
            Step::Transfer(writes, sector, segments) => self.transfer(*writes, *sector, segments),
            Step::Zero(discard, ranges) => self.zero(*discard, ranges),
            Step::Flush => assert_eq!(self.request((Kind::Flush, 0), &[]), 0),
            Step::Store(page, count, byte) => {
                let (at, len) = (*page as usize * PAGE, *count as usize * PAGE);
                let bytes: Vec<u8> = (0..len).map(|n| (n / 97) as u8 ^ byte).collect();
                assert!(self.guest.put(Ipa(DATA + at as u64), &bytes));
                self.memory[at..at + len].copy_from_slice(&bytes);
            }
        }
    }

    fn request(&mut self, what: (Kind, u64), data: &[(Ipa, u64)]) -> u8 {
        self.driver.submit(&self.guest, what, data);
        self.driver.ring(&self.guest, &mut self.disk)
    }

    fn transfer(&mut self, writes: bool, sector: u64, segments: &[(u64, u64)]) {
        let kind = if writes { Kind::Write } else { Kind::Read };
        let data: Vec<_> = segments
            .iter()
            .map(|(at, len)| (Ipa(DATA + at), *len))
            .collect();
        let status = self.request((kind, sector), &data);
        let bytes: u64 = segments.iter().map(|(_, len)| len).sum();
        let mut done = sector as usize * 512;
        let fits = done + bytes as usize <= self.blocks.len() && (!writes || self.takes.0);
        assert_eq!(status, u8::from(!fits), "{sector} {segments:?}");
        for (at, len) in segments.iter().filter(|_| fits) {
            let run = *at as usize..(at + len) as usize;
            let disk = &mut self.blocks[done..done + run.len()];
            if writes {
                disk.copy_from_slice(&self.memory[run]);
            } else {
                self.memory[run].copy_from_slice(disk);
            }
            done += *len as usize;
        }
    }

    fn zero(&mut self, discard: bool, ranges: &[(u64, u64)]) {
        let mut list = Vec::new();
        for (sector, count) in ranges {
            list.extend(sector.to_le_bytes());
            list.extend((*count as u32).to_le_bytes());
            list.extend([0; 4]);
        }
        assert!(self.guest.put(Ipa(RANGES), &list));
        let kind = if discard {
            Kind::Discard
        } else {
            Kind::WriteZeroes
        };
        let status = self.request((kind, 0), &[(Ipa(RANGES), list.len() as u64)]);
        let fits = ranges
            .iter()
            .all(|(sector, count)| sector + count <= SECTORS);
        let takes = self.takes.1 && fits;
        assert!(
            status == 0 && takes || status != 0 && !(discard && takes),
            "{ranges:?}: {status}"
        );
        if status != 0 || discard {
            // A discard is a hint; what is refused is refused whole.
            let now = self.disk.contents();
            let all = ranges
                .iter()
                .flat_map(|(sector, count)| *sector..sector + count);
            for sector in all.filter(|sector| discard && *sector < SECTORS) {
                let run = sector as usize * 512..(sector as usize + 1) * 512;
                if now[run.clone()].iter().all(|byte| *byte == 0) {
                    self.blocks[run].fill(0);
                }
            }
            return;
        }
        for (sector, count) in ranges {
            self.blocks[*sector as usize * 512..(sector + count) as usize * 512].fill(0);
        }
    }

    fn check(&self) {
        assert!(self.disk.contents() == self.blocks, "the disk is another");
        let seen = self.guest.get(Ipa(DATA), self.memory.len());
        let differs = seen.iter().zip(&self.memory).position(|(a, b)| a != b);
        assert_eq!(differs, None, "the memory is another");
    }
}

fn world<'a>(kind: usize, frames: &'a FakeFrames, image: &'a Image) -> World<'a> {
    let bytes = base(0);
    let partition = |number, bytes: &[u8]| Partition::new(frames, number, bytes);
    let room = || partition(2, &vec![0xee; (BLOCKS + 3) * PAGE]);
    let kind_of = match kind {
        0 => DiskKind::Cow(image),
        1 => DiskKind::CowPartition(partition(1, &bytes)),
        2 => DiskKind::CowOn(image, room()),
        3 => DiskKind::CowPartitionOn(partition(1, &bytes), room()),
        4 => DiskKind::ReadOnly(image),
        _ => DiskKind::Persistent(partition(1, &bytes)),
    };
    let vm = VmId::default();
    let guest = Guest::new(frames, vm, RAM, SHARES);
    let mut disk = Disk::of(frames, kind_of, vm, BLOCKS as u64);
    let driver = Driver::start(&guest, &mut disk, RAM.start);
    World {
        guest,
        disk,
        driver,
        blocks: bytes,
        memory: vec![0; DATA_BYTES as usize],
        takes: (kind != 4, kind < 4),
    }
}

/// What nobody uses any more goes back to its pool.
fn evict(frames: &FakeFrames) {
    let all = (0..NODES[0].count).map(|n| NODES[0].start.add(n));
    Host(frames).evict_all(all);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn a_disk_is_its_bytes(steps in prop::collection::vec(step(), 1..24), is_long in any::<bool>()) {
        for kind in 0..KINDS {
            let image = Image::new(IMAGE, &base(0));
            let frames = image.machine(&NODES);
            let free = frames.counts()[0].free;
            let mut world = world(kind, &frames, &image);
            if is_long {
                world.disk.take_long();
            }
            for (step, n) in steps.iter().zip(1..) {
                world.step(step);
                assert!(world.disk.contents() == world.blocks, "the disk is another");
                if n % 5 == 0 || n == steps.len() {
                    world.check();
                }
            }
            prop_assert_eq!((world.disk.end(), world.guest.end()), (0, 0), "tables are left");
            evict(&frames);
            prop_assert_eq!(frames.counts()[0].free, free, "frames are left");
            prop_assert_eq!(frames.record_frames(), 0, "records are left");
        }
    }
}

/// A write as a guest makes it whose partition begins at sector 63: every alignment of the first sector, and
/// lengths around that of a transfer.
#[test]
fn long_transfers_begin_anywhere() {
    for kind in [1, 2, 3, 5] {
        let image = Image::new(IMAGE, &base(0));
        let frames = image.machine(&NODES);
        let mut world = world(kind, &frames, &image);
        world.step(&Step::Store(0, 44, 3));
        for first in 0..10 {
            for sectors in [127, 128, 129, 255, 256, 257, 300] {
                let data = vec![(first * 512, sectors * 512)];
                world.step(&Step::Transfer(true, first, data.clone()));
                world.step(&Step::Transfer(false, (first + 5) % 9, data));
            }
        }
        world.check();
    }
}

/// A request whose every pass takes too long is done a piece at a time, and comes to its end.
#[test]
fn a_long_pass_ends_after_a_piece() {
    for kind in 0..KINDS {
        let image = Image::new(IMAGE, &base(0));
        let frames = image.machine(&NODES);
        let mut world = world(kind, &frames, &image);
        world.disk.take_long();
        world.step(&Step::Store(0, 44, 9));
        for writes in [true, false] {
            world.step(&Step::Transfer(writes, 0, vec![(0, 40 * FRAME_SIZE)]));
            let passes = world.disk.passes();
            let is_refused = writes && !world.takes.0;
            assert!(
                is_refused || passes >= 40,
                "{kind}, {writes}: {passes} passes"
            );
        }
        world.check();
    }
}

/// Requests of many pieces end pass by pass, and a physical disk that fails fails them.
#[test]
fn a_pass_is_bounded_and_a_failure_is_told() {
    let image = Image::new(IMAGE, &base(0));
    let frames = image.machine(&NODES);
    let mut world = world(0, &frames, &image);
    let all = vec![(0, BLOCKS as u64 * FRAME_SIZE)];
    world.step(&Step::Store(0, 44, 9));
    world.step(&Step::Transfer(true, 0, all.clone()));
    assert!(world.disk.passes() >= 2, "{} passes", world.disk.passes());
    world.step(&Step::Zero(true, vec![(0, SECTORS)]));
    world.step(&Step::Transfer(false, 8, vec![(0, 5 * FRAME_SIZE)]));
    world.check();

    let partition = Partition::new(&frames, 1, &base(0));
    let vm = VmId {
        index: 1,
        generation: 1,
    };
    let guest = Guest::new(&frames, vm, RAM, SHARES);
    let mut disk = Disk::of(&frames, DiskKind::Persistent(partition.clone()), vm, 0);
    let mut driver = Driver::start(&guest, &mut disk, RAM.start);
    for (working, status) in [(0, 1), (1, 1), (2, 1), (3, 0)] {
        partition.fail_after(Some(working));
        driver.submit(&guest, (Kind::Read, 3), &[(Ipa(DATA), 40 * FRAME_SIZE)]);
        assert_eq!(driver.ring(&guest, &mut disk), status);
    }
}
