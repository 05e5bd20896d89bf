//! Frames that two VMs are lent outside of their memory: seen where they belong with the rights that
//! each has, whatever order they are shown in, and left behind when a VM ends.
#![allow(clippy::unwrap_used, reason = "a test")]

use machine_fake::{FakeFrames, FakeTranslation};
use model_addr::{FRAME_SIZE, FrameRange, Ipa, IpaRange, Mfn, NodeId, VmId};
use model_address_space::{Access, Filled, GuestRam, Maps, Policy};
use model_frame_table::CHUNK_FRAMES;
use model_pmap::REGION_FRAMES;
use model_stage2::Rights;
use proptest::prelude::*;
use std::sync::Mutex;

const NODE: NodeId = NodeId(0);
const NODES: [FrameRange; 1] = [FrameRange {
    start: Mfn(0x8_0000),
    count: 2 * 512,
}];
const RAM: IpaRange = IpaRange {
    start: Ipa(0x4000_0000),
    size: 2 << 20,
};
/// Where both find what they are lent.
const AT: Ipa = Ipa(0x4800_0000);
/// The blocks that are lent, apart from each other.
const LENT: [Mfn; 2] = [Mfn(0x10_0000), Mfn(0xf_0000)];
const RIGHTS: [Rights; 2] = [Rights::READ_WRITE, Rights::READ];

#[derive(Clone, Debug)]
enum Step {
    /// A VM touches a page of what it is lent, and is shown the page, its chunk, or its block.
    Lend(usize, u64, u8),
    /// A VM touches its own memory.
    Own(usize, u64),
    /// No table is to be had from now on, or is again.
    Tables(usize, bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let page = prop_oneof![3 => 0..40_u64, 1 => 0..2 * REGION_FRAMES];
    let step = prop_oneof![
        8 => (0..2_usize, page.clone(), 0..3_u8).prop_map(|(vm, page, how)| Step::Lend(vm, page, how)),
        2 => (0..2_usize, 0..64_u64).prop_map(|(vm, page)| Step::Own(vm, page)),
        1 => (0..2_usize, any::<bool>()).prop_map(|(vm, fail)| Step::Tables(vm, fail)),
    ];
    prop::collection::vec(step, 0..80)
}

fn vm(index: u16) -> (GuestRam<Vec<u8>>, Mutex<Maps<FakeTranslation>>) {
    let id = VmId {
        index,
        generation: 1,
    };
    let ram = GuestRam::new(id, RAM, [const { None }; 3], Policy::default());
    (
        ram,
        Mutex::new(Maps::new(FakeTranslation::new(), RAM).unwrap()),
    )
}

/// Where a page of what is lent is.
fn frame(page: u64) -> Mfn {
    LENT[(page / REGION_FRAMES) as usize].add(page % REGION_FRAMES)
}

proptest! {
    #[test]
    fn what_is_lent_is_seen_where_it_belongs(steps in steps()) {
        let frames = FakeFrames::new(&NODES);
        let vms: Vec<_> = (0..2).map(vm).collect();
        for step in steps {
            match step {
                Step::Lend(who, page, how) => {
                    let count = [1, CHUNK_FRAMES, REGION_FRAMES][usize::from(how)];
                    let first = page & !(count - 1);
                    let ipa = Ipa(AT.0 + first * FRAME_SIZE);
                    let run = FrameRange { start: frame(first), count };
                    let filled = vms[who].1.lock().unwrap().lend(NODE, ipa, run, RIGHTS[who]);
                    let touched = Ipa(AT.0 + page * FRAME_SIZE);
                    let seen = vms[who].1.lock().unwrap().tables_mut().mmu.translate(touched);
                    if filled == Filled::Done {
                        prop_assert!(seen.is_ok(), "{who} does not see page {page}");
                    } else {
                        prop_assert_eq!(filled, Filled::NoMemory);
                    }
                }
                Step::Own(who, page) => {
                    let (ram, maps) = &vms[who];
                    let ipa = Ipa(RAM.start.0 + page * FRAME_SIZE);
                    let lock = || maps.lock().unwrap();
                    ram.fill(ipa, NODE, Access::Write, &frames, &lock);
                }
                Step::Tables(who, fail) => {
                    let mut maps = vms[who].1.lock().unwrap();
                    maps.tables_mut().mmu.tables().fail_after(fail.then_some(0));
                }
            }
            for (who, (_, maps)) in vms.iter().enumerate() {
                let mut maps = maps.lock().unwrap();
                for page in (0..40).chain([REGION_FRAMES - 1, REGION_FRAMES, 2 * REGION_FRAMES - 1]) {
                    let ipa = Ipa(AT.0 + page * FRAME_SIZE);
                    if let Ok(seen) = maps.tables_mut().mmu.translate(ipa) {
                        let leaf = seen.leaf;
                        prop_assert_eq!(seen.pa, frame(page).address());
                        let rights = (leaf.write, leaf.execute);
                        prop_assert_eq!(rights, (RIGHTS[who].write, RIGHTS[who].execute));
                    }
                }
            }
        }
        let free = frames.counts()[0].free;
        for (ram, maps) in vms {
            let private = maps.lock().unwrap().counts().present();
            maps.lock().unwrap().tables_mut().mmu.switch_off();
            let before = frames.counts()[0].free;
            let mut space = maps.into_inner().unwrap().dismantle(ram.vm);
            while !space.step(&frames, 64) {}
            prop_assert_eq!(space.tables().mmu.tables_in_use(), 0);
            // What was reserved comes back, too; what was lent is none of these frames.
            prop_assert!(frames.counts()[0].free >= before + private);
        }
        prop_assert!(frames.counts()[0].free >= free);
        prop_assert_eq!(frames.counts()[0].free, NODES[0].count);
    }
}
