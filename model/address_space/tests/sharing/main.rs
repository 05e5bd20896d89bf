//! VMs of one group that share frames: faults of their vCPUs step by step and interleaved, disk
//! reads as exchanges, devices, pages given back, and deaths. Every page always holds what its
//! guest or a device last put there, and nothing is lost or counted wrong.
#![allow(clippy::unwrap_used, reason = "a test")]

mod blocks;
mod machine;
mod world;

use model_addr::{Gfn, NodeId};
use model_address_space::{Access, Frames, Moved, Policy};
use model_frame_table::{CHUNK_FRAMES, Owner, Purpose};
use model_pmap::{Backing, REGION_FRAMES};
use proptest::prelude::*;
use std::sync::Arc;
use world::{Block, IMAGE_PAGES, RAM, RAM_FRAMES, STANDING, VCPUS, VMS, World};

#[derive(Clone, Debug)]
enum Step {
    Fault(usize, usize, Gfn, Access),
    /// Faults until the hardware allows it, then a store where it is a write.
    Touch(usize, Gfn, Access),
    Store(usize, Gfn),
    Read(usize, Vec<(Gfn, Block)>),
    Device(usize, Gfn, Access, u8),
    Release(usize, Gfn, u64),
    /// A page moves to a node; or a frame that is not behind it was meant.
    Migrate(usize, Gfn, u8, bool),
    /// A node gets a copy of a page; or a frame that is not behind it was meant.
    Replicate(usize, Gfn, u8, bool),
    /// The same, or a move where it is not to copy, as far as the page is on its way.
    SetOff(usize, Gfn, (u8, bool), bool),
    /// What is on its way is copied.
    Carry,
    /// What is on its way of a VM comes to its end.
    Land(usize),
    /// A node gives its copies back.
    GiveBack(u8),
    /// Who touches some pages next is to be noticed.
    Sample(usize, Gfn, u64),
    /// A page gets a made-up reason, where all have one.
    Hold(usize, Gfn),
    /// The guest marks a page, or unmarks it.
    NeverShare(usize, Gfn, bool),
    /// All of the first region, so that it may become a block.
    FillRegion(usize),
    Kill(usize),
    Reap(usize),
    Reclaim(u8, usize),
    FailFrames(Option<u64>),
    FailTables(usize, Option<u64>),
    FailRecords(Option<u64>),
}

fn gfn() -> impl Strategy<Value = Gfn> {
    prop_oneof![
        6 => 0..40_u64,
        2 => 505..520_u64,
        1 => 0..RAM_FRAMES + 8,
    ]
    .prop_map(|n| RAM.add(n))
}

fn access() -> impl Strategy<Value = Access> {
    prop::sample::select(vec![Access::Read, Access::Write, Access::Overwrite])
}

fn block() -> impl Strategy<Value = Block> {
    prop_oneof![
        4 => (0..IMAGE_PAGES).prop_map(Block::Image),
        4 => (1..6_u8).prop_map(Block::Buffer),
        1 => (1..6_u8).prop_map(Block::Part),
        2 => Just(Block::Zero),
    ]
}

/// What a request reads: a run of pages, or pages anywhere, some of them twice.
fn pages() -> impl Strategy<Value = Vec<(Gfn, Block)>> {
    let run = (gfn(), prop::collection::vec(block(), 1..80));
    let run = run.prop_map(|(first, blocks)| {
        let at = |(n, block)| (first.add(n), block);
        (0..).zip(blocks).map(at).collect()
    });
    prop_oneof![
        1 => run,
        3 => prop::collection::vec((gfn(), block()), 1..12),
        2 => prop::collection::vec(((3..8_u64).prop_map(|n| RAM.add(n)), block()), 1..12),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let vm = || 0..VMS;
    let fails = || prop::option::weighted(0.3, 0..6_u64);
    prop_oneof![
        20 => (vm(), 0..VCPUS, gfn(), access()).prop_map(|(v, c, g, a)| Step::Fault(v, c, g, a)),
        10 => (vm(), gfn(), access()).prop_map(|(v, g, a)| Step::Touch(v, g, a)),
        6 => (vm(), gfn()).prop_map(|(v, g)| Step::Store(v, g)),
        14 => (vm(), pages()).prop_map(|(v, p)| Step::Read(v, p)),
        6 => (vm(), gfn(), access(), 1..6_u8).prop_map(|(v, g, a, s)| Step::Device(v, g, a, s)),
        5 => (vm(), gfn(), 1..40_u64).prop_map(|(v, g, n)| Step::Release(v, g, n)),
        8 => (vm(), gfn(), 0..2_u8, prop::bool::weighted(0.1))
            .prop_map(|(v, g, n, late)| Step::Migrate(v, g, n, late)),
        16 => (vm(), gfn(), 0..2_u8, prop::bool::weighted(0.1))
            .prop_map(|(v, g, n, late)| Step::Replicate(v, g, n, late)),
        16 => (vm(), gfn(), (0..2_u8, any::<bool>()), prop::bool::weighted(0.1))
            .prop_map(|(v, g, to, late)| Step::SetOff(v, g, to, late)),
        4 => Just(Step::Carry),
        6 => vm().prop_map(Step::Land),
        1 => (0..2_u8).prop_map(Step::GiveBack),
        6 => (vm(), gfn(), 1..8_u64).prop_map(|(v, g, n)| Step::Sample(v, g, n)),
        4 => (vm(), gfn()).prop_map(|(v, g)| Step::Hold(v, g)),
        2 => (vm(), gfn(), any::<bool>()).prop_map(|(v, g, n)| Step::NeverShare(v, g, n)),
        1 => vm().prop_map(|v| Step::Release(v, RAM, REGION_FRAMES)),
        1 => (vm(), 0..RAM_FRAMES, 0..2 * RAM_FRAMES)
            .prop_map(|(v, g, n)| Step::Release(v, Gfn(RAM.0 + g - 200), n)),
        1 => vm().prop_map(Step::FillRegion),
        1 => vm().prop_map(Step::Kill),
        2 => (1..900_usize).prop_map(Step::Reap),
        1 => (0..2_u8, 0..300_usize).prop_map(|(node, budget)| Step::Reclaim(node, budget)),
        1 => fails().prop_map(Step::FailFrames),
        1 => (vm(), fails()).prop_map(|(v, n)| Step::FailTables(v, n)),
        1 => fails().prop_map(Step::FailRecords),
    ]
}

fn policy() -> impl Strategy<Value = Policy> {
    let rarely = || prop::bool::weighted(0.25);
    (rarely(), rarely(), rarely()).prop_map(|(alone, keep_blocks, hide)| Policy {
        share: !alone,
        keep_blocks,
        hide,
    })
}

const SHARES: Policy = Policy {
    share: true,
    keep_blocks: false,
    hide: false,
};

impl World {
    fn step(&mut self, step: &Step) {
        match step {
            Step::Fault(vm, vcpu, gfn, access) => self.fault(*vm, *vcpu, *gfn, *access),
            Step::Touch(vm, gfn, access) => {
                if self.touch(*vm, *gfn, *access) && access.writes() {
                    self.store(*vm, *gfn);
                }
            }
            Step::Store(vm, gfn) => self.store(*vm, *gfn),
            Step::Read(vm, pages) => self.read(*vm, pages),
            Step::Device(vm, gfn, access, seed) => {
                let page = Arc::new(vec![*seed; 4096]);
                self.device(*vm, *gfn, *access, &page);
            }
            Step::Release(vm, gfn, count) => self.release(*vm, *gfn, *count),
            Step::Migrate(vm, gfn, node, late) => {
                self.place(*vm, *gfn, (NodeId(*node), false), *late);
            }
            Step::Replicate(vm, gfn, node, late) => {
                self.place(*vm, *gfn, (NodeId(*node), true), *late);
            }
            Step::SetOff(vm, gfn, (node, copies), late) => {
                self.set_off(*vm, *gfn, (NodeId(*node), *copies), *late);
            }
            Step::Carry => self.carry(),
            Step::Land(vm) => self.land(*vm),
            Step::GiveBack(node) => self.give_copies_back(NodeId(*node)),
            Step::Sample(vm, gfn, count) => self.watch(*vm, *gfn, *count),
            Step::Hold(vm, gfn) => self.hold(*vm, *gfn),
            Step::NeverShare(vm, gfn, never) => self.never_share(*vm, *gfn, *never),
            Step::FillRegion(vm) => self.fill_region(*vm),
            Step::Kill(vm) => self.kill(*vm),
            Step::Reap(budget) => self.reap(*budget),
            Step::Reclaim(node, budget) => {
                self.machine.frames.reclaim(NodeId(*node), *budget);
            }
            Step::FailFrames(after) => self.fail_frames(*after),
            Step::FailTables(vm, after) => self.fail_tables(*vm, *after),
            Step::FailRecords(after) => self.fail_records(*after),
        }
    }

    /// The guest marks a page as never to be shared, as the hypercall does it, or unmarks it.
    fn never_share(&mut self, vm: usize, gfn: Gfn, never: bool) {
        let is_shared = matches!(self.vms[vm].lock().entry(gfn).backing, Backing::Shared(_));
        let page = self.vms[vm].expected(gfn);
        if never && is_shared && !self.device(vm, gfn, Access::Write, &page) {
            return;
        }
        let done = self.vms[vm].lock().set_never_share(gfn, never);
        if done {
            self.vms[vm].secrets.retain(|secret| *secret != gfn);
            self.vms[vm].secrets.extend(never.then_some(gfn));
        }
    }

    fn fill_region(&mut self, vm: usize) {
        for n in 0..REGION_FRAMES {
            self.touch(vm, RAM.add(n), Access::Write);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn pages_hold_what_was_put_there_last(
        policies in prop::array::uniform3(policy()),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut world = World::new(policies);
        for step in &steps {
            world.step(step);
            world.check();
        }
        world.finish();
    }

    /// The same where all pages have a made-up reason not to be written, or not to be seen: nothing gets past it, and
    /// nothing loses it.
    #[test]
    fn no_page_loses_a_reason(
        policies in prop::array::uniform3(policy()),
        steps in prop::collection::vec(step(), 1..120),
        standing in prop::sample::select(&STANDING),
    ) {
        let mut world = World::held_by(policies, standing);
        for step in &steps {
            world.step(step);
            world.check();
        }
        world.finish();
    }
}

/// A page of a chunk is given back and touched again, whichever it is and however the chunk came.
#[test]
fn a_released_page_comes_back() {
    for reclaim in [false, true] {
        for page in 0..CHUNK_FRAMES {
            for count in [1, 3, CHUNK_FRAMES] {
                let mut world = World::new([SHARES; VMS]);
                let chunk = RAM.add(64);
                assert!(world.touch(0, chunk.add(5), Access::Write));
                world.release(0, chunk.add(page), count);
                if reclaim {
                    world.machine.frames.reclaim(NodeId(0), 1000);
                }
                for at in [page, 0, 15] {
                    assert!(world.touch(0, chunk.add(at), Access::Write));
                    world.store(0, chunk.add(at));
                }
                world.finish();
            }
        }
    }
}

/// Only one frame is left, and by chance it is where the region's run had the first of a chunk.
#[test]
fn a_single_page_in_place_is_no_chunk_on_its_way() {
    let mut world = World::new([SHARES; VMS]);
    assert!(world.touch(0, RAM.add(64), Access::Write));
    let Backing::Private(frame) = world.vms[0].lock().entry(RAM.add(64)).backing else {
        unreachable!()
    };
    let frames = &world.machine.frames;
    frames.reclaim(NodeId(0), 1000);
    let owner = Owner {
        vm: model_addr::VmId {
            index: 9,
            generation: 9,
        },
        gfn: Gfn(0),
    };
    let take = || frames.allocate(NodeId(0), 0, Purpose::Private(owner));
    let taken: Vec<_> = std::iter::from_fn(take).collect();
    let next = frame.add(CHUNK_FRAMES);
    Frames::free(frames, next, 0);
    assert!(world.touch(0, RAM.add(80), Access::Write));
    assert_eq!(world.vms[0].lock().entry(RAM.add(80)).frame(), Some(next));
    for frame in taken.iter().filter(|frame| **frame != next) {
        Frames::free(&world.machine.frames, *frame, 0);
    }
    assert!(world.touch(0, RAM.add(81), Access::Write), "done for ever");
    world.finish();
}

/// A page that reads as zeroes is written, and is the guest's alone.
#[test]
fn zeroes_are_written() {
    for gfn in [RAM.add(100), RAM.add(6), RAM.add(21), RAM.add(22)] {
        for before in [None, Some(Block::Image(9)), Some(Block::Buffer(3))] {
            let mut world = World::new([SHARES; VMS]);
            assert!(world.touch(0, gfn, Access::Write));
            world.store(0, gfn);
            if let Some(block) = before {
                world.read(0, &[(gfn, block)]);
            }
            world.read(0, &[(gfn, Block::Zero)]);
            world.check();
            assert_eq!(world.vms[0].find(0, gfn, false), None);
            // What was there from the start does not come back.
            assert!(world.touch(0, gfn, Access::Read));
            world.check();
            assert!(world.touch(0, gfn, Access::Write));
            world.store(0, gfn);
            world.finish();
        }
    }
}

/// A page of the kernel is marked before anybody has touched it: it gets no frame that others use with those beside it.
#[test]
fn a_page_of_an_image_that_is_never_to_be_shared_is_the_guests_own() {
    let mut world = World::new([SHARES; VMS]);
    world.never_share(0, RAM.add(6), true);
    assert!(world.touch(0, RAM.add(7), Access::Read) && world.touch(0, RAM.add(6), Access::Read));
    let [own, other] = [6, 7].map(|n| world.vms[0].lock().entry(RAM.add(n)).backing);
    assert!(matches!(own, Backing::Private(_)) && matches!(other, Backing::Shared(_)));
    world.finish();
}

/// A chunk of the kernel is on its way when one of its pages is read as zeroes.
#[test]
fn zeroes_stay_while_a_chunk_is_on_its_way() {
    for steps in 1..8 {
        let mut world = World::new([SHARES; VMS]);
        // A write fault takes a chunk with a copy of the image's pages.
        for _ in 0..steps {
            world.fault(0, 0, RAM.add(6), Access::Write);
        }
        world.fault(0, 1, RAM.add(7), Access::Write);
        world.read(0, &[(RAM.add(8), Block::Zero)]);
        world.check();
        for gfn in (0..CHUNK_FRAMES).map(|n| RAM.add(n)) {
            assert!(world.touch(0, gfn, Access::Read));
        }
        world.finish();
    }
}

/// What is done with frames when a VM that hides writes to a page: of which others are users, and while one
/// frame is free in all.
fn hidden_write(block: Block, is_shared: bool, is_full: bool) -> Vec<&'static str> {
    let hides = Policy {
        hide: true,
        ..SHARES
    };
    let mut world = World::new([hides; VMS]);
    let gfn = RAM.add(200);
    if is_shared {
        world.read(1, &[(gfn, block)]);
        world.read(2, &[(gfn, block)]);
    }
    world.read(0, &[(gfn, block)]);
    let frames = &world.machine.frames;
    let take = || frames.allocate(NodeId(0), 0, Purpose::Hypervisor);
    let mut hoard: Vec<_> = std::iter::from_fn(|| is_full.then(take)?).collect();
    if let Some(last) = hoard.pop() {
        Frames::free(frames, last, 0);
    }
    world.machine.steps.borrow_mut().clear();
    assert!(world.touch(0, gfn, Access::Write));
    let steps = world.machine.steps.take();
    for frame in hoard {
        Frames::free(&world.machine.frames, frame, 0);
    }
    world.store(0, gfn);
    world.finish();
    steps
}

#[test]
fn a_hidden_write_does_the_same_whoever_shares_the_page_and_whatever_is_free() {
    for block in [Block::Image(9), Block::Buffer(2)] {
        let usual = hidden_write(block, false, false);
        let wanted = ["allocate_for_break", "copy", "leave_hidden", "leave"];
        assert_eq!(usual, wanted);
        for (is_shared, is_full) in [(false, true), (true, false), (true, true)] {
            assert_eq!(hidden_write(block, is_shared, is_full), usual);
        }
    }
}

/// The pages of one request, some of them twice: the last one counts.
#[test]
fn a_page_that_is_read_twice_holds_the_last() {
    let blocks = [
        Block::Image(9),
        Block::Image(10),
        Block::Zero,
        Block::Buffer(2),
        Block::Part(3),
    ];
    for first in blocks {
        for second in blocks {
            for third in [Block::Image(9), Block::Buffer(2), Block::Zero] {
                let mut world = World::new([SHARES; VMS]);
                // Somebody has the buffer's contents already.
                world.read(1, &[(RAM, Block::Buffer(2))]);
                let gfn = RAM.add(200);
                world.read(
                    0,
                    &[
                        (gfn, first),
                        (gfn, second),
                        (gfn.add(1), first),
                        (gfn, third),
                    ],
                );
                world.check();
                assert!(world.touch(0, gfn, Access::Read));
                world.finish();
            }
        }
    }
}

/// Every order of two things that can happen to a page of which a node has a copy, private or shared, and
/// then a write.
#[test]
fn copies_survive_all_that_may_happen() {
    let gfn = RAM.add(100);
    let all = [
        Step::Touch(0, gfn, Access::Read),
        Step::Touch(0, gfn, Access::Write),
        Step::Fault(0, 1, gfn, Access::Overwrite),
        Step::Device(0, gfn, Access::Write, 3),
        Step::Read(0, vec![(gfn, Block::Image(9))]),
        Step::Read(0, vec![(gfn, Block::Buffer(2))]),
        Step::Read(0, vec![(gfn, Block::Zero)]),
        Step::Release(0, gfn, 1),
        Step::Migrate(0, gfn, 1, false),
        Step::Replicate(0, gfn, 0, false),
        Step::Replicate(0, gfn, 1, false),
        Step::GiveBack(1),
    ];
    for is_shared in [false, true] {
        for (first, second) in pairs(all.len()) {
            let mut world = World::new([SHARES; VMS]);
            assert!(world.touch(0, gfn, Access::Write));
            world.store(0, gfn);
            if is_shared {
                world.read(0, &[(gfn, Block::Image(9))]);
                world.read(1, &[(gfn, Block::Image(9))]);
            }
            let to = (NodeId(1), true);
            assert_eq!(world.place(0, gfn, to, false), Some(Moved::Done));
            for at in [first, second] {
                world.step(&all[at]);
                world.check();
            }
            assert!(world.touch(0, gfn, Access::Write));
            world.store(0, gfn);
            world.finish();
        }
    }
}

/// A page is on its way, moving or copied, and two things happen to it before, while and after it is carried.
#[test]
fn pages_on_their_way_survive_all_that_may_happen() {
    let gfn = RAM.add(100);
    let all = [
        Step::Touch(0, gfn, Access::Write),
        Step::Fault(0, 1, gfn, Access::Overwrite),
        Step::Device(0, gfn, Access::Write, 3),
        Step::Read(0, vec![(gfn, Block::Buffer(2))]),
        Step::Read(1, vec![(gfn, Block::Buffer(2))]),
        Step::Release(0, gfn, 1),
        Step::Migrate(0, gfn, 1, false),
        Step::Replicate(0, gfn, 1, false),
        Step::SetOff(0, gfn, (1, true), false),
        Step::SetOff(0, gfn, (0, true), false),
        Step::SetOff(0, gfn, (0, false), false),
        Step::GiveBack(1),
        Step::Land(0),
        Step::Kill(0),
    ];
    for (first, second) in pairs(all.len()) {
        for kind in 0..9 {
            let (copies, is_shared, carried) = (kind % 3 != 0, kind % 3 == 2, kind / 3);
            let mut world = World::new([SHARES; VMS]);
            assert!(world.touch(0, gfn, Access::Write));
            world.store(0, gfn);
            if is_shared {
                world.read(0, &[(gfn, Block::Image(9))]);
                world.read(1, &[(gfn, Block::Image(9))]);
            }
            world.set_off(0, gfn, (NodeId(1), copies), false);
            for (n, at) in [first, second].into_iter().enumerate() {
                if carried == n {
                    world.carry();
                }
                world.step(&all[at]);
            }
            world.check();
            world.land(0);
            assert!(world.touch(0, gfn, Access::Write));
            world.store(0, gfn);
            world.finish();
        }
    }
}

fn pairs(count: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..count * count).map(move |n| (n % count, n / count))
}

/// A shared page whose contents are on a disk goes from its users, who all read it: none leaves the frame while a TLB
/// of its nodes finds it.
#[test]
fn a_shared_page_goes_to_the_disk_unseen() {
    let gfn = RAM.add(100);
    let mut world = World::new([SHARES; VMS]);
    for vm in 0..VMS {
        world.read(vm, &[(gfn, Block::Buffer(2))]);
        assert!(world.touch(vm, gfn, Access::Read));
    }
    for (vm, token) in (0..VMS).zip(1..) {
        let (guest, machine) = (&world.vms[vm], &world.machine);
        let frame = guest.find(0, gfn, false).unwrap();
        assert!(guest.lock().discard(&guest.ram, gfn, frame, token, machine));
        assert_eq!(guest.find(0, gfn, false), None);
        assert_eq!(guest.lock().entry(gfn).backing, Backing::Discarded(token));
        world.read(vm, &[(gfn, Block::Zero)]);
    }
    world.finish();
}
