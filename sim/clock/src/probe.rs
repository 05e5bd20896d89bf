//! A timer of the plugin's own, which shows whether timers fire at their nanosecond.

use crate::clock;
use sim_qemu::{
    private::{Callback, Timer},
    refuse,
};
use std::{
    ffi::c_void,
    sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed},
};

/// The timer, and what it has seen. Written by the thread that runs CPUs only, once that runs.
pub struct Probe {
    timer: Timer,
    /// When it is to fire; [`NEVER`] where it is not armed.
    due: AtomicI64,
    fired: AtomicU64,
    late: AtomicU64,
    latest_ns: AtomicI64,
}

const NEVER: i64 = i64::MAX;

impl Probe {
    /// One that is not armed.
    pub fn new() -> Self {
        Self {
            timer: Timer::new(),
            due: AtomicI64::new(NEVER),
            fired: AtomicU64::new(0),
            late: AtomicU64::new(0),
            latest_ns: AtomicI64::new(0),
        }
    }

    /// Makes the timer, before anything else is called.
    pub fn prepare(&'static self) {
        let fires: Callback = fires;
        clock().qemu.make_timer(&self.timer, fires);
    }

    /// Arms it for a time after now, where that is asked for.
    pub fn arm_next(&self, now: i64) {
        if let Some(ns) = clock().options.probe_ns {
            self.arm(now + ns);
        }
    }

    /// Lets it fire at a moment.
    pub fn arm(&self, due: i64) {
        self.due.store(due, Relaxed);
        clock().qemu.arm(&self.timer, due);
    }

    /// Lets it not fire, if that would be after `now`.
    pub fn disarm_after(&self, now: i64) {
        let due = self.due.load(Relaxed);
        if due > now && due != NEVER {
            self.due.store(NEVER, Relaxed);
            clock().qemu.disarm(&self.timer);
        }
    }

    /// What it has seen, as `KEY=NUMBER` words.
    pub fn report(&self) -> String {
        format!(
            "timers={} late={} latest_ns={}",
            self.fired.load(Relaxed),
            self.late.load(Relaxed),
            self.latest_ns.load(Relaxed)
        )
    }

    fn fired_at(&self, now: i64) {
        let due = self.due.load(Relaxed);
        let late = now.saturating_sub(due);
        self.fired.fetch_add(1, Relaxed);
        if late != 0 {
            self.late.fetch_add(1, Relaxed);
            self.latest_ns.fetch_max(late, Relaxed);
            if clock().options.ends {
                refuse(format_args!(
                    "a timer due at {due} ns of the counted clock fired {late} ns late; the run is worth nothing, repeat it, and report it with QEMU's version"
                ));
            }
        }
        self.due.store(NEVER, Relaxed);
        self.arm_next(now);
    }
}

extern "C" fn fires(_: *mut c_void) {
    let clock = clock();
    clock.probe.fired_at(clock.qemu.now());
}
