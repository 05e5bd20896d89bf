//! Work that waits for a CPU, and when CPUs are woken: by whoever has it to do, for whoever does it.

use crate::machine;
use crate::machine::cpu::{self, Cpu};
use arch::timer;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// When VMs are looked at again, each of them, in counts; `u64::MAX`: not by itself.
static TICK_AT: AtomicU64 = AtomicU64::new(u64::MAX);
/// When a CPU comes again to what there is to do, VMs aside.
static PASS_AT: AtomicU64 = AtomicU64::new(u64::MAX);
/// When hot pages are looked for again, in counts.
pub static LOOK_AT: AtomicU64 = AtomicU64::new(u64::MAX);
static NEEDED: AtomicBool = AtomicBool::new(false);
static BUSY: AtomicBool = AtomicBool::new(false);

/// There is something to do: some CPU will come.
pub fn request() {
    NEEDED.store(true, Ordering::SeqCst);
}

/// There is something to do at that count, for which each VM is looked at.
pub fn tick_at(count: u64) {
    request_by(&TICK_AT, count);
}

/// There is something to do at that count: some CPU will come then.
pub fn request_at(count: u64) {
    request_by(&PASS_AT, count);
}

fn request_by(due: &AtomicU64, count: u64) {
    if due.fetch_min(count, Ordering::SeqCst) > count {
        match cpu::this() {
            cpu if cpu.id.0 == 0 => set_alarm(cpu),
            // Its alarm is set anew.
            _ => machine::cpu(0).into_iter().for_each(Cpu::poke),
        }
    }
}

/// VMs are looked at once CPUs set their alarms: nobody has asked for it yet, as they came from another image.
pub fn begin_anew() {
    TICK_AT.store(0, Ordering::SeqCst);
}

/// Whether that count has come; where it has not, it will be asked again at a tick then.
pub fn has_come(count: u64) -> bool {
    let has_come = timer::now() >= count;
    if !has_come {
        tick_at(count);
    }
    has_come
}

/// When there is something to do again: the first CPU's alarm is no later.
pub fn due_at() -> u64 {
    let all = [&TICK_AT, &PASS_AT, &LOOK_AT].map(|at| at.load(Ordering::Relaxed));
    all.into_iter().fold(u64::MAX, u64::min)
}

/// Whether there is something to do.
pub fn is_needed() -> bool {
    NEEDED.load(Ordering::SeqCst) && !BUSY.load(Ordering::SeqCst)
}

/// Whether VMs are to be looked at, and whether something else is due: whoever takes it sees to it that it is requested.
pub fn take_due(now: u64) -> [bool; 2] {
    [&TICK_AT, &PASS_AT].map(|due| {
        let is_due = now >= due.load(Ordering::Relaxed);
        if is_due {
            due.store(u64::MAX, Ordering::SeqCst);
        }
        is_due
    })
}

/// Whether there is something to do that no other CPU is at: it is this one's until [`end`].
pub fn begin() -> bool {
    // Whoever asks while this CPU is at it finds it busy and relies on the second look.
    let begun = NEEDED.load(Ordering::SeqCst) && !BUSY.swap(true, Ordering::SeqCst);
    if begun {
        NEEDED.store(false, Ordering::SeqCst);
    }
    begun
}

/// What [`begin`] gave is done.
pub fn end() {
    BUSY.store(false, Ordering::SeqCst);
}

/// Sets the CPU's alarm for whatever comes first: the end of a slice, the guest's physical timer,
/// or somebody to wake.
pub fn set_alarm(cpu: &Cpu) {
    let mut own = cpu.slice_end.get().min(cpu.guest_deadline.get());
    if cpu.id.0 == 0 {
        own = own.min(due_at());
    }
    let at = cpu.sleepers.lock().earliest().min(own);
    if at == u64::MAX {
        timer::clear_alarm();
    } else {
        timer::set_alarm(at);
    }
}

/// A vCPU begins a slice, or goes on with one of its own after it slept in place.
pub fn begin_slice(cpu: &Cpu, slice: u64) {
    cpu.slice_end.set(timer::now() + machine::counts(slice));
    set_alarm(cpu);
}
