//! A guest that does anything with a disk of any kind, and plain bytes that say what disk and memory must hold.

use crate::{Disk, DiskKind, Driver, Guest, Image, Kind, Partition};
use machine_fake::FakeFrames;
use model_addr::{FRAME_SIZE, FrameRange, Ipa, IpaRange, Mfn, VmId};
use model_address_space::Policy;
use proptest::prelude::*;

/// The guest's memory.
pub const RAM: IpaRange = IpaRange {
    start: Ipa(0x4000_0000),
    size: 0x60_0000,
};
const RANGES: u64 = RAM.start.0 + 0x4000;
/// Where its data are.
pub const DATA: u64 = RAM.start.0 + 0x20_0000;
const DATA_BYTES: u64 = 0xc_0000;
const PAGE: usize = FRAME_SIZE as usize;
/// Blocks of a disk: larger than some transfers, and no whole number of them.
pub const BLOCKS: usize = 44;
/// Sectors of a disk.
pub const SECTORS: u64 = BLOCKS as u64 * 8;
/// The machine's memory.
pub const NODES: [FrameRange; 1] = [FrameRange {
    start: Mfn(0x8_0000),
    count: 8 * 512,
}];
/// Where the image's frames are.
pub const IMAGE: Mfn = Mfn(0x10_0000);
/// Kinds of disks that [`World::new`] makes.
pub const KINDS: usize = 6;
/// A guest that shares.
pub const SHARES: Policy = Policy {
    share: true,
    keep_blocks: false,
    hide: false,
};

/// What a guest does next.
#[derive(Clone, Debug)]
pub enum Step {
    /// Segments, and where in the disk they go or come from.
    Transfer(bool, u64, Vec<(u64, u64)>),
    /// A discard, or zeroes written, and its ranges: first sector and count.
    Zero(bool, Vec<(u64, u64)>),
    /// All that was written is to outlive a loss of power.
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

/// Any step.
pub fn step() -> impl Strategy<Value = Step> {
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
pub fn base(seed: usize) -> Vec<u8> {
    let byte = |n: usize| match n / PAGE % 7 {
        3 => 0,
        _ => (n / 61 + n / PAGE * 5 + seed) as u8 | 1,
    };
    (0..BLOCKS * PAGE).map(byte).collect()
}

/// A guest with a disk, and what both must hold.
pub struct World<'a> {
    /// The guest.
    pub guest: Guest<'a>,
    /// Its disk.
    pub disk: Disk<'a>,
    driver: Driver,
    /// What the disk must hold.
    pub blocks: Vec<u8>,
    memory: Vec<u8>,
    /// Whether it takes writes, and discards.
    pub takes: (bool, bool),
    sectors: u64,
}

impl<'a> World<'a> {
    /// A world whose disk is of that kind; `partition` makes one with this number and these bytes.
    pub fn new(
        kind: usize,
        (frames, image): (&'a FakeFrames, &'a Image),
        partition: impl Fn(u8, &[u8]) -> Partition<'a>,
    ) -> Self {
        Self::sized(kind, (frames, image), partition, (base(0), SECTORS))
    }

    /// The same, with these bytes below and so many sectors: beyond the base there are zeroes.
    pub fn sized(
        kind: usize,
        (frames, image): (&'a FakeFrames, &'a Image),
        partition: impl Fn(u8, &[u8]) -> Partition<'a>,
        (mut bytes, sectors): (Vec<u8>, u64),
    ) -> Self {
        let size = sectors * 512;
        let limit = size.div_ceil(FRAME_SIZE);
        let room = || partition(2, &vec![0xee; (limit as usize + 3) * PAGE]);
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
        bytes.resize(size as usize, 0);
        let mut disk = Disk::sized(frames, kind_of, (vm, 0), (Some(size), limit));
        let driver = Driver::start(&guest, &mut disk, RAM.start);
        Self {
            guest,
            disk,
            driver,
            blocks: bytes,
            memory: vec![0; DATA_BYTES as usize],
            takes: (kind != 4, kind < 4),
            sectors,
        }
    }

    /// Does a step; the device answers as it must.
    pub fn step(&mut self, step: &Step) {
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
            .all(|(sector, count)| sector + count <= self.sectors);
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
            for sector in all.filter(|sector| discard && *sector < self.sectors) {
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

    /// Disk and memory hold what they must.
    pub fn check(&self) {
        self.check_disk();
        let seen = self.guest.get(Ipa(DATA), self.memory.len());
        let differs = seen.iter().zip(&self.memory).position(|(a, b)| a != b);
        assert_eq!(differs, None, "the memory is another");
    }

    fn check_disk(&self) {
        assert!(self.disk.contents() == self.blocks, "the disk is another");
    }

    /// The disk is what its model is after each step, and its guest's memory after some; then both end.
    pub fn live(mut self, steps: &[Step]) {
        for (step, n) in steps.iter().zip(1..) {
            self.step(step);
            if n % 5 == 0 || n == steps.len() {
                self.check();
            } else {
                self.check_disk();
            }
        }
        let left = (self.disk.end(), self.guest.end());
        assert_eq!(left, (0, 0), "tables are left");
    }
}
