//! What is noted of guest frames beside what backs them.

use machine_contract::TableMemory;
use model_addr::Gfn;

use crate::entry::{self, KIND, NEVER_SHARE, PRIVATE, SHARED};
use crate::{Pmap, PmapError, Reasons};

impl Pmap {
    /// Adds and removes reasons for `count` guest frames from `gfn` on, of one region, those that
    /// nothing is behind left out.
    ///
    /// # Errors
    /// [`PmapError::NotRam`], [`PmapError::Run`].
    pub fn change_reasons(
        &mut self,
        memory: &mut impl TableMemory,
        gfn: Gfn,
        count: u64,
        add: Reasons,
        remove: Reasons,
    ) -> Result<(), PmapError> {
        let (add, remove) = (entry::reason_bits(add), entry::reason_bits(remove));
        let of_present = |word| match word & KIND {
            PRIVATE | SHARED => word & !remove | add,
            _ => word,
        };
        self.change(memory, gfn, count, of_present)
    }

    /// Notes that `count` guest frames from `gfn` on, of one region, are never to be shared, or that
    /// they may be.
    ///
    /// # Errors
    /// [`PmapError::NotRam`], [`PmapError::Run`], [`PmapError::NoMemory`].
    pub fn set_never_share(
        &mut self,
        memory: &mut impl TableMemory,
        gfn: Gfn,
        count: u64,
        never: bool,
    ) -> Result<(), PmapError> {
        self.check_run(gfn, count)?;
        let slot = self.add_region_table(memory, gfn)?;
        self.add_leaf(memory, slot)?;
        let bit = if never { NEVER_SHARE } else { 0 };
        self.change(memory, gfn, count, |word| word & !NEVER_SHARE | bit)
    }
}
