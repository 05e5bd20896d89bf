//! Decodes an exit's syndrome, and the instruction behind it where the syndrome says too little;
//! and computes how an exception enters EL1.
//!
//! Encodings are those of the Arm Architecture Reference Manual (Arm ARM, DDI 0487), section
//! D24.2: ESR_EL2, FAR_EL2, HPFAR_EL2; and section C4 for instructions.
#![no_std]
#![forbid(unsafe_code)]

mod inject;
pub mod instruction;
mod mmio;
pub mod overwrite;
mod syndrome;
mod sysreg;

pub use inject::{El1Entry, El1State, Injection, enter_el1, is_aarch32, skip_instruction};
pub use mmio::MmioAccess;
pub use syndrome::{Abort, DataAbort, Exit, Fault, decode};
pub use sysreg::{SysregAccess, SysregId};
