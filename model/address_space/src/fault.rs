//! The steps of a fault.

use core::ops::ControlFlow::{Break, Continue};
use core::ops::{ControlFlow, DerefMut};

use crate::maps::{CHUNK, NotShown};
use crate::{Frames, GuestRam, Maps, Run, Translation};
use model_addr::{Gfn, Ipa, Mfn, NodeId, VmId};
use model_frame_table::{
    CHUNK_FRAMES, CHUNK_ORDER, FrameEntry, MAX_ORDER, MemoryMap, Owner, Purpose, Use,
};
use model_pmap::{Backing, REGION_FRAMES, Survey};
use model_stage2::MapError;

/// What became of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// The access can be tried again.
    Done,
    /// The machine has no frame left.
    NoMemory,
    /// The address is not the VM's memory.
    Refused,
}

/// What a fault does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Decide by what is there; locks.
    Look,
    /// Set a run aside for the whole region.
    Reserve,
    /// Note that run; locks.
    Note(Mfn),
    /// Take 2^order new frames.
    Take(u8),
    /// Give the frames their contents. They are this fault's alone.
    Write(Run),
    /// Show them to the guest; locks.
    Show(Run),
}

type Next = ControlFlow<Filled, Step>;

/// More steps than any fault takes.
const STEPS: usize = 16;
/// How often [`GuestRam::frame_at`] looks. Another CPU fills a chunk in microseconds.
const LOOKS: usize = 1 << 20;

/// A fault on its way. It can stand still between any two steps while others go on; frames that
/// it has taken are lost where it is not brought to its end.
#[must_use = "a fault is to be stepped until it is filled"]
#[derive(Debug)]
pub struct Fault {
    gfn: Gfn,
    node: NodeId,
    step: Step,
}

impl Fault {
    /// A fault on `gfn`, by a vCPU on `node`.
    pub const fn new(gfn: Gfn, node: NodeId) -> Self {
        Self {
            gfn,
            node,
            step: Step::Look,
        }
    }

    /// Goes one step on; `Some` at the end. `lock` locks the maps of the VM until its value is
    /// dropped, and is called once at most.
    pub fn step<T: Translation, G: DerefMut<Target = Maps<T>>>(
        &mut self,
        ram: &GuestRam<impl AsRef<[u8]>>,
        frames: &impl Frames,
        lock: impl FnOnce() -> G,
    ) -> Option<Filled> {
        let next = match self.step {
            Step::Look => lock().look(ram.vm, self.gfn, frames),
            Step::Reserve => self.reserve(ram.vm, frames),
            Step::Note(base) => self.note(ram.vm, base, frames, lock),
            Step::Take(order) => self.take(ram.vm, order, frames),
            Step::Write(run) => {
                ram.write(frames, run);
                Continue(Step::Show(run))
            }
            Step::Show(run) => Break(show(run, frames, lock)),
        };
        match next {
            Break(filled) => Some(filled),
            Continue(step) => {
                self.step = step;
                None
            }
        }
    }

    /// The first guest frame of the aligned 2^`order` around the fault.
    fn first(&self, order: u8) -> Gfn {
        self.gfn.align_down(1 << order)
    }

    #[cold]
    fn reserve(&self, vm: VmId, frames: &impl Frames) -> Next {
        let owner = Owner {
            vm,
            gfn: self.first(MAX_ORDER),
        };
        let run = frames.allocate_local(self.node, MAX_ORDER, Purpose::Reserved(owner));
        Continue(run.map_or(Step::Take(CHUNK_ORDER), Step::Note))
    }

    #[cold]
    fn note<T: Translation, G: DerefMut<Target = Maps<T>>>(
        &self,
        vm: VmId,
        base: Mfn,
        frames: &impl Frames,
        lock: impl FnOnce() -> G,
    ) -> Next {
        let gfn = self.first(MAX_ORDER);
        let noted = lock().note(gfn, base);
        if noted != Ok(true) {
            frames.free_reserved(base, Owner { vm, gfn });
        }
        Continue(if noted.is_ok() {
            Step::Look
        } else {
            Step::Take(CHUNK_ORDER)
        })
    }

    #[cold]
    fn take(&self, vm: VmId, order: u8, frames: &impl Frames) -> Next {
        let first = self.first(order);
        let owner = Owner { vm, gfn: first };
        match frames.allocate(self.node, order, Purpose::Private(owner)) {
            Some(frame) => Continue(Step::Write(Run {
                first,
                frame,
                count: 1 << order,
            })),
            None if order == 0 => Break(Filled::NoMemory),
            None => Continue(Step::Take(0)),
        }
    }
}

impl<T: Translation> Maps<T> {
    /// Decides what a fault on `gfn` does. A reserved chunk is taken here, so that whoever looks
    /// next finds it taken.
    #[inline]
    fn look(&mut self, vm: VmId, gfn: Gfn, frames: &impl Frames) -> Next {
        let Ok(survey) = self.pmap.survey(&self.tables, gfn) else {
            return Break(Filled::Refused);
        };
        if survey.entry.backing != Backing::Absent {
            return Break(self.look_again(gfn, survey));
        }
        let Some(base) = survey.region.base else {
            return self.look_for_new(gfn, survey);
        };
        // That nothing is behind the rest of the chunk is seen when it is shown.
        let first = gfn.align_down(CHUNK_FRAMES);
        let frame = base.add(first.0 % REGION_FRAMES);
        let owner = Owner { vm, gfn: first };
        if frames.map().take_reserved(frame, owner) {
            Continue(Step::Write(Run {
                first,
                frame,
                count: CHUNK_FRAMES,
            }))
        } else if is_being_filled(frames.map(), frame, owner) {
            Break(Filled::Done)
        } else {
            self.look_for_new(gfn, survey)
        }
    }

    /// Nothing is reserved for the chunk of `gfn`, or no longer.
    #[cold]
    fn look_for_new(&self, gfn: Gfn, survey: Survey) -> Next {
        let region = gfn.align_down(REGION_FRAMES);
        let is_new = survey.region.base.is_none() && !survey.has_leaf;
        if is_new && self.pmap.contains(region, REGION_FRAMES) {
            return Continue(Step::Reserve);
        }
        let chunk = gfn.align_down(CHUNK_FRAMES);
        let absent = self.pmap.absent_run(&self.tables, chunk, CHUNK_FRAMES);
        Continue(Step::Take(if absent == CHUNK_FRAMES {
            CHUNK_ORDER
        } else {
            0
        }))
    }

    /// Something is behind `gfn` and the guest faulted all the same.
    #[cold]
    fn look_again(&mut self, gfn: Gfn, survey: Survey) -> Filled {
        let (Some(frame), Some(rights)) = (survey.entry.frame(), survey.entry.rights()) else {
            return Filled::Refused;
        };
        match self.show_again(gfn, (frame, rights), survey.region) {
            Ok(()) | Err(MapError::Busy) => Filled::Done,
            Err(MapError::NoMemory) => Filled::NoMemory,
            Err(_) => Filled::Refused,
        }
    }
}

/// The last step.
#[inline]
fn show<T: Translation, G: DerefMut<Target = Maps<T>>>(
    run: Run,
    frames: &impl Frames,
    lock: impl FnOnce() -> G,
) -> Filled {
    let shown = match run.count {
        CHUNK_FRAMES => lock().show::<CHUNK>(run),
        _ => lock().show::<1>(run),
    };
    shown.map_or_else(|why| give_back(run, why, frames), |()| Filled::Done)
}

/// Whether another CPU has taken the chunk for the same guest frames and not yet shown it: it
/// will, and the guest tries again.
#[cold]
fn is_being_filled(map: &MemoryMap<'_>, frame: Mfn, owner: Owner) -> bool {
    map.entry(frame)
        .and_then(FrameEntry::lock)
        .is_some_and(|locked| locked.state().usage == Use::Private && locked.owner() == owner)
}

/// Frees frames that could not be shown.
#[cold]
fn give_back(run: Run, why: NotShown, frames: &impl Frames) -> Filled {
    frames.free(run.frame, run.count.trailing_zeros() as u8);
    match why {
        NotShown::Present => Filled::Done,
        NotShown::NoMemory => Filled::NoMemory,
        NotShown::Refused => Filled::Refused,
    }
}

impl<B: AsRef<[u8]>> GuestRam<B> {
    /// Puts a frame behind `ipa` and lets the hardware see it, on behalf of a vCPU on `node`:
    /// a [`Fault`] from its first step to its last.
    #[inline]
    pub fn fill<T: Translation, G: DerefMut<Target = Maps<T>>>(
        &self,
        ipa: Ipa,
        node: NodeId,
        frames: &impl Frames,
        lock: &impl Fn() -> G,
    ) -> Filled {
        let gfn = ipa.frame();
        // The usual way, straight; all others step by step.
        let next = lock().look(self.vm, gfn, frames);
        match next {
            Continue(Step::Write(run)) if run.count == CHUNK_FRAMES => {
                self.write(frames, run);
                show(run, frames, lock)
            }
            Continue(step) => self.finish(Fault { gfn, node, step }, frames, lock),
            Break(filled) => filled,
        }
    }

    /// Steps a fault to its end.
    #[cold]
    fn finish<T: Translation, G: DerefMut<Target = Maps<T>>>(
        &self,
        mut fault: Fault,
        frames: &impl Frames,
        lock: &impl Fn() -> G,
    ) -> Filled {
        let mut steps = (0..STEPS).map(|_| fault.step(self, frames, lock));
        steps.find_map(|filled| filled).unwrap_or(Filled::Done)
    }

    /// The frame behind `ipa`, for a device or EL2 itself; filled where it was absent.
    ///
    /// # Errors
    /// What became of the fault.
    pub fn frame_at<T: Translation, G: DerefMut<Target = Maps<T>>>(
        &self,
        ipa: Ipa,
        node: NodeId,
        frames: &impl Frames,
        lock: &impl Fn() -> G,
    ) -> Result<Mfn, Filled> {
        // A chunk that another CPU is filling appears soon.
        for _ in 0..LOOKS {
            let entry = lock().entry(ipa.frame());
            if let Some(frame) = entry.frame() {
                return Ok(frame);
            }
            match self.fill(ipa, node, frames, lock) {
                Filled::Done => {}
                refused => return Err(refused),
            }
        }
        Err(Filled::NoMemory)
    }
}
