//! A virtual GICv3 (Arm IHI 0069) as pure logic: what a guest's distributor, redistributors and
//! list registers hold, and what has to happen next. One security state, affinity routing always
//! on, SGIs, PPIs and SPIs; no LPIs.
//!
//! Three kinds of objects, so that vCPUs disturb each other as little as they can:
//!
//! - [`Distributor`], one per VM, behind that VM's lock: the SPIs;
//! - [`Redistributor`], one per vCPU, behind that vCPU's lock since others send it SGIs;
//! - [`ListFile`], one per vCPU, used only by the CPU that has the vCPU loaded, without a lock:
//!   which interrupt is in which list register.
//!
//! The distributor and redistributors are the plain GIC. A list register is a cache of one
//! interrupt's pending and active state: while it is *loaded*, the list register decides; what
//! others change meanwhile is marked *stale*, and [`ListFile::deliver`] of the vCPU that holds it
//! pulls it back and loads it anew. So every write takes effect in finite time (as the architecture
//! asks) without waiting for another CPU, provided that the CPUs named in the answer run
//! [`ListFile::deliver`].
//!
//! Lock order: distributor, then redistributor. No function needs two redistributors.
//!
//! What EL2 does, for the vCPU it is about to run or that just trapped:
//!
//! - an SGI, a PPI or an access to a redistributor answers `true`, one to the distributor names
//!   vCPUs: those run [`ListFile::deliver`] before they run the guest again (interrupted if they
//!   run now, woken if they wait), with the distributor if that named them or if
//!   [`ListFile::needs_distributor`];
//! - the maintenance interrupt: [`ListFile::deliver`]; the virtual timer's physical interrupt:
//!   [`ListFile::inject_hw_ppi`];
//! - a trapped access to a frame: [`ListFile::publish`] before a read that answers
//!   [`SyncNeeded`] with the vCPU itself;
//! - a vCPU leaves and comes: [`ListFile::save`], [`ListFile::load`], and the active state of the
//!   physical interrupts that [`Redistributor::hw_active`] names.
#![no_std]
#![forbid(unsafe_code)]

mod affinity;
mod bank;
mod distributor;
mod list_file;
mod list_register;
mod redistributor;
mod registers;
mod sgi;

pub use affinity::{VcpuSet, affinity_of, vcpu_at};
pub use bank::Groups;
pub use distributor::{Distributor, Effects};
pub use list_file::ListFile;
pub use redistributor::Redistributor;
pub use sgi::{Sgi, SgiRegister};

/// The first SPI: what is below is private to a vCPU.
pub const FIRST_SPI: u32 = 32;
/// The most SPIs a [`Distributor`] can have.
pub const MAX_SPIS: u32 = 224;
/// The most vCPUs of a VM.
pub const MAX_VCPUS: usize = 64;
/// The most list registers the architecture allows.
pub const MAX_LIST_REGISTERS: usize = 16;

/// A register shows state that lies in list registers of these vCPUs and was not published yet.
///
/// Make each of them run [`ListFile::publish`] (those not loaded on a CPU did it when they left),
/// then read again and say that they are fresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncNeeded(pub VcpuSet);
