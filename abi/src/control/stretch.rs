//! Stretches: how long a pCPU works for the hypervisor, with interrupts masked, before it looks at them
//! again.

/// How many kinds of work there are; see [`STRETCHES`].
pub const STRETCH_COUNT: usize = 9;
/// What a pCPU does in a stretch, in the order of [`super::CpuStatus::stretch_ns`]: exits that are none
/// of what follows; memory that was not there; devices; physical interrupts; vCPUs that come and go; requests
/// from outside and consoles; what is due at a time, paging above all; ends of VMs, and new starts; pages that move
/// between nodes.
pub const STRETCHES: [&str; STRETCH_COUNT] = [
    "exit",
    "memory",
    "device",
    "interrupt",
    "switch",
    "control",
    "tick",
    "end",
    "numa",
];
/// A longer stretch is traced: 100,000 instructions where each takes 2 ns.
pub const LONG_STRETCH_NS: u64 = 200_000;
