//! Pages that move to another node while their guests run.

use super::{Backing, Entry, Frames, Gfn, Moved, NodeId, Owner, Purpose, World};

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
                assert!(is_private && guest.ram.policy().keep_blocks);
                assert_eq!(after, before);
            }
        }
        Some(moved)
    }
}
