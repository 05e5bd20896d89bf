//! A few small VMs of one group, and what each guest page must contain.

mod caches;
mod check;
mod holding;
mod moving;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

use machine_fake::FakeFrames;
use model_addr::{FRAME_SIZE, FrameRange, Gfn, Ipa, IpaRange, Mfn, NodeId, VmId};
use model_address_space::{
    Access, Dismantling, EXCHANGE_MAX, Fault, Filled, Flight, Frames, Gets, GuestRam, Maps, Moved,
    Policy, Source,
};
use model_frame_table::{CHUNK_FRAMES, Owner, PoolCounts, Purpose, Use};
use model_pmap::{Backing, Entry, Reasons, Why};
use model_sharing::{Ground, UNIT};

use crate::machine::{Machine, Tables, free_blocks};

pub use holding::STANDING;

pub const NODES: [FrameRange; 2] = [
    FrameRange {
        start: Mfn(0x8_0003),
        count: 4 * 512,
    },
    FrameRange {
        start: Mfn(0x10_0000),
        count: 300,
    },
];
const IMAGE: Mfn = Mfn(0x20_0000);
/// Pages of the image; the first are the kernel's, the next the initrd's.
pub const IMAGE_PAGES: u64 = 14;
const KERNEL_BYTES: usize = 3 * PAGE + 1234;
const INITRD_BYTES: usize = 2 * PAGE;
const PAGE: usize = FRAME_SIZE as usize;

pub const VMS: usize = 3;
pub const VCPUS: usize = 2;
pub const RAM: Gfn = Gfn(0x4_0000);
pub const RAM_FRAMES: u64 = 512 + 3 * 16 + 5;

type Page = Arc<Vec<u8>>;
type Ram = GuestRam<Vec<u8>>;

/// Where a block that is read is.
#[derive(Clone, Copy, Debug)]
pub enum Block {
    Image(u64),
    /// In a buffer of EL2; equal numbers are equal contents.
    Buffer(u8),
    /// Not as a whole block.
    Part(u8),
    Zero,
}

pub struct Vm {
    pub ram: Ram,
    maps: Mutex<Maps<Tables>>,
    tables: Tables,
    faults: [Option<(Fault, Gfn, Access)>; VCPUS],
    /// What is not as it was from the start.
    changed: BTreeMap<Gfn, Page>,
    /// Pages that the guest marked as never to be shared.
    pub secrets: BTreeSet<Gfn>,
    /// Pages that were given the made-up reason of single pages.
    held: BTreeSet<Gfn>,
    /// Pages whose reasons were lifted, and what was behind them then.
    lifted: RefCell<BTreeMap<Gfn, Backing>>,
    tables_fail: bool,
}

pub struct World {
    pub machine: Machine,
    pub vms: Vec<Vm>,
    dying: Vec<(Dismantling<Tables>, Tables)>,
    fresh: Vec<PoolCounts>,
    buffer: Mfn,
    stores: u64,
    generation: u16,
    /// Pages on their way, and whose they are.
    flights: Vec<(usize, Flight)>,
    frames_fail: bool,
    records_fail: bool,
    /// The node of VMs that read, where pages go to their users.
    pub told: Option<NodeId>,
    /// A made-up reason that all pages have, or none.
    standing: Reasons,
}

fn page(seed: u8) -> Page {
    /// Made once: thousands of worlds have them.
    static PAGES: LazyLock<Vec<Page>> = LazyLock::new(|| {
        let byte = |seed: u8, n: usize| (n / 7) as u8 ^ seed.wrapping_mul(37);
        let page = |seed| Arc::new((0..PAGE).map(|n| byte(seed, n)).collect());
        (0..=u8::MAX).map(page).collect()
    });
    PAGES[usize::from(seed)].clone()
}

fn zeroes() -> Page {
    Arc::new(vec![0; PAGE])
}

fn image_page(n: u64) -> Vec<u8> {
    let mut bytes = page(100 + n as u8).to_vec();
    if n == 3 {
        bytes[KERNEL_BYTES - 3 * PAGE..].fill(0);
    }
    bytes
}

impl Vm {
    fn new(
        machine: &mut Machine,
        (index, generation): (u16, u16),
        policy: Policy,
        standing: Reasons,
    ) -> Self {
        let range = IpaRange {
            start: RAM.address(),
            size: RAM_FRAMES * FRAME_SIZE,
        };
        let vm = VmId { index, generation };
        let source = |first: u64, len: usize, image: Option<u64>| {
            let pages = image.unwrap_or(0)..IMAGE_PAGES;
            let mut bytes = pages.map(image_page).collect::<Vec<_>>().concat();
            bytes.truncate(len);
            Some(Source {
                at: RAM.add(first).address(),
                bytes,
                frames: image.map(|n| IMAGE.add(n)),
            })
        };
        let mut tree = source(0, 100, None);
        if let Some(tree) = &mut tree {
            // Across the initrd's end.
            tree.at = Ipa(RAM.add(22).address().0 - 50);
        }
        let sources = [
            source(5, KERNEL_BYTES, Some(0)),
            source(20, INITRD_BYTES, Some(4)),
            tree,
        ];
        let tables = Tables::default();
        machine.tlbs.push((vm, tables.clone()));
        let mut maps = Maps::new(tables.clone(), range).unwrap();
        if !standing.is_empty() {
            maps.set_standing(standing);
        }
        Self {
            ram: GuestRam::new(vm, range, sources, policy),
            maps: Mutex::new(maps),
            tables,
            faults: [const { None }; VCPUS],
            changed: BTreeMap::new(),
            secrets: BTreeSet::new(),
            held: BTreeSet::new(),
            lifted: RefCell::default(),
            tables_fail: false,
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, Maps<Tables>> {
        self.maps.try_lock().unwrap()
    }

    pub fn expected(&self, gfn: Gfn) -> Page {
        let initial = || {
            let mut page = zeroes().to_vec();
            let start = gfn.address().0;
            for source in self.ram.sources() {
                let end = source.at.0 + source.bytes.len() as u64;
                for at in source.at.0.max(start)..end.min(start + FRAME_SIZE) {
                    page[(at - start) as usize] = source.bytes[(at - source.at.0) as usize];
                }
            }
            Arc::new(page)
        };
        self.changed.get(&gfn).cloned().unwrap_or_else(initial)
    }

    /// What a vCPU of that number finds.
    pub fn find(&self, vcpu: usize, gfn: Gfn, write: bool) -> Option<Mfn> {
        self.tables.find(node_of(vcpu), gfn, write)
    }
}

pub fn is_ram(gfn: Gfn) -> bool {
    (RAM.0..RAM.0 + RAM_FRAMES).contains(&gfn.0)
}

fn node_of(vcpu: usize) -> NodeId {
    NodeId((vcpu % 2) as u8)
}

impl World {
    pub fn new(policies: [Policy; VMS]) -> Self {
        Self::held_by(policies, Reasons::empty())
    }

    /// A world in which all pages have a made-up reason.
    pub fn held_by(policies: [Policy; VMS], standing: Reasons) -> Self {
        let pages: Vec<_> = (0..IMAGE_PAGES).map(image_page).collect();
        let frames = FakeFrames::with_image(&NODES, IMAGE, &pages);
        let buffer = frames.allocate(NodeId(0), 0, Purpose::Hypervisor).unwrap();
        frames.zero(buffer, 1);
        let fresh = free_blocks(&frames);
        let mut machine = Machine {
            frames,
            tlbs: Vec::new(),
            steps: RefCell::default(),
            touched: RefCell::default(),
        };
        let vms = (0..).zip(policies);
        let vms = vms.map(|(index, policy)| Vm::new(&mut machine, (index, 1), policy, standing));
        let vms = vms.collect();
        Self {
            machine,
            vms,
            dying: Vec::new(),
            fresh,
            buffer,
            stores: 0,
            generation: 1,
            flights: Vec::new(),
            frames_fail: false,
            records_fail: false,
            told: None,
            standing,
        }
    }

    pub fn fail_frames(&mut self, after: Option<u64>) {
        self.machine.frames.fail_after(after);
        self.frames_fail = after.is_some();
    }

    pub fn fail_records(&mut self, after: Option<u64>) {
        self.machine.frames.fail_records_after(after);
        self.records_fail = after.is_some();
    }

    pub fn fail_tables(&mut self, vm: usize, after: Option<u64>) {
        self.vms[vm]
            .tables
            .0
            .borrow_mut()
            .mmu
            .tables()
            .fail_after(after);
        self.vms[vm].tables_fail = after.is_some();
    }

    fn is_failing(&self, vm: usize) -> bool {
        self.frames_fail || self.vms[vm].tables_fail
    }

    /// Whether no frame is left, reserved ones included.
    fn is_empty(&self) -> bool {
        let census = NODES.map(|node| {
            let map = Frames::map(&self.machine);
            let census = machine_fake::census(map, node.start, node.count);
            census[Use::Free as usize] + census[Use::Reserved as usize]
        });
        census == [0, 0]
    }

    fn judge(&self, vm: usize, gfn: Gfn, filled: Filled) {
        match filled {
            Filled::Done => assert!(is_ram(gfn)),
            Filled::Refused => assert!(!is_ram(gfn)),
            Filled::Away(_) => unreachable!("nothing is evicted here"),
            Filled::Held(_) => unreachable!("who holds it lets it go"),
            Filled::NoMemory => {
                assert!(self.is_failing(vm) || self.is_empty(), "there was memory");
            }
        }
    }

    /// One step of a vCPU's fault, which begins here if none is on its way.
    pub fn fault(&mut self, vm: usize, vcpu: usize, gfn: Gfn, access: Access) {
        let guest = &mut self.vms[vm];
        let begun = guest.faults[vcpu].take();
        let new = || (Fault::new(gfn, node_of(vcpu), access), gfn, access);
        let (mut fault, gfn, access) = begun.unwrap_or_else(new);
        let was_shared = matches!(guest.lock().entry(gfn).backing, Backing::Shared(_));
        let may = guest.may_change(gfn, self.standing);
        let step = fault.step(&guest.ram, &self.machine, || guest.lock());
        let Some(filled) = step else {
            guest.faults[vcpu] = Some((fault, gfn, access));
            return;
        };
        if let Filled::Held(reasons) = filled {
            return self.lift(vm, gfn, access, reasons);
        }
        // The guest was to overwrite all of the page: it may be zeroes meanwhile.
        let frame = guest.lock().entry(gfn).frame();
        if access == Access::Overwrite
            && was_shared
            && frame.and_then(|frame| self.machine.frames.contents(frame))
                == Some(zeroes().to_vec())
        {
            assert!(may, "{gfn} was overwritten");
            guest.changed.insert(gfn, zeroes());
        }
        self.judge(vm, gfn, filled);
    }

    /// Brings the faults on a chunk to their ends.
    fn settle(&mut self, vm: usize, chunk: Option<Gfn>) {
        for vcpu in 0..VCPUS {
            for _ in 0..20 {
                let Some((_, gfn, access)) = &self.vms[vm].faults[vcpu] else {
                    break;
                };
                let (gfn, access) = (*gfn, *access);
                if chunk.is_none_or(|at| gfn.align_down(CHUNK_FRAMES) == at) {
                    self.fault(vm, vcpu, gfn, access);
                }
            }
            let left = self.vms[vm].faults[vcpu].as_ref();
            let is_left = left.is_some_and(|(_, gfn, _)| {
                chunk.is_none_or(|at| gfn.align_down(CHUNK_FRAMES) == at)
            });
            assert!(!is_left, "a fault has no end");
        }
    }

    /// Faults until the hardware lets all vCPUs; whether it came to that.
    pub fn touch(&mut self, vm: usize, gfn: Gfn, access: Access) -> bool {
        (0..VCPUS).all(|vcpu| self.touch_by(vm, vcpu, gfn, access))
    }

    /// Faults until the hardware lets the vCPU; whether it came to that.
    pub fn touch_by(&mut self, vm: usize, vcpu: usize, gfn: Gfn, access: Access) -> bool {
        self.settle(vm, Some(gfn.align_down(CHUNK_FRAMES)));
        for _ in 0..20 {
            if self.vms[vm].find(vcpu, gfn, access.writes()).is_some() {
                return true;
            }
            if self.vms[vm].faults[vcpu].is_some() {
                self.settle(vm, None);
                continue;
            }
            for _ in 0..20 {
                self.fault(vm, vcpu, gfn, access);
                if self.vms[vm].faults[vcpu].is_none() {
                    break;
                }
            }
        }
        let is_lost = !is_ram(gfn) || self.is_failing(vm) || self.is_empty();
        assert!(is_lost, "{gfn}: a fault is done and done again");
        false
    }

    /// A store of the guest by any vCPU that the hardware lets.
    pub fn store(&mut self, vm: usize, gfn: Gfn) {
        let found = (0..VCPUS).find_map(|vcpu| self.vms[vm].find(vcpu, gfn, true));
        let Some(frame) = found else {
            return;
        };
        self.stores += 1;
        let at = self.stores as usize % 4 * 8;
        let bytes = self.stores.to_le_bytes();
        self.machine.frames.store(frame, at as u64, &bytes);
        let mut page = self.vms[vm].expected(gfn).to_vec();
        page[at..at + 8].copy_from_slice(&bytes);
        self.vms[vm].changed.insert(gfn, Arc::new(page));
    }

    /// A device reads or writes a page; whether it could.
    pub fn device(&mut self, vm: usize, gfn: Gfn, access: Access, new: &Page) -> bool {
        for _ in 0..6 {
            match self.device_once(vm, gfn, access, new) {
                Ok(page) => {
                    let entry = self.vms[vm].lock().entry(gfn);
                    assert!(entry.usable(access.writes()).is_some(), "{entry:?}");
                    if access.writes() {
                        self.vms[vm].changed.insert(gfn, page);
                    }
                    return true;
                }
                Err(Filled::Held(reasons)) => self.lift(vm, gfn, access, reasons),
                Err(filled) => {
                    self.judge(vm, gfn, filled);
                    return false;
                }
            }
        }
        unreachable!("{gfn} is held for ever");
    }

    fn device_once(
        &mut self,
        vm: usize,
        gfn: Gfn,
        access: Access,
        new: &Page,
    ) -> Result<Page, Filled> {
        self.settle(vm, Some(gfn.align_down(CHUNK_FRAMES)));
        let guest = &self.vms[vm];
        let (machine, lock) = (&self.machine, || guest.lock());
        let at = (gfn.address(), access);
        guest
            .ram
            .with_frame(at, NodeId(0), machine, &lock, |frame| {
                if access == Access::Read {
                    let page = machine.frames.contents(frame);
                    assert_eq!(page.as_ref(), Some(&*guest.expected(gfn)), "{gfn}");
                    return guest.expected(gfn);
                }
                let mut page = guest.expected(gfn).to_vec();
                let part = if access == Access::Write {
                    1000..1500
                } else {
                    0..PAGE
                };
                machine
                    .frames
                    .store(frame, part.start as u64, &new[part.clone()]);
                page[part.clone()].copy_from_slice(&new[part]);
                Arc::new(page)
            })
    }

    fn content(block: Block) -> Page {
        match block {
            Block::Image(n) => Arc::new(image_page(n)),
            Block::Buffer(seed) | Block::Part(seed) => page(seed),
            Block::Zero => zeroes(),
        }
    }

    /// A disk read of whole pages, as an exchange.
    pub fn read(&mut self, vm: usize, pages: &[(Gfn, Block)]) {
        let mut list = Vec::new();
        for &(gfn, block) in pages {
            let gets = self.find(vm, gfn, block);
            if matches!(gets, Gets::Own | Gets::Alone(_)) {
                // What was read before into the same page comes first.
                let is_pending = |(at, gets, _): &(Gfn, Gets, Block)| {
                    *at == gfn && matches!(gets, Gets::Frame(_) | Gets::Zeroes)
                };
                if list.iter().any(is_pending) {
                    self.exchange(vm, &std::mem::take(&mut list));
                }
                if !self.device(vm, gfn, Access::Overwrite, &Self::content(block)) {
                    continue;
                }
            }
            list.push((gfn, gets, block));
            if list.len() == EXCHANGE_MAX {
                self.exchange(vm, &std::mem::take(&mut list));
            }
        }
        self.exchange(vm, &list);
    }

    fn find(&self, vm: usize, gfn: Gfn, block: Block) -> Gets {
        let ram = &self.vms[vm].ram;
        let user = Owner { vm: ram.vm, gfn };
        let frames = &self.machine.frames;
        match block {
            _ if !ram.policy().share => Gets::Alone(Why::Never),
            Block::Zero => Gets::Zeroes,
            Block::Part(_) => Gets::Alone(Why::Unaligned),
            Block::Image(n) => match self.machine.join(IMAGE.add(n), user) {
                Ok(()) => Gets::Frame(IMAGE.add(n)),
                Err(why) => Gets::Alone(why),
            },
            Block::Buffer(seed) => {
                frames.store(self.buffer, 0, &page(seed));
                let found = frames.join_equal(self.buffer, user, &mut 32);
                found.map_or(Gets::Own, Gets::Frame)
            }
        }
    }

    fn exchange(&mut self, vm: usize, list: &[(Gfn, Gets, Block)]) {
        let pages: Vec<_> = list.iter().map(|(gfn, gets, _)| (*gfn, *gets)).collect();
        let guest = &self.vms[vm];
        let may: Vec<_> = pages
            .iter()
            .map(|(gfn, _)| guest.may_change(*gfn, self.standing))
            .collect();
        let done = guest
            .lock()
            .exchange(&guest.ram, self.told, &pages, &self.machine);
        let may_refuse = guest.ram.policy().keep_blocks || self.is_failing(vm);
        let mut refused = Vec::new();
        for (n, (gfn, gets, block)) in list.iter().enumerate() {
            let is_done = done & 1 << n != 0;
            let is_copied = matches!(gets, Gets::Own | Gets::Alone(_));
            if is_done && !is_copied {
                assert!(may[n], "{gfn} got other contents");
                self.vms[vm].changed.insert(*gfn, Self::content(*block));
            } else if !is_copied {
                let is_secret = self.vms[vm].secrets.contains(gfn);
                // One that is there twice is held again by the second time.
                let is_held = !may[n] || !self.standing.is_empty();
                let may = may_refuse || is_secret || is_held || !is_ram(*gfn);
                assert!(may, "{gfn} could be had");
                refused.push((*gfn, *block));
            }
        }
        for (gfn, block) in refused {
            self.device(vm, gfn, Access::Overwrite, &Self::content(block));
        }
    }

    /// The guest gives pages back.
    pub fn release(&mut self, vm: usize, gfn: Gfn, count: u64) {
        let guest = &mut self.vms[vm];
        let before = (0..count).map(|n| gfn.add(n));
        let had: Vec<_> = before
            .filter(|gfn| guest.lock().entry(*gfn).frame().is_some())
            .filter(|gfn| guest.may_change(*gfn, self.standing))
            .collect();
        let released = guest.lock().release(&guest.ram, gfn, count, &self.machine);
        assert_eq!(released, had.len() as u64);
        for gfn in had {
            let left = Entry {
                never_share: guest.secrets.contains(&gfn),
                ..Entry::default()
            };
            assert_eq!(guest.lock().entry(gfn), left);
            guest.changed.insert(gfn, zeroes());
        }
    }

    /// The VM ends, and another one takes its slot once all is back.
    pub fn kill(&mut self, vm: usize) {
        if !self.dying.is_empty() {
            return;
        }
        self.settle(vm, None);
        // Who carries pages holds on to their VM.
        self.land(vm);
        self.generation += 1;
        let id = (vm as u16, self.generation);
        let policy = self.vms[vm].ram.policy();
        let new = Vm::new(&mut self.machine, id, policy, self.standing);
        let old = std::mem::replace(&mut self.vms[vm], new);
        old.tables.0.borrow_mut().mmu.switch_off();
        let dismantling = old.maps.into_inner().unwrap().dismantle(old.ram.vm);
        self.dying.push((dismantling, old.tables));
    }

    pub fn reap(&mut self, budget: usize) {
        if let Some((dismantling, tables)) = self.dying.last_mut()
            && dismantling.step(&self.machine, budget)
        {
            assert_eq!(tables.0.borrow().tables_in_use(), 0);
            let dead = &tables.0;
            let is_dead = |tlb: &Tables| std::rc::Rc::ptr_eq(&tlb.0, dead);
            self.machine.tlbs.retain(|(_, tlb)| !is_dead(tlb));
            self.dying.pop();
        }
    }
}
