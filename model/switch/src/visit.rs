//! One CPU's part.

use crate::meeting::Standing;
use crate::{MAX_CPUS, MAX_STEPS, Meeting, Reason};

/// What a CPU does at a switch.
pub trait Side {
    /// How many steps there are, at most [`MAX_STEPS`].
    const STEPS: usize;
    /// Takes step `step`. Where it fails it has changed nothing.
    ///
    /// # Errors
    /// Why the switch cannot be made.
    fn take(&mut self, step: usize) -> Result<(), Reason>;
    /// Undoes step `step`, which was taken and is the latest that is not undone.
    fn undo(&mut self, step: usize);
    /// Past the point of no return: cannot fail.
    fn commit(&mut self);
}

/// How many steps were taken and are not undone. Steps are taken in order, so a number says all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Journal(u8);

impl Journal {
    /// The step that is to be taken next.
    pub const fn next(self) -> usize {
        self.0 as usize
    }

    fn note(&mut self) {
        self.0 += 1;
    }

    fn take_back(&mut self) -> Option<usize> {
        self.0 = self.0.checked_sub(1)?;
        Some(self.next())
    }
}

/// Where a CPU is in its visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Outside,
    Working,
    Waiting,
    Over,
}

/// One CPU's visit to a meeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Visit {
    expected: u8,
    journal: Journal,
    stage: Stage,
}

/// What a poll gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poll {
    /// Call again; the visit has made progress.
    Working,
    /// Call again; others are missing.
    Waiting,
    /// The switch is made, here and everywhere.
    Done,
    /// It is not, here or anywhere: all is as it was. Every visitor has this reason.
    Failed(Reason),
    /// This CPU is not part of the meeting that is being held: nothing was done.
    Excluded,
}

impl Visit {
    /// A visit to a meeting of `expected` CPUs, this one included.
    pub const fn new(expected: u32) -> Self {
        Self {
            expected: if expected <= MAX_CPUS {
                expected as u8
            } else {
                0
            },
            journal: Journal(0),
            stage: Stage::Outside,
        }
    }

    /// Goes one step on. `late` gives a reason where this CPU has waited long enough: it is asked
    /// only while others are missing.
    pub fn poll<S: Side>(
        &mut self,
        meeting: &Meeting,
        side: &mut S,
        late: impl FnOnce() -> Option<Reason>,
    ) -> Poll {
        const { assert!(S::STEPS <= MAX_STEPS) };
        match self.stage {
            Stage::Outside if meeting.arrive(self.expected) => self.stage = Stage::Working,
            Stage::Outside | Stage::Over => return Poll::Excluded,
            Stage::Working => self.work(meeting, side),
            Stage::Waiting => return self.wait(meeting, side, late),
        }
        Poll::Working
    }

    fn work<S: Side>(&mut self, meeting: &Meeting, side: &mut S) {
        if let Standing::Failed(_) = meeting.standing() {
            self.stage = Stage::Waiting;
        } else if self.journal.next() == S::STEPS {
            meeting.vote();
            self.stage = Stage::Waiting;
        } else {
            match side.take(self.journal.next()) {
                Ok(()) => self.journal.note(),
                Err(reason) => {
                    meeting.fail(reason);
                    self.stage = Stage::Waiting;
                }
            }
        }
    }

    fn wait<S: Side>(
        &mut self,
        meeting: &Meeting,
        side: &mut S,
        late: impl FnOnce() -> Option<Reason>,
    ) -> Poll {
        let outcome = match meeting.standing() {
            Standing::Open => {
                if let Some(reason) = late() {
                    meeting.fail(reason);
                }
                return Poll::Waiting;
            }
            Standing::Agreed => {
                side.commit();
                Poll::Done
            }
            Standing::Failed(reason) => {
                if let Some(step) = self.journal.take_back() {
                    side.undo(step);
                    return Poll::Working;
                }
                Poll::Failed(reason)
            }
        };
        meeting.leave();
        self.stage = Stage::Over;
        outcome
    }
}
