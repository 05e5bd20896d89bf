//! Disks of VMs that are parked, and as records, for the image that takes this one's place (`abi::state`).

use crate::devices::block::{Backing, Block, must_wait_for_frames, serve_parked};
use crate::guest::Guest;
use crate::memory::{frames, state::write_run};
use abi::state::{Run, Runs, Sink, kind};
use model_disk::Budget;

impl Block {
    /// Goes on with requests that were put off, a pass of them, while the VM's vCPUs stand still.
    pub fn settle(&self, vm: &Guest) {
        let mut state = self.state.lock();
        serve_parked(&mut state, vm, &mut Budget::default());
        self.show(vm, &mut state);
    }

    /// Whether nothing is left for [`Self::settle`]: requests that wait for memory stay.
    pub fn is_settled(&self, vm: &Guest) -> bool {
        self.state.lock().parked.is_none() || must_wait_for_frames(vm)
    }

    /// Tells of requests that are done and were held, while the VM's vCPUs stand still: they are in no record.
    pub fn end_held(&self, vm: &Guest) {
        let mut state = self.state.lock();
        state.tell_held(vm, true);
        self.show(vm, &mut state);
    }

    /// Writes what was written over its base, if it has one; it is disk `disk` of its VM. `false` where that stays on a
    /// partition.
    pub fn write_overlay(&self, disk: u8, to: &mut impl Sink) -> bool {
        let mut is_known = true;
        self.of_overlay(|overlay| {
            to.begin(kind::OVERLAY);
            overlay.records(|run| {
                is_known &= write_run(to, &Run { disk, ..run }, |slot| overlay.word(slot));
            });
        });
        is_known
    }

    /// Puts over its base what records say.
    #[must_use]
    pub fn adopt(&self, runs: &Runs<'_>) -> bool {
        let mut state = self.state.lock();
        let is_adopted = match &mut state.backing {
            Backing::Cow(disk) => disk.adopt(runs, |frame, page| {
                frames::ram(frame, 1).write(0, page);
            }),
            Backing::ReadOnly(..) | Backing::Partition(_) => false,
        };
        self.tell_frames(&state);
        is_adopted
    }
}
