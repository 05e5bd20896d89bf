//! Which kept frames are found, and when.
#![allow(clippy::unwrap_used, reason = "a test")]

mod machine;

use machine::{FIRST, IMAGE, Machine, user};
use model_addr::{Mfn, NodeId};
use model_frame_table::CacheKey;
use model_sharing::{Clock, Expect, Ground, evict, join, leave, publish};

const KEY: CacheKey = CacheKey {
    group: 0,
    disk: 1,
    block: 1,
};

/// Makes so many frames that are kept, the last one of them used.
fn kept(machine: &Machine, count: u64) -> Vec<Mfn> {
    let frames: Vec<_> = (0..count)
        .map(|n| {
            let frame = machine.allocate(user(0, n), 1).unwrap();
            publish(machine, frame, user(0, n), KEY).unwrap();
            frame
        })
        .collect();
    for (n, frame) in (1..count).zip(&frames) {
        leave(machine, *frame, user(0, n - 1), true).unwrap();
    }
    frames
}

#[test]
fn a_kept_frame_is_found_at_the_second_pass() {
    let machine = Machine::new(8, 4, 1);
    let mut frames = kept(&machine, 4);
    let used = frames.pop().unwrap();
    frames.sort();
    let mut clock = Clock::new(NodeId(0));
    assert_eq!(machine.accounts().cached(), 3);
    // Images, frames in use and free ones are passed over, each for its place in the budget.
    assert_eq!(clock.next_cached(machine.map(), 12), None);
    let found = [(); 3].map(|()| clock.next_cached(machine.map(), 12).unwrap());
    assert_eq!(found.as_slice(), frames);
    assert_eq!(clock.next_cached(machine.map(), 0), None);
    assert_eq!(
        clock.next_cached(machine.map(), 12),
        Some(frames[0]),
        "round"
    );
    // One is used and left again: it is passed over once more.
    join(&machine, frames[1], user(0, 9), Expect::Block(KEY)).unwrap();
    leave(&machine, frames[1], user(0, 9), true).unwrap();
    assert_eq!(clock.next_cached(machine.map(), 12), Some(frames[2]));
    assert!(evict(&machine, frames[2]) && evict(&machine, frames[0]));
    assert_eq!(clock.next_cached(machine.map(), 12), Some(frames[1]));
    assert!(evict(&machine, frames[1]) && !evict(&machine, frames[1]));
    assert!(!evict(&machine, used) && !evict(&machine, Mfn(IMAGE)));
    assert_eq!(machine.accounts().cached(), 0);
    assert_eq!(clock.next_cached(machine.map(), 1000), None);
    assert_eq!(machine.free_frames(), 7);
}

#[test]
fn the_budget_is_the_frames_looked_at() {
    let machine = Machine::new(8, 0, 1);
    kept(&machine, 8);
    let mut clock = Clock::new(NodeId(0));
    assert_eq!(clock.next_cached(machine.map(), 8), None, "a second chance");
    let pass: Vec<_> = (0..8)
        .map(|_| clock.next_cached(machine.map(), 1))
        .collect();
    let found = pass.iter().flatten().count();
    assert_eq!(found, 7);
    assert!(pass.iter().flatten().all(|frame| frame.0 >= FIRST));
    let mut nowhere = Clock::new(NodeId(5));
    assert_eq!(nowhere.next_cached(machine.map(), u64::MAX), None);
}
