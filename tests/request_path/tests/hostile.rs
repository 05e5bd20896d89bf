//! Guests that do what no guest should while a request is under way, contents that look alike, and a
//! machine without memory: a clear refusal or a right answer, never somebody else's bytes.
#![allow(clippy::unwrap_used, reason = "a test")]

use machine_fake::FakeFrames;
use model_addr::{FRAME_SIZE, FrameRange, Gfn, Ipa, IpaRange, Mfn};
use model_address_space::Policy;
use std::cell::Cell;
use tests_request_path::{Disk, Driver, Guest, Image, Kind, vm};

const RAM: IpaRange = IpaRange {
    start: Ipa(0x4000_0000),
    size: 0x40_0000,
};
const DATA: u64 = RAM.start.0 + 0x20_0000;
const BLOCKS: u64 = 20;
const LIMIT: u64 = 520;
const NODES: [FrameRange; 1] = [FrameRange {
    start: Mfn(0x8_0000),
    count: 6 * 512,
}];
const IMAGE: Mfn = Mfn(0x10_0000);
const SHARES: Policy = Policy {
    share: true,
    keep_blocks: false,
    hide: false,
};
const PAGE: usize = FRAME_SIZE as usize;

/// Blocks that all differ; every fifth is zero.
fn base() -> Vec<u8> {
    let byte = |n: usize| match n / PAGE % 5 {
        4 => 0,
        _ => (n / 97) as u8 | 1,
    };
    (0..BLOCKS as usize * PAGE).map(byte).collect()
}

fn start<'a>(
    frames: &'a FakeFrames,
    image: &'a Image,
    index: u16,
) -> (Guest<'a>, Disk<'a>, Driver) {
    let guest = Guest::new(frames, vm(index), RAM, SHARES);
    let mut disk = Disk::new(frames, image, vm(index), LIMIT);
    let driver = Driver::start(&guest, &mut disk, RAM.start);
    (guest, disk, driver)
}

fn free(frames: &FakeFrames) -> u64 {
    frames.counts().iter().map(|counts| counts.free).sum()
}

/// The pages that a read lands in go into the balloon while it lands: before it, between any two
/// pieces, or after it.
#[test]
fn a_page_is_given_back_while_a_read_lands_in_it() {
    let image = Image::new(IMAGE, &base());
    let frames = image.machine(&NODES);
    let fresh = free(&frames);
    for victim in 0..BLOCKS {
        for moment in 0..BLOCKS {
            let (guest, mut disk, mut driver) = start(&frames, &image, 0);
            let pieces = Cell::new(0);
            let first = Gfn(DATA / FRAME_SIZE);
            guest.between(move |guest| {
                if pieces.replace(pieces.get() + 1) == moment {
                    guest.release(first.add(victim), 1);
                }
            });
            let all = [(Ipa(DATA), BLOCKS * FRAME_SIZE)];
            driver.submit(&guest, (Kind::Read, 0), &all);
            assert_eq!(driver.ring(&guest, &mut disk), 0);
            for (page, expected) in (0..).zip(base().chunks(PAGE)) {
                let seen = guest.get(Ipa(DATA + page * FRAME_SIZE), PAGE);
                let is_gone = page == victim && seen.iter().all(|byte| *byte == 0);
                assert!(seen == expected || is_gone, "page {page}");
            }
            assert_eq!((guest.end(), disk.end()), (0, 0));
            assert_eq!(free(&frames), fresh, "frames are left");
        }
    }
}

/// Two pages that are alike but for one word, wherever it is: the index finds most of them as the same
/// (it looks at eight words of 512), and nobody gets the other one's word.
#[test]
fn pages_that_look_alike_are_not_one() {
    let image = Image::new(IMAGE, &base());
    let frames = image.machine(&NODES);
    let (one, mut disk_one, mut driver_one) = start(&frames, &image, 0);
    let (two, mut disk_two, mut driver_two) = start(&frames, &image, 1);
    let page: Vec<u8> = (0..PAGE).map(|n| (n / 3) as u8).collect();
    let data = [(Ipa(DATA), FRAME_SIZE)];
    assert!(one.put(Ipa(DATA), &page));
    driver_one.submit(&one, (Kind::Write, 0), &data);
    assert_eq!(driver_one.ring(&one, &mut disk_one), 0);
    for word in 0..PAGE / 8 {
        let mut other = page.clone();
        other[8 * word + word % 8] ^= 1 << (word % 7);
        assert!(two.put(Ipa(DATA), &other));
        driver_two.submit(&two, (Kind::Write, 0), &data);
        assert_eq!(driver_two.ring(&two, &mut disk_two), 0);
        assert!(disk_two.contents()[..PAGE] == other, "word {word}");
        assert!(disk_one.contents()[..PAGE] == page, "word {word}");
    }
    assert!(two.put(Ipa(DATA), &page));
    driver_two.submit(&two, (Kind::Write, 0), &data);
    assert_eq!(driver_two.ring(&two, &mut disk_two), 0);
    assert!(disk_two.contents()[..PAGE] == page);
}

/// While no frame is left, a guest's fault waits and what a device has begun does not: it takes of what
/// is kept for emergencies.
#[test]
fn a_request_is_finished_without_free_memory() {
    let image = Image::new(IMAGE, &base());
    let frames = image.machine(&NODES);
    let (guest, mut disk, mut driver) = start(&frames, &image, 0);
    let pieces = [(Ipa(DATA + 8), 3 * FRAME_SIZE)];
    for (kept, status) in [(0, 1), (4, 0)] {
        driver.submit(&guest, (Kind::Read, 0), &pieces);
        frames.fail_after(Some(0));
        frames.keep_for_emergencies(kept);
        assert_eq!(driver.ring(&guest, &mut disk), status);
        assert!(!guest.put(Ipa(DATA + 0x10_0000), &[1]), "a guest waits");
        frames.fail_after(None);
    }
    assert!(guest.get(Ipa(DATA + 8), 3 * PAGE) == base()[..3 * PAGE]);
}

/// A part of a block that another disk uses, too, is written from a page that gets no frame: the block stays what it is,
/// and the frame that was to hold it goes back.
#[test]
fn a_write_that_ends_for_want_of_memory_leaves_nothing_behind() {
    let image = Image::new(IMAGE, &base());
    let frames = image.machine(&NODES);
    let fresh = free(&frames);
    let mut both = [0, 1].map(|index| start(&frames, &image, index));
    let page: Vec<u8> = (0..PAGE).map(|n| (n / 3) as u8).collect();
    for (guest, disk, driver) in &mut both {
        assert!(guest.put(Ipa(DATA), &page));
        driver.submit(guest, (Kind::Write, 0), &[(Ipa(DATA), FRAME_SIZE)]);
        assert_eq!(driver.ring(guest, disk), 0);
    }
    let (guest, disk, driver) = &mut both[0];
    // Its chunk has its frames: what is to be there again takes one of the pool.
    let gone = Ipa(DATA + FRAME_SIZE);
    guest.release(gone.frame(), 1);
    let before = free(&frames);
    // The others are of a block that it has not written yet.
    for (sector, bytes) in [(1, 512), (8, FRAME_SIZE), (9, 512)] {
        driver.submit(guest, (Kind::Write, sector), &[(gone, bytes)]);
        frames.fail_after(Some(1));
        assert_eq!(driver.ring(guest, disk), 1);
        frames.fail_after(None);
        // Where the page had its frame first, the block got none.
        guest.release(gone.frame(), 1);
        assert_eq!(free(&frames), before, "a frame is left");
    }
    for (guest, disk, _) in both {
        assert!(disk.contents()[..PAGE] == page);
        assert_eq!((guest.end(), disk.end()), (0, 0));
    }
    assert_eq!(free(&frames), fresh, "frames are left");
}
