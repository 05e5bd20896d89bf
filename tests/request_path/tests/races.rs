//! What a guest does to the pages of a read while it is under way, and what another VM of its group then reads:
//! a block is found by what was read from its partition, never by what a guest's page holds.
#![allow(clippy::unwrap_used, reason = "a test")]

use machine_fake::FakeFrames;
use model_addr::{FRAME_SIZE, FrameRange, Gfn, Ipa, IpaRange, Mfn};
use model_address_space::Policy;
use std::cell::Cell;
use std::rc::Rc;
use tests_request_path::{Disk, DiskKind, Driver, Guest, Host, Kind, Partition, vm};

const RAM: IpaRange = IpaRange {
    start: Ipa(0x4000_0000),
    size: 0x40_0000,
};
const DATA: u64 = RAM.start.0 + 0x20_0000;
const PAGE: usize = FRAME_SIZE as usize;
const BLOCKS: u64 = 6;
const NODES: [FrameRange; 1] = [FrameRange {
    start: Mfn(0x8_0000),
    count: 8 * 512,
}];
const SHARES: Policy = Policy {
    share: true,
    keep_blocks: false,
    hide: false,
};
/// The steps of a read between which something happens: more than it has.
const MOMENTS: u32 = 40;

/// What another CPU does to a page that a read fills.
#[derive(Clone, Copy, Debug)]
enum Deed {
    /// The guest stores to it.
    Store,
    /// It goes into the balloon, or is reported as free, and is touched again.
    ReleaseAndTouch,
    /// It goes there and stays.
    Release,
    /// A frame comes from the network, or from another disk.
    Device,
    /// The guest has its memory taken and brought back.
    Evict,
}

const DEEDS: [Deed; 5] = [
    Deed::Store,
    Deed::ReleaseAndTouch,
    Deed::Release,
    Deed::Device,
    Deed::Evict,
];

fn base() -> Vec<u8> {
    let byte = |n: usize| (n / 61 + n / PAGE * 5) as u8 | 1;
    (0..BLOCKS as usize * PAGE).map(byte).collect()
}

fn act(guest: &Guest<'_>, deed: Deed, page: u64) {
    let at = Ipa(DATA + page * FRAME_SIZE);
    let foreign = [0x66; 64];
    match deed {
        Deed::Store => assert!(guest.put(at, &foreign)),
        Deed::Release => guest.release(at.frame(), 1),
        Deed::ReleaseAndTouch => {
            guest.release(at.frame(), 1);
            assert!(guest.put(at, &foreign));
        }
        Deed::Device => machine_contract::GuestMemory::write(guest, at, &[0x77; PAGE]).unwrap(),
        Deed::Evict => {
            guest.evict(Gfn(at.frame().0));
        }
    }
}

/// Lets `deed` happen to a page at one moment of a read; whether the read had such a moment.
fn race(deed: Deed, page: u64, moment: u32, is_cached: bool) -> bool {
    let frames = &FakeFrames::new(&NODES);
    let partition = Partition::new(frames, 1, &base());
    let open = |index| {
        let guest = Guest::new(frames, vm(index), RAM, SHARES);
        let kind = DiskKind::CowPartition(partition.clone());
        let mut disk = Disk::of(frames, kind, vm(index), BLOCKS);
        let driver = Driver::start(&guest, &mut disk, RAM.start);
        (guest, disk, driver)
    };
    let read = |(guest, disk, driver): &mut (Guest<'_>, Disk<'_>, Driver)| {
        let all = [(Ipa(DATA), BLOCKS * FRAME_SIZE)];
        driver.submit(guest, (Kind::Read, 0), &all);
        assert_eq!(driver.ring(guest, disk), 0);
    };
    let mut others = (is_cached).then(|| open(2));
    if let Some(other) = &mut others {
        // Blocks are in frames already that somebody else uses.
        read(other);
    }
    let mut attacker = open(0);
    let moments = Rc::new(Cell::new(0));
    let counted = Rc::clone(&moments);
    attacker.0.between(move |guest| {
        if counted.replace(counted.get() + 1) == moment {
            act(guest, deed, page);
        }
    });
    read(&mut attacker);
    let mut victim = open(1);
    read(&mut victim);
    let seen = victim.0.get(Ipa(DATA), BLOCKS as usize * PAGE);
    assert!(
        seen == base(),
        "{deed:?} to page {page} at {moment}, cached: {is_cached}"
    );
    // A part of a block is copied from where the whole is.
    victim
        .2
        .submit(&victim.0, (Kind::Read, 8 * page + 1), &[(Ipa(DATA), 512)]);
    assert_eq!(victim.2.ring(&victim.0, &mut victim.1), 0);
    let at = page as usize * PAGE + 512;
    assert!(victim.0.get(Ipa(DATA), 512) == base()[at..at + 512]);
    moment < moments.get()
}

#[test]
fn a_block_is_what_was_read_whatever_the_guest_does() {
    for deed in DEEDS {
        for is_cached in [false, true] {
            for page in [0, BLOCKS / 2, BLOCKS - 1] {
                let mut moments = 0..MOMENTS;
                let is_over = moments.find(|moment| !race(deed, page, *moment, is_cached));
                assert!(is_over.is_some_and(|moments| moments >= 6), "{is_over:?}");
            }
        }
    }
}

/// A page cannot get the frame that has its block, and before the block is copied to it the frame goes: the block is
/// read from the partition again. Whether the read had such a moment.
fn lose(page: u64, moment: u32) -> bool {
    let frames = &FakeFrames::new(&NODES);
    let partition = Partition::new(frames, 1, &base());
    let guests = [0, 1].map(|index| Guest::new(frames, vm(index), RAM, SHARES));
    let moments = Rc::new(Cell::new(0));
    let counted = Rc::clone(&moments);
    for (guest, index) in guests.iter().zip(0..) {
        let kind = DiskKind::CowPartition(partition.clone());
        let mut disk = Disk::of(frames, kind, vm(index), BLOCKS);
        let mut driver = Driver::start(guest, &mut disk, RAM.start);
        if index == 1 {
            let counted = Rc::clone(&counted);
            guest.between(move |guest| {
                let now = counted.replace(counted.get() + 1);
                let all = (0..NODES[0].count).map(|n| NODES[0].start.add(n));
                if now == moment {
                    guest.keep_secret(Ipa(DATA + page * FRAME_SIZE).frame());
                } else if now > moment {
                    Host(frames).evict_all(all);
                }
            });
        }
        driver.submit(guest, (Kind::Read, 0), &[(Ipa(DATA), BLOCKS * FRAME_SIZE)]);
        assert_eq!(driver.ring(guest, &mut disk), 0);
        let seen = guest.get(Ipa(DATA), BLOCKS as usize * PAGE);
        assert!(seen == base(), "page {page} at {moment}");
        if index == 0 {
            // Its blocks stay in frames that nobody uses.
            guest.release(Ipa(DATA).frame(), BLOCKS);
        }
    }
    moment < moments.get()
}

#[test]
fn a_block_that_is_lost_on_its_way_is_read_again() {
    for page in 0..BLOCKS {
        let mut moments = 0..MOMENTS;
        let is_over = moments.find(|moment| !lose(page, *moment));
        assert!(is_over.is_some_and(|moments| moments >= 6), "{is_over:?}");
    }
}
