//! Virtual machines: what is described, what runs, and what is said of both.

pub mod holding;
pub mod instance;
pub mod report;
pub mod seats;
pub mod table;

pub use instance::Instance;
pub use table::{Vm, all, find, forget, instance, is_quiet, is_settled, no_such, stand_still};
