//! Pages that move to another node, or get copies there, while their guests run.

use super::{
    Access, Backing, Block, CHUNK_FRAMES, Flight, Frames, Gfn, Ground, Maps, Mfn, Moved, NodeId,
    Owner, Policy, Purpose, RAM, Reasons, Tables, VMS, World,
};

impl World {
    /// A page moves to `node`, or the node gets a copy of it, in one go; where it is `late`, the frame
    /// that was meant is another one by now.
    pub fn place(
        &mut self,
        vm: usize,
        gfn: Gfn,
        (node, copies): (NodeId, bool),
        late: bool,
    ) -> Option<Moved> {
        let before = self.vms[vm].lock().entry(gfn);
        let mut flight = self.begin(vm, gfn, (node, copies), late)?;
        self.carry_one(&flight);
        self.commit(vm, &mut flight);
        let after = self.vms[vm].lock().entry(gfn);
        if flight.state != Moved::Done {
            assert_eq!(after, before);
        }
        Some(flight.state)
    }

    /// Begins as [`Self::place`]; [`Self::carry`] and [`Self::land`] follow some time.
    pub fn set_off(&mut self, vm: usize, gfn: Gfn, to: (NodeId, bool), late: bool) {
        if let Some(flight) = self.begin(vm, gfn, to, late) {
            self.flights.push((vm, flight));
        }
    }

    fn begin(
        &mut self,
        vm: usize,
        gfn: Gfn,
        (node, copies): (NodeId, bool),
        late: bool,
    ) -> Option<Flight> {
        let guest = &self.vms[vm];
        let before = guest.lock().entry(gfn);
        let had = guest.lock().copy_on(node, gfn);
        let old = before.frame()?;
        let user = Owner {
            vm: guest.ram.vm,
            gfn,
        };
        let purpose = if copies {
            Purpose::Replica(user)
        } else {
            Purpose::Private(user)
        };
        let mut flight = Flight {
            gfn,
            old: if late { old.add(1) } else { old },
            new: self.machine.allocate_local(node, 0, purpose)?,
            node,
            copies,
            state: Moved::Gone,
        };
        guest
            .lock()
            .begin(&guest.ram, std::slice::from_mut(&mut flight));
        let after = guest.lock().entry(gfn);
        let is_private = matches!(before.backing, Backing::Private(_));
        let is_guarded = !self.standing.contains(before.reasons);
        let policy = guest.ram.policy();
        match flight.state {
            Moved::Begun => {
                assert!(!late && after.usable(true).is_none());
                assert_eq!(after.backing, before.backing);
                assert!((0..2).all(|vcpu| guest.find(vcpu, gfn, true).is_none()));
            }
            Moved::Gone => assert!(late || had.is_some() || !copies && !is_private),
            Moved::Held => assert!(is_guarded || policy.hide || policy.keep_blocks),
            Moved::Done | Moved::Lost => unreachable!(),
        }
        assert!(flight.state == Moved::Begun || after == before);
        Some(flight)
    }

    /// Copies what is on its way, whatever is in the old frames by now.
    pub fn carry(&self) {
        for (_, flight) in &self.flights {
            self.carry_one(flight);
        }
    }

    fn carry_one(&self, flight: &Flight) {
        let frames = &self.machine.frames;
        if flight.state != Moved::Begun {
            return;
        }
        if let Some(page) = frames.contents(flight.old) {
            if frames.contents(flight.new).is_none() {
                frames.zero(flight.new, 1);
            }
            frames.store(flight.new, 0, &page);
            // As all copies are.
            frames.clean(flight.new);
            frames.drop_instructions(flight.new);
        }
    }

    /// Brings all that is on its way of a VM to its end, in reverse.
    pub fn land(&mut self, vm: usize) {
        for (owner, mut flight) in std::mem::take(&mut self.flights).into_iter().rev() {
            if owner == vm {
                // It may not have been copied yet.
                self.carry_one(&flight);
                self.commit(vm, &mut flight);
            } else {
                self.flights.push((owner, flight));
            }
        }
    }

    fn commit(&mut self, vm: usize, flight: &mut Flight) {
        let guest = &self.vms[vm];
        let was_begun = flight.state == Moved::Begun;
        guest
            .lock()
            .commit(&guest.ram, std::slice::from_mut(flight), &self.machine);
        let entry = guest.lock().entry(flight.gfn);
        let node = flight.node;
        match (flight.state, flight.copies) {
            (Moved::Begun, _) => unreachable!(),
            (Moved::Done, false) => assert_eq!(entry.backing, Backing::Private(flight.new)),
            (Moved::Done, true) => {
                assert_eq!(entry.frame(), Some(flight.old));
                assert!(entry.usable(true).is_none());
                assert_eq!(guest.lock().copy_on(node, flight.gfn), Some(flight.new));
                let found = guest.find(usize::from(node.0), flight.gfn, false);
                let is_hidden = guest.tables_fail || entry.rights().is_none();
                assert!(found == Some(flight.new) || found.is_none() && is_hidden);
            }
            (Moved::Held, _) => {
                assert!(!was_begun || self.is_failing(vm) || self.is_empty());
            }
            (Moved::Gone | Moved::Lost, _) => {}
        }
    }

    /// A node is short of memory: all its copies go.
    pub fn give_copies_back(&mut self, node: NodeId) {
        for vm in &self.vms {
            let mut from = Some(RAM);
            while let Some(at) = from {
                (_, from) = vm.lock().give_copies_back(node, at, &self.machine);
            }
            let has_none = |n: u64| vm.lock().copy_on(node, RAM.add(n)).is_none();
            assert!((0..super::RAM_FRAMES).all(has_none));
        }
    }

    /// Nobody reaches these pages unnoticed, but those that are no plain ones.
    pub fn watch(&mut self, vm: usize, first: Gfn, count: u64) {
        let guest = &self.vms[vm];
        let pages: Vec<Gfn> = (0..count).map(|n| first.add(n)).collect();
        let entry = |gfn: Gfn| guest.lock().entry(gfn);
        let before: Vec<_> = pages.iter().map(|gfn| entry(*gfn)).collect();
        guest.lock().sample(&guest.ram, &pages);
        for (gfn, before) in pages.into_iter().zip(before) {
            let after = entry(gfn);
            let is_sampled = after.reasons.contains(Reasons::ACCESS_SAMPLE);
            assert_eq!(after.backing, before.backing);
            assert!(!is_sampled || (0..2).all(|vcpu| guest.find(vcpu, gfn, false).is_none()));
            let is_plain = before.frame().is_some() && self.standing.contains(before.reasons);
            assert!(is_sampled || !is_plain || guest.ram.policy().keep_blocks);
        }
    }
}

/// A VM's copies of a page, by node.
pub fn copies(maps: &Maps<Tables>, gfn: Gfn) -> [Option<Mfn>; 2] {
    [0, 1].map(|node| maps.copy_on(NodeId(node), gfn))
}

/// Who touches a sampled page is told, once.
#[test]
fn a_sampled_page_tells_who_touches_it() {
    let mut world = World::new([Policy::default(); VMS]);
    let gfn = RAM.add(7);
    assert!(world.touch(0, gfn, Access::Write));
    world.store(0, gfn);
    let frame = world.vms[0].lock().entry(gfn).frame().unwrap();
    for (vcpu, access) in [(1, Access::Read), (0, Access::Write)] {
        world.watch(0, gfn, 1);
        for _ in 0..2 {
            assert!(world.touch_by(0, vcpu, gfn, access));
        }
        let owner = Owner {
            vm: world.vms[0].ram.vm,
            gfn,
        };
        let node = NodeId(vcpu as u8);
        let told = world.machine.touched.take();
        assert_eq!(told, [(frame, owner, node, access.writes())]);
    }
    world.check();
    world.finish();
}

/// A page that gets another node's frame at a disk read tells so, if somebody wants to know, and the VM does
/// not hide; and it is mapped all the same.
#[test]
fn a_hit_on_another_nodes_frame_is_told() {
    let shares = Policy {
        share: true,
        ..Policy::default()
    };
    let hides = Policy {
        hide: true,
        ..shares
    };
    for (told, policy, is_told) in [
        (Some(NodeId(1)), shares, true),
        (Some(NodeId(0)), shares, false),
        (Some(NodeId(1)), hides, false),
        (None, shares, false),
    ] {
        let mut world = World::new([shares, policy, policy]);
        let (own, other) = (RAM.add(30), RAM.add(33));
        assert!(world.touch_by(0, 0, own, Access::Write));
        world.read(0, &[(own, Block::Buffer(3))]);
        let frame = world.vms[0].lock().entry(own).frame().unwrap();
        assert_eq!(world.machine.map().node_of(frame), Some(NodeId(0)));
        assert!(world.machine.touched.take().is_empty());
        world.told = told;
        world.read(1, &[(other, Block::Buffer(3))]);
        assert_eq!(world.vms[1].lock().entry(other).frame(), Some(frame));
        let owner = Owner {
            vm: world.vms[1].ram.vm,
            gfn: other,
        };
        let expected = is_told.then_some((frame, owner, NodeId(1), false));
        let seen = world.machine.touched.take();
        assert_eq!(seen, expected.into_iter().collect::<Vec<_>>());
        world.check();
        world.finish();
    }
}

/// A node with a root of its own sees a chunk at its first touch of it, its copies among it, and a moved page at
/// once.
#[test]
fn a_nodes_own_root_shows_whole_chunks() {
    let mut world = World::new([Policy::default(); VMS]);
    let (copied, moved) = (RAM.add(3), RAM.add(5));
    let chunk = |first: u64| (first..first + CHUNK_FRAMES).map(|n| RAM.add(n));
    assert!(world.touch_by(0, 0, RAM, Access::Write));
    assert_eq!(
        world.place(0, copied, (NodeId(1), true), false),
        Some(Moved::Done)
    );
    let sees = |world: &World, vcpu, gfn| world.vms[0].find(vcpu, gfn, false);
    assert!(chunk(0).all(|gfn| gfn == copied || sees(&world, 1, gfn).is_none()));
    assert!(world.touch_by(0, 1, RAM.add(1), Access::Read));
    for gfn in chunk(0) {
        let (near, far) = (sees(&world, 1, gfn), sees(&world, 0, gfn));
        assert!(near.is_some() && (near != far) == (gfn == copied), "{gfn}");
    }
    assert_eq!(
        world.place(0, moved, (NodeId(1), false), false),
        Some(Moved::Done)
    );
    assert!(sees(&world, 1, moved).is_some() && sees(&world, 0, moved).is_none());
    // What nobody has touched yet, too.
    assert!(world.touch_by(0, 1, RAM.add(CHUNK_FRAMES), Access::Write));
    assert!(chunk(CHUNK_FRAMES).all(|gfn| sees(&world, 1, gfn).is_some()));
    world.check();
    world.finish();
}
