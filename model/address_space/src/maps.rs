//! The pmap and the stage-2 tables, which change together under the VM's lock.

use crate::flights::{FLIGHTS_MAX, Flying};
use crate::replicas::NodeRoot;
use crate::{Filled, Translation};
use model_addr::{FRAME_SIZE, FrameRange, Gfn, Ipa, IpaRange, Mfn, NodeId};
use model_frame_table::{CHUNK_FRAMES, Contents};
use model_pmap::{Counts, Entry, Pmap, PmapError, REGION_FRAMES, Region, Survey};
use model_stage2::{IpaSize, MapError, Rights, Size, Stage2};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A frame, or a chunk of frames, for guest frames aligned alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first guest frame.
    pub first: Gfn,
    /// The frame for it.
    pub frame: Mfn,
    /// How many: 1 or [`CHUNK_FRAMES`].
    pub count: u64,
    /// What the frames hold before anything is written.
    pub contents: Contents,
    /// Whether bytes of the VM's sources belong into them.
    pub sources: bool,
}

/// The most nodes that a VM has copies on: others get none.
pub(crate) const ROOTS_MAX: usize = 8;

/// A VM's maps and the memory they stand in. One caller at a time: it holds the VM's lock.
#[derive(Debug)]
pub struct Maps<T> {
    pub(crate) pmap: Pmap,
    pub(crate) stage2: Stage2,
    pub(crate) tables: T,
    pub(crate) events: Events,
    /// Pages were marked as never to be shared.
    pub(crate) has_secrets: bool,
    /// Pages may have reasons that no fault ends.
    pub(crate) may_hold: bool,
    /// Nodes with copies of pages; CPUs of others walk from [`Self::root`].
    pub(crate) roots: heapless::Vec<NodeRoot, ROOTS_MAX>,
    /// Which nodes these are, in their order.
    pub(crate) own: heapless::Vec<NodeId, ROOTS_MAX>,
    /// Pages on their way to other frames: each has [`model_pmap::Reasons::IN_FLIGHT`].
    pub(crate) flights: heapless::Vec<Flying, FLIGHTS_MAX>,
}

/// What happened to memory that is shared, counted since the VM's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Events {
    /// Pages of kernel and initrd that are the bundle's own.
    pub at_boot: u64,
    /// Pages that got a frame which others use, or might.
    pub exchanged: u64,
    /// Pages whose own frame others may use from then on.
    pub entered: u64,
    /// Pages read as zeroes: nothing is behind them.
    pub zeroed: u64,
    /// Writes that got a frame of their own, with a copy or without.
    pub breaks: u64,
    /// Of them, those without: the guest overwrites the whole page.
    pub copies_saved: u64,
    /// Writes of an only user, which has the frame alone from then on.
    pub claims: u64,
    /// Pages taken away on the guest's own wish.
    pub released: u64,
    /// Debts paid for the above.
    pub flushes: u64,
    /// Pages taken away of which a disk has what they hold.
    pub discarded: u64,
    /// Pages taken away that were written to a disk for it.
    pub swapped: u64,
    /// Pages that came back from a disk.
    pub refaults: u64,
    /// Pages that moved to another node.
    pub moved: u64,
    /// Copies that nodes got of pages that they read.
    pub replicated: u64,
    /// Pages whose copies went because somebody wrote the page, or it went.
    pub collapsed: u64,
}

/// Why frames were not shown. They are the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotShown {
    /// Something is, or was, behind one of the guest frames already.
    Present,
    /// No table could be had.
    NoMemory,
    /// It is not RAM.
    Refused,
}

impl<T: Translation> Maps<T> {
    /// The maps of a VM with this RAM, nothing of it touched; `None` where there is no memory for
    /// the first tables, or `ram` is no whole run of frames below 512 GiB.
    pub fn new(mut tables: T, ram: IpaRange) -> Option<Self> {
        let root = tables.allocate_table()?;
        let Ok(pmap) = Pmap::new(&mut tables, &[ram]) else {
            tables.free_table(root);
            return None;
        };
        let stage2 = Stage2::new(root, IpaSize::ONE_TABLE);
        Some(Self {
            pmap,
            stage2,
            tables,
            events: Events::default(),
            has_secrets: false,
            may_hold: false,
            roots: heapless::Vec::new(),
            own: heapless::Vec::new(),
            flights: heapless::Vec::new(),
        })
    }

    /// The frame that `VTTBR_EL2` names, but for nodes with copies: see [`Self::root_on`].
    pub fn root(&self) -> Mfn {
        self.stage2.root()
    }

    /// The memory of the tables.
    pub fn tables(&self) -> &T {
        &self.tables
    }

    /// [`Self::tables`], to be changed with care.
    pub fn tables_mut(&mut self) -> &mut T {
        &mut self.tables
    }

    /// How many guest frames have what behind them.
    pub fn counts(&self) -> Counts {
        self.pmap.counts()
    }

    /// How many 2 MiB and 4 KiB leaves show all that is there.
    pub fn leaves(&self) -> (u64, u64) {
        let blocks = self.pmap.blocks();
        (blocks, self.counts().present() - blocks * REGION_FRAMES)
    }

    /// What happened.
    pub fn events(&self) -> Events {
        self.events
    }

    /// Calls `visit` for guest frames from `from` on that something is behind, looking at `budget`
    /// entries; where to go on, `None` at the end.
    pub fn visit(&self, from: Gfn, budget: usize, visit: impl FnMut(Gfn, Entry)) -> Option<Gfn> {
        self.pmap.visit(&self.tables, from, budget, visit)
    }

    /// What is behind `gfn`; nothing where it is not RAM.
    pub fn entry(&self, gfn: Gfn) -> Entry {
        self.pmap.lookup(&self.tables, gfn).unwrap_or_default()
    }

    /// What EL2 may use as it is from `gfn` on; see [`Pmap::near`].
    #[inline]
    pub fn near(&self, gfn: Gfn, write: bool) -> Option<(Mfn, u64)> {
        self.pmap.near(&self.tables, gfn, write)
    }

    /// Notes the run that is reserved for the region of `gfn`, unless it has one: `false` then.
    pub(crate) fn note(&mut self, gfn: Gfn, base: Mfn) -> Result<bool, PmapError> {
        if self.pmap.region(&self.tables, gfn).base.is_some() {
            return Ok(false);
        }
        self.pmap
            .set_base(&mut self.tables, gfn, Some(base))
            .map(|()| true)
    }

    /// Puts frames behind guest frames that nothing is behind, and lets the hardware see them: as
    /// pages, or as one block once the region is full. Those of `node` see them at once.
    #[inline]
    pub(crate) fn show<const N: usize>(&mut self, run: Run, node: NodeId) -> Result<(), NotShown> {
        let Run { first, frame, .. } = run;
        // What was emptied meanwhile is zeroes.
        if run.sources && self.pmap.untouched(&self.tables, first, run.count) < run.count {
            return Err(NotShown::Present);
        }
        let filled = self.pmap.fill::<N>(&mut self.tables, first, frame);
        let (Survey { entry, region }, is_new) = filled.map_err(|error| match error {
            PmapError::Present => NotShown::Present,
            PmapError::NoMemory => NotShown::NoMemory,
            PmapError::Ram | PmapError::NotRam(_) | PmapError::Run => NotShown::Refused,
        })?;
        // From here on the frames are the guest's: what stage 2 lacks, another fault fills.
        let Some(rights) = entry.rights() else {
            return Ok(());
        };
        let _ = if let Some(base) = region.block() {
            merge((&mut self.stage2, &mut self.tables), first, base, rights)
        } else {
            // What nothing ever was behind was never mapped.
            let (ipa, leads_to) = (first.address(), (frame.address(), rights));
            self.stage2
                .map_chunk::<N>(&mut self.tables, ipa, leads_to, is_new)
        };
        if !self.roots.is_empty() {
            self.show_around(node, first);
        }
        Ok(())
    }

    /// Lets the CPUs of `node` see frames that are not the guest's memory but lent to it: a page, a
    /// chunk or 2 MiB, all aligned alike, outside its RAM. They are in no pmap, so nothing is ever
    /// done to them but by who lends them, and they stay behind when the maps are dismantled.
    pub fn lend(&mut self, node: NodeId, ipa: Ipa, frames: FrameRange, rights: Rights) -> Filled {
        let (stage2, tables) = self.walked_on(node);
        let (pa, block) = (frames.start.address(), frames.count == REGION_FRAMES);
        let shown = match stage2.translate(tables, ipa) {
            // Another vCPU was faster, or a TLB was told of it only now.
            Some(seen)
                if (seen.pa, seen.rights) == (pa, rights) && seen.size.frames() >= frames.count =>
            {
                Ok(())
            }
            _ if block => merge((stage2, tables), ipa.frame(), frames.start, rights),
            // Page by page: `map_chunk` has one caller, whose hot path it is a part of.
            _ => (0..frames.count).try_for_each(|n| {
                let (ipa, pa) = (ipa.frame().add(n).address(), frames.start.add(n).address());
                stage2.map(tables, ipa, pa, Size::Page, rights)
            }),
        };
        match shown {
            Ok(()) | Err(MapError::Busy) => Filled::Done,
            Err(MapError::NoMemory) => Filled::NoMemory,
            Err(_) => Filled::Refused,
        }
    }

    /// Lets the CPUs of `node` see again what is behind `gfn`.
    #[cold]
    pub(crate) fn show_again(
        &mut self,
        node: NodeId,
        gfn: Gfn,
        (frame, rights): (Mfn, Rights),
        region: Region,
    ) -> Result<(), MapError> {
        let (ipa, pa) = (gfn.address(), frame.address());
        let (stage2, tables) = self.walked_on(node);
        match stage2.translate(tables, ipa) {
            // Another vCPU was faster, or a TLB was told of it only now.
            Some(seen) if (seen.pa, seen.rights) == (pa, rights) => return Ok(()),
            Some(_) => {
                let debt = stage2.unmap(tables, ipa, 1);
                debt.pay(|what| tables.invalidate(what));
            }
            None => {}
        }
        if let Some(base) = region.block() {
            return merge((stage2, tables), gfn, base, rights);
        }
        stage2.map(tables, ipa, pa, Size::Page, rights)?;
        self.show_around(node, gfn);
        Ok(())
    }
}

/// Replaces what is mapped in a full region by one block.
#[cold]
fn merge<T: Translation>(
    (stage2, tables): (&mut Stage2, &mut T),
    gfn: Gfn,
    base: Mfn,
    rights: Rights,
) -> Result<(), MapError> {
    let ipa = gfn.align_down(REGION_FRAMES).address();
    let (pa, size) = (base.address(), Size::Block2M);
    let broken = stage2.begin_merge(tables, ipa, pa, size, rights)?;
    let ready = broken.pay(tables, T::invalidate);
    // Nothing came in between: the lock is held.
    let _ = stage2.make(tables, ready);
    Ok(())
}

/// A chunk, for what is unrolled.
pub(crate) const CHUNK: usize = CHUNK_FRAMES as usize;

const _: () = assert!(Size::Block2M.bytes() == REGION_FRAMES * FRAME_SIZE);
