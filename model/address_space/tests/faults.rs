//! Faults of several vCPUs of two VMs, step by step and interleaved, on a machine that is too small
//! for both.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use machine_fake::{FakeFrames, FakeTranslation};
use model_addr::{FRAME_SIZE, FrameRange, Gfn, Ipa, IpaRange, Mfn, NodeId, VmId};
use model_address_space::{Access, Fault, Filled, GuestRam, Maps, Policy, Source};
use model_frame_table::{CHUNK_FRAMES, MAX_ORDER, PoolCounts, Use};
use model_pmap::REGION_FRAMES;
use proptest::prelude::*;

/// Four 2 MiB runs less a few frames on node 0, one on node 1. Each VM could use two and a half.
const NODES: [FrameRange; 2] = [
    FrameRange {
        start: Mfn(0x8_0003),
        count: 4 * 512,
    },
    FrameRange {
        start: Mfn(0x10_0000),
        count: 600,
    },
];
const VMS: usize = 2;
const VCPUS: usize = 3;
const RAM: Gfn = Gfn(0x4_0000);
/// The last region, and the last chunk in it, are not whole.
const RAM_FRAMES: u64 = 2 * 512 + 16 * 9 + 3;

struct Vm {
    ram: GuestRam<Vec<u8>>,
    maps: Mutex<Maps<FakeTranslation>>,
    faults: [Option<(Fault, Gfn)>; VCPUS],
    /// Guest frames that the guest wrote its own number to.
    written: BTreeMap<u64, u64>,
}

/// What records make has the same behind each guest frame; and no record is taken twice.
fn gone_over(vm: &Vm) {
    let mut runs = Vec::new();
    // All frames are private here.
    vm.lock().records(|_| (0, 0, 0), |run| runs.push(run));
    let mut other = Maps::new(FakeTranslation::new(), vm.ram.range).unwrap();
    for run in &runs {
        assert!(other.adopt(run, 0) && !other.adopt(run, 0));
    }
    let maps = vm.lock();
    for gfn in (0..RAM_FRAMES + 2).map(|n| RAM.add(n)) {
        assert_eq!(other.entry(gfn).frame(), maps.entry(gfn).frame());
    }
    assert_eq!(other.counts(), maps.counts());
}

impl Vm {
    fn new(index: u16) -> Self {
        let range = IpaRange {
            start: RAM.address(),
            size: RAM_FRAMES * FRAME_SIZE,
        };
        let vm = VmId {
            index,
            generation: 7,
        };
        let source = |offset: u64, len: usize| Source {
            at: Ipa(range.start.0 + offset),
            bytes: (0..len)
                .map(|n| (n % 251) as u8 + index as u8 + 1)
                .collect(),
            frames: None,
        };
        let ram = GuestRam::new(
            vm,
            range,
            [
                Some(source(0x1_f000, 0x1_2345)),
                None,
                // Across a border of regions, and of frames, and up to an odd end.
                Some(source(0x20_0000 - 5, 0x2007)),
            ],
            Policy::default(),
        );
        let maps = Maps::new(FakeTranslation::new(), range).unwrap();
        Self {
            ram,
            maps: Mutex::new(maps),
            faults: [const { None }; VCPUS],
            written: BTreeMap::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Maps<FakeTranslation>> {
        self.maps.try_lock().unwrap()
    }

    /// What the guest frame must contain, by the definition of the sources.
    fn expected(&self, gfn: Gfn) -> Vec<u8> {
        let mut page = vec![0; FRAME_SIZE as usize];
        let start = gfn.address().0;
        for source in self.ram.sources() {
            let end = source.at.0 + source.bytes.len() as u64;
            for at in source.at.0.max(start)..end.min(start + FRAME_SIZE) {
                page[(at - start) as usize] = source.bytes[(at - source.at.0) as usize];
            }
        }
        if let Some(number) = self.written.get(&gfn.0) {
            page[8..16].copy_from_slice(&number.to_le_bytes());
        }
        page
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// One step of a vCPU's fault, which begins at this guest frame if none is on its way.
    Fault {
        vm: usize,
        vcpu: usize,
        gfn: u64,
        access: Access,
    },
    /// A whole fault, or a device's access.
    Fill {
        vm: usize,
        gfn: u64,
        device: bool,
    },
    /// All of a region, so that it may become a block.
    FillRegion {
        vm: usize,
        region: u64,
    },
    /// A store by the guest, which may be seen absent.
    Store {
        vm: usize,
        gfn: u64,
    },
    Reclaim {
        node: u8,
        budget: usize,
    },
    /// An idle CPU zeroes frames ahead.
    ZeroAhead {
        node: u8,
        frames: u64,
    },
    FailFrames(Option<u64>),
    FailTables(usize, Option<u64>),
    Check,
}

fn gfn() -> impl Strategy<Value = u64> {
    // Few chunks, so that vCPUs meet; and a little beyond the end.
    prop_oneof![
        3 => 0..40_u64,
        2 => 505..530_u64,
        1 => 0..RAM_FRAMES + 20,
        1 => RAM_FRAMES - 6..RAM_FRAMES + 2,
    ]
}

fn access() -> impl Strategy<Value = Access> {
    prop::sample::select(vec![Access::Read, Access::Write, Access::Overwrite])
}

fn step() -> impl Strategy<Value = Step> {
    let vm = || 0..VMS;
    prop_oneof![
        24 => (vm(), 0..VCPUS, gfn(), access())
            .prop_map(|(vm, vcpu, gfn, access)| Step::Fault { vm, vcpu, gfn, access }),
        3 => (vm(), gfn(), any::<bool>())
            .prop_map(|(vm, gfn, device)| Step::Fill { vm, gfn, device }),
        1 => (vm(), 0..3_u64).prop_map(|(vm, region)| Step::FillRegion { vm, region }),
        4 => (vm(), gfn()).prop_map(|(vm, gfn)| Step::Store { vm, gfn }),
        1 => (0..2_u8, 0..300_usize).prop_map(|(node, budget)| Step::Reclaim { node, budget }),
        2 => (0..2_u8, 0..1100_u64).prop_map(|(node, frames)| Step::ZeroAhead { node, frames }),
        1 => prop::option::of(0..4_u64).prop_map(Step::FailFrames),
        1 => (vm(), prop::option::of(0..3_u64)).prop_map(|(vm, n)| Step::FailTables(vm, n)),
        1 => Just(Step::Check),
    ]
}

struct World {
    frames: FakeFrames,
    fresh: Vec<PoolCounts>,
    vms: Vec<Vm>,
    stores: u64,
    failing: bool,
}

fn node_of(vcpu: usize) -> NodeId {
    NodeId((vcpu % 2) as u8)
}

fn is_ram(gfn: Gfn) -> bool {
    (RAM.0..RAM.0 + RAM_FRAMES).contains(&gfn.0)
}

impl World {
    fn new() -> Self {
        let frames = FakeFrames::new(&NODES);
        let fresh = free_blocks(&frames);
        let vms = (0..VMS as u16).map(Vm::new).collect();
        Self {
            frames,
            fresh,
            vms,
            stores: 0,
            failing: false,
        }
    }

    /// Whether any frame is left, reserved ones included.
    fn is_empty(&self) -> bool {
        let censuses = NODES.map(|n| {
            let frames = n.start.0..n.start.0 + n.count;
            let left = |frame: &u64| {
                let census = census_of(&self.frames, Mfn(*frame));
                census[Use::Free as usize] + census[Use::Reserved as usize] > 0
            };
            frames.filter(left).count()
        });
        censuses == [0, 0]
    }

    fn judge(&mut self, gfn: Gfn, filled: Filled) {
        match filled {
            Filled::Done => assert!(is_ram(gfn)),
            Filled::Refused => assert!(!is_ram(gfn)),
            Filled::Away(_) | Filled::Held(_) => unreachable!("nothing is evicted or held here"),
            Filled::NoMemory => assert!(self.failing || self.is_empty(), "there was memory"),
        }
    }

    fn fault(&mut self, vm: usize, vcpu: usize, gfn: Gfn, access: Access) {
        let guest = &mut self.vms[vm];
        let begun = guest.faults[vcpu].take();
        let new = || (Fault::new(gfn, node_of(vcpu), access), gfn);
        let (mut fault, gfn) = begun.unwrap_or_else(new);
        match fault.step(&guest.ram, &self.frames, || guest.lock()) {
            Some(filled) => self.judge(gfn, filled),
            None => self.vms[vm].faults[vcpu] = Some((fault, gfn)),
        }
    }

    fn fill(&mut self, vm: usize, gfn: Gfn, device: bool) {
        let guest = &self.vms[vm];
        let lock = || guest.lock();
        // A device waits for a fault on the same chunk, which here stands still.
        let waits = guest.faults.iter().flatten();
        let same = |at: Gfn| at.align_down(CHUNK_FRAMES) == gfn.align_down(CHUNK_FRAMES);
        let filled = if device && !waits.into_iter().any(|(_, at)| same(*at)) {
            let at = (gfn.address(), Access::Write);
            let with = |frame| frame;
            match guest
                .ram
                .with_frame(at, NodeId(1), &self.frames, &lock, with)
            {
                Ok(frame) => {
                    assert_eq!(guest.lock().entry(gfn).frame(), Some(frame));
                    Filled::Done
                }
                Err(filled) => filled,
            }
        } else {
            guest
                .ram
                .fill(gfn.address(), NodeId(0), Access::Read, &self.frames, &lock)
        };
        self.judge(gfn, filled);
    }

    /// A store of the guest, where the hardware lets it.
    fn store(&mut self, vm: usize, gfn: Gfn) {
        let translated = self.vms[vm]
            .lock()
            .tables_mut()
            .mmu
            .translate(gfn.address());
        let Ok(translation) = translated else { return };
        self.stores += 1;
        let bytes = self.stores.to_le_bytes();
        self.frames.store(translation.pa.frame(), 8, &bytes);
        self.vms[vm].written.insert(gfn.0, self.stores);
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Fault {
                vm,
                vcpu,
                gfn,
                access,
            } => self.fault(vm, vcpu, RAM.add(gfn), access),
            Step::Fill { vm, gfn, device } => self.fill(vm, RAM.add(gfn), device),
            Step::FillRegion { vm, region } => {
                for n in (0..REGION_FRAMES).step_by(CHUNK_FRAMES as usize) {
                    self.fill(vm, RAM.add(region * REGION_FRAMES + n), false);
                }
            }
            Step::Store { vm, gfn } => self.store(vm, RAM.add(gfn)),
            Step::Reclaim { node, budget } => drop(self.frames.reclaim(NodeId(node), budget)),
            Step::ZeroAhead { node, frames } => self.frames.zero_ahead(NodeId(node), 2, frames),
            Step::FailFrames(after) => {
                self.frames.fail_after(after);
                self.failing |= after.is_some();
            }
            Step::FailTables(vm, after) => {
                self.vms[vm]
                    .lock()
                    .tables_mut()
                    .mmu
                    .tables()
                    .fail_after(after);
                self.failing |= after.is_some();
            }
            Step::Check => self.check(),
        }
    }

    /// What is true at any moment, whoever stands where.
    fn check(&self) {
        let mut owners = BTreeMap::new();
        for (n, vm) in self.vms.iter().enumerate() {
            gone_over(vm);
            let mut present = 0;
            let mut in_place = BTreeMap::<u64, u64>::new();
            for gfn in (0..RAM_FRAMES + 2).map(|n| RAM.add(n)) {
                let entry = vm.lock().entry(gfn);
                let seen = vm.lock().tables_mut().mmu.translate(gfn.address());
                let Some(frame) = entry.frame() else {
                    assert!(seen.is_err(), "{gfn} is seen and not there");
                    continue;
                };
                present += 1;
                assert_eq!(
                    owners.insert(frame, (n, gfn)),
                    None,
                    "{frame} has two users"
                );
                let owner = owner_of(&self.frames, frame).unwrap();
                assert_eq!(owner, (Use::Private, vm.ram.vm, gfn));
                assert_eq!(self.frames.contents(frame), Some(vm.expected(gfn)), "{gfn}");
                let region = gfn.align_down(REGION_FRAMES);
                let base = frame.0.wrapping_sub(gfn.0 - region.0);
                if base.is_multiple_of(REGION_FRAMES) {
                    *in_place.entry(region.0).or_default() += 1;
                }
                if let Ok(seen) = seen {
                    assert_eq!(seen.pa, frame.address(), "{gfn} is stale");
                    self.frames.check_shown(frame);
                    let is_block = seen.leaf.size > FRAME_SIZE;
                    let is_full = in_place.get(&region.0) == Some(&REGION_FRAMES);
                    // Counted upwards, so what is known of a region is known at its last frame. The
                    // other way round does not hold: chunks may follow each other by chance.
                    if (gfn.0 + 1).is_multiple_of(REGION_FRAMES) && is_block {
                        assert!(is_full, "{gfn}");
                    }
                }
            }
            assert_eq!(vm.lock().counts().present(), present);
        }
    }

    /// Every fault comes to its end, then every VM: nothing is left behind.
    fn finish(mut self, budget: usize) {
        for vm in 0..VMS {
            for vcpu in 0..VCPUS {
                for _ in 0..20 {
                    if let Some((_, gfn)) = self.vms[vm].faults[vcpu] {
                        self.fault(vm, vcpu, gfn, Access::Read);
                    }
                }
                assert!(self.vms[vm].faults[vcpu].is_none(), "a fault has no end");
            }
        }
        self.check();
        let present: u64 = self.vms.iter().map(present).sum();
        let private: u64 = NODES
            .iter()
            .map(|n| census(&self.frames, *n)[Use::Private as usize])
            .sum();
        assert_eq!(private, present, "frames behind nothing");
        for vm in self.vms {
            let mut maps = vm.maps.into_inner().unwrap();
            maps.tables_mut().mmu.switch_off();
            let mut dismantling = maps.dismantle(vm.ram.vm);
            while !dismantling.step(&self.frames, budget) {}
            assert_eq!(dismantling.tables().tables_in_use(), 0);
        }
        assert_eq!(
            free_blocks(&self.frames),
            self.fresh,
            "all is back, and joined"
        );
    }
}

fn present(vm: &Vm) -> u64 {
    vm.lock().counts().present()
}

/// Each pool's free blocks, whether they are zeroed or not.
fn free_blocks(frames: &FakeFrames) -> Vec<PoolCounts> {
    let plain = |counts: PoolCounts| {
        let mut blocks = counts.blocks;
        let largest = usize::from(MAX_ORDER);
        blocks[largest] += std::mem::take(&mut blocks[largest + 1]);
        PoolCounts {
            free: counts.free,
            blocks,
            ..PoolCounts::default()
        }
    };
    frames.counts().into_iter().map(plain).collect()
}

fn census(frames: &FakeFrames, run: FrameRange) -> [u64; Use::ALL.len()] {
    use model_address_space::Frames;
    machine_fake::census(Frames::map(frames), run.start, run.count)
}

fn census_of(frames: &FakeFrames, frame: Mfn) -> [u64; Use::ALL.len()] {
    census(
        frames,
        FrameRange {
            start: frame,
            count: 1,
        },
    )
}

fn owner_of(frames: &FakeFrames, frame: Mfn) -> Option<(Use, VmId, Gfn)> {
    use model_address_space::Frames;
    let locked = frames.map().entry(frame)?.lock()?;
    Some((locked.state().usage, locked.owner().vm, locked.owner().gfn))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn no_interleaving_loses_or_shares_a_frame(
        steps in prop::collection::vec(step(), 1..160),
        budget in 1..5000_usize,
    ) {
        let mut world = World::new();
        for step in steps {
            world.step(&step);
        }
        world.finish(budget);
    }
}

#[test]
fn a_region_that_is_filled_is_one_block() {
    let mut world = World::new();
    let last = RAM.add(REGION_FRAMES - 1);
    let size = |world: &World| {
        let seen = world.vms[0]
            .lock()
            .tables_mut()
            .mmu
            .translate(last.address());
        seen.unwrap().leaf.size
    };
    world.step(&Step::FillRegion { vm: 0, region: 0 });
    assert_eq!(size(&world), REGION_FRAMES * FRAME_SIZE);
    world.finish(100);
}

/// Two faults on one chunk, at every distance between them, with and without a reclaim between.
#[test]
fn two_faults_on_one_chunk_meet_at_every_step() {
    for lead in 0..12 {
        for reclaim in [false, true] {
            for (first, second) in [(0, 5), (3, 3), (RAM_FRAMES - 1, RAM_FRAMES - 2)] {
                let mut world = World::new();
                for _ in 0..lead {
                    world.fault(0, 0, RAM.add(first), Access::Read);
                }
                if reclaim {
                    world.frames.reclaim(NodeId(0), 1000);
                }
                for round in 0..16 {
                    // Once the others have come as far as they can, the first goes on.
                    for vcpu in [1, 2, 0].into_iter().take(if round < 8 { 2 } else { 3 }) {
                        let gfn = RAM.add(if vcpu == 1 { second } else { first });
                        world.fault(0, vcpu, gfn, Access::Write);
                    }
                    if round % 4 == 3 {
                        world.check();
                    }
                }
                for gfn in [first, second] {
                    assert!(world.vms[0].lock().entry(RAM.add(gfn)).frame().is_some());
                }
                world.finish(64);
            }
        }
    }
}

/// A failure at every allocation, of frames and of tables, of a VM's first faults.
#[test]
fn memory_may_end_at_every_point() {
    for frames in 0..8 {
        for tables in 0..8 {
            let mut world = World::new();
            world.step(&Step::FailFrames(Some(frames)));
            world.step(&Step::FailTables(0, Some(tables)));
            for gfn in [0, 20, 600, RAM_FRAMES - 1, RAM_FRAMES] {
                world.fill(0, RAM.add(gfn), gfn == 600);
                world.check();
            }
            world.step(&Step::FailFrames(None));
            world.step(&Step::FailTables(0, None));
            for gfn in [0, 20, 600, RAM_FRAMES - 1] {
                world.fill(0, RAM.add(gfn), false);
                let translated = world.vms[0]
                    .lock()
                    .tables_mut()
                    .mmu
                    .translate(RAM.add(gfn).address());
                assert!(translated.is_ok(), "filled again");
            }
            world.finish(1);
        }
    }
}

/// A region becomes one block with its last chunk, not before; and costs a frame of tables less.
#[test]
fn a_full_region_is_one_block() {
    let mut world = World::new();
    for n in (0..32).rev().map(|chunk| chunk * CHUNK_FRAMES) {
        world.fill(0, RAM.add(n + 7), false);
        let leaf = world.vms[0]
            .lock()
            .tables_mut()
            .mmu
            .translate(RAM.add(n).address())
            .unwrap()
            .leaf;
        assert_eq!(leaf.size, if n == 0 { 0x20_0000 } else { FRAME_SIZE });
    }
    world.check();
    // Root, level 2; pmap: root, region table, leaf.
    assert_eq!(world.vms[0].lock().tables().tables_in_use(), 5);
    // Seen already: nothing changes.
    world.fill(0, RAM, false);
    world.finish(4096);
}

/// Chunks of a zeroed block are not zeroed again, which the fake machine would not let pass; those
/// of others are; and what is taken back is as unknown as any.
#[test]
fn zeroed_blocks_are_used_as_they_are() {
    let mut world = World::new();
    // The block of the first region is zeroed, that of the second only halfway.
    world.frames.zero_ahead(NodeId(0), 2, 512 + 300);
    for region in 0..2 {
        world.step(&Step::FillRegion { vm: 0, region });
    }
    assert_eq!(world.frames.counts()[0].given_zeroed, 512);
    world.check();
    world.frames.zero_ahead(NodeId(0), 1, 512);
    world.fill(1, RAM, false);
    assert_eq!(world.frames.counts()[0].given_zeroed, 1024);
    world.store(1, RAM);
    world.frames.reclaim(NodeId(0), 1000);
    world.step(&Step::FillRegion { vm: 1, region: 0 });
    world.check();
    world.finish(64);
}

/// Another VM takes what this one reserved; what it took already stays.
#[test]
fn reservations_serve_others_under_pressure() {
    let mut world = World::new();
    for region in 0..2 {
        world.fill(0, RAM.add(region * REGION_FRAMES), false);
        world.fill(1, RAM.add(region * REGION_FRAMES), false);
    }
    for vm in [1, 0, 1] {
        for n in 0..RAM_FRAMES {
            world.fill(vm, RAM.add(n), false);
        }
        world.check();
    }
    assert_eq!(present(&world.vms[0]), RAM_FRAMES);
    world.finish(100);
}
