//! What EL2 itself may use of a VM's memory, remembered.

use crate::entry::PAYLOAD_SHIFT;
use crate::map::index;
use crate::{Entry, Pmap};
use alloc::{boxed::Box, vec::Vec};
use core::cell::Cell;
use machine_contract::TableMemory;
use model_addr::{Gfn, Mfn};

/// A look is of so many guest frames, 64 KiB, and so many looks are remembered: a device's rings stay among them while
/// packets come and go.
const SEEN: u64 = 16;
const LOOKS: u64 = 32;

/// What [`Pmap::near`] found last, by the place of the guest frames.
#[derive(Debug)]
pub(crate) struct Seen(Box<[Cell<Look>; LOOKS as usize]>);

/// Guest frames whose entries are alike, with one frame after the other.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    first: Gfn,
    count: u64,
    /// The frame of the first.
    frame: Mfn,
    /// Whether they may be written.
    write: bool,
}

impl Look {
    #[inline]
    const fn has(&self, gfn: Gfn) -> bool {
        gfn.0.wrapping_sub(self.first.0) < self.count
    }
}

impl Seen {
    /// Nothing; `None` where there is no memory for it.
    pub(crate) fn new() -> Option<Self> {
        let mut looks = Vec::new();
        looks.try_reserve_exact(LOOKS as usize).ok()?;
        looks.resize_with(LOOKS as usize, Cell::default);
        looks.into_boxed_slice().try_into().ok().map(Self)
    }

    /// Entries from `gfn` on change.
    pub(crate) fn forget(&self, gfn: Gfn, count: u64) {
        let places = gfn.0 / SEEN..gfn.add(count).0.div_ceil(SEEN);
        for place in places.take(LOOKS as usize) {
            self.0[(place % LOOKS) as usize].set(Look::default());
        }
    }
}

impl Pmap {
    /// The frame behind `gfn`, where it may be read, or also written, as it is; and how many follow each
    /// other behind the guest frames from there on, at most those up to the next multiple of 16. What is there
    /// is remembered until it changes.
    #[inline]
    pub fn near(&self, memory: &impl TableMemory, gfn: Gfn, write: bool) -> Option<(Mfn, u64)> {
        let place = &self.seen.0[(gfn.0 / SEEN % LOOKS) as usize];
        if !place.get().has(gfn) {
            self.see(memory, gfn, place);
        }
        let seen = place.get();
        if !seen.has(gfn) {
            return None;
        }
        let at = gfn.0 - seen.first.0;
        (seen.write || !write).then(|| (seen.frame.add(at), seen.count - at))
    }

    /// Looks at what is behind `first` and those after it; where EL2 may use nothing, `place` stays as it is.
    #[inline(never)]
    fn see(&self, memory: &impl TableMemory, first: Gfn, place: &Cell<Look>) {
        let slot = self.region_slot(memory, first);
        let Some(leaf) = slot.and_then(|slot| slot.leaf(memory)) else {
            return;
        };
        let entry = |n| memory.read(leaf, index(first) + n as usize);
        let word = entry(0);
        let follows = |n: &u64| entry(*n) == word.wrapping_add(*n << PAYLOAD_SHIFT);
        let most = SEEN - first.0 % SEEN;
        let entry = Entry::decode(word);
        if let (Some(frame), Some(rights)) = (entry.frame(), entry.rights()) {
            place.set(Look {
                first,
                count: 1 + (1..most).take_while(follows).count() as u64,
                frame,
                write: rights.write,
            });
        }
    }
}
