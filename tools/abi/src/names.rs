//! Names of numbers that the control protocol has; EL2 knows the numbers alone.

use crate::status::VmStatus;
use abi::bundle::NETS_MAX;
use abi::control::{
    EXIT_CLASS_COUNT, LATENCY_BUCKETS, LATENCY_FIRST_NS, NET_DROP_COUNT, NUMA_LEFT_COUNT,
    STRETCH_COUNT, TRACE_CLASS_COUNT, WHY_COUNT,
};

/// The exit classes' names, in the order of [`VcpuStatus::exits`](crate::status::VcpuStatus::exits).
pub const EXIT_CLASSES: [&str; EXIT_CLASS_COUNT] = [
    "hypercall",
    "smc",
    "id-register",
    "sysreg",
    "sgi",
    "gic",
    "uart",
    "virtio",
    "memory",
    "irq",
    "timer",
    "wfi",
    "fp",
    "abort",
    "maintenance",
    "other",
];

/// Why frames of or for a VM's network devices went nowhere, in the order of
/// [`VmStatus::net_drops`](crate::status::VmStatus::net_drops): sent under another's address; more than the VM may send; for nobody;
/// no frame at all, or a header that does not fit it; for this VM, which took none or had no room;
/// not to be moved for want of memory; while the link of the VM, or of whom they were for, was down.
pub const NET_DROPS: [&str; NET_DROP_COUNT] = [
    "spoofed",
    "limited",
    "nowhere",
    "malformed",
    "no-room",
    "no-memory",
    "link-down",
];

/// How many kinds of events of shared memory are counted.
pub const MEM_EVENT_COUNT: usize = 20;

/// What happens to shared memory, in the order of [`MemStatus::events`](crate::status::MemStatus::events).
pub const MEM_EVENTS: [&str; MEM_EVENT_COUNT] = [
    "shared-by-block",
    "shared-by-content",
    "shared-at-boot",
    "entered",
    "zero-blocks",
    "breaks",
    "claims",
    "copies-saved",
    "lost-races",
    "refused-full",
    "refused-group",
    "refused-never",
    "flushes",
    "ballooned",
    "reported",
    "discarded",
    "refaults",
    "failed-rereads",
    "swapped",
    "stalls",
];

/// Why a frame is private, in the order of [`WhyStatus::private`](crate::status::WhyStatus::private).
pub const WHY_PRIVATE: [&str; WHY_COUNT] = [
    "not-from-disk",
    "dirtied",
    "unaligned",
    "never-share",
    "other-group",
    "full",
    "kept-block",
    "evicted",
    "lost-race",
    "",
    "",
    "",
    "",
    "",
    "",
    "",
];

/// Why a page was left where it is, in the order of [`NumaStatus::left`](crate::status::NumaStatus::left); see [`abi::control::left`].
pub const NUMA_LEFT: [&str; NUMA_LEFT_COUNT] = [
    "not-hot",
    "at-home",
    "write-shared",
    "moved-often",
    "no-memory",
    "",
    "gone",
    "held",
    "",
    "",
    "",
    "",
];

/// The names of classes of events, in the order of [`abi::control::trace`].
pub const TRACE_CLASSES: [&str; TRACE_CLASS_COUNT] = [
    "exits",
    "faults",
    "shares",
    "switches",
    "interrupts",
    "stretches",
    "hosts",
];

/// The names of what happened to a host, by [`abi::control::news`].
pub const HOST_NEWS: [&str; 7] = ["up", "down", "unfit", "grown", "stopped", "resumed", "lost"];

/// The names of what a fault was for, by [`abi::control::access`].
pub const ACCESSES: [&str; 5] = ["read", "write", "overwrite", "away-read", "away-write"];

/// The names of what became of a page, by [`abi::control::share`].
pub const SHARES: [&str; 6] = [
    "mapped", "zeroes", "offered", "private", "broken", "claimed",
];

/// The names of why a vCPU left its CPU, by [`abi::control::off_cpu`].
pub const LEFT: [&str; 4] = ["preempted", "waiting", "off", "stopped"];

/// What a pCPU does in a stretch, in the order of [`CpuStatus::stretch_ns`](abi::control::CpuStatus::stretch_ns): exits that are none
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

/// The most that requests of a bucket took, in nanoseconds; `None` for the last bucket, and beyond.
pub const fn latency_bound_ns(bucket: usize) -> Option<u64> {
    if bucket + 1 < LATENCY_BUCKETS {
        Some(LATENCY_FIRST_NS << bucket)
    } else {
        None
    }
}

/// Of each network device of a VM, whether the link is up.
pub fn links(vm: &VmStatus) -> impl Iterator<Item = bool> {
    let nets = vm.nets.min(NETS_MAX as u32);
    (0..nets).map(|n| vm.links_down >> n & 1 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::control::latency_bucket;

    #[test]
    fn a_request_is_in_the_first_bucket_that_holds_it() {
        for bucket in 0..LATENCY_BUCKETS {
            let Some(bound) = latency_bound_ns(bucket) else {
                assert_eq!(
                    (bucket, latency_bucket(u64::MAX)),
                    (LATENCY_BUCKETS - 1, bucket)
                );
                continue;
            };
            assert_eq!(latency_bucket(bound), bucket);
            assert_eq!(latency_bucket(bound + 1), bucket + 1);
        }
        assert_eq!(latency_bucket(0), 0);
    }
}
