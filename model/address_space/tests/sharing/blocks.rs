//! What becomes of regions that are one block.

use crate::SHARES;
use crate::world::{RAM, VMS, World};
use model_addr::NodeId;
use model_address_space::{Access, Moved};
use model_pmap::REGION_FRAMES;

/// A block that was given back as a whole becomes a block again.
#[test]
fn a_released_block_is_a_block_again() {
    let mut world = World::new([SHARES; VMS]);
    let region = RAM.add(0);
    for _ in 0..2 {
        // The kernel's pages are written, so all is private.
        world.fill_region(1);
        world.fill_region(0);
        world.release(0, region, REGION_FRAMES);
        assert_eq!(world.vms[0].lock().counts().present(), 0);
        world.check();
    }
    world.fill_region(0);
    assert_eq!(world.vms[0].lock().leaves(), (1, 0));
    world.finish();
}

/// All pages of a block move to the other node, and are used and given back there.
#[test]
fn a_block_moves_page_by_page() {
    let mut world = World::new([SHARES; VMS]);
    world.fill_region(0);
    let pages = || (0..100).map(|n| RAM.add(n));
    for (node, gfn) in [1, 0]
        .into_iter()
        .flat_map(|node| pages().map(move |gfn| (node, gfn)))
    {
        assert!(world.touch(0, gfn, Access::Write));
        world.store(0, gfn);
        assert_eq!(
            world.place(0, gfn, (NodeId(node), false), false),
            Some(Moved::Done)
        );
        world.check();
        assert!(world.touch(0, gfn, Access::Write));
        world.store(0, gfn);
    }
    world.check();
    assert_eq!(world.vms[0].lock().events().moved, 200);
    world.release(0, RAM, 60);
    world.finish();
}

/// A page of a block gets copies: the others stay where they are.
#[test]
fn a_page_of_a_block_gets_copies() {
    let mut world = World::new([SHARES; VMS]);
    world.fill_region(1);
    world.fill_region(0);
    for n in (0..60).chain(500..512) {
        let gfn = RAM.add(n);
        let to = (NodeId(1), true);
        assert_eq!(world.place(0, gfn, to, false), Some(Moved::Done));
        world.check();
    }
    assert_eq!(world.vms[0].lock().copies(), 72);
    for n in 0..40 {
        assert!(world.touch(0, RAM.add(n), Access::Write));
        world.store(0, RAM.add(n));
        world.check();
    }
    assert_eq!(world.vms[0].lock().events().collapsed, 40);
    world.give_copies_back(NodeId(1));
    assert_eq!(world.vms[0].lock().copies(), 0);
    world.finish();
}

/// Some pages of a block are given back: the hardware finds the others all the time, and no fault shows them again.
#[test]
fn the_rest_of_a_block_stays_when_some_pages_are_released() {
    let mut world = World::new([SHARES; VMS]);
    world.fill_region(1);
    world.fill_region(0);
    world.release(0, RAM.add(100), 70);
    world.check();
    let is_there = |n: &u64| world.vms[0].find(0, RAM.add(*n), true).is_some();
    assert_eq!((0..REGION_FRAMES).filter(is_there).count(), 442);
    world.finish();
}
