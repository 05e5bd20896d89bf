//! The EL2 image: where `boot.S` enters the hypervisor.
//!
//! # Soundness
//!
//! The two entries have C's calling convention, and nobody but `boot.S` calls them.
#![no_std]
#![no_main]

/// The first CPU arrives from `boot.S`.
#[unsafe(no_mangle)]
extern "C" fn primary_main(device_tree: u64, mark: u64) -> ! {
    hypervisor::primary(device_tree, mark)
}

/// Every other CPU arrives from `boot.S`.
#[unsafe(no_mangle)]
extern "C" fn secondary_main() -> ! {
    hypervisor::secondary()
}
