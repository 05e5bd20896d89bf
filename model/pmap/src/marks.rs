//! What is noted of guest frames beside what backs them.

use machine_contract::TableMemory;
use model_addr::Gfn;

use crate::entry::{self, KIND, NEVER_SHARE, PRIVATE};
use crate::{Entry, Pmap, PmapError, Reasons, Why};

impl Pmap {
    /// The reasons that every entry with a frame gets when it is made, whoever makes it.
    pub const fn standing(&self) -> Reasons {
        self.standing
    }

    /// Changes [`Self::standing`]. Entries that are there stay as they are.
    pub const fn set_standing(&mut self, reasons: Reasons) {
        self.standing = reasons;
    }

    /// What becomes of `entry` where it is put behind a guest frame: with a frame, it has the standing reasons.
    #[inline]
    pub fn made(&self, entry: Entry) -> Entry {
        let reasons = match entry.frame() {
            Some(_) => entry.reasons.union(self.standing),
            None => Reasons::empty(),
        };
        Entry { reasons, ..entry }
    }

    /// The word of [`Self::made`].
    #[inline]
    pub(crate) fn made_word(&self, entry: Entry) -> u64 {
        let word = entry.encode();
        let has_frame = entry::is_present(word);
        word | if has_frame {
            entry::reason_bits(self.standing)
        } else {
            0
        }
    }

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
        self.change(memory, gfn, count, |word| {
            if entry::is_present(word) {
                word & !remove | add
            } else {
                word
            }
        })
    }

    /// Notes why a private page is its guest's alone; it keeps its reasons.
    ///
    /// # Errors
    /// [`PmapError::NotRam`].
    pub fn set_why(
        &mut self,
        memory: &mut impl TableMemory,
        gfn: Gfn,
        why: Why,
    ) -> Result<(), PmapError> {
        self.change(memory, gfn, 1, |word| match word & KIND {
            PRIVATE => entry::with_why(word, why),
            _ => word,
        })
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
