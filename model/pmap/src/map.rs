//! The radix and its operations.

use machine_contract::TableMemory;
use model_addr::{FRAME_SHIFT, FRAME_SIZE, Gfn, IpaRange, Mfn};

use crate::entry::{self, ABSENT, DISCARDED, EMPTIED, KIND, NEVER_SHARE, PAYLOAD_SHIFT, PRIVATE};
use crate::near::Seen;
use crate::region::{RegionSlot, TABLE_NUMBER_SHIFT, table_in};
use crate::{Backing, Entry, PmapError, Reasons, Region, Survey};

/// Guest frames in a region: 2 MiB.
pub const REGION_FRAMES: u64 = 1 << REGION_SHIFT;
/// How many ranges of RAM a VM may have.
pub const MAX_RAM_RANGES: usize = 4;

pub(crate) const WORDS: u64 = 512;
pub(crate) const REGION_SHIFT: u32 = 9;
/// A region table has 256 regions of two words: 512 MiB.
pub(crate) const TABLE_SHIFT: u32 = REGION_SHIFT + 8;
pub(crate) const ROOT_SHIFT: u32 = TABLE_SHIFT + 9;
pub(crate) const ROOTS: usize = 2;
/// Guest frames that the roots reach: 512 GiB.
pub(crate) const REACH: u64 = (ROOTS as u64) << ROOT_SHIFT;

/// How many guest frames there are of each kind; kept exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Nothing behind them.
    pub absent: u64,
    /// A frame of their own.
    pub private: u64,
    /// A frame that others may use too.
    pub shared: u64,
    /// A disk's block.
    pub discarded: u64,
}

impl Counts {
    /// Guest frames with a machine frame behind them.
    pub const fn present(self) -> u64 {
        self.private + self.shared
    }
}

/// A range of RAM, in frames.
#[derive(Clone, Copy, Debug, Default)]
struct Ram {
    first: Gfn,
    count: u64,
}

/// A VM's map. One caller at a time: it holds the VM's memory lock.
#[derive(Debug)]
pub struct Pmap {
    pub(crate) roots: [Option<Mfn>; ROOTS],
    ram: [Ram; MAX_RAM_RANGES],
    /// By the kind of the backing.
    counts: [u64; 4],
    tables: u64,
    /// Regions that a block can map.
    blocks: u64,
    /// What every entry with a frame has from when it is made.
    pub(crate) standing: Reasons,
    pub(crate) seen: Seen,
}

impl Pmap {
    /// The map of a VM with this RAM, nothing of it touched.
    ///
    /// # Errors
    /// [`PmapError::Ram`], [`PmapError::NoMemory`].
    pub fn new(memory: &mut impl TableMemory, ram: &[IpaRange]) -> Result<Self, PmapError> {
        if !(1..=MAX_RAM_RANGES).contains(&ram.len()) || !ram.iter().all(is_ram) || overlap(ram) {
            return Err(PmapError::Ram);
        }
        let mut ranges = [Ram::default(); MAX_RAM_RANGES];
        for (to, range) in ranges.iter_mut().zip(ram) {
            *to = Ram {
                first: range.start.frame(),
                count: range.size >> FRAME_SHIFT,
            };
        }
        let frames = ranges.iter().map(|range| range.count).sum();
        let counts = [frames, 0, 0, 0];
        let mut pmap = Self {
            roots: [None; ROOTS],
            ram: ranges,
            counts,
            tables: 0,
            blocks: 0,
            standing: Reasons::empty(),
            seen: Seen::new().ok_or(PmapError::NoMemory)?,
        };
        let border = 1 << (ROOT_SHIFT + FRAME_SHIFT);
        let needed = [
            ram.iter().any(|range| range.start.0 < border),
            ram.iter().any(|range| range.end().0 > border),
        ];
        for n in (0..ROOTS).filter(|n| needed[*n]) {
            let Some(root) = memory.allocate_table() else {
                pmap.roots
                    .into_iter()
                    .flatten()
                    .for_each(|root| memory.free_table(root));
                return Err(PmapError::NoMemory);
            };
            pmap.roots[n] = Some(root);
            pmap.tables += 1;
        }
        Ok(pmap)
    }

    /// The VM's RAM.
    pub fn ram(&self) -> impl Iterator<Item = IpaRange> + '_ {
        let used = self.ram.iter().filter(|ram| ram.count > 0);
        used.map(|ram| IpaRange::of(ram.first.address(), ram.count << FRAME_SHIFT))
    }

    /// Whether all `count` guest frames from `gfn` are RAM, in one range.
    pub fn contains(&self, gfn: Gfn, count: u64) -> bool {
        self.ram_from(gfn) >= count.max(1)
    }

    /// How many guest frames from `gfn` on are RAM, up to the end of their range.
    fn ram_from(&self, gfn: Gfn) -> u64 {
        let left = |ram: &Ram| ram.count.saturating_sub(gfn.0.wrapping_sub(ram.first.0));
        self.ram
            .iter()
            .map(left)
            .find(|left| *left > 0)
            .unwrap_or(0)
    }

    /// How many guest frames there are of each kind.
    pub fn counts(&self) -> Counts {
        let [absent, private, shared, discarded] = self.counts;
        Counts {
            absent,
            private,
            shared,
            discarded,
        }
    }

    /// Frames in use for the map itself.
    pub fn tables(&self) -> u64 {
        self.tables
    }

    /// What is known of `gfn`.
    ///
    /// # Errors
    /// [`PmapError::NotRam`].
    #[inline]
    pub fn lookup(&self, memory: &impl TableMemory, gfn: Gfn) -> Result<Entry, PmapError> {
        if !self.contains(gfn, 1) {
            return Err(PmapError::NotRam(gfn));
        }
        let leaf = self
            .region_slot(memory, gfn)
            .and_then(|slot| slot.leaf(memory));
        Ok(leaf.map_or(Entry::default(), |leaf| {
            Entry::decode(memory.read(leaf, index(gfn)))
        }))
    }

    /// What a fault on `gfn` looks at first.
    ///
    /// # Errors
    /// [`PmapError::NotRam`].
    #[inline]
    pub fn survey(&self, memory: &impl TableMemory, gfn: Gfn) -> Result<Survey, PmapError> {
        if !self.contains(gfn, 1) {
            return Err(PmapError::NotRam(gfn));
        }
        let Some(slot) = self.region_slot(memory, gfn) else {
            return Ok(Survey::default());
        };
        let leaf = slot.leaf(memory);
        Ok(Survey {
            entry: leaf.map_or(Entry::default(), |leaf| {
                Entry::decode(memory.read(leaf, index(gfn)))
            }),
            region: slot.region(memory),
        })
    }

    /// How many guest frames from `gfn` on have nothing behind them: at most `most`, and none
    /// beyond the region or its RAM range.
    pub fn absent_run(&self, memory: &impl TableMemory, gfn: Gfn, most: u64) -> u64 {
        let in_region = REGION_FRAMES - gfn.0 % REGION_FRAMES;
        let most = most.min(in_region).min(self.ram_from(gfn));
        let Some(leaf) = self
            .region_slot(memory, gfn)
            .and_then(|slot| slot.leaf(memory))
        else {
            return most;
        };
        let is_absent = |n: &u64| memory.read(leaf, index(gfn.add(*n))) & KIND == entry::ABSENT;
        (0..most).take_while(is_absent).count() as u64
    }

    /// Behind how many of `count` guest frames from `gfn` on, of one region, nothing ever was.
    pub fn untouched(&self, memory: &impl TableMemory, gfn: Gfn, count: u64) -> u64 {
        let slot = self.region_slot(memory, gfn);
        slot.and_then(|slot| slot.leaf(memory))
            .map_or(count, |leaf| {
                let words = (0..count).map(|n| memory.read(leaf, index(gfn.add(n))));
                words.filter(|word| word & !NEVER_SHARE == 0).count() as u64
            })
    }

    /// What is known of the region of `gfn`.
    pub fn region(&self, memory: &impl TableMemory, gfn: Gfn) -> Region {
        let slot = self.region_slot(memory, gfn);
        slot.map_or(Region::default(), |slot| slot.region(memory))
    }

    /// How many regions a 2 MiB block can map.
    pub const fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Notes the 2 MiB run that is reserved for the region of `gfn`, or that there is none any
    /// more.
    ///
    /// # Errors
    /// [`PmapError::NotRam`], [`PmapError::Run`], [`PmapError::NoMemory`].
    pub fn set_base(
        &mut self,
        memory: &mut impl TableMemory,
        gfn: Gfn,
        base: Option<Mfn>,
    ) -> Result<(), PmapError> {
        if !self.contains(gfn, 1) {
            return Err(PmapError::NotRam(gfn));
        }
        if base.is_some_and(|base| !base.is_aligned(REGION_FRAMES)) {
            return Err(PmapError::Run);
        }
        let slot = self.add_region_table(memory, gfn)?;
        let old = slot.region(memory);
        let mut region = Region {
            base,
            in_place: 0,
            mixed: old.mixed,
        };
        if let Some(leaf) = slot.leaf(memory) {
            let entries = (0..WORDS as usize).map(|n| region.counts(n, memory.read(leaf, n)));
            region.in_place = entries.sum();
        }
        self.set_region(memory, slot, old, region);
        Ok(())
    }

    /// Puts private frames, from `frame` on, behind the `N` guest frames from `gfn` on, an aligned
    /// chunk of a power of two that nothing is behind. Returns what is now known of the region and of `gfn`, and whether
    /// nothing ever was behind any of them.
    ///
    /// `N` is a constant since this is the hot path: its loops are unrolled.
    ///
    /// # Errors
    /// [`PmapError::Present`]; [`PmapError::NotRam`], [`PmapError::NoMemory`], and
    /// [`PmapError::Run`] where it is no such chunk.
    #[inline]
    pub fn fill<const N: usize>(
        &mut self,
        memory: &mut impl TableMemory,
        gfn: Gfn,
        frame: Mfn,
    ) -> Result<(Survey, bool), PmapError> {
        let count = N as u64;
        if !count.is_power_of_two() || !gfn.is_aligned(count) {
            return Err(PmapError::Run);
        }
        self.check_run(gfn, count)?;
        let slot = self.add_region_table(memory, gfn)?;
        let leaf = self.add_leaf(memory, slot)?;
        let index = index(gfn.align_down(count));
        let old = memory.read_together::<N>(leaf, index);
        if !is_absent(old) {
            return Err(PmapError::Present);
        }
        let entry = self.made(Entry::private(frame));
        let first = entry.encode();
        let step = 1 << PAYLOAD_SHIFT;
        if old == 0 {
            memory.write_series::<N>(leaf, index, first, step);
        } else {
            for n in 0..N {
                let kept = memory.read(leaf, index + n) & NEVER_SHARE;
                memory.write(leaf, index + n, first.wrapping_add(step * n as u64) | kept);
            }
        }
        self.counts[ABSENT as usize] -= count;
        self.counts[PRIVATE as usize] += count;
        let mut region = slot.region(memory);
        // The words follow each other as the reserved run does: all are in place, or none.
        region.in_place += region.counts(index, first) * count;
        slot.set_region(memory, region);
        // It was none: nothing was behind these.
        self.blocks += u64::from(region.block().is_some());
        Ok((Survey { entry, region }, old == 0))
    }

    /// Sets `count` guest frames from `gfn` on, of one region: the first to `entry`, the others
    /// alike with the frames (or blocks) that follow, as [`Self::made`] makes them.
    ///
    /// # Errors
    /// [`PmapError::NotRam`], [`PmapError::Run`], [`PmapError::NoMemory`].
    pub fn set_run(
        &mut self,
        memory: &mut impl TableMemory,
        gfn: Gfn,
        count: u64,
        entry: Entry,
    ) -> Result<(), PmapError> {
        self.check_run(gfn, count)?;
        self.seen.forget(gfn, count);
        let slot = self.add_region_table(memory, gfn)?;
        let leaf = self.add_leaf(memory, slot)?;
        let (first, index) = (self.made_word(entry), index(gfn));
        let step = if first & KIND == entry::ABSENT {
            0
        } else {
            1 << PAYLOAD_SHIFT
        };
        let old = slot.region(memory);
        let mut region = old;
        // Most runs fill what was never touched: that is counted once.
        let mut fresh = 0;
        let mut word = first;
        for at in index..index + count as usize {
            match memory.read(leaf, at) {
                0 => fresh += 1,
                old => self.leave(&mut region, at, old),
            }
            memory.write(leaf, at, word);
            word = word.wrapping_add(step);
        }
        self.counts[entry::ABSENT as usize] -= fresh;
        self.counts[(first & KIND) as usize] += count;
        // The words follow each other as the run does: all are in place, or none.
        region.in_place += region.counts(index, first) * count;
        region.mixed |= first & KIND != PRIVATE;
        self.set_region(memory, slot, old, region);
        Ok(())
    }

    /// Sets one guest frame to `entry` as [`Self::made`] makes it; what it was. It is [`Self::lookup`] and
    /// [`Self::set_run`] in one walk.
    ///
    /// # Errors
    /// As [`Self::set_run`].
    pub fn replace(
        &mut self,
        memory: &mut impl TableMemory,
        gfn: Gfn,
        entry: Entry,
    ) -> Result<Entry, PmapError> {
        self.check_run(gfn, 1)?;
        self.seen.forget(gfn, 1);
        let slot = self.add_region_table(memory, gfn)?;
        let leaf = self.add_leaf(memory, slot)?;
        let (at, new) = (index(gfn), self.made_word(entry));
        let old = memory.read(leaf, at);
        memory.write(leaf, at, new);
        let before = slot.region(memory);
        let mut region = before;
        self.leave(&mut region, at, old);
        self.counts[(new & KIND) as usize] += 1;
        region.in_place += region.counts(at, new);
        region.mixed |= new & KIND != PRIVATE;
        self.set_region(memory, slot, before, region);
        Ok(Entry::decode(old))
    }

    /// Leaves nothing behind `count` guest frames from `gfn` on, of one region: those that had
    /// something read as zeroes. What was there is the caller's; that they are not to be shared
    /// stays.
    ///
    /// # Errors
    /// [`PmapError::NotRam`], [`PmapError::Run`].
    pub fn clear(
        &mut self,
        memory: &mut impl TableMemory,
        gfn: Gfn,
        count: u64,
    ) -> Result<(), PmapError> {
        self.change(memory, gfn, count, |word| match word & KIND {
            ABSENT => word & (NEVER_SHARE | EMPTIED),
            _ => word & NEVER_SHARE | EMPTIED,
        })
    }

    /// Calls `visit` for the guest frames from `from` on that something is behind, looking at
    /// `budget` entries of tables. Returns where to go on, `None` at the end.
    pub fn visit(
        &self,
        memory: &impl TableMemory,
        from: Gfn,
        budget: usize,
        mut visit: impl FnMut(Gfn, Entry),
    ) -> Option<Gfn> {
        self.visit_known(memory, from, budget, |at, known| {
            if known.backing != Backing::Absent {
                visit(at, known);
            }
        })
    }

    /// As [`Self::visit`], with guest frames behind which nothing is any more, or that were marked before
    /// anything was: [`Self::untouched`] tells one from the other.
    pub fn visit_known(
        &self,
        memory: &impl TableMemory,
        from: Gfn,
        budget: usize,
        mut visit: impl FnMut(Gfn, Entry),
    ) -> Option<Gfn> {
        let mut at = from;
        for _ in 0..budget {
            if at.0 >= REACH {
                return None;
            }
            let Some(slot) = self.region_slot(memory, at) else {
                at = after(at, TABLE_SHIFT);
                continue;
            };
            let Some(leaf) = slot.leaf(memory) else {
                at = after(at, REGION_SHIFT);
                continue;
            };
            let word = memory.read(leaf, index(at));
            if word != 0 {
                visit(at, Entry::decode(word));
            }
            at = at.add(1);
        }
        Some(at).filter(|at| at.0 < REACH)
    }

    pub(crate) fn check_run(&self, gfn: Gfn, count: u64) -> Result<(), PmapError> {
        if !(1..=REGION_FRAMES - gfn.0 % REGION_FRAMES).contains(&count) {
            return Err(PmapError::Run);
        }
        if self.contains(gfn, count) {
            Ok(())
        } else {
            Err(PmapError::NotRam(gfn))
        }
    }

    /// Replaces the words of entries that are there by what `change` makes of them; a region
    /// without any is left so.
    pub(crate) fn change(
        &mut self,
        memory: &mut impl TableMemory,
        gfn: Gfn,
        count: u64,
        change: impl Fn(u64) -> u64,
    ) -> Result<(), PmapError> {
        self.check_run(gfn, count)?;
        self.seen.forget(gfn, count);
        let Some(slot) = self.region_slot(memory, gfn) else {
            return Ok(());
        };
        let Some(leaf) = slot.leaf(memory) else {
            return Ok(());
        };
        let before = slot.region(memory);
        let mut region = before;
        for at in index(gfn)..index(gfn) + count as usize {
            let old = memory.read(leaf, at);
            let new = change(old);
            memory.write(leaf, at, new);
            region.mixed |= is_emptied(old, new);
            self.leave(&mut region, at, old);
            self.counts[(new & KIND) as usize] += 1;
            region.in_place += region.counts(at, new);
        }
        self.set_region(memory, slot, before, region);
        Ok(())
    }

    /// Sets what is known of a region, and counts what that makes of blocks.
    fn set_region(
        &mut self,
        memory: &mut impl TableMemory,
        slot: RegionSlot,
        old: Region,
        new: Region,
    ) {
        slot.set_region(memory, new);
        self.blocks += u64::from(new.block().is_some());
        self.blocks -= u64::from(old.block().is_some());
    }

    /// Counts that `word` is no longer entry `at` of a region.
    fn leave(&mut self, region: &mut Region, at: usize, word: u64) {
        self.counts[(word & KIND) as usize] -= 1;
        region.in_place -= region.counts(at, word);
    }

    /// The region of `gfn`, which is below the reach of the roots; `None` where its table is
    /// missing.
    pub(crate) fn region_slot(&self, memory: &impl TableMemory, gfn: Gfn) -> Option<RegionSlot> {
        let root = *self.roots.get((gfn.0 >> ROOT_SHIFT) as usize)?;
        let table = table_in(memory.read(root?, root_index(gfn)))?;
        Some(RegionSlot::new(table, gfn))
    }

    pub(crate) fn add_region_table(
        &mut self,
        memory: &mut impl TableMemory,
        gfn: Gfn,
    ) -> Result<RegionSlot, PmapError> {
        if let Some(slot) = self.region_slot(memory, gfn) {
            return Ok(slot);
        }
        let root = self
            .roots
            .get((gfn.0 >> ROOT_SHIFT) as usize)
            .copied()
            .flatten();
        let root = root.ok_or(PmapError::NotRam(gfn))?;
        let table = memory.allocate_table().ok_or(PmapError::NoMemory)?;
        self.tables += 1;
        memory.write(root, root_index(gfn), table.0 << TABLE_NUMBER_SHIFT);
        Ok(RegionSlot::new(table, gfn))
    }

    pub(crate) fn add_leaf(
        &mut self,
        memory: &mut impl TableMemory,
        slot: RegionSlot,
    ) -> Result<Mfn, PmapError> {
        if let Some(leaf) = slot.leaf(memory) {
            return Ok(leaf);
        }
        let leaf = memory.allocate_table().ok_or(PmapError::NoMemory)?;
        self.tables += 1;
        slot.set_leaf(memory, leaf);
        Ok(leaf)
    }
}

/// Whether nothing is behind these entries, ORed.
fn is_absent(words: u64) -> bool {
    words & KIND == ABSENT
}

/// Whether an entry had something behind it and has nothing now.
fn is_emptied(old: u64, new: u64) -> bool {
    old & KIND != ABSENT && new & KIND == ABSENT
}

/// The entry of `gfn` in its leaf.
pub(crate) fn index(gfn: Gfn) -> usize {
    (gfn.0 % REGION_FRAMES) as usize
}

fn root_index(gfn: Gfn) -> usize {
    ((gfn.0 >> TABLE_SHIFT) % WORDS) as usize
}

/// The first guest frame of the next aligned run of 2^`shift`.
pub(crate) fn after(gfn: Gfn, shift: u32) -> Gfn {
    gfn.align_down(1 << shift).add(1 << shift)
}

/// Whether a range can be RAM by itself.
fn is_ram(range: &IpaRange) -> bool {
    let end = range.start.0.checked_add(range.size);
    range.size > 0
        && range.start.is_aligned(FRAME_SIZE)
        && range.size.is_multiple_of(FRAME_SIZE)
        && end.is_some_and(|end| end <= REACH << FRAME_SHIFT)
}

fn overlap(ram: &[IpaRange]) -> bool {
    let mut pairs = ram
        .iter()
        .enumerate()
        .flat_map(|(n, a)| ram.iter().take(n).map(move |b| (a, b)));
    pairs.any(|(a, b)| a.overlaps(*b))
}

const _: () = assert!(DISCARDED == KIND, "counts are indexed by kind");
