//! One VM on several hosts, beside its pages: which host has which vCPU, how all begin and end together, and what a vCPU
//! asks of other hosts: PSCI, SGIs, and accesses to devices, which the first host has.
//!
//! ```text
//!  first                         other                     any                          any
//!    │ Offer ─────────────────────►│                         │ CpuOn, Load, Store, Sgi ───►│
//!    │ ◄──────────────────── Ready │                         │   a vCPU has one of these   │
//!    │ Start (all are ready) ─────►│ runs                    │   under way                 │
//!    │ runs                        │                         │ ◄──────────────────── Reply │
//! ```
//!
//! A [`Session`] is one host's part. It has no clock, allocates nothing and has no randomness. What a message asks for is
//! returned as a [`Todo`], so that its owner holds no lock while it acts. Messages between two hosts must come exactly once
//! and in order, which `model/link` does.
//!
//! **Bounds.** Each vCPU has one question or SGI under way to each host, so a link needs room for those of all vCPUs, their
//! answers, and a few messages about the VM's life.
//!
//! **Time.** Each message carries the guest's count at its sender. A receiver that is behind goes forward to it
//! ([`Session::behind`]) before it acts, so no vCPU reads a count less than one that led to what it knows.
#![no_std]
#![forbid(unsafe_code)]

mod layout;
mod leave;
mod moves;

pub use abi::cluster::HOSTS_MAX;
pub use abi::span::{GROUP1_TOO, Kind, Message, end};
pub use layout::{Layout, MEMORY_STEP, Unfit};
pub use moves::{OWN_MAX, Stays};

use leave::Way;
use moves::Seats;
use zerocopy::TryFromBytes;

/// The most vCPUs.
pub const VCPUS_MAX: usize = 16;
/// Set of hosts, a bit each.
pub type Hosts = u16;

const fn bit(host: u8) -> Hosts {
    1 << host
}

/// Reason why a VM cannot go on. Hosts are named by their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// A message is no message, or names a vCPU, size or interrupt that does not exist.
    #[error("host {0} sent a malformed message")]
    Malformed(u8),
    /// A message must not come from this host, not to this one, or not now.
    #[error("host {0} sent a {1:?} that nothing led to")]
    Unexpected(u8, Kind),
    /// A host's time is further ahead than clocks drift.
    #[error("host {0} is {1} counts of the guest's clock ahead")]
    Clock(u8, u64),
}

/// Where a VM is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not all hosts are ready.
    Waiting,
    /// It runs, or stands still.
    Running,
    /// It has ended.
    Ended,
}

/// What a message asks the owner to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Todo {
    /// Nothing.
    Nothing,
    /// Offer the same message again after the next one of another host.
    Later,
    /// All hosts have the VM: its vCPUs may run, and at the first host vCPU 0 begins.
    Start,
    /// [`Kind::End`], [`Kind::Pause`] or [`Kind::Resume`], with its checked detail.
    Live(Kind, u8),
    /// Do what a vCPU of another host asks, and answer by [`Session::reply`]: any of [`Kind::CpuOn`] to [`Kind::Sgi`], whose
    /// vCPUs, size or interrupt exist; the address of an access is not checked.
    Asked(Message),
    /// A vCPU that waited goes on: [`Session::take_answer`] has the answer, or it asks again.
    Wake(u8),
    /// Own vCPUs that wait may go on: a vCPU that was on its way is where it goes.
    TryAgain,
    /// A vCPU of another host comes here, with the state behind the message: [`Session::arrived`] follows.
    Arrives(u8),
    /// The VM goes on without this host, and has ended here.
    Part,
}

/// What a vCPU has under way.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Hosts whose replies are missing.
    missing: Hosts,
    /// It waits for them.
    waits: bool,
    /// It asked, and has not taken the answer.
    has_asked: bool,
    answer: u64,
}

/// One host's part of a VM.
#[derive(Debug)]
pub struct Session {
    layout: Layout,
    host: u8,
    shape: u64,
    /// The longest that a peer's clock may be ahead, in counts.
    ahead_max: u64,
    life: u32,
    state: State,
    /// All hosts are in this one's membership: it can send to each.
    is_complete: bool,
    /// Of the first host: others that are ready.
    ready: Hosts,
    seats: Seats,
    slots: [Slot; VCPUS_MAX],
    /// Hosts that have left, and how far this one is.
    gone: Hosts,
    way: Way,
}

impl Session {
    /// Makes the part of `host`, which has a share. `shape` is a digest of the description, the same at all hosts.
    pub fn new(layout: Layout, host: u8, shape: u64, ahead_max: u64) -> Self {
        Self {
            layout,
            host,
            shape,
            ahead_max,
            life: 0,
            state: State::Waiting,
            is_complete: false,
            ready: 0,
            seats: Seats::new(&layout),
            slots: [Slot::default(); VCPUS_MAX],
            gone: 0,
            way: Way::Stays,
        }
    }

    /// Returns who has what.
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Returns where the VM is in its life.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Returns the number of the VM's life; 0 where no host has given one yet.
    pub const fn life(&self) -> u32 {
        self.life
    }

    /// Says that the VM is here and waits; again whenever the membership grows, `is_complete` once all its hosts are in. The
    /// first host gives `life`, a number that it gives no other life of the VM.
    pub fn announce(&mut self, life: u32, is_complete: bool, mut send: impl FnMut(u8, Message)) {
        self.is_complete = is_complete;
        if self.state == State::Waiting && self.host == self.layout.first() {
            // Whoever was ready may have come back since.
            (self.life, self.ready) = (life, 0);
            self.send_all(Kind::Offer, (0, self.shape), send);
        } else if self.state == State::Waiting && is_complete {
            send(self.layout.first(), self.message(Kind::Ready, (0, 0)));
        }
    }

    /// Tells all others that this host has ended, paused or resumed the VM.
    pub fn tell(&mut self, kind: Kind, detail: u8, send: impl FnMut(u8, Message)) {
        if self.state != State::Ended && self.life != 0 {
            self.send_all(kind, (detail, 0), send);
        }
        if kind == Kind::End {
            self.state = State::Ended;
        }
    }

    /// Returns the count to which the guest's clock must be set before a message is applied: forward, but for the start, before
    /// which no vCPU has run.
    ///
    /// # Errors
    /// It is further ahead than clocks drift.
    pub fn behind(&self, from: u8, bytes: &[u8], count: u64) -> Result<Option<u64>, Broken> {
        let (message, _) =
            Message::try_read_from_prefix(bytes).map_err(|_| Broken::Malformed(from))?;
        if !self.has(from) {
            return Ok(None);
        }
        if message.kind == Kind::Start && self.state == State::Waiting {
            return Ok(Some(message.count.get()));
        }
        let ahead = message.count.get().saturating_sub(count);
        let is_this = message.life.get() == self.life && self.state == State::Running;
        if is_this && ahead > self.ahead_max {
            return Err(Broken::Clock(from, ahead));
        }
        Ok((is_this && ahead > 0).then_some(message.count.get()))
    }

    /// Takes a message of another host. Messages of a life that has ended mean nothing, nor do those of hosts that have no
    /// share, which are about another VM, or have left.
    ///
    /// # Errors
    /// The message is not sound: the VM must end.
    pub fn receive(
        &mut self,
        from: u8,
        bytes: &[u8],
        mut send: impl FnMut(u8, Message),
    ) -> Result<Todo, Broken> {
        if !self.has(from) {
            return Ok(Todo::Nothing);
        }
        let malformed = Broken::Malformed(from);
        let m = Message::try_read_from_bytes(bytes).map_err(|_| malformed)?;
        let unexpected = Err(Broken::Unexpected(from, m.kind));
        if m.zero != 0 {
            return Err(malformed);
        }
        let first = self.layout.first();
        let is_allowed = match m.kind {
            Kind::Offer | Kind::Start => from == first,
            Kind::Ready | Kind::Load | Kind::Store => self.host == first,
            _ => true,
        };
        if !is_allowed || from == self.host {
            return unexpected;
        }
        let (is_this, waits) = (m.life.get() == self.life, self.state == State::Waiting);
        match m.kind {
            _ if self.state == State::Ended => Ok(Todo::Nothing),
            Kind::Offer | Kind::Ready => self.meet(from, &m, send).map_or(unexpected, Ok),
            _ if !is_this => Ok(Todo::Nothing),
            Kind::End if m.detail <= end::LAST => {
                self.state = State::Ended;
                // Before what this host says of another life.
                let others = self.others().filter(|host| *host != from);
                others.for_each(|host| send(host, m));
                Ok(Todo::Live(Kind::End, m.detail))
            }
            Kind::Start if waits => {
                self.state = State::Running;
                Ok(Todo::Start)
            }
            Kind::Start => unexpected,
            // A third host may have heard of the start sooner.
            _ if waits => Ok(Todo::Later),
            Kind::Pause | Kind::Resume if m.detail <= 1 => Ok(Todo::Live(m.kind, m.detail)),
            Kind::Reply => self.replied(from, &m).map_or(unexpected, Ok),
            Kind::Move | Kind::Held | Kind::Moved | Kind::State => {
                self.moves(from, &m, send).map_or(unexpected, Ok)
            }
            Kind::Leave | Kind::Left => self.parts(from, &m, send).map_or(unexpected, Ok),
            _ => self.meaning(from, &m),
        }
    }

    /// Takes an offer, or the word that a host is ready; `None` if it must not come.
    fn meet(&mut self, from: u8, m: &Message, mut send: impl FnMut(u8, Message)) -> Option<Todo> {
        let waits = self.state == State::Waiting;
        if m.kind == Kind::Offer {
            // The VM has ended on those that it has left, and begins anew; not all may answer that they let it go.
            if self.state == State::Running && matches!(self.way, Way::Parts(_)) {
                self.state = State::Ended;
                return Some(Todo::Part);
            }
            if !waits || m.life.get() == 0 {
                return None;
            }
            self.life = m.life.get();
            if m.at.get() != self.shape {
                self.tell(Kind::End, end::UNLIKE, send);
                return Some(Todo::Live(Kind::End, end::UNLIKE));
            }
            if self.is_complete {
                send(from, self.message(Kind::Ready, (0, 0)));
            }
            return Some(Todo::Nothing);
        }
        if !waits || self.life == 0 {
            return Some(Todo::Nothing);
        }
        if m.life.get() != self.life {
            // It came later than the offer, or was ready for another life.
            send(from, self.message(Kind::Offer, (0, self.shape)));
            return Some(Todo::Nothing);
        }
        self.ready |= bit(from);
        if !self.is_complete || self.others().any(|host| self.ready & bit(host) == 0) {
            return Some(Todo::Nothing);
        }
        self.state = State::Running;
        self.send_all(Kind::Start, (0, 0), send);
        Some(Todo::Start)
    }

    fn replied(&mut self, from: u8, m: &Message) -> Option<Todo> {
        let slot = self.slots.get_mut(usize::from(m.vcpu))?;
        if slot.missing & bit(from) == 0 {
            return None;
        }
        slot.missing &= !bit(from);
        slot.answer = m.value.get();
        let wakes = slot.missing == 0 && core::mem::take(&mut slot.waits);
        Some(if wakes {
            Todo::Wake(m.vcpu)
        } else {
            Todo::Nothing
        })
    }

    /// Answers what a vCPU of another host asked.
    pub fn reply(&self, asked: &Message, value: u64, mut send: impl FnMut(u8, Message)) {
        if let Some(host) = self.host_of(asked.vcpu) {
            let mut message = self.message(Kind::Reply, (0, 0));
            (message.vcpu, message.value) = (asked.vcpu, value.into());
            send(host, message);
        }
    }

    /// Asks the host of a vCPU or device on behalf of an own vCPU, which waits for [`Todo::Wake`] or [`Todo::TryAgain`] as long as
    /// [`Self::waits`] says. Then [`Self::take_answer`] has the answer, or `None`, as the vCPU had an SGI under way or that
    /// other vCPU is on its way or here, and it must ask again.
    pub fn ask(
        &mut self,
        vcpu: u8,
        (kind, detail, at, value): (Kind, u8, u64, u64),
        mut send: impl FnMut(u8, Message),
    ) {
        let mut message = self.message(kind, (detail, at));
        (message.vcpu, message.value) = (vcpu, value.into());
        let (to, is_held) = match kind {
            Kind::Load | Kind::Store => (Some(self.layout.first()), false),
            _ => (
                self.host_of(detail),
                detail != vcpu && self.seats.is_moving(detail),
            ),
        };
        let to = to.filter(|to| *to != self.host);
        let slot = &mut self.slots[usize::from(vcpu)];
        slot.waits = is_held || slot.missing != 0 || to.is_some();
        if let Some(to) = to.filter(|_| slot.missing == 0 && !is_held) {
            (slot.missing, slot.has_asked) = (bit(to), true);
            send(to, message);
        }
    }

    /// Sends an SGI of an own vCPU, with [`GROUP1_TOO`], to vCPUs of other hosts among `targets`, a bit each. Returns those of
    /// them that this host has, or `None` if the vCPU must wait for [`Todo::Wake`] or [`Todo::TryAgain`] and try again.
    pub fn send_sgi(
        &mut self,
        vcpu: u8,
        (sgi, targets): (u8, u64),
        mut send: impl FnMut(u8, Message),
    ) -> Option<u64> {
        let is_free = self.slots[usize::from(vcpu)].missing == 0;
        let can_go = is_free && targets & self.seats.moving() & !(1 << vcpu) == 0;
        for host in self.others().filter(|_| can_go) {
            let its = targets & self.seats.bits_of(host);
            if its != 0 {
                let mut message = self.message(Kind::Sgi, (sgi, its));
                message.vcpu = vcpu;
                self.slots[usize::from(vcpu)].missing |= bit(host);
                send(host, message);
            }
        }
        self.slots[usize::from(vcpu)].waits = !can_go;
        can_go.then(|| targets & self.seats.bits_of(self.host))
    }

    /// Returns whether an own vCPU must not go on yet.
    pub fn waits(&self, vcpu: u8) -> bool {
        self.slots[usize::from(vcpu)].waits
    }

    /// Takes the answer to what an own vCPU asked, if it did.
    pub fn take_answer(&mut self, vcpu: u8) -> Option<u64> {
        let slot = &mut self.slots[usize::from(vcpu)];
        let has_answer = slot.missing == 0 && core::mem::take(&mut slot.has_asked);
        has_answer.then_some(slot.answer)
    }

    /// Returns whether a host has a share, and has not left.
    fn has(&self, host: u8) -> bool {
        self.layout.has(host) && self.gone & bit(host) == 0
    }

    fn others(&self) -> impl Iterator<Item = u8> + use<> {
        let (own, gone) = (self.host, self.gone);
        let is_other = move |host: &u8| *host != own && gone & bit(*host) == 0;
        self.layout.hosts().filter(is_other)
    }

    fn send_all(&self, kind: Kind, body: (u8, u64), mut send: impl FnMut(u8, Message)) {
        self.others()
            .for_each(|host| send(host, self.message(kind, body)));
    }

    fn message(&self, kind: Kind, (detail, at): (u8, u64)) -> Message {
        Message {
            kind,
            detail,
            vcpu: 0,
            zero: 0,
            life: self.life.into(),
            count: 0.into(),
            at: at.into(),
            value: 0.into(),
        }
    }
}
