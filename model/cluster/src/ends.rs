//! What links and the membership say to each other, and to the owner.

use crate::{FRAMES_AT_ONCE, MESSAGES_AT_ONCE, News, Owner, Peer, Probes};
use abi::cluster::{DESCRIPTION, FAREWELL, HOSTS_MAX, PROBE, PROBED};
use model_link::{Cipher, Down, Event, Lane, Nonce, Suite};
use model_membership::{Change, Membership, Standing};

/// Owner of a link for one step.
pub(crate) struct End<'e, O> {
    host: u8,
    now_ns: u64,
    membership: &'e mut Membership<HOSTS_MAX>,
    owner: &'e mut O,
    bytes: &'e mut u64,
    probes: &'e mut Probes,
    made: u32,
    made_most: u32,
    messages_left: u32,
    /// The card had no room.
    is_blocked: bool,
    /// A message is to be offered again: there were many, or the owner refused it.
    is_kept: bool,
    is_refused: bool,
}

impl<O: Owner> End<'_, O> {
    /// Lets a link handle an event; returns whether the card had no room, whether a message is to be
    /// offered again, and whether the owner refused it.
    pub(crate) fn step<C: Cipher, B: AsRef<[u8]> + AsMut<[u8]>, const SLOTS: usize>(
        peer: &mut Peer<C, B, SLOTS>,
        membership: &mut Membership<HOSTS_MAX>,
        owner: &mut O,
        (now_ns, event): (u64, Event<'_>),
    ) -> [bool; 3] {
        // One that is sealed without AES takes half a stretch at EL2.
        let is_slow = peer.link.suite() == Some(Suite::ChaCha);
        let mut end = End {
            host: peer.host,
            now_ns,
            membership,
            owner,
            bytes: &mut peer.bytes[0],
            probes: &mut peer.probes,
            made: 0,
            made_most: if is_slow { 1 } else { FRAMES_AT_ONCE },
            messages_left: MESSAGES_AT_ONCE,
            is_blocked: false,
            is_kept: false,
            is_refused: false,
        };
        // Only messages are refused.
        let _ = peer.link.step(now_ns, event, &mut end);
        [end.is_blocked, end.is_kept, end.is_refused]
    }

    fn tell(&mut self, event: model_membership::Event<'_>) {
        let before = self.membership.standing(self.host);
        let mut changes = Changes(&mut *self.owner);
        self.membership.step(self.now_ns, event, &mut changes);
        match self.membership.standing(self.host) {
            now if now == before => {}
            Standing::Unfit(why) => self.owner.told(News::Unfit(self.host, why)),
            _ => {}
        }
    }
}

impl<O: Owner> model_link::Actions for End<'_, O> {
    fn transmit(&mut self, fill: impl FnOnce(&mut [u8]) -> usize) -> bool {
        // Each piece makes one, so that all come to an end.
        if self.made >= self.made_most || self.made > 0 && self.owner.is_late() {
            return false;
        }
        self.made += 1;
        let bytes = &mut *self.bytes;
        let is_sent = self.owner.transmit(|frame| {
            let written = fill(frame);
            *bytes += written as u64;
            written
        });
        self.is_blocked |= !is_sent;
        is_sent
    }

    fn deliver(&mut self, lane: Lane, message: &[u8]) -> bool {
        if self.messages_left == 0 {
            self.is_kept = true;
            return false;
        }
        self.messages_left -= 1;
        if let Some(&(PROBE | PROBED)) = message.first() {
            self.probes.receive(self.now_ns, message);
            return true;
        }
        if lane == Lane::Urgent && matches!(message.first(), Some(DESCRIPTION..=FAREWELL)) {
            self.tell(model_membership::Event::Message(self.host, message));
            return true;
        }
        // Who sends these has a membership with this host, which has accepted that before.
        let is_taken =
            !self.membership.is_with(self.host) || self.owner.message(self.host, message);
        self.is_kept |= !is_taken;
        self.is_refused |= !is_taken;
        is_taken
    }

    fn nonce(&mut self) -> Nonce {
        self.owner.nonce()
    }

    fn up(&mut self) {
        self.owner.told(News::Up(self.host));
        self.tell(model_membership::Event::Up(self.host));
    }

    fn down(&mut self, why: Down) {
        self.owner.told(News::Down(self.host, why));
        self.tell(model_membership::Event::Down(self.host));
    }
}

/// Takes what the membership says of an event that sends nothing.
pub(crate) struct Changes<'e, O>(pub(crate) &'e mut O);

impl<O: Owner> model_membership::Actions for Changes<'_, O> {
    fn send(&mut self, _: u8, _: &[u8]) -> bool {
        false
    }

    fn changed(&mut self, change: Change) {
        self.0.told(News::Changed(change));
    }
}

/// Takes what the membership says at a tick.
pub(crate) struct Sender<'e, C, B, O, const SLOTS: usize> {
    pub(crate) peers: &'e mut [Peer<C, B, SLOTS>],
    pub(crate) owner: &'e mut O,
    pub(crate) is_lost: bool,
}

impl<C: Cipher, B: AsRef<[u8]> + AsMut<[u8]>, O: Owner, const SLOTS: usize>
    model_membership::Actions for Sender<'_, C, B, O, SLOTS>
{
    fn send(&mut self, host: u8, message: &[u8]) -> bool {
        let peer = self.peers.iter_mut().find(|peer| peer.host == host);
        peer.is_some_and(|peer| peer.link.send(Lane::Urgent, [message, &[]]).is_ok())
    }

    fn changed(&mut self, change: Change) {
        self.is_lost |= matches!(change, Change::Lost(_));
        self.owner.told(News::Changed(change));
    }
}
