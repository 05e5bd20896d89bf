//! Work that is nobody's in particular: requests from outside, VMs to take apart, output that
//! waits. Done between guests, a bounded piece at a time.

use crate::drivers::disk;
use crate::economy::ledger;
use crate::machine::cpu::{self, Cpu};
use crate::machine::stretch::{self, Kind};
use crate::vcpu::sched;
use crate::{control, machine, placement, vms};
use arch::timer;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Pieces of VMs that are taken apart before vCPUs have the CPU again.
const PIECES: usize = 8;

/// When there is something to do again, in counts; `u64::MAX`: not by itself.
static DUE: AtomicU64 = AtomicU64::new(u64::MAX);
static NEEDED: AtomicBool = AtomicBool::new(false);
static BUSY: AtomicBool = AtomicBool::new(false);
static TICKED: AtomicBool = AtomicBool::new(false);

/// There is something to do: some CPU will come.
pub fn request() {
    NEEDED.store(true, Ordering::SeqCst);
}

/// There is something to do at that count.
pub fn request_at(count: u64) {
    if DUE.fetch_min(count, Ordering::SeqCst) > count {
        match cpu::this() {
            cpu if cpu.id.0 == 0 => sched::set_alarm(cpu),
            // Its alarm is set anew.
            _ => machine::cpu(0).into_iter().for_each(Cpu::poke),
        }
    }
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
    DUE.load(Ordering::Relaxed).min(placement::look_at())
}

/// Requests what is due.
pub fn notice(now: u64) {
    placement::notice(now);
    if now >= DUE.load(Ordering::Relaxed) {
        DUE.store(u64::MAX, Ordering::SeqCst);
        TICKED.store(true, Ordering::SeqCst);
        request();
    }
}

/// Whether there is something to do.
pub fn is_needed() -> bool {
    NEEDED.load(Ordering::SeqCst) && !BUSY.load(Ordering::SeqCst)
}

/// Takes VMs apart for a while, looking at interrupts in between; whether there is more to do.
fn take_apart() -> bool {
    for _ in 0..PIECES {
        stretch::look(Kind::End);
        if !vms::reaper::step() {
            return false;
        }
        if cpu::this().reschedule.load(Ordering::Relaxed) {
            break;
        }
    }
    true
}

/// Does a piece of what there is to do, if no other CPU is at it.
pub fn some() {
    // Whoever asks while this CPU is at it finds it busy and relies on the second look.
    while NEEDED.load(Ordering::SeqCst) && !BUSY.swap(true, Ordering::SeqCst) {
        NEEDED.store(false, Ordering::SeqCst);
        stretch::look(Kind::Control);
        control::serve();
        stretch::look(Kind::Tick);
        if TICKED.swap(false, Ordering::SeqCst) {
            ledger::tick();
            placement::tick();
        }
        let more = disk::go_on() | vms::settle() | take_apart();
        stretch::look(Kind::Control);
        vms::flush_terminals();
        BUSY.store(false, Ordering::SeqCst);
        stretch::look(Kind::Switch);
        if more {
            // In pieces: vCPUs that wait for this CPU come first.
            request();
            break;
        }
    }
    debug_assert!(cpu::this().held.is_empty());
}
