//! A machine on the host, for tests of the model.
//!
//! It keeps the promises of [`machine_contract`] and not one more: frames have odd numbers, TLBs
//! stay stale until they are told, allocations fail on demand, guests have holes in their memory.
//! What the architecture calls unpredictable, such as a changed translation without
//! break-before-make or one interrupt in two list registers, fails the test at once.
#![forbid(unsafe_code)]

mod frames;
mod guest;
mod list_registers;
mod mmu;
mod sharing;
mod tables;
mod views;
mod walk;

pub use frames::{FakeFrames, FakeTranslation, census};
pub use guest::{Access, FakeGuest};
pub use list_registers::{FakeListRegisters, ListRegister, ListState};
pub use mmu::FakeMmu;
pub use tables::FakeTables;
pub use walk::{Fault, Leaf, Translation, Walker};
