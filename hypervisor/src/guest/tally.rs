//! How far a VM's pages were looked at, to go where they are used.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use model_frame_table::PerNode;

/// Whether pages go where they are used: settled at boot.
pub static IS_ON: AtomicBool = AtomicBool::new(false);

/// How far a VM's pages were looked at.
#[derive(Default)]
pub struct Tally {
    /// All of it is to move to this node, less one; and from this guest frame on.
    pub wanted: AtomicU64,
    pub hand: AtomicU64,
    /// Where sampling goes on.
    pub sampled: AtomicU64,
    /// Where each node goes on to give copies back.
    pub back: PerNode<AtomicU64>,
}

impl Tally {
    /// Whether all of it is on its way to a node.
    pub fn is_moving(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) != 0
    }
}

/// Whether pages go where they are used.
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}
