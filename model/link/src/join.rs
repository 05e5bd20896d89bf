//! Hellos and challenges: how a session begins, and why a replayed hello cannot begin one.

use crate::{Actions, Cipher, Link, Nonce};
use abi::link::{ETHERTYPE, HELLO_BYTES, Hello, Kind, NONCE_BYTES, Prefix, TAG_BYTES, VERSION};
use zerocopy::{FromBytes, IntoBytes};

/// Times that the time between hellos is doubled, at most.
const DOUBLED_MAX: u32 = 6;

/// A hello or challenge that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Due {
    is_challenge: bool,
    mine: Nonce,
    theirs: Nonce,
}

impl Due {
    const fn new(is_challenge: bool, mine: Nonce, theirs: Nonce) -> Self {
        Self {
            is_challenge,
            mine,
            theirs,
        }
    }
}

impl<C: Cipher, B: AsRef<[u8]> + AsMut<[u8]>, const SLOTS: usize> Link<C, B, SLOTS> {
    /// Prefix of a frame to the peer.
    pub(crate) fn prefix(&self, kind: Kind) -> Prefix {
        let settings = &self.settings;
        Prefix {
            macs: [settings.macs[1], settings.macs[0]],
            ethertype: ETHERTYPE,
            version: VERSION,
            kind: kind as u8,
            from: settings.host,
            to: settings.peer,
            epoch: settings.epoch.into(),
        }
    }

    /// Checks a hello or a challenge, within the budget.
    pub(crate) fn greeted(
        &mut self,
        now_ns: u64,
        kind: Kind,
        frame: &[u8],
        actions: &mut impl Actions,
    ) {
        let hello = Hello::ref_from_prefix(&frame[size_of::<Prefix>()..]);
        let Some((hello, [])) = hello.ok() else {
            self.counters.foreign += 1;
            return;
        };
        if !self.hellos.take(now_ns) {
            self.counters.unopened += 1;
            return;
        }
        let head = &frame[..HELLO_BYTES - TAG_BYTES];
        if !self.key.has_made(&hello.tag, head) {
            self.counters.forged += 1;
            return;
        }
        if kind == Kind::Hello {
            self.hello(now_ns, hello.mine, hello.theirs, actions);
        } else {
            self.challenge(now_ns, hello.mine, hello.theirs, actions);
        }
    }

    /// Handles a hello: the peer has no session, or has one that this host has not confirmed.
    fn hello(&mut self, now_ns: u64, theirs: Nonce, mine: Nonce, actions: &mut impl Actions) {
        match &mut self.session {
            // The hello belongs to the present session. A peer that lacks the session learns of it by this host's hellos.
            Some(session) if session.theirs == theirs => {
                session.report_now |= session.mine == mine;
            }
            _ if mine == self.fresh => self.prove(now_ns, theirs, actions),
            session => {
                self.counters.unproved += 1;
                let is_challenge = session.is_some();
                if !is_challenge {
                    self.heard = theirs;
                }
                self.hello = Some(Due::new(is_challenge, self.fresh, theirs));
            }
        }
    }

    /// Handles a challenge: the peer has a session, perhaps from before a restart of this host, and wants a proof.
    fn challenge(&mut self, now_ns: u64, theirs: Nonce, mine: Nonce, actions: &mut impl Actions) {
        match &self.session {
            None if mine == self.fresh => self.prove(now_ns, theirs, actions),
            // This session answers a nonce that the peer has used for another, or lost in a restart.
            Some(session)
                if !session.is_confirmed && session.mine == mine && session.theirs != theirs =>
            {
                self.hello = Some(Due::new(false, self.fresh, theirs));
            }
            _ => self.counters.unproved += 1,
        }
    }

    /// Begins a session: the peer answered a nonce that no session has used, so it is alive and has the key.
    fn prove(&mut self, now_ns: u64, theirs: Nonce, actions: &mut impl Actions) {
        let mine = self.fresh;
        self.hellos.give(1);
        self.begin(theirs, actions);
        self.hello = Some(Due::new(false, mine, theirs));
        self.hello_at = now_ns.saturating_add(self.settings.hello_ns);
    }

    /// Sends the hello or challenge that is due.
    pub(crate) fn greet(&mut self, now_ns: u64, actions: &mut impl Actions) {
        let again = match &self.session {
            Some(session) if session.is_confirmed => None,
            _ if now_ns < self.hello_at => None,
            Some(session) => Some(Due::new(false, session.mine, session.theirs)),
            None => Some(Due::new(false, self.fresh, self.heard)),
        };
        let Some(due) = self.hello.or(again) else {
            return;
        };
        let mut bytes = 0;
        if !actions.transmit(|frame| {
            bytes = self.write_hello(due, frame);
            bytes
        }) || bytes == 0
        {
            return;
        }
        self.counters.sent += 1;
        if self.hello.take().is_none() {
            let wait = self.settings.hello_ns << self.hellos_sent.min(DOUBLED_MAX);
            self.hello_at = now_ns.saturating_add(wait);
            self.hellos_sent += 1;
        }
    }

    fn write_hello(&self, due: Due, frame: &mut [u8]) -> usize {
        let kind = if due.is_challenge {
            Kind::Challenge
        } else {
            Kind::Hello
        };
        let mut hello = Hello {
            mine: due.mine,
            theirs: due.theirs,
            tag: [0; TAG_BYTES],
        };
        let mut head = [0; HELLO_BYTES];
        let (prefix, rest) = head.split_at_mut(size_of::<Prefix>());
        prefix.copy_from_slice(self.prefix(kind).as_bytes());
        rest.copy_from_slice(hello.as_bytes());
        hello.tag = self.key.tag(&head[..HELLO_BYTES - TAG_BYTES]);
        head[HELLO_BYTES - TAG_BYTES..].copy_from_slice(&hello.tag);
        match frame.get_mut(..HELLO_BYTES) {
            Some(frame) => frame.copy_from_slice(&head),
            None => return 0,
        }
        HELLO_BYTES
    }
}

const _: () = assert!(2 * NONCE_BYTES + TAG_BYTES == size_of::<Hello>());
