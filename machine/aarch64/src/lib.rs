//! The metal: everything that is an AArch64 instruction, a system register or a device register
//! of the interrupt controller, for EL2 with `HCR_EL2.E2H` = 0.
//!
//! # Soundness
//!
//! EL2 maps all RAM one to one as Normal memory and never unmaps it, so a pointer made from a
//! [`model_addr::Pa`] inside RAM is valid for reads and writes. Guests and devices may write their
//! own frames at any time; such frames are reached only through [`frames`], which copies through
//! raw pointers and never forms a reference to them. What only one CPU may touch (list registers,
//! EL1 state, `TPIDR_EL2`) is reached through functions that act on the executing CPU, and EL2
//! never migrates a thread of control between CPUs.
#![no_std]

#[macro_use]
pub mod sysreg;

pub mod boot;
mod bytes;
pub mod cache;
mod conduit;
mod context;
pub mod cpu;
pub mod devices;
mod edge;
pub mod entry;
pub mod features;
mod fp;
pub mod frames;
pub mod gcm;
pub mod gic;
pub mod guest;
pub mod list_registers;
mod mmio;
pub mod mmu;
pub mod native;
pub mod psci;
mod simd;
pub mod timer;
pub mod tlb;
pub mod uart;
pub mod upgrade;
