//! Frames: taken apart, and put together.

use crate::incoming::Incoming;
use crate::{Actions, Cipher, Down, Dropped, Lane, Link, NEVER};
use abi::link::{
    ASK, BODY_AT, CHALLENGE, ETHERTYPE, HELLO, LANES, NO_AES, OPEN, Piece, Prefix, Report, SEALED,
    Sealed, TAG_BYTES, VERSION, WORDS_MAX,
};
use core::mem::replace;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

impl<C: Cipher, B: AsRef<[u8]> + AsMut<[u8]>, const SLOTS: usize> Link<C, B, SLOTS> {
    /// Takes a frame, or drops it.
    pub(crate) fn receive(
        &mut self,
        now_ns: u64,
        frame: &mut [u8],
        actions: &mut impl Actions,
    ) -> Result<(), Dropped> {
        match self.kind(frame)? {
            SEALED => self.unseal(now_ns, frame, actions),
            _ => self.greeted(now_ns, frame, actions),
        }
    }

    /// Returns the kind of a frame that says that the peer sends it to this host, in this cluster.
    pub(crate) fn kind(&self, frame: &[u8]) -> Result<u8, Dropped> {
        let (prefix, _) = Prefix::read_from_prefix(frame).map_err(|_| Dropped::Foreign)?;
        let settings = &self.settings;
        let version = prefix.version & !NO_AES;
        let is_ours = (prefix.ethertype, version & !OPEN) == (ETHERTYPE, VERSION)
            && (prefix.from, prefix.to) == (settings.peer, settings.host);
        match prefix.kind {
            _ if !is_ours => Err(Dropped::Foreign),
            _ if version != settings.version() & !NO_AES => Err(Dropped::Open),
            _ if prefix.epoch.get() != settings.epoch => Err(Dropped::Epoch),
            HELLO | CHALLENGE | SEALED => Ok(prefix.kind),
            _ => Err(Dropped::Foreign),
        }
    }

    fn unseal(
        &mut self,
        now_ns: u64,
        frame: &mut [u8],
        actions: &mut impl Actions,
    ) -> Result<(), Dropped> {
        let (head, _) = Sealed::read_from_prefix(frame).map_err(|_| Dropped::Foreign)?;
        let session = self.session.as_mut();
        let session = session.filter(|session| session.number() == head.session.get());
        let session = session.ok_or(Dropped::Session)?;
        let body = session.channel.open(head.counter.get(), frame)?;
        self.counters.opened += 1;
        if !replace(&mut session.is_up, true) {
            self.counters.sessions += 1;
            self.hello_at = NEVER;
            actions.up();
        }
        let is_sound = self.read(now_ns, body, actions).is_some();
        if !is_sound {
            self.end(Down::Malformed, actions);
        }
        is_sound.then_some(()).ok_or(Dropped::Malformed)
    }

    /// Applies the body of an authentic frame; `None` where the peer broke the protocol.
    fn read(&mut self, now_ns: u64, body: &[u8], actions: &mut impl Actions) -> Option<()> {
        let (report, mut rest) = Report::ref_from_prefix(body).ok()?;
        let session = self.session.as_mut()?;
        let seen = report.seen.get();
        if seen > session.channel.sealed {
            return None;
        }
        if session.timed.0 <= seen {
            let (_, sent_at) = replace(&mut session.timed, (NEVER, 0));
            session.round_trip.sample(now_ns.saturating_sub(sent_at));
        }
        let mut news = false;
        for lane in 0..LANES {
            let report = report.lanes[lane];
            let (words, behind) =
                <[U64]>::ref_from_prefix_with_elems(rest, report.words.into()).ok()?;
            news |= self.outgoing[lane].report(report, words, seen)?;
            rest = behind;
        }
        let asks = report.flags & ASK != 0;
        let mut at_once = asks;
        for _ in 0..report.pieces {
            let (piece, behind) = Piece::ref_from_prefix(rest).ok()?;
            let (bytes, behind) = behind.split_at_checked(piece.bytes.get().into())?;
            let lane = *Lane::ALL.get(usize::from(piece.lane))?;
            let take = |message: &[u8]| actions.deliver(lane, message);
            let again = self.incoming[lane as usize].accept(piece, bytes, take)?;
            self.counters.repeated += u64::from(again);
            at_once |= again;
            rest = behind;
        }
        if asks || report.pieces > 0 {
            // Every second frame is answered at once.
            at_once |= session.report_at != NEVER;
            at_once |= self.incoming.iter().any(Incoming::has_gap);
            let later = now_ns.saturating_add(self.settings.delay_ns);
            session.report_at = if at_once { 0 } else { later };
        }
        if news {
            session.round_trip.doubled = 0;
            self.wait_for_answer(now_ns);
        }
        rest.is_empty().then_some(())
    }

    /// Writes the next sealed frame; returns its length.
    pub(crate) fn fill(&mut self, now_ns: u64, frame: &mut [u8]) -> usize {
        let prefix = self.prefix(SEALED);
        let Some(session) = &mut self.session else {
            return 0;
        };
        let room = self.settings.frame_bytes - TAG_BYTES;
        let counter = session.channel.next();
        let head = Sealed {
            prefix,
            session: session.number().into(),
            stamp: session.channel.stamp(counter).into(),
            counter: counter.into(),
        };
        let asks = replace(&mut session.asks, false);
        let mut report = Report {
            seen: session.channel.opened.highest.into(),
            flags: if asks { ASK } else { 0 },
            ..Report::default()
        };
        let mut at = BODY_AT + size_of::<Report>();
        for (n, lane) in self.incoming.iter().enumerate() {
            report.lanes[n] = lane.report(WORDS_MAX[n], &mut frame[at..]);
            at += 8 * usize::from(report.lanes[n].words);
        }
        for (n, lane) in self.outgoing.iter_mut().enumerate() {
            while let Some((piece, bytes)) = lane.due(n as u8) {
                if report.pieces == u8::MAX || at + size_of::<Piece>() + bytes.len() > room {
                    break;
                }
                put(frame, &mut at, piece.as_bytes());
                put(frame, &mut at, bytes);
                report.pieces += 1;
                self.counters.resent += u64::from(lane.sent(piece.number.get(), counter));
            }
        }
        put(frame, &mut 0, head.as_bytes());
        put(frame, &mut { BODY_AT }, report.as_bytes());
        session.channel.seal(&mut frame[..at + TAG_BYTES]);
        if session.timed.0 == NEVER && (report.pieces > 0 || asks) {
            session.timed = (counter, now_ns);
        }
        session.report_at = NEVER;
        self.counters.sent += 1;
        at + TAG_BYTES
    }
}

fn put(frame: &mut [u8], at: &mut usize, bytes: &[u8]) {
    frame[*at..*at + bytes.len()].copy_from_slice(bytes);
    *at += bytes.len();
}
