//! An Ethernet between hosts that run in lock-step of virtual time.
//!
//! ```text
//!  host 0                 host 1
//!  card                   card
//!   | Sender               ^ Inbox      Sender: when a frame has left, and when it arrives
//!   v                      |            Inbox: what becomes of it on the way; arrivals in order
//!  frames ---- meeting ----+            frame: how frames lie in memory that hosts share
//!              Said, next               meeting: until when hosts may run without each other
//! ```
//!
//! Hosts meet at the same virtual times. At a meeting each says when it can next do something of its own accord
//! ([`Said`]), and takes the frames that the others have sent. A frame sent at `t` arrives at `t` + latency at the earliest,
//! so the hosts may run until the earliest of what was said, plus the latency ([`Meetings`]): no frame can come before that
//! is not known by then. A frame that is not known in time is refused by its receiver. A host that is woken from outside the
//! cluster acts from the time on until which the others believe it asleep ([`Rest`]).
//!
//! Nothing here knows QEMU, a clock or chance: the same events give the same arrivals. Times are nanoseconds of virtual time.
#![forbid(unsafe_code)]

mod digest;
mod faults;
pub mod frame;
mod inbox;
mod line;
mod meeting;
mod options;
mod units;

pub use digest::Digest;
pub use faults::{Cut, Fate, Faults, Stall};
pub use inbox::{Arrival, Inbox, Past, Tally};
pub use line::{CLASSES, Class, Line, Sender, Sent};
pub use meeting::{LOOK_AGAIN_NS, Meetings, NEVER, Rest, Said};
pub use options::Options;

/// The most hosts on a wire.
pub const HOSTS_MAX: usize = 8;

/// The name of a host, as people read it.
pub fn name(host: usize) -> String {
    format!("host{host}")
}
