//! First writes of guests that hide: what one takes does not tell who else uses the page.
//!
//! All of it that depends on others lies between [`take`] and [`leave`], on one CPU: the pool that the
//! frame comes from, and the users of the frame that is left. So `leave` returns at the end of a slot of
//! fixed length that began with `take`, on an edge of the counter.

use crate::frames::{self, Metal};
use crate::{cpu, host};
use abi::hypercall::MAY_SET_ASIDE;
use machine::timer;
use machine_locks::{Rank, SpinLock};
use model_addr::{Mfn, NodeId};
use model_frame_table::{MAX_ORDER, Owner, Purpose};

/// How long all of it takes: meant for a frame with as many users as there may be, and for pools that
/// split and join as many blocks as they can. What takes longer, takes a multiple of it.
const SLOT_NS: u64 = 16_000;

/// A frame for a page that is written; the slot begins.
pub fn take(home: NodeId, owner: Owner) -> Option<Mfn> {
    cpu::this().slot_began.set(timer::now());
    frames::allocate_from_reserve(home, Purpose::Private(owner))
}

/// Takes `user` from `frame`, and waits until the slot is over.
pub fn leave(frame: Mfn, user: Owner) {
    model_sharing::leave(&Metal, frame, user, true);
    let slot = host::counts(SLOT_NS).max(1);
    let began = cpu::this().slot_began.get();
    let took = timer::now().saturating_sub(began);
    timer::wait_for_edge(began + took.next_multiple_of(slot));
}

/// The last of the blocks that are set aside, with its order in the low byte; zero: none. The first word of
/// each is the one before it.
static ASIDE: SpinLock<u64> = SpinLock::new(Rank::Frame, 0);

/// Leaves `left` frames of `node` free, see [`abi::hypercall::SET_ASIDE`]; `None` where EL2's command line
/// does not allow it.
#[cold]
pub fn set_aside(node: NodeId, left: u64) -> Option<u64> {
    let host = host::get();
    if !host.tree.has_word(MAY_SET_ASIDE) {
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
                let take = || pool.allocate(&host.map, order, Purpose::Hypervisor, node);
                is_beyond.then(take).flatten()
            })
        };
        while let Some(block) = take().flatten() {
            frames::set_word(block, 0, *last);
            *last = block.0 << 8 | u64::from(order);
        }
    }
    Some(frames::counts(node).free)
}
