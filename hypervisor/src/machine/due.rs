//! Work that waits for a CPU, and when CPUs are woken: by whoever has it to do, for whoever does it.

use crate::machine;
use crate::machine::cpu::{self, Cpu};
use arch::timer;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// When there is something to do again, in counts; `u64::MAX`: not by itself.
static DUE: AtomicU64 = AtomicU64::new(u64::MAX);
/// When hot pages are looked for again, in counts.
pub static LOOK_AT: AtomicU64 = AtomicU64::new(u64::MAX);
static NEEDED: AtomicBool = AtomicBool::new(false);
static BUSY: AtomicBool = AtomicBool::new(false);

/// There is something to do: some CPU will come.
pub fn request() {
    NEEDED.store(true, Ordering::SeqCst);
}

/// There is something to do at that count.
pub fn request_at(count: u64) {
    if DUE.fetch_min(count, Ordering::SeqCst) > count {
        match cpu::this() {
            cpu if cpu.id.0 == 0 => set_alarm(cpu),
            // Its alarm is set anew.
            _ => machine::cpu(0).into_iter().for_each(Cpu::poke),
        }
    }
}

/// What is due at a time is due once CPUs set their alarms: nobody has asked for it yet, as VMs came from another image.
pub fn begin_anew() {
    DUE.store(0, Ordering::SeqCst);
}

/// Whether that count has come; where it has not, it will be asked again then.
pub fn has_come(count: u64) -> bool {
    let has_come = timer::now() >= count;
    if !has_come {
        request_at(count);
    }
    has_come
}

/// When there is something to do again: the first CPU's alarm is no later.
pub fn due_at() -> u64 {
    DUE.load(Ordering::Relaxed)
        .min(LOOK_AT.load(Ordering::Relaxed))
}

/// Whether there is something to do.
pub fn is_needed() -> bool {
    NEEDED.load(Ordering::SeqCst) && !BUSY.load(Ordering::SeqCst)
}

/// Whether what is due at a time is due, which is requested then.
pub fn take_due(now: u64) -> bool {
    let is_due = now >= DUE.load(Ordering::Relaxed);
    if is_due {
        DUE.store(u64::MAX, Ordering::SeqCst);
    }
    is_due
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
