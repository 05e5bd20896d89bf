//! Work that is nobody's in particular: requests from outside, VMs to take apart, output that
//! waits. Done between guests, a bounded piece at a time.

use crate::drivers::{disk, nic};
use crate::economy::ledger;
use crate::machine::{Cpu, Kind, cpu, due, stretch};
use crate::run::hosts;
use crate::vcpu::sched;
use crate::{cluster, control, life, placement};
use arch::timer;
use core::sync::atomic::{AtomicBool, Ordering};

/// Pieces of VMs that are taken apart before vCPUs have the CPU again.
const PIECES: usize = 8;

static TICKED: AtomicBool = AtomicBool::new(false);

/// Requests what is due.
fn notice(now: u64) {
    placement::notice(now);
    let [ticks, is_due] = due::take_due(now);
    if ticks {
        TICKED.store(true, Ordering::SeqCst);
    }
    // Not before: another CPU may take it at once.
    if ticks || is_due {
        due::request();
    }
}

/// Takes VMs apart for a while, looking at interrupts in between; whether there is more to do.
fn take_apart() -> bool {
    for _ in 0..PIECES {
        stretch::look(Kind::End);
        if !life::reaper::step() {
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
    #[cfg(not(target_os = "none"))]
    crate::outside::request();
    while due::begin() {
        #[cfg(not(target_os = "none"))]
        crate::outside::serve();
        stretch::look(Kind::Control);
        control::serve();
        stretch::look(Kind::Tick);
        if TICKED.swap(false, Ordering::SeqCst) {
            ledger::tick();
            placement::tick();
        }
        let devices = disk::go_on() | nic::go_on();
        let hosts = cluster::pass() | hosts::pass();
        let more = devices | hosts | life::settle() | take_apart();
        stretch::look(Kind::Control);
        life::flush_terminals();
        due::end();
        stretch::look(Kind::Switch);
        if more {
            // In pieces: vCPUs that wait for this CPU come first.
            due::request();
            break;
        }
    }
    debug_assert!(cpu::this().held.is_empty());
}

/// This CPU's alarm went off: requests what is due, and wakes those whose time has come.
pub fn wake(cpu: &Cpu) {
    notice(timer::now());
    sched::wake_sleepers(cpu);
}
