//! A VM's balloon: what the guest puts into it, or reports free, goes back to the machine.

use crate::devices::register::{RegisterAccess, register, update_line};
use crate::guest::Guest;
use crate::machine::{self, due, stretch};
use abi::state;
use alloc::boxed::Box;
use arch::timer;
use machine_locks::{Rank, SpinLock};
use model_addr::Gfn;
use model_virtio::Transport;
use model_virtio::balloon::{self, Counts, Run, Source};

/// Pages released before a look at the clock, or one step more: each takes 1,200 instructions where none is beside
/// another.
const PAGES_AT_ONCE: u64 = 8;
/// Looks in one go.
const LOOKS: u32 = 16;

/// A balloon.
pub struct Balloon {
    transport: SpinLock<Box<Transport<balloon::Balloon>>>,
}

impl Balloon {
    /// An empty balloon, whose reports are held for `hold_ms` milliseconds.
    pub fn new(hold_ms: u16) -> Self {
        let mut transport = Box::new(Transport::new(balloon::Balloon::default()));
        transport.set_hold(counts_of(hold_ms));
        Self {
            transport: SpinLock::new(Rank::Device, transport),
        }
    }

    /// The guest reads the register at `offset`, or writes it.
    pub fn access(&self, vm: &Guest, n: usize, access: RegisterAccess) -> u64 {
        let transport = &mut **self.transport.lock();
        register(transport, vm, n, access, serve)
    }

    /// Goes on with work that was put off, and with a report that is due.
    pub fn proceed(&self, vm: &Guest, n: usize) {
        let transport = &mut **self.transport.lock();
        serve(transport, vm);
        update_line(transport, vm, n);
    }

    /// Its record.
    pub fn record(&self) -> state::Device {
        self.transport.lock().record()
    }

    /// As a record has it; `false` where that makes no sense.
    #[must_use]
    pub fn restore(&self, record: &state::Device) -> bool {
        self.transport.lock().restore(record)
    }

    /// Whether its queues use a guest frame; yes where that cannot be told.
    pub fn uses(&self, gfn: Gfn) -> bool {
        self.transport.try_lock().is_none_or(|it| it.uses(gfn))
    }

    /// What the driver did out of the ordinary: queues that it broke, and pages it gave that were
    /// not its to give.
    pub fn errors(&self) -> u64 {
        let transport = self.transport.lock();
        u64::from(transport.errors().0) + transport.device().counts().refused
    }

    /// Whether a report that was held is due; asks to be asked again where it will be.
    pub fn is_due(&self) -> bool {
        let due = self.transport.lock().device().due();
        due.is_some_and(due::has_come)
    }

    /// Reports are held for `hold_ms` milliseconds from the next one on, before their frames are given
    /// away.
    pub fn set_hold(&self, hold_ms: u16) {
        self.transport.lock().set_hold(counts_of(hold_ms));
    }
}

fn serve(transport: &mut Transport<balloon::Balloon>, vm: &Guest) {
    let release = |_: Source, runs: &[Run]| {
        for run in runs {
            vm.space.release(run.first, run.count);
        }
    };
    let is_block = |gfn| vm.space.maps().is_block(gfn);
    let (memory, now) = (vm.memory(), timer::now());
    let mut looks = 1;
    while transport.serve(&memory, now, PAGES_AT_ONCE, is_block, release) {
        if looks == LOOKS || stretch::is_long() {
            vm.put_off_device_work();
            break;
        }
        looks += 1;
    }
    if let Some(at) = transport.device().due().filter(|at| *at > now) {
        due::request_at(at);
    }
}

fn counts_of(ms: u16) -> u64 {
    machine::counts(u64::from(ms) * 1_000_000)
}

/// For whoever decides how much memory a VM has.
impl Balloon {
    /// Asks for `pages` of 4 KiB in the balloon.
    pub fn set_target(&self, vm: &Guest, n: usize, pages: u32) {
        let mut transport = self.transport.lock();
        transport.set_target(pages);
        update_line(&transport, vm, n);
    }

    /// Pages that should be in the balloon.
    pub fn target(&self) -> u32 {
        self.transport.lock().device().target()
    }

    /// Whether there is a driver to follow the target.
    pub fn has_driver(&self) -> bool {
        self.transport.lock().is_live()
    }

    /// What the guest gave.
    pub fn counts(&self) -> Counts {
        self.transport.lock().device().counts()
    }
}
