//! Which host has which vCPU, and how one goes over to another host.
//!
//! ```text
//!  its host                    others                     its new host
//!    │ Move ────────────────────►│ ─────────────────────────►│ keeps room
//!    │ ◄─────────────────── Held │ ask nothing of it         │
//!    │ ◄──────────────────────────────────────────────── Held│
//!    │ State ───────────────────────────────────────────────►│ it goes on
//!    │ Moved ───────────────────►│ ask its new host          │
//! ```
//!
//! Links keep order, so nothing that was asked of a vCPU is under way once all have said that they hold. What they ask of it
//! later may overtake its state, and waits for that at its new host. One vCPU is on its way at a time, as two could wait for each
//! other: a host that knows of one refuses another, and where two hosts begin at once, both vCPUs stay.

use crate::leave::Way;
use crate::{
    Broken, GROUP1_TOO, Hosts, Kind, Layout, Message, Session, State, Todo, VCPUS_MAX, bit,
};

/// The most vCPUs that a host can have.
pub const OWN_MAX: usize = VCPUS_MAX / 2;

/// No host.
const NOBODY: u8 = u8::MAX;

/// Reason why a vCPU stays where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stays {
    /// Not all hosts run it.
    #[error("it does not run on all its hosts")]
    Apart,
    /// There is no such vCPU.
    #[error("it has no vCPU {0}")]
    Absent(u8),
    /// Another host has it.
    #[error("host {1} has vCPU {0}")]
    Elsewhere(u8, u8),
    /// It is vCPU 0.
    #[error("vCPU 0 stays with the devices")]
    First,
    /// The host has no share of the VM.
    #[error("host {0} is none of its hosts")]
    Stranger(u8),
    /// It is there.
    #[error("vCPU {0} is there already")]
    There(u8),
    /// One is on its way.
    #[error("vCPU {0} is on its way to another host: try again")]
    Busy(u8),
    /// Of a host that is to leave: so many vCPUs are there.
    #[error("{0} of its vCPUs are on this host: move them first")]
    Occupied(u32),
}

/// Why a host refuses a vCPU, in [`Message::at`] of a [`Kind::Held`].
mod refused {
    /// It does not.
    pub const NOT: u8 = 0;
    /// It is to come there, and there are [`super::OWN_MAX`].
    pub const FULL: u8 = 1;
    /// Another one is on its way.
    pub const BUSY: u8 = 2;
}

/// A vCPU on its way.
#[derive(Clone, Copy, Debug)]
struct Move {
    vcpu: u8,
    to: u8,
    /// Hosts that may still ask something of it, where it leaves.
    missing: Hosts,
    is_refused: bool,
}

/// Which host has which vCPU.
#[derive(Debug)]
pub(crate) struct Seats {
    hosts: [u8; VCPUS_MAX],
    moving: Option<Move>,
}

impl Seats {
    pub(crate) fn new(layout: &Layout) -> Self {
        let mut hosts = [NOBODY; VCPUS_MAX];
        for host in layout.hosts() {
            for vcpu in layout.vcpus_of(host) {
                hosts[usize::from(vcpu)] = host;
            }
        }
        Self {
            hosts,
            moving: None,
        }
    }

    pub(crate) fn host_of(&self, vcpu: u8) -> Option<u8> {
        let host = self.hosts.get(usize::from(vcpu)).copied();
        host.filter(|host| *host != NOBODY)
    }

    /// vCPUs of that host, a bit each.
    pub(crate) fn bits_of(&self, host: u8) -> u64 {
        let are = (0..).zip(self.hosts).filter(|(_, it)| *it == host);
        are.fold(0, |bits, (vcpu, _)| bits | 1 << vcpu)
    }

    /// The vCPU on its way, as a bit.
    pub(crate) fn moving(&self) -> u64 {
        self.moving.map_or(0, |it| 1 << it.vcpu)
    }

    /// The vCPU that is on its way to a host.
    pub(crate) fn coming_to(&self, host: u8) -> Option<u8> {
        let moving = self.moving.filter(|it| it.to == host);
        moving.map(|it| it.vcpu)
    }

    pub(crate) fn is_moving(&self, vcpu: u8) -> bool {
        self.moving.is_some_and(|it| it.vcpu == vcpu)
    }

    fn settle(&mut self, vcpu: u8, host: u8) {
        self.hosts[usize::from(vcpu)] = host;
        self.moving = None;
    }
}

impl Session {
    /// Returns the host of a vCPU, if there is such a vCPU.
    pub fn host_of(&self, vcpu: u8) -> Option<u8> {
        self.seats.host_of(vcpu)
    }

    /// Begins to move an own vCPU to another host: [`Self::leaves`] returns it once nothing is asked of it.
    ///
    /// # Errors
    /// Why it stays.
    pub fn move_vcpu(
        &mut self,
        vcpu: u8,
        to: u8,
        send: impl FnMut(u8, Message),
    ) -> Result<(), Stays> {
        let host = self.host_of(vcpu).ok_or(Stays::Absent(vcpu))?;
        if self.state != State::Running {
            return Err(Stays::Apart);
        }
        if !self.has(to) {
            return Err(Stays::Stranger(to));
        }
        if to == host {
            return Err(Stays::There(vcpu));
        }
        if host != self.host {
            return Err(Stays::Elsewhere(vcpu, host));
        }
        if vcpu == 0 {
            return Err(Stays::First);
        }
        if let Some(other) = self.seats.moving {
            return Err(Stays::Busy(other.vcpu));
        }
        self.seats.moving = Some(Move {
            vcpu,
            to,
            missing: self.others().fold(0, |all, host| all | bit(host)),
            is_refused: false,
        });
        self.send_all(Kind::Move, (vcpu, to.into()), send);
        Ok(())
    }

    /// Returns the own vCPU of which nothing is asked any more, and where it goes. It may have something under way itself
    /// ([`Self::is_idle`]).
    pub fn leaves(&self) -> Option<(u8, u8)> {
        let leaves = |it: &Move| it.missing == 0 && self.host_of(it.vcpu) == Some(self.host);
        let moving = self.seats.moving.filter(leaves);
        moving.map(|it| (it.vcpu, it.to))
    }

    /// Returns whether an own vCPU has nothing under way.
    pub fn is_idle(&self, vcpu: u8) -> bool {
        let slot = &self.slots[usize::from(vcpu)];
        slot.missing == 0 && !slot.waits && !slot.has_asked
    }

    /// The vCPU that leaves stands still, and its state follows the message of [`Kind::State`]. Own vCPUs that waited to ask
    /// something of it try again.
    pub fn left(&mut self, mut send: impl FnMut(u8, Message)) {
        let Some((vcpu, to)) = self.leaves() else {
            return;
        };
        self.seats.settle(vcpu, to);
        send(to, self.message(Kind::State, (vcpu, 0)));
        let moved = self.message(Kind::Moved, (vcpu, to.into()));
        let others = self.others().filter(|host| *host != to);
        others.for_each(|host| send(host, moved));
        self.try_again();
    }

    /// The vCPU that is to leave cannot: what it does may need an own one that waits for it. All go on as before.
    pub fn stays(&mut self, send: impl FnMut(u8, Message)) {
        if let Some((vcpu, _)) = self.leaves() {
            self.take_back(vcpu, send);
        }
    }

    fn take_back(&mut self, vcpu: u8, send: impl FnMut(u8, Message)) {
        self.seats.settle(vcpu, self.host);
        self.send_all(Kind::Moved, (vcpu, self.host.into()), send);
        self.try_again();
    }

    /// Returns whether an own vCPU is to leave.
    pub fn is_leaving(&self, vcpu: u8) -> bool {
        self.seats.is_moving(vcpu) && self.host_of(vcpu) == Some(self.host)
    }

    /// A vCPU has come ([`Todo::Arrives`]), and is this host's. Own vCPUs that waited to ask something of it try again.
    pub fn arrived(&mut self, vcpu: u8) {
        self.seats.settle(vcpu, self.host);
        self.try_again();
    }

    /// Lets own vCPUs try again that wait for nothing but one on its way.
    fn try_again(&mut self) {
        let held = self.slots.iter_mut().filter(|slot| slot.missing == 0);
        held.for_each(|slot| slot.waits = false);
    }

    /// Takes a message about a vCPU that moves; `None` if it must not come.
    pub(crate) fn moves(
        &mut self,
        from: u8,
        m: &Message,
        mut send: impl FnMut(u8, Message),
    ) -> Option<Todo> {
        let (vcpu, own) = (m.detail, self.host);
        let at = u8::try_from(m.at.get()).ok()?;
        if m.kind == Kind::Held {
            return self.held(from, (vcpu, at), send);
        }
        let moving = self.seats.moving.filter(|it| it.vcpu == vcpu);
        if m.kind == Kind::Move && moving.is_some_and(|it| it.to == from) {
            // It goes on from there, before this host hears that it has come.
            return Some(Todo::Later);
        }
        if self.host_of(vcpu)? != from || vcpu == 0 {
            return None;
        }
        match (m.kind, moving) {
            (Kind::Move, None) if at != from && self.layout.has(at) => {
                let is_full = self.seats.bits_of(own).count_ones() as usize >= OWN_MAX;
                let is_full = is_full || self.way != Way::Stays;
                let why = match self.seats.moving {
                    Some(_) => refused::BUSY,
                    None if at == own && is_full => refused::FULL,
                    None => refused::NOT,
                };
                if why == refused::NOT {
                    self.seats.moving = Some(Move {
                        vcpu,
                        to: at,
                        missing: 0,
                        is_refused: false,
                    });
                }
                send(from, self.message(Kind::Held, (vcpu, why.into())));
                Some(Todo::Nothing)
            }
            // This host has refused it.
            (Kind::Moved, None) if at == from => Some(Todo::Nothing),
            (Kind::Moved, Some(moving)) if at == from || at == moving.to && at != own => {
                self.seats.settle(vcpu, at);
                self.try_again();
                Some(Todo::TryAgain)
            }
            (Kind::State, Some(moving)) if moving.to == own => Some(Todo::Arrives(vcpu)),
            _ => None,
        }
    }

    /// A host asks nothing of the vCPU that leaves, or refuses it.
    fn held(
        &mut self,
        from: u8,
        (vcpu, why): (u8, u8),
        send: impl FnMut(u8, Message),
    ) -> Option<Todo> {
        let moving = self.seats.moving.as_mut()?;
        if moving.vcpu != vcpu || moving.missing & bit(from) == 0 || why > refused::BUSY {
            return None;
        }
        moving.missing &= !bit(from);
        moving.is_refused |= why != refused::NOT;
        Some(self.settle_refused(send))
    }

    /// Lets the vCPU that was to leave stay, if all have answered and one has refused it.
    fn settle_refused(&mut self, send: impl FnMut(u8, Message)) -> Todo {
        let is_refused = |it: &Move| it.missing == 0 && it.is_refused;
        match self.seats.moving.filter(is_refused) {
            Some(moving) => {
                self.take_back(moving.vcpu, send);
                Todo::TryAgain
            }
            None => Todo::Nothing,
        }
    }

    /// A host has left: it asks nothing of a vCPU that leaves, and refuses it.
    pub(crate) fn without(&mut self, host: u8, send: impl FnMut(u8, Message)) {
        if let Some(moving) = &mut self.seats.moving {
            moving.is_refused |= moving.to == host && moving.missing & bit(host) != 0;
            moving.missing &= !bit(host);
            self.settle_refused(send);
        }
    }

    /// Whether what a vCPU of another host asks has a meaning, perhaps once a vCPU has come that is on its way here.
    pub(crate) fn meaning(&self, from: u8, m: &Message) -> Result<Todo, Broken> {
        let own = self.seats.bits_of(self.host);
        let targets = match m.kind {
            Kind::CpuOn | Kind::AffinityInfo => 1_u64.checked_shl(m.detail.into()).unwrap_or(0),
            Kind::Sgi if m.detail < 2 * GROUP1_TOO => m.at.get(),
            Kind::Load | Kind::Store if matches!(m.detail, 1 | 2 | 4 | 8) => own,
            _ => 0,
        };
        let moving = self.seats.moving;
        let coming = moving.filter(|it| it.to == self.host);
        let coming = coming.map_or(0, |it| 1 << it.vcpu);
        // Its new host lets the asker run before this one hears of that.
        let has_moved = moving.is_some_and(|it| (it.vcpu, it.to) == (m.vcpu, from));
        let is_theirs = has_moved || self.host_of(m.vcpu) == Some(from);
        if targets == 0 || targets & !(own | coming) != 0 || !is_theirs {
            return Err(Broken::Malformed(from));
        }
        Ok(if has_moved || targets & coming != 0 {
            Todo::Later
        } else {
            Todo::Asked(*m)
        })
    }
}
