//! What a program asks of a host of a cluster that runs the hypervisor in an ordinary process. No part of the image.

pub use crate::cluster::cipher::Sealer;
use crate::cluster::{STATE, now_ns};
use crate::drivers::uplink;
use abi::cluster::{Description, FEATURES_MAX, HOSTS_MAX};
use machine_locks::{Once, SpinLock};
use model_cluster::Peer;
use model_id_registers::registers;
use model_link::{Dropped, Lane};

static TELLS: Once<fn(&mut Description)> = Once::new();

/// Before the machine boots: what it says of itself when it joins goes through that.
pub fn tell(change: fn(&mut Description)) {
    let _ = TELLS.set(change);
}

/// Returns what this host says of itself.
pub(super) fn told(mut own: Description) -> Description {
    if let Some(change) = TELLS.get() {
        change(&mut own);
    }
    own
}

/// How a host stands in its cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// What its clock shows, in nanoseconds.
    pub now_ns: u64,
    /// Id of the membership that it is in; 0: it is alone.
    pub id: u64,
    /// Life of each member, by host; 0 for hosts that are not in.
    pub lives: [u64; HOSTS_MAX],
    /// Until when it may run what it shares, by its clock.
    pub runs_until_ns: u64,
    /// Until when a host that is no member may run what it shared with this one, by this one's clock.
    pub owes_until_ns: u64,
    /// Bit n: its latest probe of the link to host n is over, and was answered as it should.
    pub probed: u16,
    /// Frames that were taken off its card.
    pub taken: u64,
    /// Those for which there was no token or no room, those of nobody, and those that came before or too late.
    pub unheard: u64,
    /// The life that it has left on purpose, or 0.
    pub retired: u64,
    /// All others go on without it.
    pub has_left: bool,
}

/// Returns how this host stands; `None` while a CPU is at it, or where it is in no cluster.
pub fn standing() -> Option<Standing> {
    let state = STATE.get().and_then(SpinLock::try_lock)?;
    let membership = state.cluster.membership();
    let peers = state.cluster.peers().iter();
    let dropped = |peer: &Peer<_, _, _>| peer.link.counters.dropped[Dropped::Replayed as usize];
    let replayed: u64 = peers.clone().map(dropped).sum();
    let is_probed = |probes: &model_cluster::Probes| probes.left == 0 && probes.is_whole;
    let probed = peers.filter(|peer| is_probed(&peer.probes));
    Some(Standing {
        now_ns: now_ns(),
        id: membership.view().id,
        lives: membership.view().lives,
        runs_until_ns: membership.runs_until(),
        owes_until_ns: membership.owes_until(),
        probed: probed.fold(0, |all, peer| all | 1 << peer.host),
        taken: uplink::counts()[0],
        unheard: state.cluster.unheard + replayed,
        retired: membership.retired(),
        has_left: membership.has_left(),
    })
}

/// ID registers in the order of a description.
pub type Features = [u64; FEATURES_MAX];

/// Returns what this host says it has, and what all members have in common; `None` as for [`standing`].
pub fn features() -> Option<[Features; 2]> {
    let state = STATE.get().and_then(SpinLock::try_lock)?;
    let own = state.cluster.own().features.map(|word| word.get());
    drop(state);
    let (mut found, (_, common)) = (Features::default(), super::own()?);
    for (word, it) in found.iter_mut().zip(registers()) {
        *word = common.get(it.crm, it.op2);
    }
    Some([own, found])
}

/// Returns whether this host has joined its cluster as a machine: it has a card, a cipher and links.
pub fn has_links() -> bool {
    STATE.get().is_some()
}

/// Asks a host for so many messages back, pages where `has_pages`; returns whether that has begun.
pub fn probe(host: u8, messages: u32, has_pages: bool) -> bool {
    let lane = Lane::ALL[usize::from(has_pages)];
    let state = STATE.get().and_then(SpinLock::try_lock);
    state.is_some_and(|mut state| state.cluster.probe(host.into(), messages, lane))
}

/// Sends a member a message, whatever it says.
pub fn say(host: u8, message: &[u8]) {
    if let Some(mut state) = STATE.get().and_then(SpinLock::try_lock) {
        let _ = state.cluster.send(host, [message, &[]]);
    }
}
