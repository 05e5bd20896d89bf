//! Overlays as records, for the image that takes this one's place (`abi::state`).

use crate::{CowDisk, Machine, Store};
use abi::state::{Run, run};
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

    /// Tells what its slots are to hold, in the order of [`Self::records`].
    pub fn words(&self, mut put: impl FnMut(u64)) {
        let Some(store) = &self.memory.store else {
            return;
        };
        self.overlay.changed(&self.memory, |_, contents, _| {
            if let Block::Data(slot) = contents {
                put(store.word(slot.0));
            }
        });
    }

    /// Makes a new disk what records say. Its frames are the disk's already, where they are not others', too.
    /// `false` where they make no sense, or without memory for tables.
    #[must_use]
    pub fn adopt(
        &mut self,
        runs: impl Iterator<Item = Run> + Clone,
        mut words: impl Iterator<Item = u64>,
    ) -> bool {
        let (mut end, mut frames) = (0, runs.clone());
        runs.into_iter().all(|run| {
            let is_next = run.gfn >= end && run.count > 0;
            end = run.gfn.saturating_add(run.count.into());
            is_next && end <= self.overlay.blocks() && self.adopt_run(&run, &mut words)
        }) && words.next().is_none()
            // None that is the disk's alone is behind another block, too.
            && frames.all(|run| run.kind != run::PRIVATE || self.is_private(&run))
    }

    fn adopt_run(&mut self, run: &Run, words: &mut impl Iterator<Item = u64>) -> bool {
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
        (0..run.count.into()).all(|n| {
            let frame = Mfn(run.frame.saturating_add(n));
            let is_there = match &self.memory.store {
                Some(store) => {
                    let word = words.next();
                    run.kind == run::STORED
                        && word.is_some_and(|word| store.adopt(frame.0, word, true))
                }
                None => self.machine().take_over(run.kind, frame, self.memory.user),
            };
            self.memory.shared += u64::from(matches!(run.kind, run::SHARED | run::JOINED));
            let put = is_there.then(|| self.overlay.put(&mut self.memory, run.gfn + n, frame));
            put == Some(Ok(None))
        })
    }

    fn is_private(&self, run: &Run) -> bool {
        let is_shared = |n| self.machine().is_shared(Mfn(run.frame.saturating_add(n)));
        !(0..run.count.into()).any(is_shared)
    }
}
