//! What EL2 itself may use of a VM's memory, remembered.

use crate::entry::PAYLOAD_SHIFT;
use crate::map::index;
use crate::{Entry, Pmap};
use core::cell::Cell;
use machine_contract::TableMemory;
use model_addr::{Gfn, Mfn};

/// So many looks are remembered, each of so many guest frames: 32 KiB, as Linux's pieces of packets are.
const SEEN: u64 = 8;

/// What [`Pmap::near`] found last, by the place of the guest frames.
#[derive(Debug, Default)]
pub(crate) struct Seen([Cell<Look>; SEEN as usize]);

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

impl Seen {
    /// Entries from `gfn` on change.
    pub(crate) fn forget(&self, gfn: Gfn, count: u64) {
        let places = gfn.0 / SEEN..gfn.add(count).0.div_ceil(SEEN);
        for place in places.take(SEEN as usize) {
            self.0[(place % SEEN) as usize].set(Look::default());
        }
    }
}

impl Pmap {
    /// The frame behind `gfn`, where it may be read, or also written, as it is; and how many follow each
    /// other behind the guest frames from there on, at most those up to the next multiple of 8. What is there
    /// is remembered until it changes.
    #[inline]
    pub fn near(&self, memory: &impl TableMemory, gfn: Gfn, write: bool) -> Option<(Mfn, u64)> {
        let place = &self.seen.0[(gfn.0 / SEEN % SEEN) as usize];
        let mut seen = place.get();
        if gfn.0.wrapping_sub(seen.first.0) >= seen.count {
            seen = self.see(memory, gfn)?;
            place.set(seen);
        }
        let at = gfn.0 - seen.first.0;
        (seen.write || !write).then(|| (seen.frame.add(at), seen.count - at))
    }

    #[inline(never)]
    fn see(&self, memory: &impl TableMemory, first: Gfn) -> Option<Look> {
        let leaf = self.region_slot(memory, first)?.leaf(memory)?;
        let entry = |n| memory.read(leaf, index(first) + n as usize);
        let word = entry(0);
        let follows = |n: &u64| entry(*n) == word.wrapping_add(*n << PAYLOAD_SHIFT);
        let most = SEEN - first.0 % SEEN;
        let count = 1 + (1..most).take_while(follows).count() as u64;
        let entry = Entry::decode(word);
        Some(Look {
            first,
            count,
            frame: entry.frame()?,
            write: entry.rights()?.write,
        })
    }
}
