//! Every kind of disk against plain bytes: reads, writes, zeroes, discards and flushes from and to any sector,
//! with any number of segments at any address and of any length.
#![allow(clippy::unwrap_used, reason = "a test")]

use machine_fake::FakeFrames;
use model_addr::{FRAME_SIZE, Ipa, VmId};
use proptest::prelude::*;
use tests_request_path::world::{
    BLOCKS, DATA, IMAGE, KINDS, NODES, RAM, SECTORS, SHARES, Step, World, base, step,
};
use tests_request_path::{Disk, DiskKind, Driver, Guest, Host, Image, Kind, Partition};

fn world<'a>(kind: usize, frames: &'a FakeFrames, image: &'a Image) -> World<'a> {
    let partition = |number, bytes: &[u8]| Partition::new(frames, number, bytes);
    World::new(kind, (frames, image), partition)
}

/// What nobody uses any more goes back to its pool.
fn evict(frames: &FakeFrames) {
    let all = (0..NODES[0].count).map(|n| NODES[0].start.add(n));
    Host(frames).evict_all(all);
}

/// What all disks and guests had is back.
fn nothing_is_left(frames: &FakeFrames, free: u64) {
    evict(frames);
    assert_eq!(frames.counts()[0].free, free, "frames are left");
    assert_eq!(frames.record_frames(), 0, "records are left");
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
            world.live(&steps);
            nothing_is_left(&frames, free);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..Default::default() })]

    /// Its last block is no whole one, and begins behind its base, or in it.
    #[test]
    fn a_disk_is_larger_than_its_base_and_ends_anywhere(
        steps in prop::collection::vec(step(), 1..24),
        (blocks, sectors) in (BLOCKS - 8..=BLOCKS, 1..56_u64),
        is_long in any::<bool>(),
    ) {
        for kind in 0..4 {
            let below = &base(0)[..blocks * FRAME_SIZE as usize];
            let image = Image::new(IMAGE, below);
            let frames = image.machine(&NODES);
            let free = frames.counts()[0].free;
            let partition = |number, bytes: &[u8]| Partition::new(&frames, number, bytes);
            let sectors = blocks as u64 * 8 + sectors;
            let mut world = World::sized(kind, (&frames, &image), partition, (below.to_vec(), sectors));
            if is_long {
                world.disk.take_long();
            }
            world.live(&steps);
            nothing_is_left(&frames, free);
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

/// A transfer from the overlay brought slots whose numbers are those of the next blocks: these are in the base all the
/// same, and what others find there is what the base holds.
#[test]
fn what_an_overlay_brought_is_no_block_of_its_base() {
    let image = Image::new(IMAGE, &base(0));
    let frames = image.machine(&NODES);
    let mut world = world(3, &frames, &image);
    world.step(&Step::Store(0, 8, 3));
    // Slots 0 and 1, and then 2 to 4: block 3 is in none, nor is block 4.
    for (block, count) in [(20, 2), (0, 3)] {
        let data = vec![(block % 5 * FRAME_SIZE, count * FRAME_SIZE)];
        world.step(&Step::Transfer(true, 8 * block, data));
    }
    for first in [0, 1] {
        let data = vec![(16 * FRAME_SIZE, 6 * FRAME_SIZE)];
        world.step(&Step::Transfer(false, 8 * first, data));
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
            // What goes to an overlay on a partition is hashed, too, a block at a time.
            let least = if writes && [2, 3].contains(&kind) {
                80
            } else {
                40
            };
            assert!(
                is_refused || passes >= least,
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
