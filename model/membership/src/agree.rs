//! Proposals: how all members come to have the same membership.

use crate::{Actions, Change, Membership, Peer, Standing, View};
use abi::cluster::{HOSTS_MAX, PROPOSE, Propose};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

/// How far an epoch may be ahead of the last that this host has accepted. A leader takes one a beat at most, so a host that has
/// heard of none for 19 days is that far behind.
const AHEAD_MAX: u64 = 1 << 24;
/// The last epoch that a host may accept from however far behind: it may have begun just now, in a cluster that is old. A lie
/// takes as many as that, and further ones [`AHEAD_MAX`] each: 2^32 lies would use up all 2^56.
const YOUNG_MAX: u64 = 1 << 40;

impl<const HOSTS: usize> Membership<HOSTS> {
    /// Returns whether a membership may have that id. A host that lies cannot use up all ids, so that none is left.
    pub(crate) fn is_near(&self, id: u64) -> bool {
        id >> 8 <= YOUNG_MAX.max((self.accepted >> 8).saturating_add(AHEAD_MAX))
    }

    /// Takes another host's proposal, or drops it; the leader makes it again.
    pub(crate) fn proposed(&mut self, now_ns: u64, host: u8, proposal: &Propose) {
        let life = |host: usize| proposal.lives[host].get();
        let view = View {
            id: proposal.id.get(),
            lives: core::array::from_fn(life),
        };
        let is_sound = view.id & 0xff == host.into() && (HOSTS..HOSTS_MAX).all(|n| life(n) == 0);
        if is_sound && self.is_near(view.id) && view.lives[usize::from(host)] != 0 {
            self.accept(now_ns, view);
        }
    }

    /// Accepts a proposal that is later than all before, and has this host's membership in it and all hosts that are owed a
    /// promise, and no life that has been left. Returns whether it was accepted.
    fn accept(&mut self, now_ns: u64, view: View<HOSTS>) -> bool {
        let own = usize::from(self.settings.host);
        let declare_ns = self.settings.declare_ns;
        let is_kept = |(host, peer): (usize, &Peer)| {
            let promised = peer.promised;
            let is_owed = Peer::is_within(promised.map(|(at, _)| at), now_ns, declare_ns);
            let has_left = peer.standing == Standing::Left && view.lives[host] == peer.life;
            !has_left && (!is_owed || promised.is_some_and(|(_, life)| view.lives[host] == life))
        };
        let is_taken = view.id > self.accepted
            && view.lives[own] == self.own.life.get()
            && view.has_all_of(&self.view)
            && self.peers.iter().enumerate().all(is_kept);
        if is_taken {
            self.accepted = view.id;
            self.pending = Some(view);
            for host in self.others(&view) {
                self.peers[host].is_due = true;
            }
        }
        is_taken
    }

    /// Enters the proposal once all its members have accepted it, and promise.
    pub(crate) fn enter(&mut self, now_ns: u64, actions: &mut impl Actions) {
        let Some(view) = self.pending else { return };
        let has_promised = |host: usize| {
            let peer = &self.peers[host];
            peer.standing == Standing::Fit
                && (peer.life, peer.accepted) == (view.lives[host], view.id)
                && Peer::is_within(peer.proof_at, now_ns, self.settings.stop_ns)
        };
        if self.others(&view).all(has_promised) {
            self.view = view;
            self.has_parted = false;
            self.pending = None;
            self.is_stopped = false;
            actions.changed(Change::Grown);
        }
    }

    /// Proposes a membership of all hosts that are heard, if none of them has a lower number and it is not what there is.
    pub(crate) fn propose(&mut self, now_ns: u64, actions: &mut impl Actions) {
        if now_ns < self.propose_at {
            return;
        }
        self.propose_at = now_ns.saturating_add(self.settings.beat_ns);
        let own = usize::from(self.settings.host);
        let life = |host: usize| match host {
            _ if host == own => self.own.life.get(),
            _ if self.is_heard(now_ns, host) => self.peers[host].life,
            _ => 0,
        };
        let lives: [u64; HOSTS] = core::array::from_fn(life);
        let is_leader = lives[..own].iter().all(|life| *life == 0);
        let is_same = lives == self.view.lives && self.pending.is_none() && !self.has_parted;
        if !is_leader || is_same {
            return;
        }
        let latest = self.peers.iter().map(|peer| peer.accepted).max();
        let latest = latest.unwrap_or(0).max(self.accepted);
        let is_pending = |view: View<HOSTS>| view.id == latest && view.lives == lives;
        if !self.pending.is_some_and(is_pending) {
            let id = ((latest >> 8) + 1) << 8 | u64::from(self.settings.host);
            if !self.accept(now_ns, View { id, lives }) {
                return;
            }
        }
        let mut words = [U64::ZERO; HOSTS_MAX];
        for (word, life) in words.iter_mut().zip(lives) {
            *word = life.into();
        }
        let proposal = Propose {
            kind: PROPOSE,
            zeroes: [0; 7],
            id: self.accepted.into(),
            lives: words,
        };
        for host in (0..HOSTS).filter(|host| lives[*host] != 0 && *host != own) {
            if self.peers[host].accepted != self.accepted {
                // A host whose queue is full gets it at the next turn.
                actions.send(host as u8, proposal.as_bytes());
            }
        }
    }
}
