//! Every byte that crosses a boundary.
//!
//! [`bundle`] is what the boot loader hands to EL2 beside the image: VM descriptions, kernels,
//! disk images. [`control`] is what EL2 and the `underpin` command say to each other. [`os0`] is
//! what the operating system that owns the machine can ask of EL2 beneath it, [`served`] how it
//! serves disks to VMs, [`upgrade`] what one image of EL2 leaves for the next, [`hypercall`] what guests
//! can ask that know Underpin, [`firmware`] what anybody asks of firmware, [`link`] the frames that hosts of
//! a cluster send each other, [`cluster`] the messages by which they join, [`coherence`] those about the
//! pages of a VM that they share, and [`span`] those about its vCPUs and devices.
//!
//! All integers are little-endian; both sides run on little-endian machines, which the layout
//! asserts. Every struct is `repr(C)`, has no padding, and states its size in a `const` assert.
//! What arrives is an allegation: the `parse` functions check every offset, length and tag.
#![no_std]
#![forbid(unsafe_code)]

pub mod bundle;
pub mod cluster;
pub mod coherence;
pub mod control;
pub mod firmware;
pub mod hypercall;
pub mod link;
pub mod os0;
pub mod served;
pub mod span;
pub mod stage;
pub mod state;
mod text;
pub mod upgrade;
pub mod uplink;

pub use text::Text;

const _: () = assert!(
    cfg!(target_endian = "little"),
    "the layouts are little-endian"
);
