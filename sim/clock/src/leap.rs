//! The leap over idle time, in the thread that runs CPUs.

use crate::{clock, private::CpuState, refuse};
use std::{
    ptr,
    sync::atomic::{AtomicI64, AtomicPtr, AtomicU64, Ordering::Relaxed},
};

/// What is kept between leaps. Written by the thread that runs CPUs only.
pub struct Leaps {
    count: AtomicU64,
    /// How far all leaps so far have moved the clock, or [`UNKNOWN`].
    bias: AtomicI64,
    /// The CPU that QEMU asks about last.
    last: AtomicPtr<std::ffi::c_void>,
}

/// No leap was taken yet.
const UNKNOWN: i64 = i64::MIN;

impl Default for Leaps {
    fn default() -> Self {
        Self {
            count: AtomicU64::new(0),
            bias: AtomicI64::new(UNKNOWN),
            last: AtomicPtr::new(ptr::null_mut()),
        }
    }
}

impl Leaps {
    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    fn last_cpu(&self) -> CpuState {
        let known = self.last.load(Relaxed);
        if !known.is_null() {
            return known;
        }
        let cpus = (0..).map(|number| clock().private.cpu(number));
        let last = cpus.take_while(|cpu| !cpu.is_null()).last();
        let last = last.unwrap_or(ptr::null_mut());
        self.last.store(last, Relaxed);
        last
    }
}

/// QEMU asks whether a CPU is idle that is halted and has no interrupt. It asks about CPUs in order, until one is not
/// idle; it holds its big lock.
pub extern "C" fn is_idle(cpu: CpuState) -> bool {
    let clock = clock();
    let private = &clock.private;
    // The main thread, which would leap.
    if !private.runs_cpus() {
        return false;
    }
    if cpu != clock.leaps.last_cpu() {
        return true;
    }
    // All are idle. Time stands still until the main thread has done what it was asked for.
    if private.is_to_stop() {
        return true;
    }
    // Lest it be what is leapt to. One that is due by now is yet to fire.
    clock.probe.disarm_after(private.now());
    let Some(ahead) = private.until_next_timer() else {
        return true;
    };
    if ahead > 0 {
        leap(ahead);
    }
    // One leap at a time: QEMU runs the timers, and lets go of its lock, which the main thread needs.
    false
}

fn leap(ahead: i64) {
    let clock = clock();
    let (private, leaps) = (&clock.private, &clock.leaps);
    let (from, bias) = (private.now(), private.bias_ns());
    let expected = leaps.bias.load(Relaxed);
    if expected != UNKNOWN && expected != bias {
        refuse(format_args!(
            "the counted clock was moved by {} ns that are not the plugin's; the run is worth nothing, report it with QEMU's version",
            bias - expected
        ));
    }
    clock.probe.arm(from + ahead);
    private.add_to_bias(ahead);
    let now = private.now();
    if now != from + ahead {
        refuse(format_args!(
            "a leap of {ahead} ns moved the counted clock by {} ns: the insides of this QEMU are not as the plugin knows them; install QEMU 10.0",
            now - from
        ));
    }
    leaps.bias.store(bias + ahead, Relaxed);
    leaps.count.fetch_add(1, Relaxed);
}
