//! What only tools need of the boundary that `abi` describes: [`names`] of its numbers, figures made of
//! what EL2 counts ([`status`]), how an //! [`image`] is sealed, and the server's side of disks that OS-0 serves ([`served`]).
#![forbid(unsafe_code)]

pub mod image;
pub mod names;
pub mod served;
pub mod status;

pub use names::{
    ACCESSES, EXIT_CLASSES, HOST_NEWS, LEFT, MEM_EVENT_COUNT, MEM_EVENTS, NET_DROPS, NUMA_LEFT,
    SHARES, STRETCHES, TRACE_CLASSES, WHY_PRIVATE, latency_bound_ns, links,
};
