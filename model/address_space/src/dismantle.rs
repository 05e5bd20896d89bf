//! How a VM's memory goes back to the pools.

use crate::exchange::give_back;
use crate::maps::ROOTS_MAX;
use crate::{Frames, Maps, Translation};
use heapless::Vec;
use model_addr::VmId;
use model_frame_table::Owner;
use model_pmap::{GivenBack, PmapTeardown};
use model_stage2::Teardown;

/// The memory of a VM that is gone. [`Self::step`] until all is back.
#[must_use = "frames leak until all steps are done"]
#[derive(Debug)]
pub struct Dismantling<T> {
    vm: VmId,
    stage2: Option<Teardown>,
    pmap: PmapTeardown,
    /// Of nodes with copies.
    roots: Vec<(Teardown, PmapTeardown), ROOTS_MAX>,
    tables: T,
}

impl<T: Translation> Maps<T> {
    /// Begins the end of `vm`'s memory: none of its vCPUs runs or will run again. The debt of the
    /// whole translation is paid here.
    pub fn dismantle(self, vm: VmId) -> Dismantling<T> {
        let Self {
            pmap,
            stage2,
            mut tables,
            roots,
            ..
        } = self;
        let stage2 = stage2.retire().pay(|what| tables.invalidate(what));
        let roots = roots.into_iter().map(|root| {
            let stage2 = root.stage2.retire().pay(|what| tables.invalidate(what));
            (stage2, root.copies.teardown())
        });
        Dismantling {
            vm,
            roots: roots.collect::<Vec<_, _>>(),
            stage2: Some(stage2),
            pmap: pmap.teardown(),
            tables,
        }
    }
}

impl<T: Translation> Dismantling<T> {
    /// Gives back some more, looking at `budget` entries; `true` when all is back.
    pub fn step(&mut self, frames: &impl Frames, budget: usize) -> bool {
        if let Some(stage2) = &mut self.stage2 {
            if stage2.step(&mut self.tables, budget)
                && let Some(done) = self.stage2.take()
            {
                self.tables.free_table(done.root());
            }
            return false;
        }
        let vm = self.vm;
        if let Some((stage2, copies)) = self.roots.last_mut() {
            let free = |back| match back {
                GivenBack::Entry(_, copy) => copy.frame().map_or((), |copy| frames.free(copy, 0)),
                GivenBack::Reservation(..) => {}
            };
            let all = stage2.step(&mut self.tables, budget)
                && copies.step(&mut self.tables, budget, free);
            if all && let Some((done, _)) = self.roots.pop() {
                self.tables.free_table(done.root());
            }
            return false;
        }
        self.pmap.step(&mut self.tables, budget, |back| match back {
            // What is on a disk goes as a whole.
            GivenBack::Entry(_, entry) if entry.frame().is_none() => {}
            GivenBack::Entry(gfn, entry) => give_back(frames, vm, gfn, entry.backing),
            GivenBack::Reservation(gfn, base) => frames.free_reserved(base, Owner { vm, gfn }),
        })
    }

    /// The memory of the tables, to see that none is left.
    pub fn tables(&self) -> &T {
        &self.tables
    }
}
