//! A VM's balloon: what the guest puts into it, or reports free, goes back to the machine.

use crate::devices::virtio::{Behaviour, Virtio};
use crate::guest::Guest;
use crate::machine::{self, due, stretch};
use arch::timer;
use model_virtio::Transport;
use model_virtio::balloon::{self, Counts, Run, Source};

/// Pages released before a look at the clock: each takes 1,200 instructions where none is beside another, and all of them less
/// than a piece of work may (`machine::stretch`).
const PAGES_AT_ONCE: u64 = 16;
/// Looks in one go.
const LOOKS: u32 = 32;

/// A balloon.
pub type Balloon = Virtio<Transport<balloon::Balloon>>;

impl Behaviour for Transport<balloon::Balloon> {
    type Device = balloon::Balloon;
    const WAITS: bool = true;

    fn transport(&mut self) -> &mut Self {
        self
    }

    fn work(&mut self, vm: &Guest) {
        let release = |_: Source, runs: &[Run]| {
            for run in runs {
                vm.space.release(run.first, run.count);
            }
        };
        let is_block = |gfn| vm.space.maps().is_block(gfn);
        let (memory, now) = (vm.memory(), timer::now());
        let mut looks = 1;
        while self.serve(&memory, now, PAGES_AT_ONCE, is_block, release) {
            if looks == LOOKS || stretch::is_long() {
                vm.put_off_device_work();
                break;
            }
            looks += 1;
        }
        if let Some(at) = self.device().due().filter(|at| *at > now) {
            due::tick_at(at);
        }
    }

    /// A report that is held.
    fn due(&mut self) -> Option<u64> {
        self.device().due()
    }

    fn errors(&mut self) -> u64 {
        u64::from(Self::errors(self).0) + self.device().counts().refused
    }
}

fn counts_of(ms: u16) -> u64 {
    machine::counts(u64::from(ms) * 1_000_000)
}

/// For whoever decides how much memory a VM has.
impl Balloon {
    /// An empty balloon, whose reports are held for `hold_ms` milliseconds.
    pub fn new(hold_ms: u16, window: usize) -> Self {
        let mut transport = Transport::new(balloon::Balloon::default());
        transport.set_hold(counts_of(hold_ms));
        Self::with(window, transport)
    }

    /// Reports are held for `hold_ms` milliseconds from the next one on, before their frames are given
    /// away.
    pub fn set_hold(&self, hold_ms: u16) {
        self.state.lock().set_hold(counts_of(hold_ms));
    }

    /// Asks for `pages` of 4 KiB in the balloon.
    pub fn set_target(&self, vm: &Guest, pages: u32) {
        let mut state = self.state.lock();
        state.set_target(pages);
        self.show(vm, &mut state);
    }

    /// Pages that should be in the balloon.
    pub fn target(&self) -> u32 {
        self.state.lock().device().target()
    }

    /// Whether there is a driver to follow the target.
    pub fn has_driver(&self) -> bool {
        self.state.lock().is_live()
    }

    /// What the guest gave.
    pub fn counts(&self) -> Counts {
        self.state.lock().device().counts()
    }
}
