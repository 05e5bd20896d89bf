//! The steps of a fault.

use core::ops::ControlFlow::{Break, Continue};
use core::ops::{ControlFlow, DerefMut};

use crate::maps::{CHUNK, NotShown};
use crate::paging::SAMPLED;
use crate::replicas::GUARDED;
use crate::{Frames, GuestRam, Maps, Run, Translation};
use model_addr::{Gfn, Ipa, Mfn, NodeId, VmId};
use model_frame_table::{
    CHUNK_FRAMES, CHUNK_ORDER, Contents, MAX_ORDER, MemoryMap, Owner, Purpose,
};
use model_pmap::{Backing, REGION_FRAMES, Reasons, Survey};
use model_stage2::MapError;

/// What is done to the page of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It is read, or executed.
    Read,
    /// Some of it is written.
    Write,
    /// All of it is written before any of it is read.
    Overwrite,
}

impl Access {
    /// An access that `writes` some of a page, or none.
    pub const fn of(writes: bool) -> Self {
        if writes { Self::Write } else { Self::Read }
    }

    /// Whether it changes the page.
    pub const fn writes(self) -> bool {
        !matches!(self, Self::Read)
    }
}

/// What became of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// The access can be tried again.
    Done,
    /// The machine has no frame left.
    NoMemory,
    /// The address is not the VM's memory.
    Refused,
    /// What was there is on a disk, where this token says.
    Away(u64),
    /// The page may not be used so for these reasons, among them some that no fault ends: see [`Maps::lift`].
    Held(Reasons),
}

/// What a fault does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Decide by what is there; locks.
    Look,
    /// Set a run aside for the whole region.
    Reserve(Filling),
    /// Note that run; locks.
    Note(Mfn, Filling),
    /// Take 2^order new frames.
    Take(u8, Filling),
    /// Give the frames their contents. They are this fault's alone.
    Write(Run),
    /// Show them to the guest; locks.
    Show(Run),
    /// Take a frame for a page that is shared.
    TakeForBreak,
    /// Give the guest this frame instead of the one it shares; locks.
    Break(Mfn),
}

/// What belongs into new frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filling {
    /// What the guest frames hold from the start: nothing ever was behind them.
    Sources,
    /// Zeroes.
    Zeroes,
}

pub(crate) type Next = ControlFlow<Filled, Step>;

/// More steps than any fault takes.
const STEPS: usize = 16;
/// How often [`GuestRam::with_frame`] looks. Another CPU fills a chunk in microseconds.
const LOOKS: usize = 1 << 20;

/// A fault on its way. It can stand still between any two steps while others go on; frames that
/// it has taken are lost where it is not brought to its end.
#[must_use = "a fault is to be stepped until it is filled"]
#[derive(Debug)]
pub struct Fault {
    gfn: Gfn,
    node: NodeId,
    access: Access,
    /// It may take a frame of what is kept for emergencies.
    urgent: bool,
    step: Step,
}

impl Fault {
    /// A fault on `gfn`, by a vCPU on `node`.
    pub const fn new(gfn: Gfn, node: NodeId, access: Access) -> Self {
        Self {
            gfn,
            node,
            access,
            urgent: false,
            step: Step::Look,
        }
    }

    /// The same, which may take a frame of what is kept for emergencies.
    pub const fn urgently(self) -> Self {
        Self {
            urgent: true,
            ..self
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
            Step::Look => lock().look(ram, self.gfn, (self.node, self.access), frames),
            Step::Reserve(filling) => self.reserve(ram.vm, filling, frames),
            Step::Note(base, filling) => self.note(ram.vm, (base, filling), frames, lock),
            Step::Take(order, filling) => self.take(ram, order, filling, frames),
            Step::Write(run) => {
                ram.write(frames, run);
                Continue(Step::Show(run))
            }
            Step::Show(run) => Break(show(run, self.node, frames, lock)),
            Step::TakeForBreak => self.take_for_break(ram, frames),
            Step::Break(new) => Break(lock().unshare(ram, self.gfn, self.access, new, frames)),
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
    fn reserve(&self, vm: VmId, filling: Filling, frames: &impl Frames) -> Next {
        let owner = Owner::of(vm, self.first(MAX_ORDER));
        let run = frames.allocate_local(self.node, MAX_ORDER, Purpose::Reserved(owner));
        Continue(match run {
            Some(base) => Step::Note(base, filling),
            None => Step::Take(CHUNK_ORDER, filling),
        })
    }

    #[cold]
    fn note<T: Translation, G: DerefMut<Target = Maps<T>>>(
        &self,
        vm: VmId,
        (base, filling): (Mfn, Filling),
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
            Step::Take(CHUNK_ORDER, filling)
        })
    }

    #[cold]
    fn take<B: AsRef<[u8]>>(
        &self,
        ram: &GuestRam<B>,
        order: u8,
        filling: Filling,
        frames: &impl Frames,
    ) -> Next {
        let (first, count) = (self.first(order), 1 << order);
        let owner = Owner::of(ram.vm, first);
        let urgently = || {
            let may = self.urgent && order == 0;
            may.then(|| frames.allocate_urgently(self.node, owner))
                .flatten()
        };
        let frame = frames.allocate(self.node, order, Purpose::Private(owner));
        match frame.or_else(urgently) {
            Some(frame) => Continue(Step::Write(Run {
                first,
                frame,
                count,
                contents: Contents::Unknown,
                sources: filling == Filling::Sources && ram.has_sources(first, count),
            })),
            None if order == 0 => Break(Filled::NoMemory),
            None => Continue(Step::Take(0, filling)),
        }
    }

    fn take_for_break<B>(&self, ram: &GuestRam<B>, frames: &impl Frames) -> Next {
        let owner = Owner::of(ram.vm, self.gfn);
        let taken = if ram.policy().hide {
            frames.allocate_hidden(self.node, owner)
        } else {
            frames.allocate_for_break(self.node, owner)
        };
        match taken {
            Some(frame) => Continue(Step::Break(frame)),
            None => Break(Filled::NoMemory),
        }
    }
}

impl<T: Translation> Maps<T> {
    /// Decides what a fault on `gfn` does. A reserved chunk is taken here, so that whoever looks
    /// next finds it taken.
    #[inline]
    fn look<B: AsRef<[u8]>>(
        &mut self,
        ram: &GuestRam<B>,
        gfn: Gfn,
        (node, access): (NodeId, Access),
        frames: &impl Frames,
    ) -> Next {
        let Ok(survey) = self.pmap.survey(&self.tables, gfn) else {
            return Break(Filled::Refused);
        };
        if survey.entry.backing != Backing::Absent {
            return self.look_again(ram, gfn, (node, access), survey, frames);
        }
        if ram.may_be_image(gfn) && !access.writes() && self.use_images(ram, gfn, frames) {
            return Break(Filled::Done);
        }
        let Some(base) = survey.region.base else {
            return self.look_for_new(ram, gfn, survey);
        };
        let first = gfn.align_down(CHUNK_FRAMES);
        let filling = if survey.region.mixed {
            self.filling(ram, first, CHUNK_FRAMES)
        } else {
            Some(Filling::Sources)
        };
        let Some(filling) = filling else {
            return self.look_for_new(ram, gfn, survey);
        };
        // That nothing is behind the rest of the chunk is seen when it is shown.
        let frame = base.add(first.0 % REGION_FRAMES);
        let owner = Owner::of(ram.vm, first);
        if let Some(contents) = frames.map().take_reserved(frame, owner) {
            Continue(Step::Write(Run {
                first,
                frame,
                count: CHUNK_FRAMES,
                contents,
                sources: filling == Filling::Sources && ram.has_sources(first, CHUNK_FRAMES),
            }))
        } else if self.pmap.absent_run(&self.tables, first, CHUNK_FRAMES) == CHUNK_FRAMES
            && is_being_filled(frames.map(), frame, owner)
        {
            Break(Filled::Done)
        } else {
            self.look_for_new(ram, gfn, survey)
        }
    }

    /// Nothing is reserved for the chunk of `gfn`, or no longer.
    #[cold]
    fn look_for_new<B: AsRef<[u8]>>(&self, ram: &GuestRam<B>, gfn: Gfn, survey: Survey) -> Next {
        let Some(filling) = self.filling(ram, gfn.align_down(CHUNK_FRAMES), CHUNK_FRAMES) else {
            let filling = self.filling(ram, gfn, 1).unwrap_or(Filling::Zeroes);
            return Continue(Step::Take(0, filling));
        };
        let region = gfn.align_down(REGION_FRAMES);
        let absent = self.pmap.absent_run(&self.tables, region, REGION_FRAMES);
        let is_new = survey.region.base.is_none() && absent == REGION_FRAMES;
        Continue(if is_new {
            Step::Reserve(filling)
        } else {
            Step::Take(CHUNK_ORDER, filling)
        })
    }

    /// What belongs into frames for the `count` guest frames from `first` on; `None` where
    /// something is behind one of them, or they cannot be filled alike.
    fn filling<B: AsRef<[u8]>>(
        &self,
        ram: &GuestRam<B>,
        first: Gfn,
        count: u64,
    ) -> Option<Filling> {
        if self.pmap.absent_run(&self.tables, first, count) < count {
            return None;
        }
        if !ram.has_sources(first, count) {
            return Some(Filling::Zeroes);
        }
        match self.pmap.untouched(&self.tables, first, count) {
            0 => Some(Filling::Zeroes),
            all if all == count => Some(Filling::Sources),
            _ => None,
        }
    }

    /// Something is behind `gfn` and the guest faulted all the same.
    #[cold]
    fn look_again<B: AsRef<[u8]>>(
        &mut self,
        ram: &GuestRam<B>,
        gfn: Gfn,
        (node, access): (NodeId, Access),
        survey: Survey,
        frames: &impl Frames,
    ) -> Next {
        if let Backing::Discarded(token) = survey.entry.backing {
            // Where reasons are to keep a page from being written, they have a frame to stand at first.
            if access != Access::Overwrite || !self.pmap.standing().is_empty() {
                return Break(Filled::Away(token));
            }
            self.forget(gfn, token, frames);
            return Continue(Step::Take(0, Filling::Zeroes));
        }
        let mut survey = survey;
        if survey.entry.reasons.intersects(SAMPLED) {
            if let Some(frame) = survey.entry.frame() {
                frames.touched(frame, Owner { vm: ram.vm, gfn }, (node, access));
            }
            self.lift(gfn, SAMPLED);
            survey = self.pmap.survey(&self.tables, gfn).unwrap_or(survey);
        }
        if access.writes() && survey.entry.reasons.intersects(GUARDED) {
            self.collapse(gfn, frames);
            survey = self.pmap.survey(&self.tables, gfn).unwrap_or(survey);
        }
        let mut entry = survey.entry;
        if let Backing::Shared(frame) = entry.backing
            && access.writes()
            && entry.reasons.is_empty()
        {
            let Some(claimed) = self.claim(ram, gfn, frame, frames) else {
                return Continue(Step::TakeForBreak);
            };
            entry = claimed;
        }
        let (Some(frame), Some(rights)) = (entry.usable(access.writes()), entry.rights()) else {
            return Break(Filled::Held(entry.reasons));
        };
        let frame = self.copy_on(node, gfn).unwrap_or(frame);
        Break(
            match self.show_again(node, gfn, (frame, rights), survey.region) {
                Ok(()) | Err(MapError::Busy) => Filled::Done,
                Err(MapError::NoMemory) => Filled::NoMemory,
                Err(_) => Filled::Refused,
            },
        )
    }
}

/// The last step.
#[inline]
fn show<T: Translation, G: DerefMut<Target = Maps<T>>>(
    run: Run,
    node: NodeId,
    frames: &impl Frames,
    lock: impl FnOnce() -> G,
) -> Filled {
    let shown = match run.count {
        CHUNK_FRAMES => lock().show::<CHUNK>(run, node),
        _ => lock().show::<1>(run, node),
    };
    shown.map_or_else(|why| give_back(run, why, frames), |()| Filled::Done)
}

/// Whether another CPU has taken the chunk for the same guest frames and not yet shown it: it
/// will, and the guest tries again.
#[cold]
fn is_being_filled(map: &MemoryMap<'_>, frame: Mfn, owner: Owner) -> bool {
    // Not locked: by now it may be another's, and its pool does not wait for a lock.
    map.entry(frame)
        .is_some_and(|entry| entry.is_private_of(owner))
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
        access: Access,
        frames: &impl Frames,
        lock: &impl Fn() -> G,
    ) -> Filled {
        let gfn = ipa.frame();
        // The usual way, straight; all others step by step.
        let next = lock().look(self, gfn, (node, access), frames);
        match next {
            Continue(Step::Write(run)) if run.count == CHUNK_FRAMES => {
                self.write(frames, run);
                show(run, node, frames, lock)
            }
            Continue(step) => {
                let fault = Fault {
                    gfn,
                    node,
                    access,
                    urgent: false,
                    step,
                };
                self.finish(fault, frames, lock)
            }
            Break(filled) => filled,
        }
    }

    /// As [`Self::fill`], with a frame of what is kept for emergencies where no other is left.
    #[cold]
    pub fn fill_urgently<T: Translation, G: DerefMut<Target = Maps<T>>>(
        &self,
        ipa: Ipa,
        node: NodeId,
        access: Access,
        frames: &impl Frames,
        lock: &impl Fn() -> G,
    ) -> Filled {
        let fault = Fault::new(ipa.frame(), node, access);
        self.finish(fault.urgently(), frames, lock)
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

    /// Lets `with` use the frame behind `ipa`, for a device or EL2 itself; filled where it was
    /// absent, the guest's own where it is written. The VM's lock is held meanwhile, and that is
    /// what keeps the frame: afterwards it may be another's. Where no frame is left, one is taken of
    /// what is kept for emergencies, for what a device has begun cannot wait.
    ///
    /// # Errors
    /// What became of the fault.
    pub fn with_frame<T: Translation, G: DerefMut<Target = Maps<T>>, R>(
        &self,
        (ipa, access): (Ipa, Access),
        node: NodeId,
        frames: &impl Frames,
        lock: &impl Fn() -> G,
        with: impl FnOnce(Mfn) -> R,
    ) -> Result<R, Filled> {
        // A chunk that another CPU is filling appears soon.
        for _ in 0..LOOKS {
            let maps = lock();
            if let Some(frame) = maps.entry(ipa.frame()).usable(access.writes()) {
                return Ok(with(frame));
            }
            drop(maps);
            let filled = match self.fill(ipa, node, access, frames, lock) {
                Filled::NoMemory => self.fill_urgently(ipa, node, access, frames, lock),
                filled => filled,
            };
            if filled != Filled::Done {
                return Err(filled);
            }
        }
        Err(Filled::NoMemory)
    }
}
