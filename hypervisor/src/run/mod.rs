//! Running guests on CPUs: the loop, the way in, the ways out, and what is done between.

pub mod entry;
pub mod exit;
pub mod housekeeping;
mod load;
mod stolen_time;
