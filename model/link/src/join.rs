//! Hellos and challenges: how a session begins, and why a replayed hello cannot begin one.

use crate::{Actions, Cipher, Dropped, Link, Nonce, Suite};
use abi::link::{CHALLENGE, ETHERTYPE, HELLO, HELLO_BYTES, Hello, Prefix, TAG_BYTES};
use zerocopy::{FromBytes, transmute};

/// A hello or challenge that is to be sent: its kind, and both nonces.
pub(crate) type Due = (u8, Nonce, Nonce);

impl<C: Cipher, B: AsRef<[u8]> + AsMut<[u8]>, const SLOTS: usize> Link<C, B, SLOTS> {
    /// Prefix of a frame to the peer.
    pub(crate) fn prefix(&self, kind: u8) -> Prefix {
        let settings = &self.settings;
        Prefix {
            macs: [settings.macs[1], settings.macs[0]],
            ethertype: ETHERTYPE,
            version: settings.version(),
            kind,
            from: settings.host,
            to: settings.peer,
            epoch: settings.epoch.into(),
        }
    }

    /// Takes a hello or a challenge.
    pub(crate) fn greeted(
        &mut self,
        now_ns: u64,
        frame: &[u8],
        actions: &mut impl Actions,
    ) -> Result<(), Dropped> {
        let hello = Hello::read_from_bytes(frame).map_err(|_| Dropped::Foreign)?;
        if !self.hellos.take(now_ns) {
            return Err(Dropped::Unopened);
        }
        if !self.key.has_tagged(frame) {
            return Err(Dropped::Forged);
        }
        let (theirs, mine, is_hello) = (hello.mine, hello.theirs, hello.prefix.kind == HELLO);
        match &mut self.session {
            // The hello belongs to the present session. A peer that lacks the session learns of it by this host's hellos.
            Some(session) if is_hello && session.theirs == theirs => {
                if session.mine == mine {
                    let later = now_ns.saturating_add(self.settings.hello_ns);
                    session.report_at = session.report_at.min(later);
                }
                Ok(())
            }
            // An answer to a nonce that no session has used: the peer is alive and has the key.
            session if mine == self.fresh && (is_hello || session.is_none()) => {
                self.hellos.give();
                let suite = Suite::of([hello.prefix.version, self.settings.version()]);
                self.begin(now_ns, theirs, suite, actions);
                self.hello = Some((HELLO, mine, theirs));
                Ok(())
            }
            Some(_) if is_hello => {
                self.hello = Some((CHALLENGE, self.fresh, theirs));
                Err(Dropped::Unproved)
            }
            // This session answers a nonce that the peer has used for another, or lost in a restart.
            Some(session) if !session.is_up && session.mine == mine && session.theirs != theirs => {
                self.hello = Some((HELLO, self.fresh, theirs));
                Ok(())
            }
            None if is_hello => {
                self.heard = theirs;
                self.hello = Some((HELLO, self.fresh, theirs));
                Err(Dropped::Unproved)
            }
            _ => Err(Dropped::Unproved),
        }
    }

    /// Sends the hello or challenge that is due.
    pub(crate) fn greet(&mut self, now_ns: u64, actions: &mut impl Actions) {
        let again = || match &self.session {
            Some(session) => (HELLO, session.mine, session.theirs),
            None => (HELLO, self.fresh, self.heard),
        };
        let again = (now_ns >= self.hello_at).then(again);
        let Some((kind, mine, theirs)) = self.hello.or(again) else {
            return;
        };
        let mut hello: [u8; HELLO_BYTES] = transmute!(Hello {
            prefix: self.prefix(kind),
            mine,
            theirs,
            tag: [0; TAG_BYTES],
        });
        self.key.tag(&mut hello);
        let is_sent = actions.transmit(|frame| {
            frame[..HELLO_BYTES].copy_from_slice(&hello);
            HELLO_BYTES
        });
        self.counters.sent += u64::from(is_sent);
        if is_sent && self.hello.take().is_none() {
            let wait = self.settings.hello_ns << self.hellos_sent.min(6);
            self.hello_at = now_ns.saturating_add(wait);
            self.hellos_sent += 1;
        }
    }
}
