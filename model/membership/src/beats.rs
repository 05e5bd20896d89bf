//! Descriptions and beats: what a host hears of others, and promises to them.

use crate::{Actions, Change, Membership, Peer, Standing, differences};
use abi::cluster::{BEAT, Beat, DESCRIPTION, Description, FAREWELL, Farewell, PROPOSE, Propose};
use zerocopy::{FromBytes, IntoBytes};

/// Returns the number of the beat after this one; 0 is no number.
pub(crate) fn next(number: u32) -> u32 {
    number.checked_add(1).unwrap_or(1)
}

impl Peer {
    /// Notes the present life. A new one has left all memberships of the last: it is owed nothing, and has proved nothing.
    fn lives(&mut self, life: u64) {
        if self.life != life {
            self.life = life;
            (self.heard_at, self.proof_at) = (None, None);
            self.promised = self.promised.filter(|(_, to)| *to == life);
        }
    }
}

impl<const HOSTS: usize> Membership<HOSTS> {
    /// Takes a message; one that makes no sense is dropped.
    pub(crate) fn receive(
        &mut self,
        now_ns: u64,
        host: u8,
        message: &[u8],
        actions: &mut impl Actions,
    ) {
        let standing = self.standing(host);
        match (standing, message.first()) {
            (Standing::Unknown | Standing::Fit, Some(&FAREWELL)) => {
                if let Ok(farewell) = Farewell::ref_from_bytes(message) {
                    self.parted(host, farewell, actions);
                }
            }
            _ if self.is_retired() => {}
            (Standing::Unknown, Some(&DESCRIPTION)) => {
                if let Some(theirs) = Description::of(message) {
                    self.described(host, theirs);
                }
            }
            (Standing::Fit, Some(&BEAT)) => {
                if let Ok(beat) = Beat::ref_from_bytes(message) {
                    self.beaten(host, beat);
                }
            }
            (Standing::Fit, Some(&PROPOSE)) => {
                if let Ok(proposal) = Propose::ref_from_bytes(message) {
                    self.proposed(now_ns, host, proposal);
                }
            }
            _ => {}
        }
        self.enter(now_ns, actions);
    }

    fn described(&mut self, host: u8, theirs: Description) {
        let why = differences(&theirs, &self.own).next();
        let peer = &mut self.peers[usize::from(host)];
        peer.standing = why.map_or(Standing::Fit, Standing::Unfit);
        peer.lives(theirs.life.get());
        peer.description = Some(theirs);
    }

    fn beaten(&mut self, host: u8, beat: &Beat) {
        let accepted = beat.accepted.get();
        let is_near = self.is_near(accepted);
        let peer = &mut self.peers[usize::from(host)];
        peer.lives(beat.life.get());
        peer.accepted = if is_near { accepted } else { 0 };
        if beat.number.get() != 0 {
            peer.owes = beat.number.get();
        }
        if !peer.is_answered && beat.echo.get() == peer.number {
            peer.is_answered = true;
            peer.heard_at = Some(peer.sent_at);
            if beat.with == 1 {
                peer.proof_at = Some(peer.sent_at);
            }
        }
    }

    /// Returns whether this host shares with the present life of a host, or is about to: that host may be in their membership already.
    pub fn is_with(&self, host: u8) -> bool {
        let host = usize::from(host);
        let life = self.peers.get(host).map_or(0, |peer| peer.life);
        let pending = self.pending.as_ref().map_or(0, |view| view.lives[host]);
        life != 0 && [self.view.lives[host], pending].contains(&life)
    }

    /// Returns whether a host has answered lately.
    pub(crate) fn is_heard(&self, now_ns: u64, host: usize) -> bool {
        let peer = &self.peers[host];
        peer.standing == Standing::Fit
            && Peer::is_within(peer.heard_at, now_ns, self.settings.stop_ns)
    }

    pub(crate) fn tick(&mut self, now_ns: u64, actions: &mut impl Actions) {
        self.lapse(now_ns, actions);
        self.enter(now_ns, actions);
        for host in 0..HOSTS {
            self.talk(now_ns, host, actions);
        }
        self.propose(now_ns, actions);
    }

    /// Stops what is shared while a member is silent, and leaves where it stays silent.
    fn lapse(&mut self, now_ns: u64, actions: &mut impl Actions) {
        let declare_ns = self.settings.declare_ns;
        let mut others = self.others(&self.view);
        let dead = others.find(|host| !Peer::is_within(self.proof(*host), now_ns, declare_ns));
        if let Some(host) = dead {
            return self.leave(host as u8, actions);
        }
        let is_stopped = now_ns >= self.promised_until();
        if core::mem::replace(&mut self.is_stopped, is_stopped) != is_stopped {
            actions.changed([Change::Resumed, Change::Stopped][usize::from(is_stopped)]);
        }
    }

    /// Sends the description or the beat that is due to a host.
    fn talk(&mut self, now_ns: u64, host: usize, actions: &mut impl Actions) {
        let standing = self.peers[host].standing;
        if standing != Standing::Away && self.is_retired() || standing == Standing::Left {
            return self.part(host, actions);
        }
        let with = self.is_with(host as u8);
        let beat_at = self.beat_at(&self.peers[host]);
        let peer = &mut self.peers[host];
        if peer.standing == Standing::Away {
            return;
        }
        if !peer.is_described {
            peer.is_described = actions.send(host as u8, self.own.as_bytes());
        }
        let asks = peer.is_answered && now_ns >= beat_at;
        let is_due = asks || peer.is_due || peer.owes != 0;
        if peer.standing != Standing::Fit || !peer.is_described || !is_due {
            return;
        }
        let number = if asks { next(peer.number) } else { 0 };
        let beat = Beat {
            kind: BEAT,
            with: with.into(),
            zeroes: [0; 2],
            number: number.into(),
            echo: peer.owes.into(),
            accepted: self.accepted.into(),
            life: self.own.life,
        };
        if !actions.send(host as u8, beat.as_bytes()) {
            return;
        }
        if asks {
            (peer.number, peer.sent_at, peer.is_answered) = (number, now_ns, false);
        }
        if with && peer.owes != 0 {
            peer.promised = Some((now_ns, peer.life));
        }
        (peer.owes, peer.is_due) = (0, false);
    }
}
