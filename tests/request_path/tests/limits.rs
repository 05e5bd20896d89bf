//! What a pass pays for, what a limited rate counts, and blocks that are not what they were.
#![allow(clippy::unwrap_used, reason = "a test")]

use machine_fake::FakeFrames;
use model_addr::{FRAME_SIZE, FrameRange, Ipa, IpaRange, Mfn};
use model_address_space::Policy;
use std::cell::RefCell;
use std::rc::Rc;
use tests_request_path::{Disk, DiskKind, Driver, Guest, Image, Kind, Medium, Partition, vm};

const RAM: IpaRange = IpaRange {
    start: Ipa(0x4000_0000),
    size: 0x60_0000,
};
const DATA: u64 = RAM.start.0 + 0x20_0000;
const PAGE: usize = FRAME_SIZE as usize;
const BLOCKS: usize = 100;
const NODES: [FrameRange; 1] = [FrameRange {
    start: Mfn(0x8_0000),
    count: 8 * 512,
}];
const IMAGE: Mfn = Mfn(0x10_0000);
const SHARES: Policy = Policy {
    share: true,
    keep_blocks: false,
    hide: false,
};

/// Blocks that all differ, none of them zero.
fn base() -> Vec<u8> {
    let byte = |n: usize| (n / 61 + n / PAGE * 5) as u8 | 1;
    (0..BLOCKS * PAGE).map(byte).collect()
}

/// A VM with a disk.
struct World<'a> {
    guest: Guest<'a>,
    disk: Disk<'a>,
    driver: Driver,
}

impl<'a> World<'a> {
    fn new(frames: &'a FakeFrames, index: u16, kind: DiskKind<'a>) -> Self {
        let guest = Guest::new(frames, vm(index), RAM, SHARES);
        let mut disk = Disk::of(frames, kind, vm(index), BLOCKS as u64);
        let driver = Driver::start(&guest, &mut disk, RAM.start);
        Self {
            guest,
            disk,
            driver,
        }
    }

    /// Pages that differ in no word that the index looks at.
    fn put_nearly_equal(&self, count: usize) {
        for page in 0..count {
            let mut bytes: Vec<u8> = (0..PAGE).map(|n| (n / 3) as u8).collect();
            bytes[PAGE - 9] = page as u8;
            assert!(self.guest.put(Ipa(DATA + (page * PAGE) as u64), &bytes));
        }
    }

    /// A request of these segments, behind the first byte of data; its status.
    fn request(&mut self, kind: Kind, sector: u64, segments: &[(u64, u64)]) -> u8 {
        let at = |(at, len): &(u64, u64)| (Ipa(DATA + at), *len);
        let data: Vec<_> = segments.iter().map(at).collect();
        self.driver.submit(&self.guest, (kind, sector), &data);
        self.driver.ring(&self.guest, &mut self.disk)
    }
}

fn store(frames: &FakeFrames) -> Partition<'_> {
    Partition::new(frames, 2, &vec![0; BLOCKS * PAGE])
}

const ALL: [(u64, u64); 1] = [(0, BLOCKS as u64 * FRAME_SIZE)];

#[test]
fn pages_are_paid_for_whether_they_are_mapped_or_copied() {
    let image = Image::new(IMAGE, &base());
    let frames = image.machine(&NODES);
    let mut world = World::new(&frames, 0, DiskKind::Cow(&image));
    assert_eq!(world.request(Kind::Read, 0, &ALL), 0);
    assert_eq!(
        world.disk.passes(),
        2,
        "a page that is mapped takes two of 128"
    );
    // What is not aligned is copied, and may take a frame for each.
    assert_eq!(world.request(Kind::Read, 0, &[(8, 20 * FRAME_SIZE)]), 0);
    assert!(world.disk.paid().0 >= 20);
    assert_eq!(world.request(Kind::Write, 0, &[(8, 20 * FRAME_SIZE)]), 0);
    assert!(world.disk.paid().0 >= 20);
}

#[test]
fn a_rate_counts_what_was_written_or_read_for_the_first_time() {
    let image = Image::new(IMAGE, &base());
    let frames = image.machine(&NODES);
    let mut worlds = [0, 1].map(|index| World::new(&frames, index, DiskKind::Cow(&image)));
    let bytes = 7 * FRAME_SIZE;
    for (world, counted) in worlds.iter_mut().zip([bytes, 0]) {
        assert_eq!(world.request(Kind::Read, 0, &[(0, bytes)]), 0);
        assert_eq!(world.disk.paid().1, counted);
    }
    assert_eq!(worlds[1].request(Kind::Write, 3, &[(0, bytes)]), 0);
    assert_eq!(worlds[1].disk.paid().1, bytes);
}

/// A guest can make pages that differ in no word that the index looks at: each is compared with 32 others.
#[test]
fn compares_are_paid_for() {
    let image = Image::new(IMAGE, &base());
    let frames = image.machine(&NODES);
    let mut world = World::new(&frames, 0, DiskKind::Cow(&image));
    world.put_nearly_equal(BLOCKS);
    assert_eq!(world.request(Kind::Write, 0, &ALL), 0);
    // Of the last 68 each is compared with 32.
    assert!(world.disk.passes() >= 30, "{} passes", world.disk.passes());
}

/// Of 20 nearly equal frames, a page is compared with 8 late in a pass: its equal may be missed.
#[test]
fn fewer_frames_are_compared_late() {
    let taken = [false, true].map(|is_late| {
        let image = Image::new(IMAGE, &base());
        let frames = image.machine(&NODES);
        let mut world = World::new(&frames, 0, DiskKind::Cow(&image));
        world.put_nearly_equal(20);
        assert_eq!(world.request(Kind::Write, 0, &[(0, 20 * FRAME_SIZE)]), 0);
        if is_late {
            world.disk.take_long();
        }
        let before = frames.counts()[0].free;
        assert_eq!(world.request(Kind::Write, 320, &[(0, 20 * FRAME_SIZE)]), 0);
        before - frames.counts()[0].free
    });
    assert!(taken[0] == 0 && taken[1] >= 8, "{taken:?}");
}

/// Frames that a discard gives back take longer than all else that it does.
#[test]
fn a_discard_ends_a_pass_when_its_time_is_over() {
    let image = Image::new(IMAGE, &base());
    let frames = image.machine(&NODES);
    let mut world = World::new(&frames, 0, DiskKind::Cow(&image));
    assert_eq!(world.request(Kind::Write, 0, &ALL), 0);
    world.disk.take_long();
    let mut range = [0_u8; 16];
    range[8..12].copy_from_slice(&(BLOCKS as u32 * 8).to_le_bytes());
    assert!(world.guest.put(Ipa(DATA), &range));
    assert_eq!(world.request(Kind::Discard, 0, &[(0, 16)]), 0);
    let passes = world.disk.passes();
    assert!(passes >= BLOCKS as u32 / 8, "{passes} passes");
}

/// A piece that lies in two pages, of which the second is about to get a frame for a piece before it.
#[test]
fn a_later_piece_wins_in_either_of_its_pages() {
    let image = Image::new(IMAGE, &base());
    let frames = image.machine(&NODES);
    let mut world = World::new(&frames, 0, DiskKind::Cow(&image));
    let (page, half) = (FRAME_SIZE, FRAME_SIZE / 2);
    for first in [page, 2 * page] {
        let segments = [(first, page), (first - half, page)];
        assert_eq!(world.request(Kind::Read, 8, &segments), 0);
        let mut expected = vec![0; 2 * PAGE];
        expected[PAGE..].copy_from_slice(&base()[PAGE..2 * PAGE]);
        expected[PAGE / 2..][..PAGE].copy_from_slice(&base()[2 * PAGE..3 * PAGE]);
        let seen = world.guest.get(Ipa(DATA + first - half), PAGE + PAGE / 2);
        assert!(seen == expected[PAGE / 2..]);
    }
}

/// Every other block has a slot, so that each transfer is of one block: the blocks behind it are neither copied nor
/// hashed for it.
#[test]
fn a_write_in_many_transfers_pays_for_each_block_once() {
    let image = Image::new(IMAGE, &base());
    let frames = image.machine(&NODES);
    let mut world = World::new(&frames, 0, DiskKind::CowOn(&image, store(&frames)));
    for block in (1..40).step_by(2) {
        assert_eq!(world.request(Kind::Write, 8 * block, &[(0, FRAME_SIZE)]), 0);
    }
    assert_eq!(world.request(Kind::Write, 0, &[(0, 40 * FRAME_SIZE)]), 0);
    assert_eq!(world.disk.passes(), 41, "a transfer each, and its end");
}

/// A partition whose reads are noted: first block, and bytes.
struct Noted(RefCell<Vec<u8>>, RefCell<Vec<(usize, usize)>>);

impl Medium for Noted {
    fn load(&self, at: usize, into: &mut [u8]) {
        self.1.borrow_mut().push((at / PAGE, into.len()));
        self.0.load(at, into);
    }
    fn store(&self, at: usize, bytes: &[u8]) {
        self.0.store(at, bytes);
    }
}

/// A read brings the blocks that it needs from a partition, and none behind them, in as few transfers as can be.
#[test]
fn a_read_brings_what_it_needs() {
    for (sector, bytes, expected) in [
        (0, 5 * FRAME_SIZE, vec![(0, 5 * PAGE)]),
        (3, 5 * FRAME_SIZE, vec![(0, 6 * PAGE)]),
        (8, 512, vec![(1, PAGE)]),
        (15, 1024, vec![(1, 2 * PAGE)]),
        (8, 20 * FRAME_SIZE, vec![(1, 16 * PAGE), (17, 4 * PAGE)]),
    ] {
        let frames = &FakeFrames::new(&NODES);
        let medium = Rc::new(Noted(RefCell::new(base()), RefCell::default()));
        let base = Partition::on(frames, 1, BLOCKS * PAGE, medium.clone());
        let mut world = World::new(frames, 0, DiskKind::CowPartition(base));
        assert_eq!(world.request(Kind::Read, sector, &[(0, bytes)]), 0);
        assert_eq!(medium.1.take(), expected, "{bytes} bytes from {sector} on");
    }
}

#[test]
fn a_page_that_is_never_to_be_shared_is_not_when_it_is_written() {
    let image = Image::new(IMAGE, &base());
    let frames = image.machine(&NODES);
    let free = || frames.counts()[0].free;
    let mut worlds = [0, 1].map(|index| World::new(&frames, index, DiskKind::Cow(&image)));
    let mut taken = Vec::new();
    for (world, secret) in worlds.iter_mut().zip([false, true]) {
        assert!(world.guest.put(Ipa(DATA), &[0x5c; PAGE]));
        // Its tables are there.
        assert_eq!(world.request(Kind::Write, 16, &[(0, 512)]), 0);
        if secret {
            world.guest.never_share(Ipa(DATA).frame());
        }
        let before = free();
        assert_eq!(world.request(Kind::Write, 8, &[(0, FRAME_SIZE)]), 0);
        taken.push(before - free());
    }
    assert_eq!(
        taken,
        [1, 1],
        "a frame of its own, though there is an equal one"
    );
}

/// What a disk that is alone holds, or what came from a page that is never to be shared, nobody else finds: not even
/// once a part of the block is zeroed.
#[test]
fn a_block_that_is_not_to_be_shared_is_found_by_nobody() {
    for (secret, alone, zeroed) in [(true, false, 0), (true, false, 4_u8), (false, true, 0)] {
        let image = Image::new(IMAGE, &base());
        let frames = image.machine(&NODES);
        let [mut own, mut other] =
            [0, 1].map(|index| World::new(&frames, index, DiskKind::Cow(&image)));
        let mut page = [0x5c; PAGE];
        assert!(own.guest.put(Ipa(DATA), &page));
        if secret {
            own.guest.never_share(Ipa(DATA).frame());
        }
        if alone {
            own.disk.keep_alone();
        }
        assert_eq!(own.request(Kind::Write, 8, &[(0, FRAME_SIZE)]), 0);
        if zeroed > 0 {
            let range = [8_u64.to_le_bytes(), u64::from(zeroed).to_le_bytes()].concat();
            assert!(own.guest.put(Ipa(DATA + FRAME_SIZE), &range));
            assert_eq!(own.request(Kind::WriteZeroes, 0, &[(FRAME_SIZE, 16)]), 0);
            page[..zeroed as usize * 512].fill(0);
        }
        assert!(own.disk.contents()[PAGE..2 * PAGE] == page);
        assert!(other.guest.put(Ipa(DATA), &page));
        // Its tables are there.
        assert_eq!(other.request(Kind::Write, 16, &[(0, 512)]), 0);
        let before = frames.counts()[0].free;
        assert_eq!(other.request(Kind::Write, 8, &[(0, FRAME_SIZE)]), 0);
        assert_eq!(before - frames.counts()[0].free, 1, "a frame of its own");
    }
}

/// What a partition gives is what was there before, or an error: of a read, and of what is written over a part.
#[test]
fn a_block_that_is_not_what_it_was_is_an_error() {
    let part: [(u64, u64); 1] = [(0, 512)];
    for on_store in [false, true] {
        let frames = &FakeFrames::new(&NODES);
        let (base, store) = (Partition::new(frames, 1, &base()), store(frames));
        let kind = if on_store {
            DiskKind::CowPartitionOn(base.clone(), store.clone())
        } else {
            DiskKind::CowPartition(base.clone())
        };
        let mut world = World::new(frames, 0, kind);
        // Blocks 0 and 1 are known by a write to a part of them in another VM, which brings no frame for all.
        let mut other = World::new(frames, 1, DiskKind::CowPartition(base.clone()));
        for block in [0, 1] {
            assert_eq!(other.request(Kind::Write, 8 * block + 1, &part), 0);
            base.corrupt(block as usize * PAGE + 5);
        }
        assert_eq!(world.request(Kind::Read, 0, &[(0, FRAME_SIZE)]), 1);
        assert_eq!(
            world.request(Kind::Write, 9, &part),
            1,
            "on a store: {on_store}"
        );
        let now = world.disk.contents();
        assert!(
            now[PAGE..2 * PAGE] == base.bytes()[PAGE..2 * PAGE],
            "nothing was written"
        );
    }
    let image = Image::new(IMAGE, &base());
    let frames = &image.machine(&NODES);
    let store = store(frames);
    let mut world = World::new(frames, 0, DiskKind::CowOn(&image, store.clone()));
    assert_eq!(world.request(Kind::Write, 0, &[(0, 2 * FRAME_SIZE)]), 0);
    for slot in 0..BLOCKS {
        store.corrupt(slot * PAGE + 700);
    }
    assert_eq!(world.request(Kind::Read, 0, &[(0, FRAME_SIZE)]), 1);
    assert_eq!(world.request(Kind::Write, 9, &part), 1);
    assert_eq!(world.request(Kind::Write, 0, &[(0, FRAME_SIZE)]), 0);
    assert_eq!(world.request(Kind::Read, 0, &[(0, FRAME_SIZE)]), 0);
}
