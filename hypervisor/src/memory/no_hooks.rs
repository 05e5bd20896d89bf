//! What `hooks.rs` does for tests and benches, in an image that does nothing for them.

use core::sync::atomic::AtomicU64;
use model_addr::{CpuId, Gfn, NodeId};
use model_machine_tree::Machine;

/// There is no such call.
pub fn fail_next(_: &Machine, _: u32, _: u64, _: u64) -> Option<u64> {
    None
}

/// No new image is to fail.
pub fn take_injected_step() -> u64 {
    0
}

/// No step of a switch is to fail.
pub fn is_to_fail(_: CpuId, _: usize) -> bool {
    false
}

/// No step of a new image is to fail.
pub fn fail_at(_: &AtomicU64, _: u64) {}

/// Memory comes from where it is touched.
pub fn goes_round(_: Option<&str>) -> bool {
    false
}

/// The node where a guest frame is touched first.
#[inline]
pub fn node_for(_: Gfn, node: NodeId) -> NodeId {
    node
}

/// There is no such call.
pub fn set_aside(_: u64, _: NodeId, _: u64) -> Option<u64> {
    None
}
