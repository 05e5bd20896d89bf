//! The leap over idle time, in the thread that runs CPUs.
//!
//! With `-icount shift=N,sleep=off` a guest's clock counts instructions, and leaps to the next timer when all CPUs sleep.
//! QEMU leaps in its main thread (`icount_start_warp_timer`), as soon as all CPUs are halted. A CPU is marked as halted
//! within its WFI, though, before the thread that runs CPUs has accounted the instructions up to it. A leap that is taken
//! in between ends too late by as many instructions, at random: runs of the same files differ now and then.
//!
//! QEMU asks its accelerator whether a halted CPU is idle, and the plugin answers. To the main thread it says no, which
//! therefore never leaps. The thread that runs CPUs asks when all instructions are accounted: there the plugin leaps
//! itself. No code of QEMU's is changed, and nobody else may move the clock: where that happens, QEMU ends with a sentence.

use crate::{
    private::{CpuState, Qemu},
    refuse,
};
use std::{
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicI64, AtomicPtr, AtomicU64, Ordering::Relaxed},
    },
};

/// What a plugin does at leaps, in the thread that runs CPUs.
pub trait Leaper: Sync {
    /// All CPUs are idle; the next timer is yet to be looked up.
    fn falls_asleep(&self, now: i64) {
        let _ = now;
    }

    /// Whether time is to stand still until somebody outside has woken a CPU; asked while all CPUs are idle and no timer is
    /// due.
    fn waits(&self, now: i64) -> bool {
        let _ = now;
        false
    }

    /// The clock is about to move to `to`.
    fn leaps(&self, to: i64) {
        let _ = to;
    }

    /// The clock has come to the next timer, at `now`. QEMU runs timers next.
    fn has_leapt(&self, now: i64) {
        let _ = now;
    }
}

/// What is kept between leaps. Written by the thread that runs CPUs only.
struct Leaps {
    qemu: &'static Qemu,
    leaper: &'static dyn Leaper,
    count: AtomicU64,
    /// How far all leaps so far have moved the clock, or [`UNKNOWN`].
    bias: AtomicI64,
    /// The CPU that QEMU asks about last.
    last: AtomicPtr<std::ffi::c_void>,
    /// The plugin itself asks QEMU whether all CPUs are idle.
    asking: AtomicBool,
}

/// No leap was taken yet.
const UNKNOWN: i64 = i64::MIN;

static LEAPS: OnceLock<Leaps> = OnceLock::new();

/// Takes over the leap. To be called once the machine is made, and before a CPU runs.
///
/// # Errors
/// QEMU's insides are not as they are known, or another plugin has taken over already.
pub fn take_over(qemu: &'static Qemu, leaper: &'static dyn Leaper) -> Result<(), String> {
    let _ = LEAPS.set(Leaps {
        qemu,
        leaper,
        count: AtomicU64::new(0),
        bias: AtomicI64::new(UNKNOWN),
        last: AtomicPtr::new(ptr::null_mut()),
        asking: AtomicBool::new(false),
    });
    qemu.take_over(is_idle)
}

/// How many leaps there were.
pub fn count() -> u64 {
    LEAPS.get().map_or(0, |leaps| leaps.count.load(Relaxed))
}

/// Whether all CPUs are halted with nothing to do. To be asked in the thread that runs CPUs, while none executes.
pub fn are_all_idle() -> bool {
    let Some(leaps) = LEAPS.get() else {
        return false;
    };
    leaps.asking.store(true, Relaxed);
    let yes = leaps.qemu.are_all_idle();
    leaps.asking.store(false, Relaxed);
    yes
}

/// Moves the clock by `ahead` nanoseconds, in the thread that runs CPUs, while none executes.
pub fn leap(ahead: i64) {
    if let Some(leaps) = LEAPS.get() {
        leaps.leap(ahead);
    }
}

/// QEMU asks whether a CPU is idle that is halted and has no interrupt. It asks about CPUs in order, until one is not
/// idle; it holds its big lock.
extern "C" fn is_idle(cpu: CpuState) -> bool {
    LEAPS.get().is_some_and(|leaps| leaps.is_idle(cpu))
}

impl Leaps {
    fn last_cpu(&self) -> CpuState {
        let known = self.last.load(Relaxed);
        if !known.is_null() {
            return known;
        }
        let cpus = (0..).map(|number| self.qemu.cpu(number));
        let last = cpus.take_while(|cpu| !cpu.is_null()).last();
        let last = last.unwrap_or(ptr::null_mut());
        self.last.store(last, Relaxed);
        last
    }

    fn is_idle(&self, cpu: CpuState) -> bool {
        let qemu = self.qemu;
        // The main thread, which would leap.
        if !qemu.runs_cpus() {
            return false;
        }
        if self.asking.load(Relaxed) || cpu != self.last_cpu() {
            return true;
        }
        // All are idle. Time stands still until the main thread has done what it was asked for.
        if qemu.is_to_stop() {
            return true;
        }
        self.leaper.falls_asleep(qemu.now());
        let Some(ahead) = qemu.until_next_timer() else {
            return true;
        };
        if ahead > 0 {
            if self.leaper.waits(qemu.now()) {
                return true;
            }
            self.leap(ahead);
        }
        self.leaper.has_leapt(qemu.now());
        // One leap at a time: QEMU runs the timers, and lets go of its lock, which the main thread needs.
        false
    }

    fn leap(&self, ahead: i64) {
        let qemu = self.qemu;
        let (from, bias) = (qemu.now(), qemu.bias_ns());
        let expected = self.bias.load(Relaxed);
        if expected != UNKNOWN && expected != bias {
            refuse(format_args!(
                "the counted clock was moved by {} ns that are not the plugin's; the run is worth nothing, report it with QEMU's version",
                bias - expected
            ));
        }
        self.leaper.leaps(from + ahead);
        qemu.add_to_bias(ahead);
        let now = qemu.now();
        if now != from + ahead {
            refuse(format_args!(
                "a leap of {ahead} ns moved the counted clock by {} ns: the insides of this QEMU are not as the plugin knows them; install QEMU 10.0",
                now - from
            ));
        }
        self.bias.store(bias + ahead, Relaxed);
        self.count.fetch_add(1, Relaxed);
    }
}
