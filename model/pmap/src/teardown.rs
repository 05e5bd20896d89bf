//! Giving back all that a map holds, in bounded steps.

use machine_contract::TableMemory;
use model_addr::{Gfn, Mfn};

use crate::map::{REACH, REGION_SHIFT, ROOT_SHIFT, TABLE_SHIFT, after, index};
use crate::{Backing, Entry, Pmap};

/// What a teardown finds, for the caller to free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenBack {
    /// Something is behind this guest frame.
    Entry(Gfn, Entry),
    /// A 2 MiB run was reserved for the region from this guest frame on. Comes before the
    /// region's entries; what is still reserved of it is nobody's from now on.
    Reservation(Gfn, Mfn),
}

/// The map of a VM that is gone. [`Self::step`] until it is done.
#[must_use = "frames leak until all steps are done"]
#[derive(Debug)]
pub struct PmapTeardown {
    pmap: Pmap,
    next: Gfn,
}

impl Pmap {
    /// Begins the end: no stage-2 table maps anything of it, and all debts are paid.
    pub fn teardown(self) -> PmapTeardown {
        PmapTeardown {
            pmap: self,
            next: Gfn(0),
        }
    }
}

impl PmapTeardown {
    /// Gives everything to `give_back` and frees the tables, looking at no more than `budget`
    /// entries of tables; `true` when nothing is left. A run that was reserved for a region without a leaf table is as
    /// much work as the region's entries are elsewhere: the step ends with it.
    pub fn step(
        &mut self,
        memory: &mut impl TableMemory,
        budget: usize,
        mut give_back: impl FnMut(GivenBack),
    ) -> bool {
        for _ in 0..budget {
            if self.next.0 >= REACH {
                break;
            }
            let (at, mut is_run) = (self.next, false);
            self.next = self.look(memory, &mut |back| {
                is_run = matches!(back, GivenBack::Reservation(..));
                give_back(back);
            });
            if self.next.is_aligned(1 << ROOT_SHIFT) {
                let root = self
                    .pmap
                    .roots
                    .get_mut((self.next.0 >> ROOT_SHIFT) as usize - 1);
                if let Some(root) = root.and_then(Option::take) {
                    memory.free_table(root);
                }
            }
            if is_run && self.next.0 - at.0 > 1 {
                break;
            }
        }
        self.next.0 >= REACH
    }

    /// Looks at the next entry, frees the leaf or region table that ends with it, and returns
    /// where to go on.
    fn look(&self, memory: &mut impl TableMemory, give_back: &mut impl FnMut(GivenBack)) -> Gfn {
        let at = self.next;
        let Some(slot) = self.pmap.region_slot(memory, at) else {
            return after(at, TABLE_SHIFT);
        };
        let base = slot.region(memory).base.filter(|_| index(at) == 0);
        if let Some(base) = base {
            give_back(GivenBack::Reservation(at, base));
        }
        let next = match slot.leaf(memory) {
            None => after(at, REGION_SHIFT),
            Some(leaf) => {
                let entry = Entry::decode(memory.read(leaf, index(at)));
                if entry.backing != Backing::Absent {
                    give_back(GivenBack::Entry(at, entry));
                }
                let next = at.add(1);
                if next.is_aligned(1 << REGION_SHIFT) {
                    memory.free_table(leaf);
                }
                next
            }
        };
        if next.is_aligned(1 << TABLE_SHIFT) {
            memory.free_table(slot.table);
        }
        next
    }
}
