//! Lays out a kernel, an initrd and a device tree in guest memory, and writes the device tree.
//!
//! A guest sees the addresses and interrupts of QEMU's `virt` machine ([`map`]), so that kernels,
//! firmware and bare test images run unpatched. Whoever starts a VM calls [`ImageHeader::parse`]
//! on the file's first bytes, then [`layout`], then [`GuestTree::write`], and copies the three to
//! where the layout says.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod header;
mod layout;
pub mod map;
mod region;
mod tree;

pub use header::{HEADER_SIZE, HeaderError, ImageHeader};
pub use layout::{
    Kernel, Layout, LayoutError, STOLEN_TIMES_ROOM, TREE_ROOM, layout, stolen_time, stolen_times,
};
pub use region::{
    REGION_BLOCK, REGION_BLOCK_SIZE, REGION_HEADER, RegionNode, region_block, region_windows,
};
pub use tree::{GuestTree, HostShare, MAX_BOOTARGS, MAX_VCPUS, MAX_VIRTIO, TreeError, vcpu_mpidr};
