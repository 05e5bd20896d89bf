//! A machine in an ordinary process: `hypervisor/` runs on it as it does on AArch64.
//!
//! The drivers of `machine/aarch64` (interrupt controller, timers, list registers, EL1's state, EL2's map) are part of
//! this crate as they are: they name registers, and here a register is a word of [`machine::Machine`]. What is an
//! instruction there (barriers, TLB and cache maintenance, WFI, the entry of a guest) is written anew. A CPU is a
//! coroutine; a seed chooses which one goes on, at every register access and barrier.
//!
//! # Soundness
//!
//! All CPUs run on one thread, and [`machine::with`] lends the machine for the time of a closure that runs no CPU.
//! RAM is one mapping of the process at the machine addresses that the device tree names, so a pointer made from a
//! [`model_addr::Pa`] inside RAM is valid for reads and writes, as on AArch64.

#[macro_use]
pub mod sysreg;

mod attached;
pub mod boot;
mod bytes;
pub mod cache;
mod conduit;
#[path = "../../aarch64/src/context.rs"]
mod context;
mod coroutine;
pub mod cpu;
#[path = "../../aarch64/src/devices.rs"]
pub mod devices;
mod disk;
mod edge;
pub mod entry;
pub mod faults;
#[path = "../../aarch64/src/features.rs"]
pub mod features;
mod fp;
#[path = "../../aarch64/src/frames.rs"]
pub mod frames;
pub mod gcm;
#[path = "../../aarch64/src/gic.rs"]
pub mod gic;
mod gicv3;
#[path = "../../aarch64/src/guest.rs"]
pub mod guest;
pub mod instruction;
mod interpreter;
#[path = "../../aarch64/src/list_registers.rs"]
pub mod list_registers;
pub mod machine;
mod mmio;
#[path = "../../aarch64/src/mmu.rs"]
pub mod mmu;
#[path = "../../aarch64/src/native.rs"]
pub mod native;
#[path = "../../aarch64/src/psci.rs"]
pub mod psci;
/// Where devices are.
pub mod place {
    pub use crate::gicv3::{DISTRIBUTOR, REDISTRIBUTORS, STRIDE};
    pub use crate::virtio::{INTERRUPT, WINDOW, WINDOW_SIZE, WINDOWS};
}
mod port;
mod ram;
pub mod registers;
pub mod rng;
mod stage2;
#[path = "../../aarch64/src/timer.rs"]
pub mod timer;
pub mod tlb;
#[path = "../../aarch64/src/uart.rs"]
pub mod uart;
pub mod upgrade;
mod virtio;
mod virtual_interface;
