//! Stretches: how long a pCPU works for the hypervisor, with interrupts masked, before it looks at them
//! again.

/// How many kinds of work there are.
pub const STRETCH_COUNT: usize = 9;
/// A longer stretch is traced: 100,000 instructions where each takes 2 ns.
pub const LONG_STRETCH_NS: u64 = 200_000;
