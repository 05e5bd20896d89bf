//! A VM's memory: the pmap, the stage-2 tables filled from it, and how absent frames come to be.
//!
//! A fault fills an aligned chunk of [`CHUNK`] frames at most, so that no guest waits long and no
//! fault keeps EL2 busy for more than 64 KiB of zeroing. Chunks of one 2 MiB region come from one
//! reserved run of the machine where there is one, so that a region that is filled becomes a
//! single block.

use crate::frames::{self, Tables};
use crate::host;
use alloc::boxed::Box;
use machine_aarch64::cache::{self, Duty};
use machine_aarch64::{frames as metal, guest, tlb};
use machine_locks::{Rank, SpinLock};
use model_addr::{FRAME_SIZE, Gfn, Ipa, IpaRange, Mfn, NodeId, VmId};
use model_frame_table::{MAX_ORDER, Owner, Purpose};
use model_pmap::{Entry, GivenBack, Pmap, PmapTeardown, REGION_FRAMES};
use model_stage2::{Invalidation, IpaSize, MapError, Rights, Size, Stage2, Teardown};

/// The most frames that one fault fills.
const CHUNK: u64 = 16;
/// [`CHUNK`] as an order of frames.
const CHUNK_ORDER: u8 = CHUNK.trailing_zeros() as u8;

/// Bytes that are in a VM's memory from the start.
pub struct Source {
    /// Where the guest finds them.
    pub at: Ipa,
    /// The bytes.
    pub bytes: Bytes,
}

/// Bytes of the bundle, or made for the VM.
pub enum Bytes {
    /// They live as long as the machine.
    Static(&'static [u8]),
    /// They live as long as the VM.
    Owned(Box<[u8]>),
}

impl Bytes {
    fn get(&self) -> &[u8] {
        match self {
            Self::Static(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }
}

/// What became of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// The access can be tried again.
    Done,
    /// The machine has no frame left.
    NoMemory,
    /// The address is not the VM's memory.
    Refused,
}

/// The tables, behind one lock.
struct Maps {
    pmap: Pmap,
    stage2: Stage2,
    tables: Tables,
}

/// A VM's memory.
pub struct AddressSpace {
    vm: VmId,
    ram: IpaRange,
    vttbr: u64,
    begin: (Ipa, Ipa),
    sources: [Option<Source>; 3],
    maps: SpinLock<Maps>,
}

/// What a fault decided to do while it held the lock.
enum Plan {
    /// All is there.
    Done,
    /// Fill these guest frames with frames from here on, which are this VM's already.
    Fill(Gfn, Mfn, u64),
    /// Take a new run of this order for the chunk or the region at this guest frame.
    Take(Gfn, u8),
}

impl AddressSpace {
    /// The empty memory `ram` of a VM, with `sources` in it, its tables near `node`; `begin` is
    /// its first instruction and its device tree.
    /// `None` where there is no memory for the first tables.
    pub fn new(
        vm: VmId,
        vmid: u16,
        ram: IpaRange,
        sources: [Option<Source>; 3],
        begin: (Ipa, Ipa),
        node: NodeId,
    ) -> Option<Self> {
        use machine_contract::TableMemory;
        let mut tables = Tables::new(node);
        let root = tables.allocate_table()?;
        let Ok(pmap) = Pmap::new(&mut tables, &[ram]) else {
            tables.free_table(root);
            return None;
        };
        let stage2 = Stage2::new(root, IpaSize::ONE_TABLE);
        let vttbr = u64::from(vmid) << 48 | root.address().0;
        let maps = SpinLock::new(Rank::VmMemory, Maps { pmap, stage2, tables });
        Some(Self { vm, ram, vttbr, begin, sources, maps })
    }

    /// Where the guest begins: its first instruction, and its device tree.
    pub fn begin(&self) -> (Ipa, Ipa) {
        self.begin
    }

    /// `VTTBR_EL2`.
    pub fn vttbr(&self) -> u64 {
        self.vttbr
    }

    /// Whether the guest has memory at `ipa`.
    #[inline]
    pub fn contains(&self, ipa: Ipa) -> bool {
        self.ram.contains(ipa)
    }

    /// Whether all `len` bytes from `ipa` are memory.
    pub fn contains_run(&self, ipa: Ipa, len: u64) -> bool {
        self.ram.contains_run(ipa, len)
    }

    /// Bytes of frames behind the guest's memory, and of tables.
    pub fn usage(&self) -> (u64, u64) {
        let maps = self.maps.lock();
        (maps.pmap.counts().present() * FRAME_SIZE, maps.tables.count() * FRAME_SIZE)
    }

    /// Puts a frame behind `ipa` and lets the hardware see it, on behalf of a vCPU on `node`.
    pub fn fill(&self, ipa: Ipa, node: NodeId) -> Filled {
        let gfn = ipa.frame();
        if !self.contains(ipa) {
            return Filled::Refused;
        }
        let plan = self.plan(gfn);
        match plan {
            Some(Plan::Done) => Filled::Done,
            Some(Plan::Fill(first, frame, count)) => self.fill_run(first, frame, count),
            Some(Plan::Take(first, order)) => self.take(gfn, first, order, node),
            None => Filled::NoMemory,
        }
    }

    /// The frame behind `ipa`, for a device or EL2 itself; filled where it was absent.
    pub fn frame_at(&self, ipa: Ipa, node: NodeId) -> Result<Mfn, Filled> {
        // A chunk that another CPU is filling appears soon; one that is reclaimed is taken anew.
        for _ in 0..1 << 20 {
            if !self.contains(ipa) {
                return Err(Filled::Refused);
            }
            let maps = self.maps.lock();
            let entry = maps.pmap.lookup(&maps.tables, ipa.frame()).unwrap_or_default();
            drop(maps);
            if let Some(frame) = entry.frame() {
                return Ok(frame);
            }
            match self.fill(ipa, node) {
                Filled::Done => {}
                refused => return Err(refused),
            }
        }
        Err(Filled::NoMemory)
    }

    /// Looks at what is there, under the lock.
    fn plan(&self, gfn: Gfn) -> Option<Plan> {
        let mut maps = self.maps.lock();
        let Maps { pmap, stage2, tables } = &mut *maps;
        let entry = pmap.lookup(tables, gfn).ok()?;
        if let (Some(frame), Some(rights)) = (entry.frame(), entry.rights()) {
            // Stage 2 had lost it, or another vCPU was faster.
            return match stage2.map(tables, gfn.address(), frame.address(), Size::Page, rights) {
                Ok(()) | Err(MapError::Busy | MapError::Occupied) => Some(Plan::Done),
                Err(_) => None,
            };
        }
        let chunk = gfn.align_down(CHUNK);
        let region = gfn.align_down(REGION_FRAMES);
        if let Some(base) = pmap.region(tables, gfn).base {
            // The whole chunk where nothing of it is there yet, as usual.
            let absent = pmap.absent_run(tables, chunk, CHUNK);
            let (first, count) = if absent == CHUNK { (chunk, CHUNK) } else { (gfn, 1) };
            let frame = base.add(first.0 - region.0);
            let owner = Owner { vm: self.vm, gfn: first };
            let map = &host::get().map;
            return Some(match map.take_reserved(frame, count, owner) {
                0 if self.is_being_filled(frame, first) => Plan::Done,
                0 => Plan::Take(gfn, 0),
                taken => Plan::Fill(first, frame, taken),
            });
        }
        if pmap.contains(region, REGION_FRAMES) && pmap.absent_run(tables, region, 512) == 512 {
            return Some(Plan::Take(region, MAX_ORDER));
        }
        let whole = pmap.absent_run(tables, chunk, CHUNK) == CHUNK;
        Some(if whole { Plan::Take(chunk, CHUNK_ORDER) } else { Plan::Take(gfn, 0) })
    }

    /// Whether another CPU has taken the reserved frame for the same guest frame and not yet shown
    /// it: it will, and the guest tries again.
    fn is_being_filled(&self, frame: Mfn, gfn: Gfn) -> bool {
        use model_frame_table::Use;
        let entry = host::get().map.entry(frame);
        entry.is_some_and(|entry| {
            entry.state().usage == Use::Private
                && entry.lock().is_some_and(|locked| locked.owner() == Owner { vm: self.vm, gfn })
        })
    }

    /// Takes a new run of frames: a whole region to reserve, or a chunk or frame to fill at once.
    fn take(&self, gfn: Gfn, first: Gfn, order: u8, node: NodeId) -> Filled {
        let owner = Owner { vm: self.vm, gfn: first };
        if order == MAX_ORDER {
            let run = frames::allocate_local(node, order, Purpose::Reserved(owner));
            if let Some(base) = run {
                self.reserve(first, base);
                // The region has a run now: plan again.
                return self.fill_planned(gfn);
            }
            let chunk = gfn.align_down(CHUNK);
            return self.take(gfn, chunk, CHUNK_ORDER, node);
        }
        if let Some(frame) = frames::allocate(node, order, Purpose::Private(owner)) {
            return self.fill_run(first, frame, 1 << order);
        }
        if order == 0 { Filled::NoMemory } else { self.take(gfn, gfn, 0, node) }
    }

    fn fill_planned(&self, gfn: Gfn) -> Filled {
        match self.plan(gfn) {
            Some(Plan::Fill(first, frame, count)) => self.fill_run(first, frame, count),
            Some(_) => Filled::Done,
            None => Filled::NoMemory,
        }
    }

    /// Notes that the region at `first` has a run of its own; if another CPU was faster, the run
    /// goes back.
    fn reserve(&self, first: Gfn, base: Mfn) {
        let mut maps = self.maps.lock();
        let Maps { pmap, tables, .. } = &mut *maps;
        let taken = pmap.region(tables, first).base.is_some();
        if taken || pmap.set_base(tables, first, Some(base)).is_err() {
            drop(maps);
            frames::free(base, MAX_ORDER);
        }
    }

    /// Gives `count` frames their contents and shows them to the guest.
    fn fill_run(&self, first: Gfn, frame: Mfn, count: u64) -> Filled {
        self.write_contents(first, frame, count);
        let mut maps = self.maps.lock();
        let Maps { pmap, stage2, tables } = &mut *maps;
        if pmap.absent_run(tables, first, count) < count {
            // Another CPU put frames there in the meantime.
            drop(maps);
            give_back(frame, count);
            return Filled::Done;
        }
        let entry = Entry::private(frame);
        if pmap.set_run(tables, first, count, entry).is_err() {
            drop(maps);
            give_back(frame, count);
            return Filled::NoMemory;
        }
        let (ipa, pa) = (first.address(), frame.address());
        let shown = match pmap.region(tables, first).block() {
            Some(base) => merge(stage2, tables, first.align_down(REGION_FRAMES), base),
            None => stage2.map_run(tables, ipa, pa, count as usize, Rights::ALL),
        };
        match shown {
            Ok(()) | Err(MapError::Busy | MapError::Occupied) => Filled::Done,
            Err(_) => Filled::NoMemory,
        }
    }

    /// Fills frames with zeroes, and with the sources' bytes where those belong.
    fn write_contents(&self, first: Gfn, frame: Mfn, count: u64) {
        // SAFETY: the frames are this VM's and nobody sees them yet.
        unsafe { metal::zero_frames_for_guest(frame, count) }
        let start = first.address().0;
        let end = start + count * FRAME_SIZE;
        let mut copied = false;
        for source in self.sources.iter().flatten() {
            let bytes = source.bytes.get();
            let from = source.at.0.max(start);
            let to = (source.at.0 + bytes.len() as u64).min(end);
            if from < to {
                let part = &bytes[(from - source.at.0) as usize..(to - source.at.0) as usize];
                frames::ram(frame, count).write(from - start, part);
                copied = true;
            }
        }
        if copied {
            cache::publish(frame.address(), count * FRAME_SIZE, Duty::Guest);
        }
    }
}

/// Frames that were this VM's and never shown.
fn give_back(frame: Mfn, count: u64) {
    for n in 0..count {
        frames::free(frame.add(n), 0);
    }
}

/// Replaces the pages of a full region by one block.
fn merge(stage2: &mut Stage2, tables: &mut Tables, region: Gfn, base: Mfn) -> Result<(), MapError> {
    let broken =
        stage2.begin_merge(tables, region.address(), base.address(), Size::Block2M, Rights::ALL)?;
    let ready = broken.pay(tables, |_, what| invalidate(what));
    // Overtaken: a fault fills it again.
    let _ = stage2.make(tables, ready);
    Ok(())
}

/// Pays a debt of the VMID that this CPU has loaded.
fn invalidate(what: Invalidation) {
    match what {
        Invalidation::Nothing => {}
        Invalidation::Run(run) => {
            tlb::begin_stage2();
            run.addresses().for_each(tlb::flush_stage2_page);
            tlb::finish_stage2();
        }
        Invalidation::All => tlb::flush_vmid(),
    }
}

/// A VM's memory on its way back to the pools.
pub struct Dismantling {
    vm: VmId,
    stage2: Option<Teardown>,
    pmap: PmapTeardown,
    tables: Tables,
}

impl AddressSpace {
    /// Begins the end: no vCPU of the VM runs or will run again.
    pub fn dismantle(self) -> Dismantling {
        let Maps { pmap, stage2, tables } = self.maps.into_inner();
        // SAFETY: no guest runs on this CPU until another address space is loaded.
        unsafe { guest::load_stage2(self.vttbr) }
        crate::cpu::this().last_context.set((0, 0));
        let stage2 = stage2.retire().pay(invalidate);
        Dismantling { vm: self.vm, stage2: Some(stage2), pmap: pmap.teardown(), tables }
    }
}

impl Dismantling {
    /// Gives back some more, looking at `budget` entries; `true` when all is back.
    pub fn step(&mut self, budget: usize) -> bool {
        use machine_contract::TableMemory;
        if let Some(stage2) = &mut self.stage2 {
            if stage2.step(&mut self.tables, budget)
                && let Some(done) = self.stage2.take()
            {
                self.tables.free_table(done.root());
            }
            return false;
        }
        let vm = self.vm;
        self.pmap.step(&mut self.tables, budget, |back| match back {
            GivenBack::Entry(_, entry) => {
                if let Some(frame) = entry.frame() {
                    frames::free(frame, 0);
                }
            }
            GivenBack::Reservation(gfn, base) => {
                let map = &host::get().map;
                let node = map.entry(base).map_or(NodeId(0), |entry| entry.state().node);
                frames::with_pool(node, |pool| {
                    pool.free_reserved(map, base, REGION_FRAMES, Owner { vm, gfn })
                });
            }
        })
    }
}
