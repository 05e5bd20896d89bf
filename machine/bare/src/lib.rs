//! What bare test guests stand on, at EL1 of any machine with the layout of QEMU's `virt`.
//!
//! A guest is one `#![no_std] #![no_main]` program that says [`image!`] or [`flat!`] once, with
//! its name and its main function. It runs as it is under Underpin, Xen, KVM or plain QEMU: the
//! image relocates itself, and what differs between machines is read from the device tree.
//!
//! The guest's own code needs no `unsafe`. It reaches memory through [`memory::Scratch`], devices
//! through [`device::Device`], and everything else through functions that touch no memory. That
//! boundary is about mistakes in the guest; a hostile device may still write where it likes.
#![no_std]

pub mod boot;
pub mod console;
pub mod cpu;
pub mod device;
pub mod device_tree;
#[path = "../../aarch64/src/gcm.rs"]
pub mod gcm;
pub mod gic;
pub mod machine;
pub mod measure;
pub mod memory;
pub mod mmu;
pub mod pages;
pub mod probe;
pub mod psci;
pub mod simd;
pub mod timer;
pub mod vectors;
pub mod verdict;

/// Declares a guest with the 64-byte arm64 Image header of Linux's boot protocol, which Xen asks
/// for: `image!("name", main)` with `fn main(&'static Machine) -> Verdict`.
#[macro_export]
macro_rules! image {
    ($name:literal, $main:path) => {
        #[used]
        #[unsafe(link_section = ".head")]
        static HEADER: $crate::boot::ImageHeader = $crate::boot::ImageHeader::new();
        $crate::flat!($name, $main);
    };
}

/// Declares a guest whose flat image begins with its first instruction, as [`image!`] otherwise.
#[macro_export]
macro_rules! flat {
    ($name:literal, $main:path) => {
        #[unsafe(no_mangle)]
        fn bare_guest() -> $crate::boot::Guest {
            $crate::boot::Guest {
                name: $name,
                main: $main,
            }
        }
    };
}
