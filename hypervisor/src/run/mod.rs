//! Running guests on CPUs: the loop, the way in, the ways out, and what is done between.

pub mod cpu_loop;
pub mod entry;
pub mod exit;
pub mod hosts;
pub mod housekeeping;
mod load;
pub mod moving;
pub mod os0;
mod stolen_time;
