//! What pools and the map refuse, and what becomes of images.

use crate::machine::{Machine, RANGES, filled, owner};
use core::cell::Cell;
use model_addr::{FrameRange, Gfn, Mfn, NodeId, VmId};
use model_frame_table::{
    CHUNK_FRAMES, CHUNK_ORDER, Contents, Event, FrameEntry, MAX_ORDER, MapError, MemoryMap,
    MemoryRange, Origin, Owner, Pool, Purpose, Refused, Use, entries_bytes,
};

/// What idle CPUs have zeroed is lost as soon as anybody else may have written it.
#[test]
fn only_untouched_blocks_are_reserved_as_zeroes() {
    let machine = Machine::new();
    let map = machine.map();
    let [_, mut pool] = filled(&map);
    let fill = |pool: &mut Pool, frames: usize| {
        (0..frames)
            .filter_map(|_| pool.zero_ahead(&map, |_| ()))
            .count()
    };
    let take = |pool: &mut Pool| {
        let owner = owner(1, 0);
        let run = pool.allocate(&map, MAX_ORDER, Purpose::Reserved(owner), NodeId(1));
        let contents = map.take_reserved(run.unwrap(), owner).unwrap();
        pool.free_reserved(&map, run.unwrap(), 512, owner);
        pool.free(&map, run.unwrap(), CHUNK_ORDER).unwrap();
        contents
    };
    // A block taken away midway is begun anew.
    assert_eq!(fill(&mut pool, 511), 511);
    assert_eq!(take(&mut pool), Contents::Unknown);
    assert_eq!(fill(&mut pool, 511), 511);
    assert_eq!((pool.counts().zeroed(), fill(&mut pool, 9)), (0, 1));
    assert_eq!((pool.counts().zeroed(), pool.wants_zeroing()), (512, false));
    // Others take it last, and then it is zeroed no more.
    let kept: Vec<_> = core::iter::from_fn(|| pool.allocate(&map, 0, Purpose::Table, NodeId(1)))
        .take(700 + 33 - 512)
        .collect();
    assert_eq!((pool.counts().free, pool.counts().zeroed()), (512, 512));
    assert_eq!(take(&mut pool), Contents::Zeroes);
    assert_eq!(take(&mut pool), Contents::Unknown);
    assert_eq!(fill(&mut pool, 600), 512);
    let table = pool.allocate(&map, 0, Purpose::Table, NodeId(1)).unwrap();
    assert_eq!((pool.counts().free, pool.counts().zeroed()), (511, 0));
    pool.free(&map, table, 0).unwrap();
    assert_eq!(take(&mut pool), Contents::Unknown);
    for frame in kept {
        pool.free(&map, frame, 0).unwrap();
    }
}

#[test]
fn a_run_that_cuts_a_block_is_refused() {
    let entries: Vec<_> = (0..4).map(|_| FrameEntry::default()).collect();
    let frames = FrameRange {
        start: Mfn(4),
        count: 4,
    };
    let range = MemoryRange {
        frames,
        node: NodeId(0),
        entries: &entries,
    };
    let map = MemoryMap::new(&[range]).unwrap();
    let mut pool = Pool::new(NodeId(0));
    pool.add(&map, frames, Origin::Machine).unwrap();
    let guest = Purpose::Private(owner(1, 0));
    let singles = [(); 2].map(|()| pool.allocate(&map, 0, guest, NodeId(0)).unwrap());
    let pair = pool
        .allocate(&map, 1, Purpose::Hypervisor, NodeId(0))
        .unwrap();
    assert_eq!((singles, pair), ([Mfn(4), Mfn(5)], Mfn(6)));
    assert_eq!(pool.free(&map, Mfn(4), 2), Err(Refused::Order));
    assert_eq!(pool.free(&map, pair, 1), Ok(()));
    assert_eq!(pool.free(&map, singles[0], 1), Ok(()));
    assert_eq!(pool.counts().blocks[2], 1);
}

#[test]
fn wrong_frees_are_refused() {
    let machine = Machine::new();
    let map = machine.map();
    let [mut pool, mut other] = filled(&map);
    let block = pool
        .allocate(&map, 3, Purpose::Hypervisor, NodeId(0))
        .unwrap();
    assert_eq!(other.free(&map, block, 3), Err(Refused::NotHere));
    assert_eq!(pool.free(&map, block, 2), Err(Refused::Order));
    assert_eq!(pool.free(&map, block.add(4), 2), Err(Refused::Order));
    assert_eq!(pool.free(&map, block.add(1), 3), Err(Refused::Order));
    let frame = map.entry(block.add(5)).unwrap();
    let guard = frame.lock().unwrap();
    assert_eq!(pool.free(&map, block, 3), Err(Refused::Locked));
    drop(guard);
    assert_eq!(pool.free(&map, block, 3), Ok(()));
    assert_eq!(pool.free(&map, block, 3), Err(Refused::PoolOnly));
    assert_eq!(pool.free(&map, Mfn(0), 0), Err(Refused::NotHere));
}

#[test]
fn a_shared_frame_is_freed_when_nobody_uses_it() {
    let machine = Machine::new();
    let map = machine.map();
    let [mut pool, _] = filled(&map);
    let at = pool
        .allocate(&map, 0, Purpose::Private(owner(1, 7)), NodeId(0))
        .unwrap();
    let entry = map.entry(at).unwrap();
    let mut frame = entry.lock().unwrap();
    frame.step(Event::Share).unwrap();
    drop(frame);
    let refused = |usage| Err(Refused::Step(usage, Event::Release));
    assert_eq!(pool.free(&map, at, 0), refused(Use::Shared));
    let mut frame = entry.lock().unwrap();
    assert_eq!(frame.drop_reference(), Ok(0));
    frame.step(Event::Retire).unwrap();
    drop(frame);
    assert_eq!(pool.free(&map, at, 0), refused(Use::CachedOnly));
    entry.lock().unwrap().step(Event::Discard).unwrap();
    assert_eq!(pool.free(&map, at, 0), Ok(()));
}

#[test]
fn an_image_is_kept_for_ever() {
    let machine = Machine::new();
    let map = machine.map();
    let [image, rest] = [(0x8_0000, 4), (0x8_0004, 1020)].map(|(start, count)| FrameRange {
        start: Mfn(start),
        count,
    });
    map.set_aside(FrameRange { count: 2, ..image }).unwrap();
    map.set_aside_image(image).unwrap();
    assert!(map.set_aside_image(image).is_err());
    let mut pool = Pool::new(NodeId(0));
    assert!(pool.add(&map, image, Origin::Machine).is_err());
    pool.add(&map, rest, Origin::Machine).unwrap();
    for n in 0..4 {
        let at = image.start.add(n);
        let entry = map.entry(at).unwrap();
        let state = entry.state();
        assert_eq!(
            (state.usage, state.origin),
            (Use::CachedOnly, Origin::Image)
        );
        assert!(pool.free(&map, at, 0).is_err());
        let mut frame = entry.lock().unwrap();
        assert_eq!(frame.step(Event::Discard), Err(Refused::Image));
        frame.step(Event::Revive).unwrap();
        assert_eq!(frame.step(Event::Claim), Err(Refused::Image));
        frame.drop_reference().unwrap();
        frame.step(Event::Retire).unwrap();
    }
    let table = pool.allocate(&map, 0, Purpose::Hypervisor, NodeId(0));
    let mut own = map.entry(table.unwrap()).unwrap().lock().unwrap();
    assert_eq!(own.step(Event::Keep), Err(Refused::PoolOnly));
}

#[test]
fn frames_are_words_of_lists() {
    let machine = Machine::new();
    let map = machine.map();
    let links: Vec<_> = RANGES
        .iter()
        .flat_map(|(start, count, _)| (*start..start + count).map(Mfn))
        .map(|frame| (frame, map.link(frame).unwrap()))
        .collect();
    for (n, (frame, link)) in (1..).zip(&links) {
        assert_eq!(*link, n, "in order");
        assert_eq!(map.linked(*link).unwrap().0, *frame);
    }
    assert!(map.linked(0).is_none());
    assert!(map.linked(links.len() as u32 + 1).is_none());
    assert!(map.link(Mfn(0)).is_none());
}

#[test]
fn memory_set_aside_is_in_no_pool() {
    let machine = Machine::new();
    let map = machine.map();
    let kept = FrameRange {
        start: Mfn(0x8_0000),
        count: 512,
    };
    map.set_aside(kept).unwrap();
    assert!(map.set_aside(kept).is_err());
    let mut pool = Pool::new(NodeId(0));
    let whole = FrameRange {
        start: Mfn(0x8_0000),
        count: 1024,
    };
    assert!(pool.add(&map, whole, Origin::Machine).is_err());
    let rest = FrameRange {
        start: Mfn(0x8_0200),
        count: 512,
    };
    pool.add(&map, rest, Origin::Lent).unwrap();
    let block = pool.allocate(&map, 9, Purpose::Table, NodeId(0)).unwrap();
    assert_eq!(block, rest.start);
    assert_eq!(map.entry(block).unwrap().state().origin, Origin::Lent);
    assert_eq!(
        machine_fake::census(&map, whole.start, whole.count)[Use::Hypervisor as usize],
        512
    );
    assert_eq!(entries_bytes(1024), 0x8000);
    assert_eq!(entries_bytes(1), 0x1000);
}

/// Frames of VMs that were there before the map are taken once, and what nobody named is found.
#[test]
fn frames_are_adopted_once() {
    let machine = Machine::new();
    let map = machine.map();
    let run = |start, count| FrameRange {
        start: Mfn(start),
        count,
    };
    let owner = Owner {
        vm: VmId {
            index: 1,
            generation: 2,
        },
        gfn: Gfn(70),
    };
    map.set_aside(run(0x8_0000, 512)).unwrap();
    assert!(map.adopt(run(0x8_01ff, 2), owner).is_err());
    map.adopt(run(0x8_0210, 3), owner).unwrap();
    assert!(map.adopt(run(0x8_0212, 1), owner).is_err());
    assert!(map.adopt(run(0x1, 1), owner).is_err());
    let third = Owner {
        gfn: Gfn(72),
        ..owner
    };
    assert!(map.entry(Mfn(0x8_0212)).unwrap().is_private_of(third));
    let mut pool = Pool::new(NodeId(0));
    pool.add(&map, run(0x8_0220, 32), Origin::Lent).unwrap();
    assert_eq!(
        map.next_unlent(Mfn(0x8_0000)),
        Some((NodeId(0), run(0x8_0200, 16)))
    );
    let (_, next) = map.next_unlent(Mfn(0x8_0210)).unwrap();
    assert_eq!(next, run(0x8_0213, 13));
    pool.add(&map, next, Origin::Lent).unwrap();
    pool.free(&map, Mfn(0x8_0211), 0).unwrap();
    assert_eq!(pool.counts().free, 32 + 13 + 1);
    // What was the hypervisor's is so once, too, and goes back as what it was taken as.
    map.adopt_own(run(0x8_0200, 4)).unwrap();
    assert!(map.adopt_own(run(0x8_0203, 1)).is_err());
    assert!(map.adopt(run(0x8_0200, 1), owner).is_err());
    pool.free(&map, Mfn(0x8_0200), 2).unwrap();
    assert_eq!(pool.counts().free, 32 + 13 + 1 + 4);
}

#[test]
fn bad_maps_are_refused() {
    let entries: Vec<_> = (0..4).map(|_| FrameEntry::default()).collect();
    let range = |start, count, node| MemoryRange {
        frames: FrameRange {
            start: Mfn(start),
            count,
        },
        node: NodeId(node),
        entries: &entries,
    };
    let error = |ranges: &[_]| MemoryMap::new(ranges).map(|_| ()).unwrap_err();
    assert_eq!(error(&[range(0, 5, 0)]), MapError::Entries(Mfn(0)));
    assert_eq!(
        error(&[range(u64::MAX, 4, 0)]),
        MapError::Entries(Mfn(u64::MAX))
    );
    assert_eq!(
        error(&[range(8, 4, 0), range(5, 4, 0)]),
        MapError::Overlap(Mfn(8))
    );
    assert_eq!(error(&[range(0, 4, 64)]), MapError::Node(NodeId(64)));
    assert_eq!(error(&[range(0, 4, 0); 65]), MapError::Ranges);
    let map = MemoryMap::new(&[range(4, 4, 0), range(12, 4, 0)]).unwrap();
    assert!(map.entry(Mfn(3)).is_none() && map.entry(Mfn(8)).is_none());
    assert!(map.run(Mfn(6), 3).is_none() && map.run(Mfn(6), u64::MAX).is_none());
    assert_eq!(map.run(Mfn(6), 2).unwrap().len(), 2);
}

#[test]
fn reserved_frames_are_found_however_few_are_looked_at_at_once() {
    let machine = Machine::new();
    let map = machine.map();
    let [mut pool, _] = filled(&map);
    let reserve = |pool: &mut Pool| {
        let purpose = Purpose::Reserved(owner(1, 0));
        pool.allocate(&map, CHUNK_ORDER, purpose, NodeId(0))
    };
    for _ in 0..2 {
        assert!(reserve(&mut pool).is_some());
        let mut freed = 0;
        while freed == 0 {
            assert!(!pool.has_nothing_reserved(), "some are");
            freed = pool.reclaim_reserved(&map, 1);
        }
        assert_eq!(freed, CHUNK_FRAMES);
        while !pool.has_nothing_reserved() {
            assert_eq!(pool.reclaim_reserved(&map, 3), 0);
        }
    }
}

#[test]
fn one_run_is_freed_at_once_where_others_want_the_pool() {
    let machine = Machine::new();
    let map = machine.map();
    let [mut pool, _] = filled(&map);
    let before = pool.counts().free;
    let take = |_| {
        let purpose = Purpose::Private(owner(1, 0));
        pool.allocate(&map, 0, purpose, NodeId(0)).unwrap()
    };
    let mut frames: Vec<Mfn> = (0..48).map(take).collect();
    frames.sort_unstable();
    // Each third frame: no two of them are a run.
    let (apart, rest): (Vec<_>, Vec<_>) = frames.iter().partition(|frame| frame.0 % 3 == 0);
    let looks = Cell::new(0);
    let is_wanted = || looks.replace(looks.get() + 1) == 4;
    assert_eq!(pool.free_each(&map, &apart, is_wanted), 5);
    for left in [&apart[5..], &rest] {
        let mut left = left;
        while !left.is_empty() {
            left = &left[pool.free_each(&map, left, || true)..];
        }
    }
    assert_eq!(pool.counts().free, before);
}

/// Under pressure a chunk that is taken back costs as much as sixteen looks.
#[test]
fn few_reserved_chunks_are_taken_back_at_once() {
    let machine = Machine::new();
    let map = machine.map();
    let [mut pool, _] = filled(&map);
    let run = pool.allocate(&map, MAX_ORDER, Purpose::Reserved(owner(1, 0)), NodeId(0));
    assert!(run.is_some());
    let mut freed = Vec::new();
    while !pool.has_nothing_reserved() {
        freed.push(pool.reclaim_reserved(&map, 32));
    }
    assert_eq!(freed.iter().sum::<u64>(), 1 << MAX_ORDER);
    assert_eq!(freed.iter().max(), Some(&(2 * CHUNK_FRAMES)));
}

/// Blocks are zeroed anew when few are left, and not before.
#[test]
fn zeroing_waits_until_few_blocks_are_left() {
    let machine = Machine::new();
    let map = machine.map();
    let [mut pool, _] = filled(&map);
    while pool.zero_ahead(&map, |_| ()).is_some() {}
    let mut wants = Vec::new();
    while pool.counts().zeroed() > 0 {
        wants.push(pool.wants_zeroing());
        let purpose = Purpose::Reserved(owner(1, 0));
        assert!(pool.allocate(&map, MAX_ORDER, purpose, NodeId(0)).is_some());
    }
    assert_eq!((wants, pool.wants_zeroing()), (vec![false; 2], true));
}

/// Frames in the midst of a free block, or of a reserved chunk, look as if no pool had them.
#[test]
fn parts_of_what_a_pool_has_are_not_added() {
    let machine = Machine::new();
    let map = machine.map();
    let [mut pool, _] = filled(&map);
    let run = pool.allocate(&map, CHUNK_ORDER, Purpose::Reserved(owner(1, 0)), NodeId(0));
    for first in [run.unwrap(), Mfn(RANGES[2].0)] {
        for n in 0..CHUNK_FRAMES {
            let one = FrameRange {
                start: first.add(n),
                count: 1,
            };
            let added = pool.add(&map, one, Origin::Lent);
            assert_eq!(added, Err(Refused::Step(Use::Free, Event::Release)));
        }
    }
}

/// What is lent goes back some day: it is never in one block with what is the machine's.
#[test]
fn blocks_are_of_one_origin() {
    let machine = Machine::new();
    let map = machine.map();
    let mut pool = Pool::new(NodeId(0));
    for n in 0..4 {
        let half = FrameRange {
            start: Mfn(RANGES[2].0 + n * 256),
            count: 256,
        };
        let origin = if n == 0 {
            Origin::Lent
        } else {
            Origin::Machine
        };
        pool.add(&map, half, origin).unwrap();
    }
    assert_eq!(pool.counts().blocks[8..10], [2, 1]);
}
