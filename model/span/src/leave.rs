//! A host that leaves a VM which goes on: once it has none of its vCPUs, and others have its pages.
//!
//! ```text
//!  leaver                        others
//!    │ Leave ─────────────────────►│ tell it nothing any more
//!    │ ◄────────────────────── Left│
//! ```

use crate::{Hosts, Kind, Message, Session, State, Stays, Todo, bit};

/// How far this host is that leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Stays,
    /// It takes no vCPU any more.
    Leaves,
    /// It has said so to these hosts, and they have not answered.
    Parts(Hosts),
}

impl Session {
    /// Returns the hosts that have not left, a bit each.
    pub fn hosts(&self) -> Hosts {
        self.others()
            .fold(bit(self.host), |all, host| all | bit(host))
    }

    /// Begins to leave: no vCPU comes to this host any more. Its pages go next, then follows [`Self::part`].
    ///
    /// # Errors
    /// Why it cannot.
    pub fn leave(&mut self) -> Result<(), Stays> {
        let vcpus = self.seats.bits_of(self.host);
        let coming = self.seats.coming_to(self.host);
        match () {
            () if self.state != State::Running => Err(Stays::Apart),
            () if self.host == self.layout.first() => Err(Stays::First),
            () if vcpus != 0 => Err(Stays::Occupied(vcpus.count_ones())),
            () if coming.is_some() => Err(Stays::Busy(coming.unwrap_or(0))),
            () if self.way == Way::Stays => {
                self.way = Way::Leaves;
                Ok(())
            }
            () => Ok(()),
        }
    }

    /// Tells the others that nothing of the VM is here any more, once; [`Todo::Part`] follows.
    pub fn part(&mut self, send: impl FnMut(u8, Message)) {
        if self.way == Way::Leaves && self.state == State::Running {
            let others = self.others().fold(0, |all, host| all | bit(host));
            self.way = Way::Parts(others);
            self.send_all(Kind::Leave, (0, 0), send);
        }
    }

    /// Takes the word of a host that leaves, or the answer to it; `None` if it must not come.
    pub(crate) fn parts(
        &mut self,
        from: u8,
        m: &Message,
        mut send: impl FnMut(u8, Message),
    ) -> Option<Todo> {
        if m.kind == Kind::Leave {
            let has_any = self.seats.bits_of(from) != 0;
            let coming = self.seats.coming_to(self.host);
            // The state of its last vCPU may be overtaken.
            if coming.is_some_and(|it| self.seats.bits_of(from) == 1 << it) {
                return Some(Todo::Later);
            }
            if has_any || from == self.layout.first() {
                return None;
            }
            send(from, self.message(Kind::Left, (0, 0)));
            self.gone |= bit(from);
            self.without(from, send);
            // Its word is its answer as well: what it says later is not heard.
            return Some(self.answered(from).unwrap_or(Todo::TryAgain));
        }
        self.answered(from)
    }

    /// A host tells this leaver nothing more; `None` if it was not asked.
    fn answered(&mut self, from: u8) -> Option<Todo> {
        let Way::Parts(missing) = &mut self.way else {
            return None;
        };
        if *missing & bit(from) == 0 {
            return None;
        }
        *missing &= !bit(from);
        if *missing != 0 {
            return Some(Todo::Nothing);
        }
        self.state = State::Ended;
        Some(Todo::Part)
    }
}
