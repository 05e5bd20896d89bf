//! A ccNUMA machine's memory system, as far as time and misses are concerned.
//!
//! ```text
//!  CPU 0   CPU 1  ...   instructions, loads, stores, fetches of lines (from the plugin)
//!  cache   cache        Cache: one level, least recently used way goes
//!     \     /           Machine: who else holds the line, whose memory it is
//!   node 0  node 1      Topology: where memory lies, how long a miss takes
//!     |       |
//!   Window              misses by page and node, hot pages: read by the hypervisor
//!   Clock               each CPU's time, and the time of all in parallel
//! ```
//!
//! Nothing here knows QEMU: every call is an event with plain numbers, and the same events give
//! the same figures. Sources: Disco (Bugnion et al., 1997), section 5.1, for what is modelled.
#![forbid(unsafe_code)]

mod cache;
mod clock;
mod machine;
mod micro_tlb;
mod region;
mod topology;
mod window;

pub use cache::{Cache, Geometry};
pub use clock::Clock;
pub use machine::{Access, Counts, Level, Machine};
pub use micro_tlb::MicroTlb;
pub use region::{CSV_HEADER, REGIONS, Regions};
pub use topology::{Bad, CPUS_MAX, NODES_MAX, PAGE_SHIFT, Topology};
pub use window::{MAGIC, RING_ENTRIES, VERSION, Window, offset};
