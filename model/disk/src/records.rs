//! Overlays as records, for the image that takes this one's place (`abi::state`).

use crate::{CowDisk, Machine, Store};
use abi::state::{Run, Runs, run};
use model_addr::Mfn;
use model_disk_overlay::Block;

/// Entries looked at in one call.
const BUDGET: u32 = 1 << 12;

impl<M: Machine> CowDisk<M> {
    /// Tells what of it is not as it was at first, as runs of blocks.
    pub fn records(&self, mut put: impl FnMut(Run)) {
        let is_stored = self.memory.store.is_some();
        let mut last = None;
        self.overlay
            .changed(&self.memory, |block, contents, count| {
                let (kind, frame) = match contents {
                    Block::Data(slot) if is_stored => (run::STORED, slot.0),
                    Block::Data(frame) => (self.machine().kind_of(frame), frame.0),
                    Block::Zero | Block::Base => (run::EMPTY, 0),
                };
                let next = Run {
                    gfn: block,
                    frame,
                    // No more are told of at once.
                    count: count as u32,
                    kind,
                    why: 0,
                    never_share: 0,
                    disk: 0,
                };
                Run::join(&mut last, next, true)
                    .into_iter()
                    .for_each(&mut put);
            });
        last.into_iter().for_each(put);
    }

    /// What a slot is to hold, where its blocks are on a partition.
    pub fn word(&self, slot: u64) -> Option<u64> {
        self.memory.store.as_ref().map(|store| store.word(slot))
    }

    /// Makes a new disk what records say. Its frames are the disk's already, where they are not others', too; those for
    /// contents are made, and `fill`ed. `false` where they make no sense, or without memory.
    #[must_use]
    pub fn adopt(&mut self, runs: &Runs<'_>, fill: impl Fn(Mfn, &[u8])) -> bool {
        let mut end = 0;
        let private = |(run, _): &(Run, &[u8])| run.kind == run::PRIVATE;
        runs.clone().all(|(run, behind)| {
            let is_next = run.gfn >= end && run.count > 0;
            end = run.gfn.saturating_add(run.count.into());
            is_next && end <= self.overlay.blocks() && self.adopt_run(&run, behind, &fill)
        })
            // None that is the disk's alone is behind another block, too.
            && runs.clone().filter(private).all(|(run, _)| self.is_private(&run))
    }

    fn adopt_run(&mut self, run: &Run, behind: &[u8], fill: impl Fn(Mfn, &[u8])) -> bool {
        if run.kind == run::EMPTY {
            let (mut at, end) = (run.gfn, run.gfn + u64::from(run.count));
            while at < end {
                match self
                    .overlay
                    .zero(&mut self.memory, at..end, &mut { BUDGET })
                {
                    Ok(reached) => at = reached,
                    Err(_) => return false,
                }
            }
            return true;
        }
        self.memory.shared += match run.kind {
            run::SHARED | run::JOINED => u64::from(run.count),
            _ => 0,
        };
        (0..run.count).all(|n| {
            let frame = self.adopt_frame(run, n, behind, &fill);
            let block = run.gfn + u64::from(n);
            frame.is_some_and(|frame| {
                let put = self.overlay.put(&mut self.memory, block, frame);
                let left = put.unwrap_or(Some(frame));
                if let Some(left) = left.filter(|_| run.kind == run::CONTENT) {
                    self.machine().free(left);
                }
                put == Ok(None)
            })
        })
    }

    /// The frame, or the slot, of block `n` of a run, which is the disk's.
    fn adopt_frame(
        &self,
        run: &Run,
        n: u32,
        behind: &[u8],
        fill: impl Fn(Mfn, &[u8]),
    ) -> Option<Mfn> {
        let (frame, user) = (Mfn(run.frame.saturating_add(n.into())), self.memory.user);
        let is_there = match (&self.memory.store, run.kind) {
            (Some(store), run::STORED) => store.adopt(frame.0, Runs::word(behind, n)?, true),
            (Some(_), _) => false,
            (None, run::CONTENT) => {
                let page = Runs::page(behind, n)?;
                let frame = self.machine().allocate(user)?;
                fill(frame, page);
                return Some(frame);
            }
            (None, kind) => self.machine().take_over(kind, frame, user),
        };
        is_there.then_some(frame)
    }

    fn is_private(&self, run: &Run) -> bool {
        let is_shared = |n| self.machine().is_shared(Mfn(run.frame.saturating_add(n)));
        !(0..run.count.into()).any(is_shared)
    }
}
