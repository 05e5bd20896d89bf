//! The targets, by boundary.

pub mod coherence;
pub mod control;
pub mod exits;
pub mod gic;
pub mod join;
pub mod link;
pub mod machine;
pub mod overlay;
pub mod partitions;
pub mod served;
pub mod shared_disk;
pub mod span;
pub mod state;
pub mod switch;
pub mod uplink;
pub mod virtio;
