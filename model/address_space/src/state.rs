//! A VM's memory as records, for images of any version (`abi::state`).

use crate::{Maps, Translation};
use abi::state::{Run, run};
use model_addr::{Gfn, Mfn};
use model_pmap::{Backing, Entry, REGION_FRAMES, Reasons, Why};

/// Entries looked at in one go.
const BUDGET: usize = 1 << 12;

impl<T: Translation> Maps<T> {
    /// The records of all that is behind guest frames, each of one region of 2 MiB at most. `place` says of what is
    /// in no frame of the VM's own of what kind it is, which disk has it, and where.
    pub fn records(&self, place: impl Fn(Backing) -> (u8, u8, u64), mut put: impl FnMut(Run)) {
        let (mut last, mut at) = (None, Some(Gfn(0)));
        while let Some(from) = at {
            let tell = |gfn: Gfn, entry| {
                let next = self.record(gfn, entry, &place);
                let is_same_region = !gfn.is_aligned(REGION_FRAMES);
                Run::join(&mut last, next, is_same_region)
                    .into_iter()
                    .for_each(&mut put);
            };
            at = self.pmap.visit_known(&self.tables, from, BUDGET, tell);
        }
        last.into_iter().for_each(put);
    }

    fn record(&self, gfn: Gfn, entry: Entry, place: impl Fn(Backing) -> (u8, u8, u64)) -> Run {
        let (kind, disk, frame) = match entry.backing {
            Backing::Private(frame) => (run::PRIVATE, 0, frame.0),
            Backing::Absent if self.pmap.untouched(&self.tables, gfn, 1) > 0 => {
                (run::UNTOUCHED, 0, 0)
            }
            Backing::Absent => (run::EMPTY, 0, 0),
            other => place(other),
        };
        Run {
            gfn: gfn.0,
            frame,
            count: 1,
            kind,
            why: entry.why as u8,
            never_share: entry.never_share.into(),
            disk,
        }
    }

    /// Puts what a record says behind guest frames of maps that are new. Whoever has the frames has checked
    /// that they may be this VM's; `token` says where the first is of blocks that are on a disk. `false` where
    /// the record makes no sense, or without memory for tables.
    #[must_use]
    pub fn adopt(&mut self, record: &Run, token: u64) -> bool {
        let (gfn, frame, count) = (Gfn(record.gfn), Mfn(record.frame), u64::from(record.count));
        let is_new = count <= REGION_FRAMES
            && self.pmap.contains(gfn, count)
            && self.pmap.untouched(&self.tables, gfn, count) == count;
        let backing = match record.kind {
            run::PRIVATE => Backing::Private(frame),
            run::SHARED | run::JOINED => Backing::Shared(frame),
            run::STORED | run::BASE => Backing::Discarded(token),
            run::EMPTY => Backing::Absent,
            run::UNTOUCHED if is_new => {
                return (0..count).all(|n| self.set_never_share(gfn.add(n), true));
            }
            _ => return false,
        };
        let why = Why::ALL.get(usize::from(record.why)).copied();
        let entry = Entry {
            backing,
            reasons: Reasons::empty(),
            never_share: record.never_share != 0,
            why: why.unwrap_or_default(),
        };
        let is_block = record.kind == run::PRIVATE
            && count == REGION_FRAMES
            && gfn.is_aligned(REGION_FRAMES)
            && frame.is_aligned(REGION_FRAMES);
        let base = is_block.then_some(frame);
        self.has_secrets |= record.never_share != 0;
        is_new
            && self
                .pmap
                .set_run(&mut self.tables, gfn, count, entry)
                .is_ok()
            && (base.is_none() || self.pmap.set_base(&mut self.tables, gfn, base).is_ok())
    }
}
