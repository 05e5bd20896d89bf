//! Disks of VMs that are parked, and as records, for the image that takes this one's place (`abi::state`).

use crate::devices::block::{Backing, Block, must_wait_for_frames, serve_parked};
use crate::guest::Guest;
use abi::state::{Run, Writer, kind};
use model_disk::Budget;

impl Block {
    /// Goes on with requests that were put off, a pass of them, while the VM's vCPUs stand still.
    pub fn settle(&self, vm: &Guest) {
        let mut state = self.state.lock();
        serve_parked(&mut state, vm, &mut Budget::default());
        self.show_line(vm, &mut state);
    }

    /// Whether nothing is left for [`Self::settle`]: requests that wait for memory stay.
    pub fn is_settled(&self, vm: &Guest) -> bool {
        self.state.lock().parked.is_none() || must_wait_for_frames(vm)
    }

    /// Tells of a request that is done and was held, while the VM's vCPUs stand still: it is in no record.
    pub fn end_held(&self, vm: &Guest) {
        let mut state = self.state.lock();
        if let Some(held) = state.held.take() {
            state.complete(vm, &held.request, held.status, held.since);
        }
        self.show_line(vm, &mut state);
    }

    /// Writes what was written over its base, if it has one.
    pub fn write_overlay(&self, to: &mut Writer<'_>) {
        let state = self.state.lock();
        to.begin(kind::OVERLAY);
        if let Backing::Cow(disk) = &state.backing {
            disk.records(|run| to.add(&run));
        }
        to.begin(kind::WORDS);
        if let Backing::Cow(disk) = &state.backing {
            disk.words(|word| to.add(&word));
        }
    }

    /// Puts over its base what records say.
    #[must_use]
    pub fn adopt(
        &self,
        mut runs: impl Iterator<Item = Run> + Clone,
        mut words: impl Iterator<Item = u64>,
    ) -> bool {
        match &mut self.state.lock().backing {
            Backing::Cow(disk) => disk.adopt(runs, words),
            Backing::ReadOnly(..) | Backing::Partition(_) => {
                runs.next().is_none() && words.next().is_none()
            }
        }
    }
}
