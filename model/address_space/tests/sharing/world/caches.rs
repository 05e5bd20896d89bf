//! What memory holds of shared frames, where a guest goes past its caches.

use super::{Access, Arc, Block, FRAME_SIZE, Gets, Ground, Policy, RAM, VMS, World, page};

/// A guest can let memory and caches differ while a disk reads into its page. What caches give then is not what
/// others would come to see; so it is not what others get who read the same.
#[test]
fn what_a_guest_hides_behind_its_caches_is_not_shared_as_something_else() {
    let shares = Policy {
        share: true,
        ..Policy::default()
    };
    let mut world = World::new([shares; VMS]);
    let (own, other) = (RAM.add(30), RAM.add(33));
    assert!(world.touch(0, own, Access::Write));
    let read = page(3);
    assert!(world.device(0, own, Access::Overwrite, &read));
    let frames = &world.machine.frames;
    let frame = world.vms[0].lock().entry(own).frame().unwrap();
    // Clean lines stay in caches, and are dropped without a word some time.
    frames.clean(frame);
    frames.store_uncached(frame, 8, b"other");
    let guest = &world.vms[0];
    let done = guest
        .lock()
        .exchange(&guest.ram, None, &[(own, Gets::Own)], &world.machine);
    assert_eq!(done, 1);
    let mut hidden = read.to_vec();
    hidden[8..13].copy_from_slice(b"other");
    world.vms[0].changed.insert(own, Arc::new(hidden));
    world.check();
    world.read(1, &[(other, Block::Buffer(3))]);
    assert!(world.touch(1, other, Access::Read));
    let frame = world.vms[1].lock().entry(other).frame().unwrap();
    let mut seen = vec![0; FRAME_SIZE as usize];
    world.machine.frames.load_uncached(frame, 0, &mut seen);
    assert_eq!(seen, *read, "of the page that the other guest read");
    world.check();
    world.finish();
}
