//! Pages that move to another node, or get copies there, while their guests run.

use super::{
    Backing, Entry, Frames, Gfn, Maps, Mfn, Moved, NodeId, Owner, Purpose, RAM, Reasons, Tables,
    World,
};

impl World {
    /// A page moves to `node`; where it is `late`, the frame that was meant is another one by now.
    pub fn migrate(&mut self, vm: usize, gfn: Gfn, node: NodeId, late: bool) -> Option<Moved> {
        let guest = &self.vms[vm];
        let before = guest.lock().entry(gfn);
        let old = before.frame()?;
        let old = if late { old.add(1) } else { old };
        let user = Owner {
            vm: guest.ram.vm,
            gfn,
        };
        let new = self
            .machine
            .allocate_local(node, 0, Purpose::Private(user))?;
        let moved = guest
            .lock()
            .migrate(&guest.ram, gfn, (old, new), &self.machine);
        let after = guest.lock().entry(gfn);
        let is_private = matches!(before.backing, Backing::Private(_)) && !late;
        let has_copies = before.reasons.contains(Reasons::REPLICA);
        match moved {
            Moved::Done => assert_eq!(
                after,
                Entry {
                    backing: Backing::Private(new),
                    ..before
                }
            ),
            Moved::Gone => assert_eq!((after, is_private), (before, false)),
            Moved::Held => {
                assert!(is_private && (has_copies || guest.ram.policy().keep_blocks));
                assert_eq!(after, before);
            }
        }
        Some(moved)
    }

    /// A node gets a copy of a page; where it is `late`, the frame that was meant is another one by now.
    pub fn replicate(&mut self, vm: usize, gfn: Gfn, node: NodeId, late: bool) -> Option<Moved> {
        let guest = &self.vms[vm];
        let before = guest.lock().entry(gfn);
        let had = guest.lock().copy_on(node, gfn);
        let old = before.frame()?;
        let old = if late { old.add(1) } else { old };
        let user = Owner {
            vm: guest.ram.vm,
            gfn,
        };
        let copy = self
            .machine
            .allocate_local(node, 0, Purpose::Replica(user))?;
        let done = guest
            .lock()
            .replicate(&guest.ram, gfn, old, (node, copy), &self.machine);
        let after = guest.lock().entry(gfn);
        let now_has = guest.lock().copy_on(node, gfn);
        match done {
            Moved::Done => {
                assert_eq!((now_has, after.frame()), (Some(copy), Some(old)));
                assert!(!after.rights().unwrap().write);
                let reader = usize::from(node.0);
                let found = guest.find(reader, gfn, false);
                assert!(found == Some(copy) || found.is_none() && guest.tables_fail);
            }
            Moved::Gone => assert!((late || had.is_some()) && after == before),
            Moved::Held => {
                let policy = guest.ram.policy();
                assert!(policy.hide || policy.keep_blocks || self.is_failing(vm));
                assert_eq!((now_has, after), (None, before));
            }
        }
        Some(done)
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
}

/// A VM's copies of a page, by node.
pub fn copies(maps: &Maps<Tables>, gfn: Gfn) -> [Option<Mfn>; 2] {
    [0, 1].map(|node| maps.copy_on(NodeId(node), gfn))
}
