//! How a VM may stand, as far as who asks can know: its guest ends when it likes, and what is left of it goes when EL2 comes
//! to it. What a request is answered must fit one of those ways, and says which are left.

use abi::control::{code, request, state};
use std::collections::BTreeSet;

/// How a VM stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stand {
    /// Described, never started.
    Defined,
    /// Its vCPUs run.
    Running,
    /// They stand still.
    Paused,
    /// It is being taken down.
    Ending,
    /// It is being taken down, and starts again.
    Restarting,
    /// It has ended.
    Ended,
}

use Stand as S;

impl Stand {
    /// Whether EL2 says so of it ([`state`]).
    pub fn is_said(self, said: u32) -> bool {
        said == match self {
            S::Defined => state::DEFINED,
            S::Running => state::RUNNING,
            S::Paused => state::PAUSED,
            S::Ending | S::Restarting => state::ENDING,
            S::Ended => state::ENDED,
        }
    }

    /// Whether there is an instance of it: surely, surely not, or perhaps.
    pub fn is_there(self) -> Option<bool> {
        match self {
            S::Running | S::Paused => Some(true),
            S::Defined | S::Ended => Some(false),
            S::Ending | S::Restarting => None,
        }
    }
}

/// What may happen without a request.
#[derive(Clone, Copy, Debug)]
pub struct Freedom {
    /// Its guest has come to its end.
    pub may_end: bool,
    /// It starts again after a reset.
    pub restarts: bool,
    /// Memory was asked of it, for which EL2 may let it stand still.
    pub may_owe: bool,
    /// It has a partition alone, which may still be busy when it is to start again.
    pub is_alone: bool,
    /// Memory may be short, so that a start fails.
    pub is_short: bool,
}

/// The ways in which a VM may stand.
#[derive(Clone, Debug)]
pub struct Stands(BTreeSet<Stand>);

impl Stands {
    /// That one way.
    pub fn only(stand: Stand) -> Self {
        Self(BTreeSet::from([stand]))
    }

    /// Also that way.
    pub fn or(mut self, stand: Stand) -> Self {
        self.0.insert(stand);
        self
    }

    /// Whether that is a way.
    pub fn may(&self, what: impl Fn(Stand) -> bool) -> bool {
        self.0.iter().any(|stand| what(*stand))
    }

    /// Time passes.
    pub fn pass(&mut self, freedom: Freedom) {
        if freedom.may_owe && self.may(|stand| matches!(stand, S::Running | S::Paused)) {
            self.0.extend([S::Running, S::Paused]);
        }
        loop {
            let before = self.0.len();
            let next = self.0.iter().flat_map(|stand| -> &[Stand] {
                match stand {
                    S::Running | S::Paused if freedom.may_end => &[S::Ending],
                    S::Ending => &[S::Ended],
                    S::Restarting if freedom.is_short || freedom.is_alone => {
                        &[S::Running, S::Ended]
                    }
                    S::Restarting => &[S::Running],
                    _ => &[],
                }
            });
            let next: Vec<Stand> = next.copied().collect();
            self.0.extend(next);
            if self.0.len() == before {
                return;
            }
        }
    }

    /// Keeps the ways that fit; `false` where none does.
    pub fn keep(&mut self, fits: impl Fn(Stand) -> bool) -> bool {
        self.0.retain(|stand| fits(*stand));
        !self.0.is_empty()
    }

    /// A request of that kind was answered with a code; `false` where no way fits.
    pub fn answered(&mut self, kind: u32, answer: u32, freedom: Freedom) -> bool {
        self.pass(freedom);
        let before = std::mem::take(&mut self.0);
        let after = before
            .into_iter()
            .filter_map(|stand| after(stand, kind, answer, freedom));
        self.0 = after.collect();
        // The first reason counts, and its guest may have been about to power off.
        if freedom.may_end && self.0.contains(&S::Restarting) {
            self.0.insert(S::Ending);
        }
        !self.0.is_empty()
    }
}

/// How a VM stands after a request with that answer; `None` where it would have been another.
fn after(stand: Stand, kind: u32, answer: u32, freedom: Freedom) -> Option<Stand> {
    let runs = matches!(stand, S::Running | S::Paused);
    let (wanted, next) = match kind {
        request::START if matches!(stand, S::Defined | S::Ended) => {
            let is_short = freedom.is_short && answer != code::OK;
            return match answer {
                code::OK => Some(S::Running),
                code::BUSY => freedom.is_alone.then_some(stand),
                _ => is_short.then_some(stand),
            };
        }
        request::START => (code::WRONG_STATE, stand),
        request::KILL if matches!(stand, S::Ending | S::Restarting) => (code::OK, S::Ending),
        _ if !runs => (code::WRONG_STATE, stand),
        request::RESET if freedom.restarts => (code::OK, S::Restarting),
        request::KILL | request::RESET => (code::OK, S::Ending),
        request::PAUSE => (code::OK, S::Paused),
        request::RESUME | request::CONTINUE if stand == S::Paused => (code::OK, S::Running),
        request::RESUME | request::CONTINUE => (code::WRONG_STATE, stand),
        request::RECLAIM if answer == code::OK => (code::OK, stand),
        request::STOP if answer == code::OWES && freedom.may_owe => (code::OWES, stand),
        // No guest listens to a power button, or has a driver for a balloon.
        _ => (code::IMPOSSIBLE, stand),
    };
    (answer == wanted).then_some(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREEDOM: Freedom = Freedom {
        may_end: false,
        restarts: false,
        may_owe: false,
        is_alone: false,
        is_short: false,
    };

    #[test]
    fn answers_say_how_a_vm_stands() {
        let mut stands = Stands::only(S::Running);
        assert!(stands.answered(request::PAUSE, code::OK, FREEDOM));
        assert!(!stands.may(|stand| stand != S::Paused));
        assert!(!stands.clone().answered(request::START, code::OK, FREEDOM));
        assert!(stands.answered(request::KILL, code::OK, FREEDOM));
        assert!(!stands.clone().answered(request::RESUME, code::OK, FREEDOM));
        assert!(stands.answered(request::START, code::OK, FREEDOM));
        assert!(stands.keep(|stand| stand.is_said(state::RUNNING)));
    }

    #[test]
    fn a_vm_that_is_killed_in_its_reset_stays_ended() {
        let restarts = Freedom {
            restarts: true,
            ..FREEDOM
        };
        let mut stands = Stands::only(S::Running);
        assert!(stands.answered(request::RESET, code::OK, restarts));
        assert!(stands.answered(request::KILL, code::OK, restarts));
        stands.pass(restarts);
        assert!(!stands.may(|stand| stand.is_said(state::RUNNING)));
    }

    #[test]
    fn a_guest_that_is_done_may_have_ended() {
        let may_end = Freedom {
            may_end: true,
            ..FREEDOM
        };
        for (freedom, is_right) in [(FREEDOM, false), (may_end, true)] {
            let mut stands = Stands::only(S::Running);
            let fits = stands.answered(request::KILL, code::WRONG_STATE, freedom);
            assert_eq!(fits, is_right);
        }
    }
}
