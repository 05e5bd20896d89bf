//! Pages that must not be written, or not be seen, for reasons that no code of this crate knows.

use super::{
    Access, Backing, Block, Entry, Filled, Frames, Gfn, IMAGE, NodeId, Owner, RAM, Reasons, VMS,
    Vm, World, page,
};
use crate::SHARES;
use model_address_space::Moved;

/// Made-up reasons of all pages: one keeps them from being written, one from being seen.
pub const STANDING: [Reasons; 2] = [
    Reasons::from_bits_retain(1 << 11),
    Reasons::from_bits_retain(1 << 15),
];

/// A reason of single pages that does the same.
const fn of_a_page(standing: Reasons) -> Reasons {
    Reasons::from_bits_retain(standing.bits() >> 1)
}

impl Vm {
    /// Whether nothing holds what a page contains.
    pub fn may_change(&self, gfn: Gfn, standing: Reasons) -> bool {
        let entry = self.lock().entry(gfn);
        let reasons = if entry.frame().is_some() {
            entry.reasons
        } else {
            standing
        };
        !reasons.intersects(standing | of_a_page(standing))
    }
}

impl World {
    /// A page gets the made-up reason of single pages, in a world that has one.
    pub fn hold(&mut self, vm: usize, gfn: Gfn) {
        let guest = &mut self.vms[vm];
        if self.standing.is_empty() || guest.lock().entry(gfn).frame().is_none() {
            return;
        }
        guest.lock().restrict(&[gfn], of_a_page(self.standing));
        guest.held.insert(gfn);
        let writes = (0..2).any(|vcpu| guest.find(vcpu, gfn, true).is_some());
        assert!(!writes, "{gfn} is written all the same");
    }

    /// Whoever gave a page its reasons takes them, since somebody needs it.
    pub fn lift(&mut self, vm: usize, gfn: Gfn, access: Access, reasons: Reasons) {
        let made_up = self.standing | of_a_page(self.standing);
        let guest = &mut self.vms[vm];
        let entry = guest.lock().entry(gfn);
        assert_eq!(entry.reasons, reasons);
        assert!(entry.usable(access.writes()).is_none(), "nothing held it");
        assert!(
            reasons.intersects(made_up),
            "a fault ends these: {reasons:?}"
        );
        guest.lock().lift(gfn, made_up);
        guest.held.remove(&gfn);
        guest.lifted.borrow_mut().insert(gfn, entry.backing);
    }

    /// A page loses its own reason, and keeps that of all pages.
    fn lift_own(&mut self, vm: usize, gfn: Gfn) {
        let guest = &mut self.vms[vm];
        guest.lock().lift(gfn, of_a_page(self.standing));
        guest.held.remove(&gfn);
    }

    /// Pages have their made-up reasons unless somebody lifted them, and nobody has put another frame there since.
    pub fn check_held(&self, vm: &Vm) {
        let maps = vm.lock();
        let mut lifted = vm.lifted.borrow_mut();
        lifted.retain(|gfn, backing| {
            let entry = maps.entry(*gfn);
            entry.backing == *backing && !entry.reasons.contains(self.standing)
        });
        maps.visit(Gfn(0), 1 << 20, |gfn, entry| {
            let has_all = entry.reasons.contains(self.standing) || entry.frame().is_none();
            assert!(has_all || lifted.contains_key(&gfn), "{gfn}: {entry:?}");
        });
        for gfn in &vm.held {
            let entry = maps.entry(*gfn);
            assert!(
                entry.reasons.contains(of_a_page(self.standing)),
                "{gfn}: {entry:?}"
            );
        }
    }
}

const OWN: Gfn = RAM.add(200);
const OTHER: Gfn = RAM.add(300);

/// A world in which the page shares an image's frame with another VM.
fn shared(standing: Reasons) -> World {
    let mut world = World::held_by([SHARES; VMS], standing);
    for vm in [1, 0] {
        assert!(world.touch(vm, OWN, Access::Write));
        world.read(vm, &[(OWN, Block::Image(9))]);
        world.check();
    }
    let entry = world.vms[0].lock().entry(OWN);
    assert_eq!(entry.backing, Backing::Shared(IMAGE.add(9)));
    world
}

/// Every way in which a page gets a frame: it has the reasons of all pages then.
#[test]
fn every_way_to_a_frame_keeps_reasons() {
    for standing in STANDING {
        let mut world = shared(standing);
        // A break, a page of its own that others may use, and a claim.
        assert!(world.touch(0, OWN, Access::Write));
        world.check();
        world.read(0, &[(OTHER, Block::Buffer(3))]);
        world.check();
        let entry = world.vms[0].lock().entry(OTHER);
        assert!(matches!(entry.backing, Backing::Shared(_)));
        assert!(world.touch(0, OTHER, Access::Write));
        world.check();
        let events = world.vms[0].lock().events();
        assert_eq!((events.breaks, events.claims), (1, 1));
        // A single page, and a page of the kernel.
        world.release(0, OWN, 1);
        assert!(world.vms[0].lock().entry(OWN).frame().is_none());
        for gfn in [OWN, RAM.add(6)] {
            assert!(world.touch(0, gfn, Access::Read));
            world.check();
        }
        // Whoever is not let through does not get it back, either.
        world.hold(0, OWN);
        world.release(0, OWN, 1);
        assert!(world.vms[0].lock().entry(OWN).frame().is_some());
        assert!(world.touch(0, OWN, Access::Write));
        for copies in [false, true] {
            let moved = world.place(0, OWN, (NodeId(1), copies), false);
            assert_eq!(moved, Some(Moved::Done));
            world.check();
            assert!(world.device(0, OWN, Access::Write, &page(7)));
            world.check();
        }
        world.finish();
    }
}

/// A page that goes to a disk forgets no reason of its own, and comes back with those of all pages: it does so though
/// all of it is to be written, for whoever holds it has not had what it contains.
#[test]
fn a_page_comes_back_from_a_disk_with_its_reasons() {
    for standing in STANDING {
        let mut world = shared(standing);
        let (frame, token) = (IMAGE.add(9), 5);
        let discard = |world: &World| {
            let guest = &world.vms[0];
            let mut maps = guest.lock();
            maps.discard(&guest.ram, OWN, frame, token, &world.machine)
        };
        world.hold(0, OWN);
        assert!(!discard(&world));
        world.check();
        world.lift_own(0, OWN);
        assert!(discard(&world));
        let guest = &world.vms[0];
        let (at, lock) = (OWN.address(), || guest.lock());
        for access in [Access::Read, Access::Write, Access::Overwrite] {
            let filled = { &guest.ram }.fill(at, NodeId(0), access, &world.machine, &lock);
            assert_eq!(filled, Filled::Away(token), "{access:?}");
        }
        let user = Owner {
            vm: guest.ram.vm,
            gfn: OWN,
        };
        world.machine.join(frame, user).unwrap();
        let entry = Entry::shared(frame);
        assert!(guest.lock().restore(OWN, token, entry));
        world.check();
        world.finish();
    }
}

/// A page gets a reason between the steps of a break, and while it moves.
#[test]
fn a_reason_may_come_at_any_step() {
    for standing in STANDING {
        for steps in 0..6 {
            let mut world = shared(standing);
            for _ in 0..steps {
                world.fault(0, 0, OWN, Access::Overwrite);
                world.check();
            }
            world.hold(0, OWN);
            for _ in 0..2 {
                world.fault(0, 0, OWN, Access::Overwrite);
                world.check();
            }
            assert!(world.touch(0, OWN, Access::Write));
            world.store(0, OWN);
            world.set_off(0, OWN, (NodeId(1), false), false);
            world.hold(0, OWN);
            world.carry();
            world.land(0);
            world.check();
            assert!(world.touch(0, OWN, Access::Write));
            world.store(0, OWN);
            world.finish();
        }
    }
}

/// All pages of a region may be written, so that it is a block, until one gets a reason.
#[test]
fn a_block_with_a_reason_is_pages() {
    for standing in STANDING {
        let mut world = World::held_by([SHARES; VMS], standing);
        world.fill_region(0);
        world.check();
        assert_eq!(world.vms[0].lock().leaves(), (1, 0));
        world.hold(0, RAM.add(3));
        world.check();
        assert_eq!(world.vms[0].lock().leaves(), (0, 512));
        world.finish();
    }
}
