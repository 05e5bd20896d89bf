//! Membership of a cluster: which hosts share guests, and until when each of them may run what it shares.
//!
//! ```text
//!  session up ─► Description ─► fits? ─no─► Standing::Unfit, which names the field
//!                                 │yes
//!  leader ─► Propose(id, lives) ─►│ accept: every host that is owed a promise is in it
//!                                 ▼
//!  all ◄── Beat(number) ──────► all: Beat(echo, with, accepted) = a promise, and its proof
//!                                 │ all have accepted, and promise
//!                                 ▼
//!                    membership: runs until the oldest proof is T_stop old
//!                                 │ a member is silent for T_declare, restarts, or leaves
//!                                 ▼
//!                    this host leaves: a new life, alone, until the next proposal
//! ```
//!
//! A [`Membership`] is one host's part. It has no clock, allocates nothing and has no randomness: [`Membership::step`]
//! takes the time of the host's own clock and an [`Event`]; all output goes through [`Actions`]. Messages between two
//! hosts must come exactly once and in order within a session, as `model/link` has it.
//!
//! **Promise and proof.** A host that answers a beat of a host with which it shares, or is about to, promises to accept no
//! membership without that host for [`Settings::declare_ns`] from then on. The answer proves the promise to the other host,
//! which counts from the time at which it *sent* the beat, and runs what it shares for [`Settings::stop_ns`] from then. The
//! beat left before it was answered, and T_stop is shorter than T_declare on clocks that drift by [`DRIFT_PPM`]. So a host
//! has stopped before others go on without it. One that leaves may have answered a beat just before: until
//! [`Membership::owes_until`] the other may run.
//!
//! **Fail-stop.** A member that is silent stops all others. If it stays silent they leave, and so does every host that hears
//! of it. What they shared ends: none continues alone. A host that leaves begins a new *life*, and so does one that
//! restarts; a membership consists of lives, so a host that comes back is a new one.
//!
//! **Growth.** A membership is replaced without a stop by one that has all its lives and more. The leader proposes one:
//! the host with the lowest number among those that hear each other. Its number is in the id, so two leaders never give
//! two memberships one id. One that restarts may give an id again, as it has forgotten it: to hosts of which none has
//! accepted the first, as the id is higher than all that members have accepted. A host enters when the beats of all
//! members say that they have accepted it, so no host has to commit. Hosts that a broken network divides have one
//! membership on each side, and share nothing across.
//!
//! **Farewell.** A host that shares nothing any more says so, of its life, and is silent until it restarts. Each member takes
//! that life out of its membership and owes it nothing; the others' promises stay as they are. The leader then proposes a
//! membership of those that are left.
#![no_std]
#![forbid(unsafe_code)]

mod agree;
mod beats;
mod farewell;
mod fit;
mod view;

pub use abi::cluster::{Description, HOSTS_MAX};
pub use fit::{Unfit, common, differences};
pub use view::View;

use abi::cluster::FEATURES_MAX;
use beats::next;
use zerocopy::little_endian::U64;

/// A time that does not come.
pub const NEVER: u64 = u64::MAX;
/// The most that a host's clock may drift, in parts per million.
pub const DRIFT_PPM: u64 = 100;

/// Parameters of a membership, the same at all hosts but `host`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// Number of this host.
    pub host: u8,
    /// Nanoseconds between two beats to a host.
    pub beat_ns: u64,
    /// How long a host runs what it shares after a beat that was answered (T_stop), in nanoseconds.
    pub stop_ns: u64,
    /// How long a host keeps a promise, and when it takes a silent member for dead (T_declare), in nanoseconds.
    pub declare_ns: u64,
}

impl Settings {
    /// Returns the default: beats each 0.1 s, a stop after 1.5 s, a declaration after 2 s.
    pub const fn new(host: u8) -> Self {
        Self {
            host,
            beat_ns: 100_000_000,
            stop_ns: 1_500_000_000,
            declare_ns: 2_000_000_000,
        }
    }

    /// Returns whether a slow clock's T_stop is over before a quick clock's T_declare.
    const fn are_safe(&self) -> bool {
        let stop = self.stop_ns as u128 * (1_000_000 + DRIFT_PPM) as u128;
        let declare = self.declare_ns as u128 * (1_000_000 - DRIFT_PPM) as u128;
        self.beat_ns < self.stop_ns && stop < declare
    }
}

/// Input of a membership. Hosts are named by their numbers.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// The link has a session with the host.
    Up(u8),
    /// The session with the host has ended.
    Down(u8),
    /// A message of the host.
    Message(u8, &'a [u8]),
    /// Time has passed, or a message can be sent again.
    Tick,
}

/// Change of what this host may share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// A membership begins that has all members of the last one, and more.
    Grown,
    /// A member is silent: what is shared has stopped at [`Membership::runs_until`].
    Stopped,
    /// All members have answered: what is shared may run again.
    Resumed,
    /// The host is lost, and what was shared with any member has ended. This host is alone, in a new life. The owner makes
    /// its links anew, so that no message of the old membership comes any more.
    Lost(u8),
    /// The host has left on purpose, and the membership goes on without it.
    Left(u8),
}

/// Output of a membership.
pub trait Actions {
    /// Sends a message on the urgent lane to a host. Returns `false` if it cannot be queued now; it is made again at the
    /// next tick.
    fn send(&mut self, host: u8, message: &[u8]) -> bool;
    /// Notes a change.
    fn changed(&mut self, change: Change);
}

/// Standing of another host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Standing {
    /// No session.
    #[default]
    Away,
    /// A session, and no description yet.
    Unknown,
    /// The host cannot join.
    Unfit(Unfit),
    /// The host can join.
    Fit,
    /// The host has left, and has not restarted.
    Left,
}

/// Another host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Peer {
    standing: Standing,
    life: u64,
    /// What the host said that it is, and whether this one has said it.
    description: Option<Description>,
    is_described: bool,
    /// The last beat that asks for an answer: its number, when it was sent, whether it was answered.
    number: u32,
    sent_at: u64,
    is_answered: bool,
    /// When the latest beat was sent that this life answered; and the latest whose answer is a promise.
    heard_at: Option<u64>,
    proof_at: Option<u64>,
    /// The latest membership that the host accepted.
    accepted: u64,
    /// The beat that is to be answered, or 0, and whether one is to be sent without being asked.
    owes: u32,
    is_due: bool,
    /// The latest promise: when it was given, and to which life.
    promised: Option<(u64, u64)>,
}

impl Peer {
    fn is_within(at: Option<u64>, now: u64, ns: u64) -> bool {
        at.is_some_and(|at| now < at.saturating_add(ns))
    }
}

/// One host's part of a cluster of `HOSTS`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Membership<const HOSTS: usize> {
    settings: Settings,
    own: Description,
    peers: [Peer; HOSTS],
    view: View<HOSTS>,
    /// The proposal that was accepted last, until it is entered.
    pending: Option<View<HOSTS>>,
    accepted: u64,
    is_stopped: bool,
    /// A member has left since this membership was entered: another one is proposed.
    has_parted: bool,
    propose_at: u64,
    /// The life that this host has left on purpose, or 0; and hosts that may still wait for it, a bit each.
    retired: u64,
    partners: u16,
    /// What [`Self::runs_until`] and [`Self::deadline`] give: they are asked for far more often than anything happens.
    times: [u64; 2],
}

impl<const HOSTS: usize> Membership<HOSTS> {
    /// Makes a host that is alone, in the life of its description. The owner must never give a life twice, and leaves as
    /// many after it unused as the host may lose memberships. `None` if the host has no number among `HOSTS`, its life is
    /// 0, or the times are not safe.
    pub fn new(settings: Settings, own: Description) -> Option<Self> {
        const { assert!(HOSTS <= HOSTS_MAX) };
        let is_sound = usize::from(settings.host) < HOSTS && own.life.get() != 0;
        (is_sound && settings.are_safe()).then(|| Self {
            view: View::alone(settings.host, own.life.get()),
            peers: core::array::from_fn(|_| Peer::default()),
            pending: None,
            accepted: 0,
            is_stopped: false,
            has_parted: false,
            propose_at: 0,
            retired: 0,
            partners: 0,
            // Nobody else's promise lapses, and the first tick is due.
            times: [NEVER, 0],
            settings,
            own,
        })
    }

    /// Handles an event at `now_ns`, a time of this host's clock, which never goes back. Only [`Event::Tick`] sends
    /// messages: the owner ticks after a batch of others, and at [`Self::deadline`].
    pub fn step(&mut self, now_ns: u64, event: Event<'_>, actions: &mut impl Actions) {
        match event {
            Event::Up(host) => self.session(host, Standing::Unknown),
            Event::Down(host) => self.session(host, Standing::Away),
            Event::Message(host, message) => self.receive(now_ns, host, message, actions),
            Event::Tick => self.tick(now_ns, actions),
        }
        self.keep_times();
    }

    fn keep_times(&mut self) {
        self.times = [self.promised_until(), self.due_at()];
    }

    /// Returns the number of this host.
    pub const fn host(&self) -> u8 {
        self.settings.host
    }

    /// Returns the membership that this host is in.
    pub const fn view(&self) -> &View<HOSTS> {
        &self.view
    }

    /// Returns the standing of a host.
    pub fn standing(&self, host: u8) -> Standing {
        let peer = self.peers.get(usize::from(host));
        peer.map_or(Standing::Away, |peer| peer.standing)
    }

    /// Returns what a host said that it is, in its present session.
    pub fn description(&self, host: u8) -> Option<&Description> {
        self.peers.get(usize::from(host))?.description.as_ref()
    }

    /// Returns the time before which what is shared may run: a CPU that enters a guest compares it with its clock.
    pub const fn runs_until(&self) -> u64 {
        self.times[0]
    }

    fn promised_until(&self) -> u64 {
        let times = self.others(&self.view).map(|host| self.proof(host));
        let first = times.min().unwrap_or(Some(NEVER));
        first.map_or(0, |at| at.saturating_add(self.settings.stop_ns))
    }

    /// Returns the time until which a host that is no member may still run what it shared with this one.
    pub fn owes_until(&self) -> u64 {
        let promise = |(host, peer): (usize, &Peer)| match peer.promised {
            Some((at, life)) if self.view.lives[host] != life => {
                at.saturating_add(self.settings.declare_ns)
            }
            _ => 0,
        };
        self.peers
            .iter()
            .enumerate()
            .map(promise)
            .max()
            .unwrap_or(0)
    }

    /// Returns the ID registers that all members have in common, in the order of a description.
    pub fn features(&self) -> [U64; FEATURES_MAX] {
        let others = self.others(&self.view);
        let said = others.filter_map(|host| self.peers[host].description);
        said.fold(self.own.features, |all, it| common(&all, &it.features))
    }

    /// Returns when to tick next even if nothing happens.
    pub const fn deadline(&self) -> u64 {
        self.times[1]
    }

    fn due_at(&self) -> u64 {
        let is_retired = self.is_retired();
        let beat = |peer: &Peer| match peer.standing {
            Standing::Away => NEVER,
            it if is_retired || it == Standing::Left => [NEVER, 0][usize::from(peer.is_due)],
            _ if !peer.is_described => 0,
            Standing::Fit if peer.is_due || peer.owes != 0 => 0,
            Standing::Fit if peer.is_answered => self.beat_at(peer),
            _ => NEVER,
        };
        let beats = self.peers.iter().map(beat).min().unwrap_or(NEVER);
        let stop = self.promised_until();
        let until_lost = self.settings.declare_ns - self.settings.stop_ns;
        let behind = if self.is_stopped { until_lost } else { 0 };
        let lapse = stop.saturating_add(behind);
        beats.min(lapse).min(self.propose_at)
    }

    fn beat_at(&self, peer: &Peer) -> u64 {
        match peer.number {
            0 => 0,
            _ => peer.sent_at.saturating_add(self.settings.beat_ns),
        }
    }

    /// Returns the other members of a membership.
    fn others(&self, view: &View<HOSTS>) -> impl Iterator<Item = usize> + use<HOSTS> {
        let (lives, own) = (view.lives, usize::from(self.settings.host));
        (0..HOSTS).filter(move |host| *host != own && lives[*host] != 0)
    }

    /// Returns when the beat was sent whose answer is the latest promise of a member, in the life that it is a member in.
    fn proof(&self, host: usize) -> Option<u64> {
        let peer = &self.peers[host];
        peer.proof_at.filter(|_| peer.life == self.view.lives[host])
    }

    /// Begins or ends a session. A member whose session ended has no proof any more, so that the next tick finds it lost.
    fn session(&mut self, host: u8, standing: Standing) {
        let own = self.settings.host;
        let is_retired = self.is_retired();
        let peer = self.peers.get_mut(usize::from(host));
        if let Some(peer) = peer.filter(|_| host != own) {
            // Whoever was in a session that ends takes this host for lost, or has ended.
            self.partners &= !(1 << host);
            *peer = Peer {
                standing,
                promised: peer.promised,
                is_answered: true,
                is_due: is_retired,
                ..Peer::default()
            };
        }
    }

    /// Leaves the membership for a new life, as a member is lost.
    fn leave(&mut self, lost: u8, actions: &mut impl Actions) {
        self.begin_life();
        self.propose_at = 0;
        for peer in &mut self.peers {
            // Answers to beats of the last life are of no use.
            (peer.heard_at, peer.proof_at) = (None, None);
            (peer.is_answered, peer.is_due) = (true, peer.standing == Standing::Fit);
            peer.number = next(peer.number);
        }
        actions.changed(Change::Lost(lost));
    }
}
