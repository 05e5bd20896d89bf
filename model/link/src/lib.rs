//! Messages between two hosts of a cluster: secret, exactly once and in order, over an Ethernet that loses, repeats,
//! reorders, delays and corrupts frames, and that others can write to.
//!
//! ```text
//!  Event::Send ──► Outgoing ─┐                                    ┌─► Incoming ──► Actions::deliver
//!    per lane      pieces    │ Channel::seal      Channel::open   │   pieces       per lane, in order
//!                  kept until├──────────► frame ──────────────────┤   kept until
//!                  they came │            report, pieces          │   whole and next
//!                            └◄── report: next, credit, SACK ◄────┘
//!  Actions::nonce ──► hello ◄─────── MAC by the cluster's key ──────► hello ◄── Actions::nonce
//! ```
//!
//! A [`Link`] is one host's end. The link has no clock, allocates nothing once it is made and has no randomness: [`Link::step`] takes the
//! time and an [`Event`], and all input and output goes through [`Actions`]. [`Event::Send`] and [`Event::Frame`] transmit
//! nothing; the owner calls [`Event::Tick`] for that, after a batch of them and at [`Link::deadline`].
//!
//! **Promise.** The messages that `deliver` takes on a lane between [`Actions::up`] and [`Actions::down`] are a prefix of
//! those that the peer sent on that lane in the same session, and all of them if enough frames get through. Urgent pieces
//! leave first; order between lanes is not kept. A session that is up ends only after a restart of the peer, or if the
//! peer breaks the protocol. Messages in flight are then lost, and the owner decides what follows.
//!
//! **Join.** A host without a session sends a hello with a nonce of its own. A hello that answers a nonce which no
//! session has used proves that its sender is alive and has the cluster's key, and a session begins. Its keys come from
//! both nonces, both hosts' numbers and the epoch. A host that has a session answers a hello by a challenge, and gives
//! the session up only for a hello that answers the challenge. Each nonce serves one session, so no two sessions have a
//! key in common, not even across restarts.
//!
//! **Strangers.** Foreign, old and replayed frames are dropped by their first 42 bytes, and counted ([`Counters`]).
//! A failed MAC of a hello costs work within a budget ([`HELLOS_MAX`]). A failed tag costs work once for each frame of the
//! peer, if the owner asks [`Link::admit`] of all frames as they come.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod channel;
mod cipher;
mod frames;
mod incoming;
mod join;
mod keys;
mod outgoing;
mod timing;
mod window;

pub use cipher::{ChaCha, Cipher, Iv, KEY_BYTES, Suite, Tag};
pub use keys::{Nonce, Secret};
pub use timing::Budget;

use abi::link::{
    LANES, MESSAGE_MAX, NONCE_BYTES, OPEN, PARTS_MAX, SEALED, SLOTS_MAX, Sealed, VERSION,
    piece_bytes,
};
use channel::Channel;
use incoming::Incoming;
use outgoing::Outgoing;
use timing::RoundTrip;
use zerocopy::FromBytes;

/// Budget of hellos whose MAC is computed. A hello that begins a session is not charged.
pub const HELLOS_MAX: u64 = 16;
/// Nanoseconds that add one to the budget of hellos.
pub const HELLO_EVERY_NS: u64 = 1_000_000;
/// Pieces in each window of a link between hosts. At 1 ms and 1 Gbit/s, 82 pieces of 1.4 KiB are on the wire, and a lost one
/// holds the window for two round trips or three.
pub const WINDOW: usize = 256;
/// A time that does not come.
pub const NEVER: u64 = u64::MAX;

/// Class of messages that are delivered in order among themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Short messages, at most [`abi::link::URGENT_MAX`] bytes, which leave first.
    Urgent = 0,
    /// Messages of at most [`abi::link::BULK_MAX`] bytes.
    Bulk = 1,
}

impl Lane {
    /// Both, in the order in which they leave.
    pub const ALL: [Self; LANES] = [Self::Urgent, Self::Bulk];

    /// Returns the bytes of the buffer that a link with so many slots needs for each direction of this lane.
    pub const fn buffer_bytes(self, slots: usize, frame_bytes: usize) -> usize {
        (slots + PARTS_MAX - 1) * piece_bytes(self as usize, frame_bytes)
    }
}

/// Reason why a message was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// No session is up; [`Actions::up`] tells when one is.
    #[error("the link has no session: wait until it is up")]
    NoSession,
    /// The peer has not taken enough of what is queued.
    #[error("the lane is full: send again when the peer has taken more")]
    Full,
    /// The message is longer than its lane allows.
    #[error("a message of {0} bytes is too long: at most {1} are allowed")]
    TooLong(usize, usize),
}

/// Reason why a frame was dropped, or proved nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// Too short, of another protocol or version, or between other hosts.
    Foreign,
    /// Of another cluster.
    Epoch,
    /// Of another session.
    Session,
    /// Replayed, or too far behind the latest frame to tell.
    Replayed,
    /// Wrong MAC, stamp or tag.
    Forged,
    /// The budget for hellos was used up.
    Unopened,
    /// Authentic hello or challenge that proved nothing; the peer may be answered.
    Unproved,
    /// The peer broke the protocol, and the session ended.
    Malformed,
    /// One of the hosts seals frames and the other does not.
    Open,
}

/// Reason why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Down {
    /// The peer was restarted: it proved that it has no session and begins another.
    #[error("it has begun another session")]
    Replaced,
    /// The peer broke the protocol in a frame under the session's key.
    #[error("it broke the protocol")]
    Malformed,
}

/// Input of a link.
#[derive(Debug)]
pub enum Event<'a> {
    /// A frame came, which [`Link::admit`] has not refused. It is decrypted in place.
    Frame(&'a mut [u8]),
    /// A message is to be sent: these slices, one after the other.
    Send(Lane, [&'a [u8]; 2]),
    /// Time has passed, frames or messages have come, or `transmit` or `deliver` are ready again.
    Tick,
}

/// Output of a link, and the random numbers that it needs.
pub trait Actions {
    /// Lets `fill` write a frame to a buffer of at least [`Settings::frame_bytes`], and sends as many bytes as `fill`
    /// returns. Returns `false`, without a call, if no buffer is free; the owner ticks when one is.
    fn transmit(&mut self, fill: impl FnOnce(&mut [u8]) -> usize) -> bool;
    /// Takes the next message of a lane. Returns `false` if the owner cannot take it now; the message is then offered
    /// again, at the next tick at the latest, and the peer's credit shrinks.
    fn deliver(&mut self, lane: Lane, message: &[u8]) -> bool;
    /// Returns random bits that nobody can foresee and that are never given again, not even after a restart.
    fn nonce(&mut self) -> Nonce;
    /// Notes that a session is up: the peer has it too, and messages can be sent.
    fn up(&mut self);
    /// Notes that the session has ended. Messages that were queued or in flight are lost.
    fn down(&mut self, why: Down);
}

/// Parameters of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// Number of this host in its cluster.
    pub host: u8,
    /// Number of the other.
    pub peer: u8,
    /// MAC addresses of this host and of the other.
    pub macs: [[u8; 6]; 2],
    /// Number of the cluster: frames of others are dropped.
    pub epoch: u32,
    /// Bytes of the longest frame, the same at both hosts.
    pub frame_bytes: usize,
    /// The shortest retransmission timeout, in nanoseconds: the latency of the peer's scheduling.
    pub timeout_floor_ns: u64,
    /// The longest delay of an acknowledgement that waits for a message to go with, in nanoseconds; the same at both
    /// hosts.
    pub delay_ns: u64,
    /// Nanoseconds between the first two hellos; the interval doubles up to 64 times this.
    pub hello_ns: u64,
    /// Frames are neither secret nor authentic, only hellos are; the same at both hosts. What a network or a stranger changes in
    /// a frame is taken as it is.
    pub is_open: bool,
    /// The best cipher that this host's CPUs have. A session has [`Suite::Aes`] if both hosts say so.
    pub suite: Suite,
}

impl Settings {
    /// Returns the version that frames of such a link have.
    const fn version(&self) -> u8 {
        let open = if self.is_open { OPEN } else { 0 };
        VERSION | open | self.suite.bit()
    }
}

/// Counts since the link was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counters {
    /// Frames sent, hellos included.
    pub sent: u64,
    /// Sealed frames that were opened.
    pub opened: u64,
    /// Pieces sent again.
    pub resent: u64,
    /// Timeouts.
    pub timeouts: u64,
    /// Sessions that were up.
    pub sessions: u64,
    /// Pieces received more than once.
    pub repeated: u64,
    /// Frames dropped, by [`Dropped`].
    pub dropped: [u64; Dropped::Open as usize + 1],
}

/// State of a session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Session<C> {
    mine: Nonce,
    theirs: Nonce,
    channel: Channel<C>,
    /// Whether a frame of the peer has come.
    is_up: bool,
    round_trip: RoundTrip,
    /// Counter of the frame whose round trip is measured, and when it was sent.
    timed: (u64, u64),
    /// When the first piece in flight is taken for lost.
    timeout_at: u64,
    /// When a report is due.
    report_at: u64,
    /// The next frame is to be answered at once.
    asks: bool,
}

impl<C> Session<C> {
    /// Returns the number that tells sessions of the same two hosts apart.
    fn number(&self) -> u32 {
        (0..4).fold(0, |number, n| {
            number << 8 | u32::from(self.mine[n] ^ self.theirs[n])
        })
    }
}

/// One host's end of a link. `C` seals frames. `B` is the memory of pieces, of which each lane keeps `SLOTS` in each
/// direction: a power of two.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Link<C, B, const SLOTS: usize> {
    settings: Settings,
    key: Secret,
    session: Option<Session<C>>,
    outgoing: [Outgoing<B, SLOTS>; LANES],
    incoming: [Incoming<B, SLOTS>; LANES],
    /// The nonce of the next session.
    fresh: Nonce,
    /// The peer's nonce that the next hello answers.
    heard: Nonce,
    /// Hello or challenge that is to be sent at the next tick.
    hello: Option<join::Due>,
    hello_at: u64,
    hellos_sent: u32,
    hellos: Budget<HELLOS_MAX, HELLO_EVERY_NS>,
    /// Counts; the owner may clear them.
    pub counters: Counters,
}

impl<C: Cipher, B: AsRef<[u8]> + AsMut<[u8]>, const SLOTS: usize> Link<C, B, SLOTS> {
    /// Makes a link without a session, which sends a hello at the first tick. `buffers` has those to send from, then those
    /// to receive in, by lane, of at least [`Lane::buffer_bytes`] each. `None` if one is shorter, if both hosts have one
    /// number, if frames are too short for a piece, or without memory.
    pub fn new(
        settings: Settings,
        key: Secret,
        buffers: [[B; LANES]; 2],
        nonce: Nonce,
    ) -> Option<Self> {
        const { assert!(SLOTS.is_power_of_two() && SLOTS <= SLOTS_MAX) };
        let fits = |(buffer, lane): (&B, Lane)| {
            let bytes = lane.buffer_bytes(SLOTS, settings.frame_bytes);
            bytes > 0 && buffer.as_ref().len() >= bytes
        };
        let all_fit = |buffers: &[B; LANES]| buffers.iter().zip(Lane::ALL).all(fits);
        if settings.host == settings.peer || !buffers.iter().all(all_fit) {
            return None;
        }
        let [urgent, bulk] = [0, 1].map(|lane| piece_bytes(lane, settings.frame_bytes));
        let [[sent, sent_bulk], [come, come_bulk]] = buffers;
        Some(Self {
            settings,
            key,
            session: None,
            outgoing: [
                Outgoing::new(sent, urgent)?,
                Outgoing::new(sent_bulk, bulk)?,
            ],
            incoming: [
                Incoming::new(come, urgent)?,
                Incoming::new(come_bulk, bulk)?,
            ],
            fresh: nonce,
            heard: [0; NONCE_BYTES],
            hello: None,
            hello_at: 0,
            hellos_sent: 0,
            hellos: Budget::default(),
            counters: Counters::default(),
        })
    }

    /// Handles an event at `now_ns`, a time that never goes back.
    ///
    /// # Errors
    /// For [`Event::Send`] only: why the message was not queued.
    pub fn step(
        &mut self,
        now_ns: u64,
        event: Event<'_>,
        actions: &mut impl Actions,
    ) -> Result<(), Refused> {
        match event {
            Event::Frame(frame) => {
                if let Err(why) = self.receive(now_ns, frame, actions) {
                    self.counters.dropped[why as usize] += 1;
                }
            }
            Event::Send(lane, message) => self.send(lane, message)?,
            Event::Tick => self.tick(now_ns, actions),
        }
        Ok(())
    }

    /// Queues a message: these slices, one after the other.
    ///
    /// # Errors
    /// Why it was not queued.
    pub fn send(&mut self, lane: Lane, message: [&[u8]; 2]) -> Result<(), Refused> {
        self.session().ok_or(Refused::NoSession)?;
        self.outgoing[lane as usize].push(message, MESSAGE_MAX[lane as usize])
    }

    /// Returns when to tick next even if nothing happens, or [`NEVER`].
    pub fn deadline(&self) -> u64 {
        let is_due = self.outgoing.iter().any(|lane| lane.due(0).is_some());
        if is_due || self.hello.is_some() || self.lacks_timeout() {
            return 0;
        }
        let session = self.session.as_ref();
        let session = session.map_or(NEVER, |session| session.report_at.min(session.timeout_at));
        session.min(self.hello_at)
    }

    /// Returns the number by which frames name the session that is up.
    pub fn session(&self) -> Option<u32> {
        let session = self.session.as_ref().filter(|session| session.is_up);
        session.map(Session::number)
    }

    /// Returns whether a frame of the session is worth an [`Event::Frame`]: it bears the peer's stamp, and is the first to come
    /// with its counter, which is used up then. A refused frame is counted. `None` for any other frame, such as a hello.
    pub fn admit(&mut self, frame: &[u8]) -> Option<bool> {
        let (head, _) = Sealed::ref_from_prefix(frame).ok()?;
        let kind = self.kind(frame);
        let session = self.session.as_mut().filter(|_| kind == Ok(SEALED))?;
        let channel = (session.number() == head.session.get()).then_some(&mut session.channel)?;
        let admitted = channel.admit(head.counter.get(), head.stamp.get());
        if let Err(why) = admitted {
            self.counters.dropped[why as usize] += 1;
        }
        Some(admitted.is_ok())
    }

    /// Returns how many pieces can be queued on a lane.
    pub const fn room(&self, lane: Lane) -> usize {
        self.outgoing[lane as usize].room()
    }

    /// Returns the cipher of the session, where there is one.
    pub fn suite(&self) -> Option<Suite> {
        self.session.as_ref()?.channel.suite()
    }

    /// Returns the smoothed round trip in nanoseconds; zero before the first sample.
    pub fn round_trip_ns(&self) -> u64 {
        let session = self.session.as_ref();
        session.map_or(0, |session| session.round_trip.smooth_ns)
    }

    /// Forgets the session and all messages, as if the link were made anew: no frame of the session opens any more. The
    /// owner is not told. Counters and budgets stay.
    pub fn restart(&mut self, nonce: Nonce) {
        self.forget();
        self.fresh = nonce;
    }

    fn tick(&mut self, now_ns: u64, actions: &mut impl Actions) {
        self.deliver_kept(actions);
        self.time_out(now_ns);
        self.greet(now_ns, actions);
        while self.is_due(now_ns) && actions.transmit(|frame| self.fill(now_ns, frame)) {}
        if self.lacks_timeout() {
            self.wait_for_answer(now_ns);
        }
    }

    /// Whether pieces are queued, and nothing asks for the answer to them or for credit: the report that gives it may be lost.
    fn lacks_timeout(&self) -> bool {
        let timeout_at = self.session.as_ref().map(|it| it.timeout_at);
        timeout_at == Some(NEVER) && self.outgoing.iter().any(Outgoing::is_busy)
    }

    /// Offers messages again that the owner refused.
    fn deliver_kept(&mut self, actions: &mut impl Actions) {
        let Some(session) = &mut self.session else {
            return;
        };
        for (lane, incoming) in Lane::ALL.into_iter().zip(&mut self.incoming) {
            match incoming.deliver(|message| actions.deliver(lane, message)) {
                // Nothing else would tell the peer of the new credit.
                Some(true) => session.report_at = 0,
                Some(false) => {}
                None => return self.end(Down::Malformed, actions),
            }
        }
    }

    /// Handles a passed timeout: the first piece in flight of each lane is lost, or else credit is asked for.
    fn time_out(&mut self, now_ns: u64) {
        let session = self.session.as_mut();
        let Some(session) = session.filter(|session| session.timeout_at <= now_ns) else {
            return;
        };
        self.counters.timeouts += 1;
        session.round_trip.doubled += 1;
        session.timed = (NEVER, 0);
        let lose = |is_lost, lane: &mut Outgoing<B, SLOTS>| lane.time_out() || is_lost;
        if !self.outgoing.iter_mut().fold(false, lose) {
            // Nothing is in flight: all waits for credit, and the report that gave credit was lost.
            session.asks = true;
            session.report_at = 0;
        }
        self.wait_for_answer(now_ns);
    }

    /// Sets the timeout if pieces are queued or in flight.
    fn wait_for_answer(&mut self, now_ns: u64) {
        let (floor_ns, delay_ns) = (self.settings.timeout_floor_ns, self.settings.delay_ns);
        if let Some(session) = &mut self.session {
            let wait = session.round_trip.timeout_ns(floor_ns, delay_ns);
            session.timeout_at = if self.outgoing.iter().any(Outgoing::is_busy) {
                now_ns.saturating_add(wait)
            } else {
                // Nobody waits for an answer any more. If it is lost, the next one says nothing of the round trip.
                session.timed = (NEVER, 0);
                NEVER
            };
        }
    }

    /// Returns whether a sealed frame is to be sent.
    fn is_due(&self, now_ns: u64) -> bool {
        let is_due = |session: &Session<C>| {
            let has_piece = || self.outgoing.iter().any(|lane| lane.due(0).is_some());
            session.report_at <= now_ns || has_piece()
        };
        self.session.as_ref().is_some_and(is_due)
    }

    /// Begins a session, which is up once a frame of the peer has come.
    fn begin(&mut self, now_ns: u64, theirs: Nonce, suite: Suite, actions: &mut impl Actions) {
        if self.session.is_some() {
            self.end(Down::Replaced, actions);
        }
        let settings = &self.settings;
        let mine = core::mem::replace(&mut self.fresh, actions.nonce());
        let hosts = [(settings.host, &mine), (settings.peer, &theirs)];
        let secret = self.key.session(settings.epoch, hosts);
        self.session = Some(Session {
            channel: Channel::new(
                (!settings.is_open).then_some(secret),
                suite,
                [settings.host, settings.peer],
            ),
            mine,
            theirs,
            is_up: false,
            round_trip: RoundTrip::default(),
            timed: (NEVER, 0),
            timeout_at: NEVER,
            report_at: 0,
            asks: false,
        });
        self.hello_at = now_ns.saturating_add(settings.hello_ns);
        self.hellos_sent = 0;
    }

    /// Ends the session and forgets all messages.
    fn end(&mut self, why: Down, actions: &mut impl Actions) {
        let was_up = self.session().is_some();
        self.forget();
        if was_up {
            actions.down(why);
        }
    }

    fn forget(&mut self) {
        self.session = None;
        self.hello = None;
        self.heard = [0; NONCE_BYTES];
        self.outgoing.iter_mut().for_each(Outgoing::reset);
        self.incoming.iter_mut().for_each(Incoming::reset);
        self.hello_at = 0;
        self.hellos_sent = 0;
    }
}
