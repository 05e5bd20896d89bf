//! Disks of two VMs over one image, with equal blocks and blocks of zeroes in it: whatever one VM
//! reads, writes, discards or gives back, in whatever order, its disk and its memory are what they
//! would be without the other; and no frame is left or counted wrong.
#![allow(clippy::unwrap_used, reason = "a test")]

use machine_fake::FakeFrames;
use model_addr::{FRAME_SIZE, FrameRange, Gfn, Ipa, IpaRange, Mfn, VmId};
use model_address_space::{Frames, Policy};
use model_frame_table::Use;
use model_sharing::{Account, Ground};
use proptest::prelude::*;
use tests_request_path::{Disk, Driver, Guest, Image, Kind};

const RAM: IpaRange = IpaRange {
    start: Ipa(0x4000_0000),
    size: 0x40_0000,
};
/// Behind it lie the ranges of a discard; the rings are before it.
const RANGES: u64 = RAM.start.0 + 0x4000;
/// The data are the second half, a region that may become a block.
const DATA: u64 = RAM.start.0 + 0x20_0000;
const PAGES: u64 = 512;
const BLOCKS: u64 = 20;
const SECTORS: u64 = 8;
const LIMIT: u64 = 12;
const NODES: [FrameRange; 1] = [FrameRange {
    start: Mfn(0x8_0000),
    count: 6 * 512,
}];
const IMAGE: Mfn = Mfn(0x10_0000);
const VMS: usize = 2;
const PAGE: usize = FRAME_SIZE as usize;

/// Bytes from this byte of the data on.
type Segment = (u64, u64);

#[derive(Clone, Debug)]
enum Step {
    /// A request: a read, or a write of what is in memory.
    Transfer(usize, bool, u64, Vec<Segment>),
    /// A range of sectors.
    Zero(usize, bool, u64, u64),
    /// The guest stores to the first bytes of a page, or all of it.
    Store(usize, u64, u8, bool),
    /// All of the second region, so that it becomes a block.
    Fill(usize, u8),
    Release(usize, u64, u64),
    /// Some pages are taken from the VM until it needs them.
    Evict(usize, u64, u64),
    /// The VM ends, and another one begins.
    Restart(usize),
    FailRecords(Option<u64>),
}

fn page() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0..12_u64, 1 => 0..PAGES]
}

fn segment() -> impl Strategy<Value = Segment> {
    let whole =
        (page(), 1..4_u64).prop_map(|(page, count)| (page * FRAME_SIZE, count * FRAME_SIZE));
    let part = (page(), 0..8_u64, 1..16_u64)
        .prop_map(|(page, at, sectors)| (page * FRAME_SIZE + at * 512, sectors * 512));
    let odd = (page(), 0..FRAME_SIZE, 1..16_u64)
        .prop_map(|(page, at, sectors)| (page * FRAME_SIZE + at, sectors * 512));
    let all = prop_oneof![6 => whole, 2 => part, 1 => odd];
    all.prop_map(|(at, len)| (at.min(PAGES * FRAME_SIZE - len), len))
}

fn step() -> impl Strategy<Value = Step> {
    let vm = || 0..VMS;
    let sector = || {
        prop_oneof![
            4 => (0..BLOCKS).prop_map(|block| block * SECTORS),
            1 => 0..BLOCKS * SECTORS,
        ]
    };
    let segments = || prop::collection::vec(segment(), 1..5);
    prop_oneof![
        8 => (vm(), sector(), segments()).prop_map(|(v, s, d)| Step::Transfer(v, false, s, d)),
        6 => (vm(), sector(), segments()).prop_map(|(v, s, d)| Step::Transfer(v, true, s, d)),
        2 => (vm(), any::<bool>(), sector(), 1..40_u64).prop_map(|(v, d, s, n)| Step::Zero(v, d, s, n)),
        6 => (vm(), page(), 0..4_u8, any::<bool>()).prop_map(|(v, p, b, w)| Step::Store(v, p, b, w)),
        1 => (vm(), 0..4_u8).prop_map(|(v, b)| Step::Fill(v, b)),
        3 => (vm(), page(), 1..20_u64).prop_map(|(v, p, n)| Step::Release(v, p, n.min(PAGES - p))),
        1 => vm().prop_map(|v| Step::Release(v, 0, PAGES)),
        4 => (vm(), page(), 1..20_u64).prop_map(|(v, p, n)| Step::Evict(v, p, n.min(PAGES - p))),
        1 => vm().prop_map(Step::Restart),
        1 => prop::option::of(0..9_u64).prop_map(Step::FailRecords),
    ]
}

struct Vm<'a> {
    guest: Guest<'a>,
    disk: Disk<'a>,
    driver: Driver,
    /// What the data of its memory, and its disk, must hold.
    memory: Vec<u8>,
    blocks: Vec<u8>,
}

struct World<'a> {
    frames: &'a FakeFrames,
    image: &'a Image,
    base: Vec<u8>,
    policies: [Policy; VMS],
    vms: Vec<Vm<'a>>,
}

/// Blocks that are zeroes, equal, and neither.
fn base() -> Vec<u8> {
    let blocks = (0..BLOCKS as usize).map(|block| match block % 5 {
        0 => vec![0; PAGE],
        1 => vec![3; PAGE],
        _ => (0..PAGE).map(|n| (n / 9 + block) as u8).collect(),
    });
    blocks.flatten().collect()
}

impl<'a> World<'a> {
    fn new(frames: &'a FakeFrames, image: &'a Image, policies: [Policy; VMS]) -> Self {
        let mut world = Self {
            frames,
            image,
            base: base(),
            policies,
            vms: Vec::new(),
        };
        world.vms = (0..VMS).map(|slot| world.start(slot, 1)).collect();
        world
    }

    fn start(&self, slot: usize, generation: u16) -> Vm<'a> {
        let vm = VmId {
            index: slot as u16,
            generation,
        };
        let guest = Guest::new(self.frames, vm, RAM, self.policies[slot]);
        let mut disk = Disk::new(self.frames, self.image, vm, LIMIT);
        let driver = Driver::start(&guest, &mut disk, RAM.start);
        assert!(guest.put(Ipa(RANGES), &[0; 16]));
        Vm {
            guest,
            disk,
            driver,
            memory: vec![0; PAGES as usize * PAGE],
            blocks: self.base.clone(),
        }
    }

    fn step(&mut self, step: &Step, generation: u16) {
        match step {
            Step::Transfer(vm, is_write, sector, segments) => {
                self.vms[*vm].transfer(*is_write, *sector, segments);
            }
            Step::Zero(vm, discard, sector, count) => {
                self.vms[*vm].zero(*discard, *sector, *count);
            }
            Step::Store(vm, page, byte, whole) => {
                let len = if *whole { PAGE } else { 8 };
                self.vms[*vm].store(*page as usize * PAGE, &vec![*byte; len]);
            }
            Step::Fill(vm, byte) => {
                self.vms[*vm].store(0, &vec![*byte; PAGES as usize * PAGE]);
            }
            Step::Release(vm, page, count) => self.vms[*vm].release(*page, *count),
            Step::Evict(vm, page, count) => {
                for page in *page..page + count {
                    self.vms[*vm].guest.evict(Gfn(DATA / FRAME_SIZE + page));
                }
            }
            Step::Restart(vm) => {
                let new = self.start(*vm, generation);
                let old = std::mem::replace(&mut self.vms[*vm], new);
                // The new one uses other frames already.
                assert_eq!((old.disk.end(), old.guest.end()), (0, 0), "tables are left");
            }
            Step::FailRecords(after) => self.frames.fail_records_after(*after),
        }
    }
}

impl Vm<'_> {
    /// Sends a request and takes the status.
    fn request(&mut self, what: (Kind, u64), data: &[(Ipa, u64)]) -> u8 {
        self.driver.submit(&self.guest, what, data);
        self.driver.ring(&self.guest, &mut self.disk)
    }

    fn transfer(&mut self, is_write: bool, sector: u64, segments: &[Segment]) {
        let kind = if is_write { Kind::Write } else { Kind::Read };
        let data: Vec<_> = segments
            .iter()
            .map(|(at, len)| (Ipa(DATA + at), *len))
            .collect();
        let status = self.request((kind, sector), &data);
        let bytes: u64 = segments.iter().map(|(_, len)| len).sum();
        let from = sector as usize * 512;
        let fits = from + bytes as usize <= self.blocks.len();
        if status != 0 {
            // A disk may be full; what it took until then is known to it alone.
            assert!(is_write || !fits, "there was memory");
            self.blocks = self.disk.contents();
            return;
        }
        assert!(fits);
        let mut done = from;
        for (at, len) in segments {
            let (at, len) = (*at as usize, *len as usize);
            let (memory, disk) = (
                &mut self.memory[at..at + len],
                &mut self.blocks[done..done + len],
            );
            if is_write {
                disk.copy_from_slice(memory);
            } else {
                memory.copy_from_slice(disk);
            }
            done += len;
        }
    }

    fn zero(&mut self, discard: bool, sector: u64, count: u64) {
        let mut range = sector.to_le_bytes().to_vec();
        range.extend((count as u32).to_le_bytes());
        range.extend([0; 4]);
        assert!(self.guest.put(Ipa(RANGES), &range));
        let kind = if discard {
            Kind::Discard
        } else {
            Kind::WriteZeroes
        };
        let status = self.request((kind, 0), &[(Ipa(RANGES), 16)]);
        let run = sector as usize * 512..(sector + count) as usize * 512;
        if status == 0 {
            self.blocks[run].fill(0);
        } else {
            self.blocks = self.disk.contents();
        }
    }

    fn store(&mut self, at: usize, bytes: &[u8]) {
        assert!(self.guest.put(Ipa(DATA + at as u64), bytes));
        self.memory[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn release(&mut self, page: u64, count: u64) {
        let gfn = Gfn(DATA / FRAME_SIZE + page);
        self.guest.release(gfn, count);
        self.memory[page as usize * PAGE..][..count as usize * PAGE].fill(0);
    }

    /// The disk is what it must be, and these pages are as the hardware finds them.
    fn check(&self, pages: impl Iterator<Item = u64>) {
        assert!(self.disk.contents() == self.blocks, "the disk is another");
        for page in pages {
            let seen = self.guest.get(Ipa(DATA + page * FRAME_SIZE), PAGE);
            let expected = &self.memory[page as usize * PAGE..][..PAGE];
            assert!(seen == expected, "page {page} is another");
        }
    }
}

fn policy() -> impl Strategy<Value = Policy> {
    let rarely = || prop::bool::weighted(0.2);
    (rarely(), rarely(), rarely()).prop_map(|(alone, keep_blocks, hide)| Policy {
        share: !alone,
        keep_blocks,
        hide,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn each_vm_sees_its_own_disk_and_memory(
        policies in prop::array::uniform2(policy()),
        filled in prop::array::uniform2(any::<bool>()),
        steps in prop::collection::vec((step(), any::<bool>()), 1..60),
    ) {
        let image = Image::new(IMAGE, &base());
        let frames = image.machine(&NODES);
        let free = frames.counts()[0].free;
        let mut world = World::new(&frames, &image, policies);
        // Memory that is full at once is a block.
        for vm in (0..VMS).filter(|vm| filled[*vm]) {
            world.step(&Step::Fill(vm, 1), 0);
        }
        for ((step, look), generation) in steps.iter().zip(2..) {
            world.step(step, generation);
            for vm in &world.vms {
                // To look is to touch: not always.
                vm.check(0..if *look { 14 } else { 0 });
            }
        }
        for vm in world.vms {
            vm.check(0..PAGES);
            prop_assert_eq!((vm.disk.end(), vm.guest.end()), (0, 0), "tables are left");
        }
        prop_assert_eq!(frames.counts()[0].free, free, "frames are left");
        prop_assert_eq!(frames.record_frames(), 0, "records are left");
        for slot in 0..VMS as u16 {
            prop_assert_eq!(frames.accounts().get(slot), Account::default());
        }
        let kept = machine_fake::census(Frames::map(&frames), IMAGE, image.pages());
        prop_assert_eq!(kept[Use::CachedOnly as usize], image.pages());
    }
}

/// Blocks that both VMs read are one frame, and so are blocks that both wrote alike; a write of
/// one is its own.
#[test]
fn equal_blocks_are_one_frame() {
    let image = Image::new(IMAGE, &base());
    let frames = image.machine(&NODES);
    let both = [Policy {
        share: true,
        ..Policy::default()
    }; VMS];
    let mut world = World::new(&frames, &image, both);
    for vm in &mut world.vms {
        // Blocks 1 and 6 of the image are equal, 0 and 5 are zeroes.
        vm.transfer(false, 0, &[(0, 8 * FRAME_SIZE)]);
        vm.store(20 * PAGE, &[9; PAGE]);
        vm.transfer(true, 2 * SECTORS, &[(20 * FRAME_SIZE, FRAME_SIZE)]);
        vm.transfer(false, 2 * SECTORS, &[(30 * FRAME_SIZE, FRAME_SIZE)]);
    }
    let used = |vm: usize| frames.accounts().get(vm as u16);
    // Six pages of the image, five of them different; the page that was written and read, and the
    // disk itself.
    assert_eq!([used(0).users, used(1).users], [8, 8]);
    let shared = machine_fake::census(Frames::map(&frames), NODES[0].start, NODES[0].count);
    assert_eq!(shared[Use::Shared as usize], 1, "both disks keep one frame");
    let evict = |page: u64| world.vms[1].guest.evict(Gfn(DATA / FRAME_SIZE + page));
    // Of the image, of its own, and nothing at all.
    assert_eq!([1, 20, 5].map(evict), [true, true, false]);
    world.vms[0].store(20 * PAGE, &[8; PAGE]);
    world.vms[0].transfer(true, 2 * SECTORS, &[(20 * FRAME_SIZE, FRAME_SIZE)]);
    for vm in &world.vms {
        vm.check(0..40);
    }
}
