//! Stolen time as the guest sees it (Arm DEN0057A): in a structure in its own memory, which is written
//! when the vCPU is back on a CPU after it had to wait for one. A guest that never asks pays nothing.

use crate::guest::paging;
use crate::machine;
use crate::memory::Access;
use crate::run::entry::Loaded;
use abi::control::work;
use arch::frames::Table;
use model_addr::Ipa;

impl Loaded<'_> {
    /// `PV_TIME_ST`: where the vCPU's structure is, which is kept up to date from now on.
    pub fn begin_stolen_time(&mut self) -> Ipa {
        self.core.stolen_shown = Some(u64::MAX); // nothing yet
        self.show_stolen_time();
        self.stolen_time_record()
    }

    fn stolen_time_record(&self) -> Ipa {
        model_guest_image::stolen_time(self.vm.space.range(), self.vcpu.index)
    }

    /// Writes the stolen time where the guest looks, where it ever asked and it was shown another.
    #[inline]
    pub(super) fn show_stolen_time(&mut self) {
        let stolen = self.vcpu.stats.get(work::STEAL);
        if self.core.stolen_shown.is_some_and(|shown| shown != stolen) {
            self.write_stolen_time(stolen);
        }
    }

    #[cold]
    fn write_stolen_time(&mut self, stolen: u64) {
        let record = self.stolen_time_record();
        let first = (record.offset() / 8) as usize;
        let written = self.vm.memory().with(record, Access::Write, |frame| {
            // SAFETY: a frame of the guest's memory: RAM that Rust owns nothing of.
            let words = unsafe { Table::new(frame) };
            words.write(first, 0); // revision 0, attributes 0
            words.write(first + 1, machine::nanoseconds(stolen));
        });
        match written {
            Ok(()) => self.core.stolen_shown = Some(stolen),
            // The page is on a disk, or there is no frame for it: again when it runs next.
            Err(_) => paging::bring_wanted(self.vm),
        }
    }
}
