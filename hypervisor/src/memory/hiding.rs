//! First writes of guests that hide: what one takes does not tell who else uses the page.
//!
//! All of it that depends on others lies between [`take`] and [`leave`], on one CPU: the pool that the
//! frame comes from, and the users of the frame that is left. So `leave` returns at the end of a slot of
//! fixed length that began with `take`, on an edge of the counter.

use crate::machine::{self, cpu};
use crate::memory::frames::{self, Metal};
use arch::timer;
use model_addr::{Mfn, NodeId};
use model_frame_table::{Owner, Purpose};

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
    let slot = machine::counts(SLOT_NS).max(1);
    let began = cpu::this().slot_began.get();
    let took = timer::now().saturating_sub(began);
    timer::wait_for_edge(began + took.next_multiple_of(slot));
}
