//! Blocks that are equal: many more than one frame has users for, that come and go.
#![allow(clippy::unwrap_used, reason = "a test")]

mod flat;
mod machine;

use std::sync::atomic::Ordering;

use flat::{Step, World};
use machine::{Machine, user};
use model_addr::Mfn;
use model_frame_table::{CacheKey, Chain, Owner};
use model_sharing::{Expect, Ground, LONGEST_CHAIN, MAX_USERS, enlist, join_equal, leave, publish};
use proptest::prelude::*;

/// What one of `users` that a run takes from among all is.
type At = prop::sample::Index;

/// VMs of a run: as many as have accounts.
const VMS: u16 = 64;

/// Some of those that follow each other, or any, leave, and as many more come.
#[derive(Clone, Debug)]
enum Turn {
    /// So many users from this VM on, each so many VMs further than the one before, among so many.
    Come(u16, (u16, u16), u64, usize),
    Leave(At, usize),
    /// Only so many more frames for records can be had.
    Memory(Option<u64>),
}

fn any_turn() -> impl Strategy<Value = Turn> {
    let memory = prop_oneof![4 => Just(None), 1 => (0..2_u64).prop_map(Some)];
    prop_oneof![
        8 => (0..VMS, (0..40_u16, 1..=VMS), 0..2_u64, 1..150_usize)
            .prop_map(|(vm, steps, content, n)| Turn::Come(vm, steps, content, n)),
        6 => (any::<At>(), 1..100_usize).prop_map(|(at, n)| Turn::Leave(at, n)),
        1 => memory.prop_map(Turn::Memory),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whoever comes gets what it wants, from a frame that others have wherever one is found with room; users
    /// and accounts are as in a list of them.
    #[test]
    fn equal_blocks_are_as_in_a_list(
        turns in prop::collection::vec(any_turn(), 1..30),
        buckets in 1..3_usize,
    ) {
        let mut world = World::new(64, 0, buckets);
        let mut stamp = 0;
        for turn in turns {
            match turn {
                Turn::Come(vm, (step, vms), content, count) => for n in 0..count as u16 {
                    stamp += 1;
                    let vm = (vm + n * step % vms) % VMS;
                    world.step(Step::Equal(user(vm, stamp), 1, content));
                },
                Turn::Leave(at, count) => for n in 0..count {
                    let all: Vec<(u64, (u16, u64))> = world.pages.iter()
                        .flat_map(|page| page.users.iter().map(|user| (page.frame, *user)))
                        .collect();
                    if all.is_empty() {
                        break;
                    }
                    let (frame, (vm, gfn)) = all[(at.index(all.len()) + n * 7) % all.len()];
                    world.step(Step::Leave(Mfn(frame), user(vm, gfn), false));
                },
                Turn::Memory(left) => world.step(Step::Memory(left)),
            }
            world.check();
        }
        world.end();
    }
}

const GROUP: u16 = 1;

/// A block is read, or written, whose contents are in `buffer`: the frame that it is in. It is compared once at most.
fn bring_in(machine: &Machine, buffer: Mfn, user: Owner) -> Mfn {
    let before = machine.compares.load(Ordering::Relaxed);
    let mut left = u32::MAX;
    let found = join_equal(machine, buffer, user, GROUP, &mut left);
    let compares = machine.compares.load(Ordering::Relaxed) - before;
    assert!(compares <= 1, "{user:?}: {compares} compares");
    assert_eq!(u64::from(u32::MAX - left), compares);
    found.unwrap_or_else(|| {
        let frame = machine.allocate(user, machine.load(buffer)).unwrap();
        publish(machine, frame, user, CacheKey::of_content(GROUP)).unwrap();
        enlist(machine, frame);
        frame
    })
}

/// Of a million equal blocks each is compared with one frame at most, and all are shared; so it is when
/// every ninth has gone and comes again.
#[test]
fn one_of_a_million_equal_blocks_is_compared_once() {
    const BLOCKS: u64 = if cfg!(miri) { 1000 } else { 1_000_000 };
    let owner = |n: u64| user(u16::from(n >= BLOCKS / 2), n);
    let least = BLOCKS.div_ceil(MAX_USERS.into());
    // Of the frames that a ninth of all have left, as many are found again as a chain has.
    let machine = Machine::new(1 + 2 * least, 0, 1 << 12);
    let buffer = machine.allocate(user(5, 0), 7).unwrap();
    let frames: Vec<Mfn> = (0..BLOCKS)
        .map(|n| bring_in(&machine, buffer, owner(n)))
        .collect();
    assert_eq!(machine.free_frames(), least, "frames that are left");
    for n in (0..BLOCKS).step_by(9) {
        leave(&machine, frames[n as usize], owner(n), false).unwrap();
    }
    for n in (0..BLOCKS).step_by(9) {
        bring_in(&machine, buffer, owner(n));
    }
    let users = [0, 1].map(|vm| machine.accounts().get(vm).users);
    assert_eq!(users, [BLOCKS / 2; 2]);
}

/// A frame's users are of few VMs or many, and leave in the order in which they came, in the other one, or VM after
/// VM: accounts are exact after each step.
#[test]
fn accounts_are_exact_however_many_vms_a_frame_has() {
    let all = 1..u64::from(MAX_USERS);
    for (vms, order) in [1, 2, 7, 8, 9, 17, 31, 33, 63]
        .into_iter()
        .flat_map(|vms| (0..3).map(move |order| (vms, order)))
    {
        let mut world = World::new(1, 0, 1);
        world.step(Step::Publish(user(0, 0), CacheKey::of_content(GROUP)));
        let frame = Mfn(world.pages[0].frame);
        let owner = |n: u64| user((n % vms) as u16, n);
        let mut leavers: Vec<u64> = all.clone().collect();
        match order {
            0 => {}
            1 => leavers.reverse(),
            _ => leavers.sort_by_key(|n| (n % vms, *n)),
        }
        for count in [40, leavers.len()] {
            for n in all.clone() {
                if !world.pages[0].users.contains(&((n % vms) as u16, n)) {
                    world.step(Step::Join(frame, owner(n), Expect::Group(GROUP)));
                    world.check();
                }
            }
            for n in &leavers[..count] {
                world.step(Step::Leave(frame, owner(*n), false));
                world.check();
            }
        }
        world.end();
    }
}

/// Frames that were filled in other ways than by their contents are in nobody's way.
#[test]
fn full_frames_leave_their_chain() {
    let mut world = World::new(2 * LONGEST_CHAIN as u64, 0, 1);
    for n in 0..LONGEST_CHAIN as u64 {
        world.step(Step::Publish(user(0, n), CacheKey::of_content(GROUP)));
        let frame = Mfn(world.pages[n as usize].frame);
        world.step(Step::Insert(frame, Chain::Content));
        for more in 1..u64::from(MAX_USERS) {
            let user = user(1, more * 100 + n);
            world.step(Step::Join(frame, user, Expect::Group(GROUP)));
        }
    }
    // What they hold is zero, as the key has no block.
    world.step(Step::Equal(user(2, 0), GROUP, 0));
    world.step(Step::Equal(user(2, 1), GROUP, 0));
    assert_eq!(world.pages.len(), LONGEST_CHAIN + 1, "the new one is found");
    let listed = |world: &World| world.pages.iter().filter(|page| page.chains[0]).count();
    assert_eq!(listed(&world), 1);
    // One of the first has room again.
    let (vm, gfn) = world.pages[3].users[20];
    let frame = Mfn(world.pages[3].frame);
    world.step(Step::Leave(frame, user(vm, gfn), false));
    world.check();
    assert!(listed(&world) == 2 && world.pages[3].chains[0]);
    world.step(Step::Equal(user(2, 2), GROUP, 0));
    assert_eq!(world.pages[3].users[0], (2, 2));
    world.end();
}
