//! Guests take reserved chunks while the pool takes them back: each chunk goes to one of them.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::thread;

use model_addr::{FrameRange, Gfn, Mfn, NodeId, VmId};
use model_frame_table::{
    CHUNK_FRAMES, FrameEntry, MemoryMap, MemoryRange, Origin, Owner, Pool, Purpose, Use,
};

const FRAMES: u64 = 512;
const NODE: NodeId = NodeId(0);

#[test]
fn a_reserved_chunk_is_taken_or_reclaimed() {
    let entries: Vec<_> = (0..FRAMES).map(|_| FrameEntry::default()).collect();
    let frames = FrameRange {
        start: Mfn(0x200),
        count: FRAMES,
    };
    let map = MemoryMap::new(&[MemoryRange {
        frames,
        node: NODE,
        entries: &entries,
    }])
    .unwrap();
    let mut pool = Pool::new(NODE);
    pool.add(&map, frames, Origin::Machine).unwrap();
    for round in 0..50 {
        let vm = VmId {
            index: 1,
            generation: round,
        };
        let owner = Owner {
            vm,
            gfn: Gfn(0x4_0000),
        };
        let first = pool
            .allocate(&map, 9, Purpose::Reserved(owner), NODE)
            .unwrap();
        let take = |from: u64, to: u64| {
            let one = |n: &u64| {
                let owner = Owner {
                    vm,
                    gfn: Gfn(0x4_0000 + n),
                };
                map.take_reserved(first.add(*n), owner).is_some()
            };
            let chunks = (from..to).step_by(CHUNK_FRAMES as usize);
            CHUNK_FRAMES * chunks.filter(one).count() as u64
        };
        let (taken, freed) = thread::scope(|scope| {
            let takers = [scope.spawn(|| take(0, 400)), scope.spawn(|| take(96, 512))];
            let freed: u64 = (0..20).map(|_| pool.reclaim_reserved(&map, 1)).sum();
            (
                takers
                    .map(|taker| taker.join().unwrap())
                    .iter()
                    .sum::<u64>(),
                freed,
            )
        });
        let left = machine_fake::census(&map, first, FRAMES);
        assert_eq!(left[Use::Private as usize], taken);
        assert_eq!(left[Use::Free as usize], freed);
        assert_eq!(taken + freed + left[Use::Reserved as usize], FRAMES);
        assert_eq!(pool.counts().free, freed);
        pool.free_reserved(&map, first, FRAMES, owner);
        for n in (0..FRAMES).filter(|n| map.entry(first.add(*n)).unwrap().lock().is_some()) {
            pool.free(&map, first.add(n), 0).unwrap();
        }
        assert_eq!(pool.counts().blocks[9], 1);
    }
}
