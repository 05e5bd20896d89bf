//! A VM's memory as records, for images of any version (`abi::parked`).

use crate::{Maps, Translation};
use abi::parked::{Run, run};
use model_addr::{Gfn, Mfn};
use model_pmap::{Backing, Entry, REGION_FRAMES, Reasons, Why};

/// Entries looked at in one go.
const BUDGET: usize = 1 << 12;

/// Memory that no record says: what is behind this guest frame is on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotHere(pub Gfn);

impl<T: Translation> Maps<T> {
    /// The records of all that is behind guest frames, each of one region of 2 MiB at most. `is_image` tells
    /// of a shared frame whether it is an image's; else it has no other user.
    ///
    /// # Errors
    /// [`NotHere`]; and what `put` says.
    pub fn records<E>(
        &self,
        is_image: impl Fn(Mfn) -> bool,
        mut put: impl FnMut(Run) -> Result<(), E>,
    ) -> Result<Result<(), E>, NotHere> {
        let (mut open, mut failed): (Option<Run>, _) = (None, Ok(()));
        let (mut at, mut missing) = (Some(Gfn(0)), None);
        while let Some(from) = at.filter(|_| failed.is_ok() && missing.is_none()) {
            at = self
                .pmap
                .visit_known(&self.tables, from, BUDGET, |gfn, entry| {
                    let Some(next) = self.record(gfn, entry, &is_image) else {
                        missing = missing.or(Some(NotHere(gfn)));
                        return;
                    };
                    if let Some(run) = open.as_mut().filter(|run| goes_on(run, &next)) {
                        run.count += 1;
                    } else if let Some(whole) = open.replace(next)
                        && failed.is_ok()
                    {
                        failed = put(whole);
                    }
                });
        }
        if let Some(missing) = missing {
            return Err(missing);
        }
        Ok(failed.and_then(|()| open.map_or(Ok(()), put)))
    }

    fn record(&self, gfn: Gfn, entry: Entry, is_image: impl Fn(Mfn) -> bool) -> Option<Run> {
        let (kind, frame) = match entry.backing {
            Backing::Shared(frame) if is_image(frame) => (run::SHARED, frame.0),
            Backing::Private(frame) | Backing::Shared(frame) => (run::PRIVATE, frame.0),
            Backing::Absent if self.pmap.untouched(&self.tables, gfn, 1) > 0 => (run::UNTOUCHED, 0),
            Backing::Absent => (run::EMPTY, 0),
            Backing::Discarded(_) => return None,
        };
        Some(Run {
            gfn: gfn.0,
            frame,
            count: 1,
            kind,
            why: entry.why as u8,
            never_share: entry.never_share.into(),
            reserved: 0,
        })
    }

    /// Puts what a record says behind guest frames of maps that are new. Whoever has the frames has checked
    /// that they may be this VM's. `false` where the record makes no sense, or without memory for tables.
    #[must_use]
    pub fn adopt(&mut self, record: &Run) -> bool {
        let (gfn, frame, count) = (Gfn(record.gfn), Mfn(record.frame), u64::from(record.count));
        let is_new = count <= REGION_FRAMES
            && self.pmap.contains(gfn, count)
            && self.pmap.untouched(&self.tables, gfn, count) == count;
        let backing = match record.kind {
            run::PRIVATE => Backing::Private(frame),
            run::SHARED => Backing::Shared(frame),
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

/// Whether `next` is one guest frame more of the same run.
fn goes_on(run: &Run, next: &Run) -> bool {
    let count = u64::from(run.count);
    let has_frames = matches!(run.kind, run::PRIVATE | run::SHARED);
    (run.kind, run.why, run.never_share) == (next.kind, next.why, next.never_share)
        && run.gfn + count == next.gfn
        && !Gfn(next.gfn).is_aligned(REGION_FRAMES)
        && (!has_frames || run.frame + count == next.frame)
}
