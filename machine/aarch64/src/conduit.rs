//! How the firmware is reached.

pub(crate) use smccc::{Hvc, Smc};
