//! What is known of a region as a whole, and where that stands.

use machine_contract::TableMemory;
use model_addr::{FRAME_SHIFT, Gfn, Mfn};

use crate::map::{REGION_FRAMES, REGION_SHIFT, WORDS};
use crate::{Entry, entry};

/// A table's number stands above this; zero is no table.
pub(crate) const TABLE_NUMBER_SHIFT: u32 = FRAME_SHIFT;
/// In a region's second word: there is a base, in the bits from [`FRAME_SHIFT`] up.
const HAS_BASE: u64 = 1 << 10;
/// In a region's second word: how many entries lie where the base says.
const IN_PLACE: u64 = HAS_BASE - 1;
/// In a region's second word: [`Region::mixed`].
const MIXED: u64 = 1 << 11;

/// What is known of a region as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// The first frame of the 2 MiB run that is reserved for it.
    pub base: Option<Mfn>,
    /// How many of its guest frames are private, unrestricted, and where the run says.
    pub in_place: u64,
    /// Whether something else than private frames was ever put behind it, or something was taken
    /// away: then a chunk of it is not always behind its guest frames as a whole, or not at all.
    pub mixed: bool,
}

impl Region {
    /// The run that a 2 MiB block may map, with all rights.
    pub fn block(self) -> Option<Mfn> {
        self.base.filter(|_| self.in_place == REGION_FRAMES)
    }

    #[inline]
    fn decode(word: u64) -> Self {
        let base = (word & HAS_BASE != 0).then_some(Mfn(word >> FRAME_SHIFT));
        Self {
            base,
            in_place: word & IN_PLACE,
            mixed: word & MIXED != 0,
        }
    }

    fn encode(self) -> u64 {
        let base = self.base.map_or(0, |base| base.0 << FRAME_SHIFT | HAS_BASE);
        base | self.in_place | if self.mixed { MIXED } else { 0 }
    }

    /// 1 where `word` is entry `index` of the run.
    pub(crate) fn counts(self, index: usize, word: u64) -> u64 {
        let is_there = |base: Mfn| entry::is_plain(word, base.add(index as u64));
        self.base.map_or(0, |base| u64::from(is_there(base)))
    }
}

/// What a fault looks at, found by one walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// What is known of the guest frame.
    pub entry: Entry,
    /// What is known of its region.
    pub region: Region,
}

/// Where a region's two words are.
#[derive(Clone, Copy)]
pub(crate) struct RegionSlot {
    pub(crate) table: Mfn,
    index: usize,
}

impl RegionSlot {
    pub(crate) fn new(table: Mfn, gfn: Gfn) -> Self {
        let region = (gfn.0 >> REGION_SHIFT) % (WORDS / 2);
        Self {
            table,
            index: 2 * region as usize,
        }
    }

    pub(crate) fn leaf(self, memory: &impl TableMemory) -> Option<Mfn> {
        table_in(memory.read(self.table, self.index))
    }

    pub(crate) fn region(self, memory: &impl TableMemory) -> Region {
        Region::decode(memory.read(self.table, self.index + 1))
    }

    pub(crate) fn set_leaf(self, memory: &mut impl TableMemory, leaf: Mfn) {
        memory.write(self.table, self.index, leaf.0 << TABLE_NUMBER_SHIFT);
    }

    pub(crate) fn set_region(self, memory: &mut impl TableMemory, region: Region) {
        memory.write(self.table, self.index + 1, region.encode());
    }
}

pub(crate) fn table_in(word: u64) -> Option<Mfn> {
    (word != 0).then_some(Mfn(word >> TABLE_NUMBER_SHIFT))
}
