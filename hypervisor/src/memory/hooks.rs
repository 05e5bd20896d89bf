//! What tests and benches ask of EL2: switches and new images that fail, memory that is scarce or comes from all nodes in
//! turn. Each needs a word on EL2's command line, too. Images without the feature `test_hooks` have `no_hooks.rs` instead.

use crate::machine::{self, give_up};
use crate::memory::frames;
use abi::hypercall::{MAY_SET_ASIDE, SET_ASIDE};
use abi::os0::{FAIL, NOT_SUPPORTED};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use machine_locks::{Rank, SpinLock};
use model_addr::{CpuId, Gfn, Mfn, NodeId};
use model_frame_table::{MAX_ORDER, Purpose};
use model_machine_tree::Machine;
use model_pmap::REGION_FRAMES;

/// The step that is to fail next, of which CPU: `cpu << 8 | step`, or [`NOWHERE`].
static INJECTED: AtomicU64 = AtomicU64::new(NOWHERE);
const NOWHERE: u64 = u64::MAX;
/// The number by which FAIL means a new image.
const NEW_IMAGE: u64 = 0xffff;

/// Answers OS-0's [`FAIL`], if the call is that: lets the next switch fail at a step of a CPU, where EL2's command line
/// allows it.
pub fn fail_next(tree: &Machine, function: u32, step: u64, cpu: u64) -> Option<u64> {
    if function != FAIL {
        return None;
    }
    if !tree.has_word("inject") {
        return Some(NOT_SUPPORTED);
    }
    INJECTED.store(cpu << 8 | step & 0xff, Ordering::Relaxed);
    Some(0)
}

/// The step at which a new image is to fail, which is named for a CPU that there is not; zero: none.
pub fn take_injected_step() -> u64 {
    let injected = INJECTED.load(Ordering::Relaxed);
    if injected >> 8 != NEW_IMAGE {
        return 0;
    }
    INJECTED.store(NOWHERE, Ordering::Relaxed);
    injected & 0xff
}

/// Whether this step of a switch is to fail on a CPU, once.
pub fn is_to_fail(cpu: CpuId, step: usize) -> bool {
    let here = u64::from(cpu.0) << 8 | step as u64;
    if INJECTED.load(Ordering::Relaxed) != here {
        return false;
    }
    INJECTED.store(NOWHERE, Ordering::Relaxed);
    log::warn!("{cpu}: step {step} of a switch fails, as a test asked");
    true
}

/// Fails a new image at the step `fails_at`: by an exception at the second step, by itself else.
pub fn fail_at(fails_at: &AtomicU64, step: u64) {
    if fails_at.load(Ordering::Relaxed) != step {
        return;
    }
    if step == 2 {
        let nowhere = core::ptr::with_exposed_provenance::<u64>(1 << 46);
        // SAFETY: nothing is mapped there, so that this is an exception, which goes back.
        unsafe { nowhere.read_volatile() };
    }
    give_up(format_args!("step {step} failed, as a test asked"))
}

/// Memory comes from one node after the other, to compare with.
static ROUND_ROBIN: AtomicBool = AtomicBool::new(false);

/// Takes memory from one node after the other from now on, where `numa=` asks for that; whether it does.
pub fn goes_round(numa: Option<&str>) -> bool {
    let goes_round = numa == Some("round-robin");
    ROUND_ROBIN.store(goes_round, Ordering::Relaxed);
    goes_round
}

/// The node that a guest frame is to come from which a CPU of `node` touches first.
#[inline]
pub fn node_for(gfn: Gfn, node: NodeId) -> NodeId {
    if ROUND_ROBIN.load(Ordering::Relaxed) {
        let regions = gfn.0 / REGION_FRAMES;
        NodeId((regions % machine::get().nodes().max(1) as u64) as u8)
    } else {
        node
    }
}

/// The last of the blocks that are set aside, with its order in the low byte; zero: none. The first word of
/// each is the one before it.
static ASIDE: SpinLock<u64> = SpinLock::new(Rank::Frame, 0);

/// Answers a guest's [`SET_ASIDE`], if the call is that and EL2's command line allows it: leaves `left` frames of `node`
/// free.
pub fn set_aside(function: u64, node: NodeId, left: u64) -> Option<u64> {
    let machine = machine::get();
    if function as u32 != SET_ASIDE || !machine.tree.has_word(MAY_SET_ASIDE) {
        return None;
    }
    let mut last = ASIDE.lock();
    while *last != 0 && frames::counts(node).free < left {
        let block = (Mfn(*last >> 8), *last as u8);
        *last = frames::word(block.0, 0);
        frames::free(block.0, block.1);
    }
    for order in (0..=MAX_ORDER).rev() {
        let take = || {
            frames::with_pool(node, |pool| {
                let is_beyond = pool.counts().free >= left.saturating_add(1 << order);
                let take = || pool.allocate(&machine.map, order, Purpose::Hypervisor, node);
                is_beyond.then(take).flatten()
            })
        };
        while let Some(block) = take() {
            frames::set_word(block, 0, *last);
            *last = block.0 << 8 | u64::from(order);
        }
    }
    Some(frames::counts(node).free)
}
