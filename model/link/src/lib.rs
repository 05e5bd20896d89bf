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
//! A [`Link`] is one host's end. The link has no clock, allocates nothing and has no randomness: [`Link::step`] takes the
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
//! **Strangers.** Foreign, old and replayed frames are dropped by their first 34 bytes, and counted ([`Counters`]).
//! Failed MACs and tags cost work only within a budget: [`FORGERIES_MAX`], [`HELLOS_MAX`].
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod channel;
mod cipher;
mod frames;
mod incoming;
mod join;
mod keys;
mod outgoing;
mod timing;

pub use cipher::{Aes128Gcm, Cipher, IV_BYTES, KEY_BYTES, TAG_BYTES};
pub use keys::{ClusterKey, Nonce};

use abi::link::{BODY_AT, LANES, MESSAGE_MAX, NONCE_BYTES, PARTS_MAX, SLOTS_MAX, piece_bytes};
use channel::Channel;
use incoming::Incoming;
use outgoing::Outgoing;
use timing::{Budget, RoundTrip};

/// Budget of frames that fail to open. A frame that opens adds one, and so does each [`FORGERY_EVERY_NS`]: beyond that
/// rate, at most half of all openings are for strangers. Sealed frames are dropped unopened while the budget is used up.
pub const FORGERIES_MAX: u32 = 64;
/// Nanoseconds that add one to the budget of failures.
pub const FORGERY_EVERY_NS: u64 = 100_000;
/// Budget of hellos whose MAC is computed. A hello that begins a session is not charged.
pub const HELLOS_MAX: u32 = 16;
/// Nanoseconds that add one to the budget of hellos.
pub const HELLO_EVERY_NS: u64 = 1_000_000;

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
    #[error("a message of {bytes} bytes is too long: at most {bytes_max} are allowed")]
    TooLong {
        /// Bytes of the message.
        bytes: usize,
        /// Bytes that the lane allows.
        bytes_max: usize,
    },
}

/// Reason why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Down {
    /// The peer was restarted: it proved that it has no session and begins another.
    Replaced,
    /// The peer broke the protocol in a frame under the session's key.
    Malformed,
}

/// Input of a link.
#[derive(Debug)]
pub enum Event<'a> {
    /// A frame came, which is decrypted in place.
    Frame(&'a mut [u8]),
    /// A message is to be sent: these slices, one after the other.
    Send(Lane, [&'a [u8]; 2]),
    /// Time has passed, frames or messages have come, or `transmit` or `deliver` are ready again.
    Tick,
}

/// Output of a link, and the random numbers that it needs.
pub trait Actions {
    /// Lets `fill` write a frame, and sends as many bytes as `fill` returns. Returns `false`, without a call, if no buffer
    /// of [`Settings::frame_bytes`] is free; the owner ticks when one is.
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
    /// Number of the cluster's membership: frames of other epochs are dropped.
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
}

/// Counts since the link was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counters {
    /// Frames sent, hellos included.
    pub sent: u64,
    /// Frames that were opened.
    pub opened: u64,
    /// Messages delivered.
    pub delivered: u64,
    /// Pieces sent again.
    pub resent: u64,
    /// Timeouts.
    pub timeouts: u64,
    /// Sessions that were up.
    pub sessions: u64,
    /// Pieces received more than once.
    pub repeated: u64,
    /// Dropped: too short, of another protocol or version, between other hosts.
    pub foreign: u64,
    /// Dropped: of another epoch.
    pub epoch: u64,
    /// Dropped: of another session.
    pub session: u64,
    /// Dropped: replayed, or too far behind the latest frame to tell.
    pub replayed: u64,
    /// Dropped: wrong MAC or tag.
    pub forged: u64,
    /// Dropped: the budget for forgeries or hellos was used up.
    pub unopened: u64,
    /// Authentic hellos and challenges that proved nothing.
    pub unproved: u64,
    /// Sessions that ended because the peer broke the protocol.
    pub malformed: u64,
}

/// State of a session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Session<C> {
    mine: Nonce,
    theirs: Nonce,
    channel: Channel<C>,
    /// Whether a frame of the peer has come, so that the session is up.
    is_confirmed: bool,
    round_trip: RoundTrip,
    /// Counter of the frame whose round trip is measured, and when it was sent.
    timed: Option<(u64, u64)>,
    /// When the first piece in flight is taken for lost.
    timeout_at: Option<u64>,
    /// Frames received that wait for a report, and until when.
    owed: u32,
    owed_until: u64,
    /// A report is to be sent at once.
    report_now: bool,
    /// An answer is to be asked for.
    ask: bool,
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
    key: ClusterKey,
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
    hellos: Budget,
    forgeries: Budget,
    /// Counts; the owner may clear them.
    pub counters: Counters,
}

impl<C: Cipher, B: AsRef<[u8]> + AsMut<[u8]>, const SLOTS: usize> Link<C, B, SLOTS> {
    /// Makes a link without a session, which sends a hello at the first tick. `buffers` has those to send from, then those
    /// to receive in, by lane, of at least [`Lane::buffer_bytes`] each. `None` if one is shorter, if both hosts have one
    /// number, or if frames are too short for a piece.
    pub fn new(
        settings: Settings,
        key: ClusterKey,
        buffers: [[B; LANES]; 2],
        nonce: Nonce,
    ) -> Option<Self> {
        const { assert!(SLOTS.is_power_of_two() && SLOTS <= SLOTS_MAX) };
        let bytes = |lane: Lane| piece_bytes(lane as usize, settings.frame_bytes);
        let fits = |lane: Lane, buffer: &B| {
            buffer.as_ref().len() >= lane.buffer_bytes(SLOTS, settings.frame_bytes)
        };
        let all_fit =
            |[urgent, bulk]: &[B; LANES]| fits(Lane::Urgent, urgent) && fits(Lane::Bulk, bulk);
        if settings.host == settings.peer
            || bytes(Lane::Urgent) == 0
            || !buffers.iter().all(all_fit)
        {
            return None;
        }
        let [[urgent_out, bulk_out], [urgent_in, bulk_in]] = buffers;
        Some(Self {
            settings,
            key,
            session: None,
            outgoing: [
                Outgoing::new(urgent_out, bytes(Lane::Urgent)),
                Outgoing::new(bulk_out, bytes(Lane::Bulk)),
            ],
            incoming: [
                Incoming::new(urgent_in, bytes(Lane::Urgent)),
                Incoming::new(bulk_in, bytes(Lane::Bulk)),
            ],
            fresh: nonce,
            heard: [0; NONCE_BYTES],
            hello: None,
            hello_at: 0,
            hellos_sent: 0,
            hellos: Budget::new(HELLOS_MAX, HELLO_EVERY_NS),
            forgeries: Budget::new(FORGERIES_MAX, FORGERY_EVERY_NS),
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
            Event::Frame(frame) => self.receive(now_ns, frame, actions),
            Event::Send(lane, message) => {
                if !self.is_up() {
                    return Err(Refused::NoSession);
                }
                let lane = lane as usize;
                self.outgoing[lane].push(message, MESSAGE_MAX[lane])?;
            }
            Event::Tick => self.tick(now_ns, actions),
        }
        Ok(())
    }

    /// Returns when to tick next even if nothing happens; `None` if nothing is waited for.
    pub fn deadline(&self) -> Option<u64> {
        let hello = match &self.session {
            _ if self.hello.is_some() => Some(0),
            Some(session) if session.is_confirmed => None,
            _ => Some(self.hello_at),
        };
        let session = self.session.as_ref();
        let report = session.and_then(|session| match session.owed {
            _ if session.report_now || session.ask => Some(0),
            0 => None,
            _ => Some(session.owed_until),
        });
        let pieces = self.outgoing.iter().any(|lane| lane.due().is_some());
        let timeout = session.and_then(|session| session.timeout_at);
        [hello, report, timeout, pieces.then_some(0)]
            .into_iter()
            .flatten()
            .min()
    }

    /// Returns whether a session is up.
    pub fn is_up(&self) -> bool {
        self.session
            .as_ref()
            .is_some_and(|session| session.is_confirmed)
    }

    /// Returns the number by which frames name the session that is up.
    pub fn session(&self) -> Option<u32> {
        let session = self.session.as_ref().filter(|session| session.is_confirmed);
        session.map(Session::number)
    }

    /// Returns how many pieces can be queued on a lane.
    pub const fn room(&self, lane: Lane) -> usize {
        self.outgoing[lane as usize].room()
    }

    /// Returns the smoothed round trip in nanoseconds; zero before the first sample.
    pub fn round_trip_ns(&self) -> u64 {
        let session = self.session.as_ref();
        session.map_or(0, |session| session.round_trip.smooth_ns())
    }

    fn tick(&mut self, now_ns: u64, actions: &mut impl Actions) {
        self.deliver_kept(actions);
        self.time_out(now_ns);
        self.greet(now_ns, actions);
        while self.is_due(now_ns) {
            let mut bytes = 0;
            let fill = |frame: &mut [u8]| {
                bytes = self.fill(now_ns, frame);
                bytes
            };
            if !actions.transmit(fill) || bytes == 0 {
                break;
            }
            self.counters.sent += 1;
        }
        if self
            .session
            .as_ref()
            .is_some_and(|session| session.timeout_at.is_none())
        {
            self.wait_for_answer(now_ns);
        }
    }

    /// Offers messages again that the owner refused.
    fn deliver_kept(&mut self, actions: &mut impl Actions) {
        let mut is_sound = true;
        for lane in Lane::ALL {
            let take = |message: &[u8]| {
                let is_taken = actions.deliver(lane, message);
                self.counters.delivered += u64::from(is_taken);
                is_taken
            };
            match self.incoming[lane as usize].deliver(take) {
                Some(0) => {}
                // Nothing else would tell the peer of the new credit.
                Some(_) => self.session.iter_mut().for_each(|s| s.report_now = true),
                None => is_sound = false,
            }
        }
        if !is_sound {
            self.end(Down::Malformed, actions);
        }
    }

    /// Handles a passed timeout: the first piece in flight of each lane is lost, or else credit is asked for.
    fn time_out(&mut self, now_ns: u64) {
        let Some(session) = &mut self.session else {
            return;
        };
        if session.timeout_at.is_none_or(|at| now_ns < at) {
            return;
        }
        self.counters.timeouts += 1;
        session.round_trip.back_off();
        session.timed = None;
        let mut is_lost = false;
        for lane in &mut self.outgoing {
            is_lost |= lane.time_out();
        }
        // Nothing is in flight: all waits for credit, and the report that gave credit was lost.
        session.ask = !is_lost;
        session.timeout_at = None;
        self.wait_for_answer(now_ns);
    }

    /// Sets the timeout if pieces are queued or in flight.
    fn wait_for_answer(&mut self, now_ns: u64) {
        let is_busy = self.outgoing.iter().any(Outgoing::is_busy);
        let Some(session) = &mut self.session else {
            return;
        };
        let Settings {
            timeout_floor_ns,
            delay_ns,
            ..
        } = self.settings;
        let wait = session.round_trip.timeout_ns(timeout_floor_ns, delay_ns);
        session.timeout_at = is_busy.then_some(now_ns.saturating_add(wait));
    }

    /// Returns whether a sealed frame is to be sent.
    fn is_due(&self, now_ns: u64) -> bool {
        let Some(session) = &self.session else {
            return false;
        };
        let is_owed = session.owed > 0 && session.owed_until <= now_ns;
        let has_piece = || self.outgoing.iter().any(|lane| lane.due().is_some());
        session.report_now || session.ask || is_owed || has_piece()
    }

    /// Begins a session, which is up once a frame of the peer has come.
    fn begin(&mut self, theirs: Nonce, actions: &mut impl Actions) {
        if self.session.is_some() {
            self.end(Down::Replaced, actions);
        }
        let Settings {
            host, peer, epoch, ..
        } = self.settings;
        let mine = core::mem::replace(&mut self.fresh, actions.nonce());
        let secret = self.key.session(epoch, [(host, &mine), (peer, &theirs)]);
        self.session = Some(Session {
            channel: Channel::new(secret, [host, peer]),
            mine,
            theirs,
            is_confirmed: false,
            round_trip: RoundTrip::default(),
            timed: None,
            timeout_at: None,
            owed: 0,
            owed_until: 0,
            report_now: true,
            ask: false,
        });
        self.hellos_sent = 0;
    }

    /// Ends the session and forgets all messages.
    fn end(&mut self, why: Down, actions: &mut impl Actions) {
        let was_up = self.is_up();
        self.session = None;
        self.hello = None;
        self.heard = [0; NONCE_BYTES];
        self.outgoing.iter_mut().for_each(Outgoing::reset);
        self.incoming.iter_mut().for_each(Incoming::reset);
        self.hello_at = 0;
        self.hellos_sent = 0;
        self.counters.malformed += u64::from(why == Down::Malformed);
        if was_up {
            actions.down(why);
        }
    }
}

const _: () = assert!(BODY_AT == 34);
