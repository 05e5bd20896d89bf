//! Frames: taken apart, and put together.

use crate::incoming::{Fate, Incoming};
use crate::{Actions, Cipher, Down, Lane, Link};
use abi::link::{
    ASK, BODY_AT, ETHERTYPE, Kind, LANES, Piece, Prefix, Report, SLOTS_MAX, Sealed, TAG_BYTES,
    VERSION, WORDS_MAX,
};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

/// Body of a frame, of which counts and lengths are checked.
struct Body<'a> {
    report: &'a Report,
    words: [&'a [U64]; LANES],
    pieces: &'a [u8],
}

impl<'a> Body<'a> {
    fn read(body: &'a [u8]) -> Option<Self> {
        let (report, mut rest) = Report::ref_from_prefix(body).ok()?;
        let mut words: [&[U64]; LANES] = [&[]; LANES];
        for lane in 0..LANES {
            let count = usize::from(report.lanes[lane].words);
            if count > WORDS_MAX[lane] {
                return None;
            }
            (words[lane], rest) = <[U64]>::ref_from_prefix_with_elems(rest, count).ok()?;
        }
        let pieces = rest;
        for _ in 0..report.pieces {
            (_, rest) = next_piece(rest)?;
        }
        rest.is_empty().then_some(Self {
            report,
            words,
            pieces,
        })
    }
}

/// A piece, its lane and its bytes, then the pieces behind it.
type FirstPiece<'a> = ((&'a Piece, Lane, &'a [u8]), &'a [u8]);

/// Splits the first piece off; `None` where it is cut short or its lane does not exist.
fn next_piece(pieces: &[u8]) -> Option<FirstPiece<'_>> {
    let (piece, rest) = Piece::ref_from_prefix(pieces).ok()?;
    let lane = *Lane::ALL.get(usize::from(piece.lane))?;
    let (bytes, rest) = rest.split_at_checked(piece.bytes.get().into())?;
    Some(((piece, lane, bytes), rest))
}

/// Consequences of a frame for the session.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    /// The frame had a piece or a question.
    wants_answer: bool,
    /// The frame had a piece that had come before, or a question.
    at_once: bool,
    /// The frame acknowledged a piece, or gave credit.
    news: bool,
}

impl<C: Cipher, B: AsRef<[u8]> + AsMut<[u8]>, const SLOTS: usize> Link<C, B, SLOTS> {
    /// Takes a frame: drops it by its first bytes, or passes it on by its kind.
    pub(crate) fn receive(&mut self, now_ns: u64, frame: &mut [u8], actions: &mut impl Actions) {
        let prefix = Prefix::read_from_prefix(frame).ok();
        let settings = &self.settings;
        let Some((prefix, _)) = prefix.filter(|(prefix, _)| {
            prefix.ethertype == ETHERTYPE
                && prefix.version == VERSION
                && (prefix.from, prefix.to) == (settings.peer, settings.host)
        }) else {
            self.counters.foreign += 1;
            return;
        };
        if prefix.epoch.get() != settings.epoch {
            self.counters.epoch += 1;
            return;
        }
        match Kind::of(prefix.kind) {
            Some(Kind::Sealed) => self.sealed(now_ns, frame, actions),
            Some(kind) => self.greeted(now_ns, kind, frame, actions),
            None => self.counters.foreign += 1,
        }
    }

    fn sealed(&mut self, now_ns: u64, frame: &mut [u8], actions: &mut impl Actions) {
        let counters = &mut self.counters;
        let Ok((sealed, _)) = Sealed::read_from_prefix(&frame[size_of::<Prefix>()..]) else {
            counters.foreign += 1;
            return;
        };
        let session = self.session.as_mut();
        let Some(session) = session.filter(|s| s.number() == sealed.session.get()) else {
            counters.session += 1;
            return;
        };
        if !session.channel.may_open(sealed.counter.get()) {
            counters.replayed += 1;
            return;
        }
        if !self.forgeries.take(now_ns) {
            counters.unopened += 1;
            return;
        }
        let Some(body) = session.channel.open(sealed.counter.get(), frame) else {
            counters.forged += 1;
            return;
        };
        // Puts back the one taken above, and earns one more.
        self.forgeries.give(2);
        counters.opened += 1;
        if !core::mem::replace(&mut session.is_confirmed, true) {
            counters.sessions += 1;
            actions.up();
        }
        match self.read(now_ns, body, actions) {
            Some(found) => self.found(now_ns, found),
            None => self.end(Down::Malformed, actions),
        }
    }

    /// Applies the body of an authentic frame; `None` where the peer broke the protocol.
    fn read(&mut self, now_ns: u64, body: &[u8], actions: &mut impl Actions) -> Option<Found> {
        let body = Body::read(body)?;
        let session = self.session.as_mut()?;
        let seen = body.report.seen.get();
        if seen > session.channel.sealed() {
            return None;
        }
        if let Some((_, sent_at)) = session.timed.filter(|(counter, _)| *counter <= seen) {
            session.round_trip.sample(now_ns.saturating_sub(sent_at));
            session.timed = None;
        }
        let asks = body.report.flags & ASK != 0;
        let mut found = Found {
            wants_answer: asks || body.report.pieces > 0,
            at_once: asks,
            news: false,
        };
        for (n, lane) in self.outgoing.iter_mut().enumerate() {
            found.news |= lane.report(&body.report.lanes[n], body.words[n], seen)?;
        }
        let mut rest = body.pieces;
        for _ in 0..body.report.pieces {
            let ((piece, lane, bytes), behind) = next_piece(rest)?;
            rest = behind;
            let mut take = |message: &[u8]| {
                let is_taken = actions.deliver(lane, message);
                self.counters.delivered += u64::from(is_taken);
                is_taken
            };
            let incoming = &mut self.incoming[lane as usize];
            match incoming.accept(piece, bytes, &mut take) {
                Fate::New => {}
                Fate::Repeated => {
                    self.counters.repeated += 1;
                    found.at_once = true;
                }
                Fate::Malformed => return None,
            }
            incoming.deliver(take)?;
        }
        Some(found)
    }

    /// Schedules the report that a frame asks for, and restarts the timeout if the frame brought news.
    fn found(&mut self, now_ns: u64, found: Found) {
        let has_gap = self.incoming.iter().any(Incoming::has_gap);
        let Some(session) = &mut self.session else {
            return;
        };
        if found.wants_answer {
            if session.owed == 0 {
                session.owed_until = now_ns.saturating_add(self.settings.delay_ns);
            }
            session.owed += 1;
            session.report_now |= found.at_once || has_gap || session.owed > 1;
        }
        if found.news {
            session.round_trip.answered();
            self.wait_for_answer(now_ns);
        }
    }

    /// Writes the next sealed frame; gives its length, or zero where the buffer is too short.
    pub(crate) fn fill(&mut self, now_ns: u64, frame: &mut [u8]) -> usize {
        let prefix = self.prefix(Kind::Sealed);
        let Some(session) = &mut self.session else {
            return 0;
        };
        let Some(frame) = frame.get_mut(..self.settings.frame_bytes) else {
            return 0;
        };
        let counter = session.channel.next();
        let sealed = Sealed {
            session: session.number().into(),
            counter: counter.into(),
        };
        let mut report = Report {
            seen: session.channel.seen().into(),
            flags: if session.ask { ASK } else { 0 },
            ..Report::default()
        };
        let mut writer = Writer {
            frame: &mut *frame,
            at: BODY_AT + size_of::<Report>(),
        };
        for (n, lane) in self.incoming.iter().enumerate() {
            let words: [U64; SLOTS_MAX / 64];
            (report.lanes[n], words) = lane.report(WORDS_MAX[n]);
            writer.put(words[..usize::from(report.lanes[n].words)].as_bytes());
        }
        for lane in Lane::ALL {
            let outgoing = &mut self.outgoing[lane as usize];
            while let Some(due) = outgoing.due() {
                let number = due.number;
                let piece = Piece {
                    number: number.into(),
                    bytes: (due.bytes.len() as u16).into(),
                    parts: due.part << 4 | due.parts,
                    lane: lane as u8,
                };
                if report.pieces == u8::MAX || !writer.fits(size_of::<Piece>() + due.bytes.len()) {
                    break;
                }
                writer.put(piece.as_bytes());
                writer.put(due.bytes);
                report.pieces += 1;
                self.counters.resent += u64::from(outgoing.sent(number, counter));
            }
        }
        let bytes = writer.at + TAG_BYTES;
        for (at, part) in [
            (0, prefix.as_bytes()),
            (size_of::<Prefix>(), sealed.as_bytes()),
            (BODY_AT, report.as_bytes()),
        ] {
            Writer { frame, at }.put(part);
        }
        session.channel.seal(&mut frame[..bytes]);
        if report.pieces > 0 || session.ask {
            session.timed.get_or_insert((counter, now_ns));
        }
        (session.owed, session.report_now, session.ask) = (0, false, false);
        bytes
    }
}

/// Position in a frame that is being written, with room for the tag at its end.
struct Writer<'a> {
    frame: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn fits(&self, bytes: usize) -> bool {
        self.at + bytes + TAG_BYTES <= self.frame.len()
    }

    fn put(&mut self, bytes: &[u8]) {
        self.frame[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }
}
