//! Hosts that leave on purpose: the others go on without them.

use crate::{Actions, Change, Membership, NEVER, Peer, Standing, View};
use abi::cluster::{FAREWELL, Farewell};
use zerocopy::IntoBytes;

impl<const HOSTS: usize> Membership<HOSTS> {
    /// Leaves the membership, which goes on: this host shares nothing any more, and answers nobody until it restarts.
    /// [`Self::has_left`] says when all others know. The next tick tells them.
    pub fn retire(&mut self) {
        if self.retired != 0 {
            return;
        }
        let pending = self.pending.iter().flat_map(|view| self.others(view));
        let partners = self.others(&self.view).chain(pending);
        // Without a session, a host finds this one lost, or has not entered.
        let partners = partners.filter(|host| self.peers[*host].standing != Standing::Away);
        self.partners = partners.fold(0, |all, host| all | 1 << host);
        self.retired = self.own.life.get();
        self.begin_life();
        self.propose_at = NEVER;
        for peer in &mut self.peers {
            *peer = Peer {
                standing: peer.standing,
                promised: peer.promised,
                is_due: true,
                ..Peer::default()
            };
        }
        self.keep_times();
    }

    /// Returns the life that this host has left by [`Self::retire`], or 0.
    pub const fn retired(&self) -> u64 {
        self.retired
    }

    /// Returns whether this host has left by [`Self::retire`].
    pub const fn is_retired(&self) -> bool {
        self.retired != 0
    }

    /// Returns whether all members of the membership that this host has left go on without it: it can be switched off.
    pub const fn has_left(&self) -> bool {
        self.is_retired() && self.partners == 0
    }

    /// Takes a farewell, or the answer to one.
    pub(crate) fn parted(&mut self, host: u8, farewell: &Farewell, actions: &mut impl Actions) {
        self.partners &= !(1 << host);
        if self.is_retired() {
            return;
        }
        let (host, life) = (usize::from(host), farewell.life.get());
        let has = |view: &View<HOSTS>| life != 0 && view.lives[host] == life;
        let was_in = has(&self.view);
        if was_in {
            self.view.lives[host] = 0;
        }
        // Some may have accepted what others cannot enter any more: the leader proposes again.
        let is_proposed = self.pending.take_if(|view| has(view)).is_some();
        self.has_parted |= was_in || is_proposed;
        let promised = self.peers[host].promised.filter(|it| it.1 != life);
        self.peers[host] = Peer {
            standing: Standing::Left,
            life,
            promised,
            is_due: true,
            is_described: true,
            ..Peer::default()
        };
        if was_in {
            actions.changed(Change::Left(host as u8));
        }
    }

    /// Sends the farewell, or the answer to one, that is due to a host.
    pub(crate) fn part(&mut self, host: usize, actions: &mut impl Actions) {
        let is_retired = self.is_retired();
        let peer = &mut self.peers[host];
        let life = [peer.life, self.retired][usize::from(is_retired)];
        let farewell = Farewell {
            kind: FAREWELL,
            zeroes: [0; 7],
            life: life.into(),
        };
        peer.is_due = peer.is_due && !actions.send(host as u8, farewell.as_bytes());
    }

    /// Begins a new life, alone.
    pub(crate) fn begin_life(&mut self) {
        self.own.life = self.own.life.get().checked_add(1).unwrap_or(1).into();
        self.view = View::alone(self.settings.host, self.own.life.get());
        self.pending = None;
        self.is_stopped = false;
        self.has_parted = false;
    }
}
