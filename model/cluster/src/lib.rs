//! One host of a cluster: a link to each other host, and the membership of all.
//!
//! ```text
//!  frame ──► Cluster::frame ──► Link of its sender ──► urgent message ──► Membership
//!  time  ──► Cluster::work  ──► a Link that is due, or else Membership ──► Link of each receiver ──► Owner::transmit
//! ```
//!
//! A [`Cluster`] has no clock, allocates nothing and has no randomness. Each call of [`Cluster::frame`] and
//! [`Cluster::work`] is a piece of bounded work, so that the owner can look at other things in between.
//!
//! **Messages.** What is not the membership's goes to [`Owner::message`], and [`Cluster::send`] sends it, to members only. The
//! first byte of a message is its kind: below 0x40 of `abi::coherence`, [`abi::cluster::DESCRIPTION`] to
//! [`abi::cluster::BEAT`] of the membership, others of whoever shares something.
//!
//! **Leaving.** A host that loses its membership restarts all its links, so that no message of that membership comes any more.
//! Whoever shares something ends it at [`Change::Lost`].
//!
//! **Strangers.** A peer's frame is let in by its stamp, once; any other costs a token of a budget: of [`STRANGE_MAX`], and one
//! more each [`STRANGE_EVERY_NS`]. The owner drops frames unread which find none ([`Cluster::admit`]), so strangers
//! cannot keep members' frames from being heard, nor take the room in which they wait, but by members' frames that they kept
//! back.
#![no_std]
#![forbid(unsafe_code)]

mod ends;
mod probe;
mod waiting;

pub use abi::cluster::{Description, HOSTS_MAX};
pub use model_membership::Change;
pub use probe::{PAGE_BYTES, Probes};
pub use waiting::Waiting;

use abi::link::{Prefix, URGENT_MAX};
use ends::{Changes, End, Sender};
use model_link::{Budget, Cipher, Down, Lane, Link, NEVER, Nonce, Refused};
use model_membership::{Event, Membership, Settings, Standing, Unfit};
use zerocopy::FromBytes;

/// Budget of frames without a stamp of a session: strangers' ones, hellos, frames that the network repeats.
pub const STRANGE_MAX: u64 = 128;
/// Nanoseconds that add one to it.
pub const STRANGE_EVERY_NS: u64 = 50_000;
/// The most frames that a piece of work sends.
pub const FRAMES_AT_ONCE: u32 = 8;
/// The most messages that a piece of work takes: a frame that fills a gap brings all behind it.
pub const MESSAGES_AT_ONCE: u32 = 4;
/// The shortest time between two ticks of the membership, and until a card without room or an owner that refused a message
/// is tried again, in nanoseconds.
pub const TICK_NS: u64 = 100_000;
/// Urgent messages that only the membership may queue.
const KEPT_FOR_BEATS: usize = 2;
/// After so many pieces of links the membership has its turn, if something is due: they offer all messages that a window brings.
const PIECES_MOST: u32 = 64;
/// After so many frames, what is due has its turn: frames may always wait.
const FRAMES_MOST: u32 = 16;

/// What a host's owner is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// The link to the host has a session.
    Up(u8),
    /// The session has ended.
    Down(u8, Down),
    /// The host cannot join.
    Unfit(u8, Unfit),
    /// What this host may share has changed.
    Changed(Change),
}

/// Output of a host, and the random numbers that it needs.
pub trait Owner {
    /// As [`model_link::Actions::transmit`].
    fn transmit(&mut self, fill: impl FnOnce(&mut [u8]) -> usize) -> bool;
    /// As [`model_link::Actions::nonce`].
    fn nonce(&mut self) -> Nonce;
    /// Returns whether a piece of work makes no further frame, but leaves the rest to the next piece.
    fn is_late(&self) -> bool {
        false
    }
    /// Notes what has happened.
    fn told(&mut self, news: News);
    /// Takes a message of that host which is not the membership's. Returns `false` if the owner cannot take it now; it is
    /// offered again by [`Cluster::work`], each [`TICK_NS`], and those behind it wait.
    fn message(&mut self, from: u8, message: &[u8]) -> bool;
}

/// Another host, as this one sees it.
#[derive(Clone, Debug)]
pub struct Peer<C, B, const SLOTS: usize> {
    /// Number of the host.
    pub host: u8,
    /// Link to it.
    pub link: Link<C, B, SLOTS>,
    /// Bytes of frames sent, and of those that opened.
    pub bytes: [u64; 2],
    /// Probes to it and from it.
    pub probes: Probes,
}

/// One host of a cluster.
#[derive(Debug)]
pub struct Cluster<'a, C, B, const SLOTS: usize> {
    membership: Membership<HOSTS_MAX>,
    own: Description,
    peers: &'a mut [Peer<C, B, SLOTS>],
    /// The peer whose link is looked at first.
    next: usize,
    /// Of frames without a stamp.
    strangers: Budget<STRANGE_MAX, STRANGE_EVERY_NS>,
    /// When the membership may tick again, and when the card may have room.
    tick_at: u64,
    room_at: u64,
    /// Messages or sessions have come since the membership ticked.
    has_news: bool,
    /// Pieces of links since the last tick.
    pieces: u32,
    /// Frames since the last turn of what is due.
    frames: u32,
    /// Bit n: a message of host n is offered again; and when, after the owner has refused one.
    kept: u16,
    offer_at: u64,
    /// Frames dropped while deaf, and by no peer's number.
    pub unheard: u64,
}

impl<'a, C: Cipher, B: AsRef<[u8]> + AsMut<[u8]>, const SLOTS: usize> Cluster<'a, C, B, SLOTS> {
    /// Makes a host that is alone. `None` if the settings or the life of its description are not sound
    /// ([`Membership::new`]).
    pub fn new(
        settings: Settings,
        own: Description,
        peers: &'a mut [Peer<C, B, SLOTS>],
    ) -> Option<Self> {
        Some(Self {
            membership: Membership::new(settings, own)?,
            own,
            peers,
            next: 0,
            strangers: Budget::default(),
            tick_at: 0,
            room_at: 0,
            has_news: false,
            kept: 0,
            offer_at: 0,
            unheard: 0,
            pieces: 0,
            frames: 0,
        })
    }

    /// Returns the membership.
    pub const fn membership(&self) -> &Membership<HOSTS_MAX> {
        &self.membership
    }

    /// Returns what this host said that it is.
    pub const fn own(&self) -> &Description {
        &self.own
    }

    /// Returns the other hosts.
    pub const fn peers(&self) -> &[Peer<C, B, SLOTS>] {
        self.peers
    }

    /// Returns whether to keep a frame that has come for [`Self::frame`], and whether others like it are worth a look. A peer's
    /// own frame is, once; for any other one there has to be a token.
    pub fn admit(&mut self, now_ns: u64, frame: &[u8]) -> [bool; 2] {
        let at = self.sender(frame);
        let of_session = at.and_then(|at| self.peers[at].link.admit(frame));
        let is_worth = of_session == Some(true) || self.strangers.take(now_ns);
        self.unheard += u64::from(!is_worth && of_session.is_none());
        [is_worth && of_session != Some(false), is_worth]
    }

    /// Returns which of the peers a frame says that it is from.
    fn sender(&self, frame: &[u8]) -> Option<usize> {
        let (prefix, _) = Prefix::ref_from_prefix(frame).ok()?;
        self.peers.iter().position(|peer| peer.host == prefix.from)
    }

    /// Does a piece: what is due if no frame waits, or many were taken, and else that frame. Returns whether it was taken, and
    /// whether there was anything to do.
    pub fn piece(
        &mut self,
        now_ns: u64,
        waits: Option<&mut [u8]>,
        owner: &mut impl Owner,
    ) -> [bool; 2] {
        if waits.is_none() || self.frames == FRAMES_MOST {
            self.frames = 0;
            if self.work(now_ns, owner) {
                return [false, true];
            }
        }
        let is_taken = waits.is_some();
        if let Some(frame) = waits {
            self.frames += 1;
            self.frame(now_ns, frame, owner);
        }
        [is_taken; 2]
    }

    /// Takes a frame, which is decrypted in place, or drops it.
    pub fn frame(&mut self, now_ns: u64, frame: &mut [u8], owner: &mut impl Owner) {
        let Some(at) = self.sender(frame) else {
            self.unheard += 1;
            return;
        };
        let peer = &mut self.peers[at];
        let (bytes, before) = (frame.len() as u64, peer.link.counters.opened);
        let event = model_link::Event::Frame(frame);
        let [_, is_kept, _] = End::step(peer, &mut self.membership, owner, (now_ns, event));
        self.kept |= u16::from(is_kept) << peer.host;
        if peer.link.counters.opened != before {
            peer.bytes[1] += bytes;
            peer.probes.waits = false;
            self.has_news = true;
        }
    }

    /// Does a piece of what is due; `false` if nothing is.
    pub fn work(&mut self, now_ns: u64, owner: &mut impl Owner) -> bool {
        // A link may always have more to send, and beats are to leave all the same.
        let is_turn = self.pieces >= PIECES_MOST && self.membership.deadline() <= now_ns;
        if now_ns >= self.room_at && !(is_turn && now_ns >= self.tick_at) {
            let all = self.peers.len();
            for n in 0..all {
                let at = (self.next + n) % all;
                let peer = &mut self.peers[at];
                let is_offered = self.kept & bit(peer.host) != 0 && now_ns >= self.offer_at;
                if peer.link.deadline() > now_ns && !is_offered {
                    continue;
                }
                self.next = (at + 1) % all;
                self.pieces = self.pieces.saturating_add(1);
                let event = (now_ns, model_link::Event::Tick);
                let [is_blocked, is_kept, is_refused] =
                    End::step(peer, &mut self.membership, owner, event);
                self.kept = self.kept & !bit(peer.host) | u16::from(is_kept) << peer.host;
                let later = now_ns.saturating_add(TICK_NS);
                if is_blocked {
                    self.room_at = later;
                }
                if is_refused {
                    self.offer_at = later;
                }
                self.has_news = true;
                return true;
            }
        }
        let is_due = self.has_news || self.membership.deadline() <= now_ns;
        let ticks = is_due && now_ns >= self.tick_at;
        if ticks {
            self.tick(now_ns, owner);
        }
        let probe = |Peer { link, probes, .. }: &mut Peer<C, B, SLOTS>| {
            probes.send(now_ns, |lane, parts| link.send(lane, parts).is_ok())
        };
        ticks || self.peers.iter_mut().any(probe)
    }

    /// Leaves the membership, which goes on ([`Membership::has_left`]).
    pub fn retire(&mut self) {
        self.membership.retire();
        self.has_news = true;
    }

    /// Begins a probe of the link to a host, in place of the one before; `false` if there is no session with it.
    pub fn probe(&mut self, host: u32, messages: u32, lane: Lane) -> bool {
        let mut peers = self.peers.iter_mut();
        let peer = peers.find(|peer| u32::from(peer.host) == host);
        let peer = peer.filter(|peer| messages > 0 && peer.link.session().is_some());
        peer.map(|peer| peer.probes.begin(messages, lane)).is_some()
    }

    /// Returns when to work next even if nothing happens.
    pub fn deadline(&self) -> u64 {
        let links = self.peers.iter().map(|peer| peer.link.deadline());
        let links = links.min().unwrap_or(NEVER);
        let offers = if self.kept == 0 { NEVER } else { self.offer_at };
        let links = links.min(offers).max(self.room_at);
        if self.peers.iter().any(|peer| peer.probes.is_due()) {
            return 0;
        }
        let own = (!self.has_news).then(|| self.membership.deadline());
        links.min(own.unwrap_or(0).max(self.tick_at))
    }

    /// Queues a message to a member: these slices, one after the other, of which the first byte is the kind. At most
    /// [`URGENT_MAX`] bytes are urgent; others come later than urgent ones that were sent after them. [`Self::work`] sends it.
    ///
    /// # Errors
    /// The host is no member; or as [`model_link::Event::Send`].
    pub fn send(&mut self, host: u8, message: [&[u8]; 2]) -> Result<(), Refused> {
        let lives = &self.membership.view().lives;
        let is_in = lives.get(usize::from(host)).is_some_and(|life| *life != 0);
        let peer = self.peers.iter_mut().find(|peer| peer.host == host);
        let peer = peer.filter(|_| is_in).ok_or(Refused::NoSession)?;
        let lane = match message[0].len() + message[1].len() {
            ..=URGENT_MAX if peer.link.room(Lane::Urgent) <= KEPT_FOR_BEATS => {
                return Err(Refused::Full);
            }
            ..=URGENT_MAX => Lane::Urgent,
            _ => Lane::Bulk,
        };
        peer.link.send(lane, message)
    }

    fn tick(&mut self, now_ns: u64, owner: &mut impl Owner) {
        (self.has_news, self.pieces) = (false, 0);
        self.tick_at = now_ns.saturating_add(TICK_NS);
        let mut sender = Sender {
            peers: &mut *self.peers,
            owner,
            is_lost: false,
        };
        self.membership.step(now_ns, Event::Tick, &mut sender);
        if !sender.is_lost {
            return;
        }
        self.kept = 0;
        for peer in &mut *self.peers {
            peer.link.restart(owner.nonce());
            let down = Event::Down(peer.host);
            self.membership.step(now_ns, down, &mut Changes(owner));
        }
    }

    /// Returns the standing of a peer: what is known of it, and whether it is a member.
    pub fn standing(&self, host: u8) -> (Standing, bool) {
        let lives = &self.membership.view().lives;
        let life = lives.get(usize::from(host)).copied().unwrap_or(0);
        (self.membership.standing(host), life != 0)
    }
}

/// Bit of a host in a set.
const fn bit(host: u8) -> u16 {
    1 << host
}
