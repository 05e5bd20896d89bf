//! Hosts of a cluster as one of its machines sees them: their state, and why one is not in.

use crate::{output::Tone, units};
use abi::{
    cluster::{DESCRIPTION, Description},
    control::{HostStatus, host},
};
use model_id_registers::registers;
use model_membership::{Unfit, common, differences};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

/// Reasons for a dropped frame, in the order of `model_link::Dropped`.
pub const DROPPED: [&str; 9] = [
    "foreign",
    "other-cluster",
    "other-session",
    "replayed",
    "forged",
    "unopened",
    "unproved",
    "malformed",
    "other-auth",
];
/// Places in that of a wrong key, of another cluster's number, and of frames that are sealed at one host alone.
const FORGED: usize = 4;
const OTHER_CLUSTER: usize = 1;
const OTHER_AUTH: usize = 8;

/// The cipher of a session of which a host has no AES.
pub const CHACHA: &str = "ChaCha20-Poly1305";

/// All states of a host.
pub const STATES: [&str; 6] = ["own", "in", "joining", "unfit", "away", "left"];

/// The machine that was asked.
pub fn own(hosts: &[HostStatus]) -> Option<&HostStatus> {
    hosts.iter().find(|it| it.flags & host::OWN != 0)
}

/// The name of a host.
pub fn name_of(hosts: &[HostStatus], number: u32) -> String {
    let named = hosts.iter().find(|host| host.number == number);
    named.map_or_else(|| format!("host {number}"), |host| host.name.to_string())
}

/// Whether frames between the hosts are neither secret nor authentic.
pub fn is_open(it: &HostStatus) -> bool {
    it.flags & host::OPEN != 0
}

/// The cipher of the session with a host, if there is one.
pub fn cipher(it: &HostStatus) -> Option<&'static str> {
    let has_one = it.flags & host::SESSION != 0 && !is_open(it);
    let is_chacha = it.flags & host::CHACHA != 0;
    has_one.then_some(if is_chacha { CHACHA } else { "AES-128-GCM" })
}

/// What a host said that it is, if it has said something.
fn described(it: &HostStatus) -> Option<&Description> {
    (it.description.kind == DESCRIPTION).then_some(&it.description)
}

/// All in which a host does not fit the machine that was asked.
pub fn unfit(it: &HostStatus, own: &HostStatus) -> Vec<Unfit> {
    let theirs = described(it).into_iter();
    theirs
        .flat_map(|theirs| differences(theirs, &own.description))
        .collect()
}

/// An ID register in which a host and the machine that was asked differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Differing {
    /// Its name in the Arm ARM.
    pub register: &'static str,
    /// The host's value, this machine's, and what guests of both can have.
    pub values: [u64; 3],
}

/// The ID registers in which a host differs: no obstacle, as both have a common set.
pub fn differing(it: &HostStatus, own: &HostStatus) -> Vec<Differing> {
    let Some(theirs) = described(it) else {
        return Vec::new();
    };
    let (theirs, ours) = (&theirs.features, &own.description.features);
    let both = common(theirs, ours);
    let all = registers().iter().zip(theirs.iter().zip(ours).zip(both));
    all.filter(|(_, ((theirs, ours), _))| theirs != ours)
        .map(|(register, ((theirs, ours), both))| Differing {
            register: register.name,
            values: [theirs.get(), ours.get(), both.get()],
        })
        .collect()
}

/// A host's state, how it stands out, and why the host is not in.
pub fn state(it: &HostStatus, own: Option<&HostStatus>) -> (&'static str, Tone, String) {
    let count = |place: usize| it.dropped.get(place).copied().unwrap_or(0);
    match it.flags {
        flags if flags & host::OWN != 0 => (STATES[0], Tone::Strong, String::new()),
        flags if flags & host::LEFT != 0 => {
            let why = "it was drained, and joins again when it restarts".to_owned();
            (STATES[5], Tone::Still, why)
        }
        _ if own.is_some_and(|own| own.flags & host::LEFT != 0) => {
            (STATES[4], Tone::Still, "this machine has left".to_owned())
        }
        flags if flags & host::IN != 0 => (STATES[1], Tone::Good, String::new()),
        flags if flags & host::SESSION != 0 => {
            if let Some(why) = own.and_then(|own| unfit(it, own).into_iter().next()) {
                (STATES[3], Tone::Bad, why.to_string())
            } else {
                let why = "not all hosts have agreed".to_owned();
                (STATES[2], Tone::Still, why)
            }
        }
        _ => {
            let why = if count(FORGED) > 0 {
                format!(
                    "no answer, and {} frames in its name have another key: give all hosts one key file if it is up",
                    count(FORGED)
                )
            } else if count(OTHER_CLUSTER) > 0 {
                "its cluster has another number: give all hosts one cluster file".to_owned()
            } else if count(OTHER_AUTH) > 0 {
                let (here, there) = if is_open(it) {
                    ("off", "on")
                } else {
                    ("on", "off")
                };
                format!("it has auth {there}, and this machine auth {here}: give both the same")
            } else {
                "no answer: is it up, is its mac right, are both cards on one network?".to_owned()
            };
            (STATES[4], Tone::Bad, why)
        }
    }
}

/// Pieces sent again in a hundred frames.
pub fn loss_percent(it: &HostStatus) -> f64 {
    100.0 * it.resent as f64 / it.frames[0].max(1) as f64
}

/// How many are in the membership of the machine that was asked.
pub fn members(hosts: &[HostStatus]) -> usize {
    hosts.iter().filter(|it| it.flags & host::IN != 0).count()
}

/// A host for programs.
pub fn to_json(it: &HostStatus, own: Option<&HostStatus>) -> Value {
    let (state, _, why) = state(it, own);
    let dropped: Map<String, Value> = DROPPED
        .iter()
        .zip(it.dropped)
        .map(|(name, count)| ((*name).to_owned(), count.into()))
        .collect();
    let words = it.description.features.iter();
    let features: Vec<String> = words.map(|word| format!("{:#x}", word.get())).collect();
    json!({
        "name": it.name.to_string(), "number": it.number, "state": state,
        "why": (!why.is_empty()).then_some(why), "epoch": it.epoch, "auth": if is_open(it) { "off" } else { "on" },
        "cipher": cipher(it),
        "runs_ns": (it.epoch != 0).then_some(it.runs_ns),
        "work_ns": (it.flags & host::OWN != 0).then_some(it.work_ns),
        "round_trip_ns": it.round_trip_ns,
        "sent": { "frames": it.frames[0], "bytes": it.bytes[0] },
        "received": { "frames": it.frames[1], "bytes": it.bytes[1] },
        "resent": it.resent, "timeouts": it.timeouts, "sessions": it.sessions,
        "repeated": it.repeated, "dropped": dropped, "features": features,
    })
}

/// The membership and all other hosts in a line; none where the machine is in no cluster.
pub fn line(hosts: &[HostStatus]) -> Option<String> {
    let own = own(hosts)?;
    let mut text = match own.epoch {
        0 => "cluster: alone".to_owned(),
        epoch => format!("cluster: epoch {epoch}, {} members", members(hosts)),
    };
    for it in hosts.iter().filter(|it| it.number != own.number) {
        let (state, ..) = state(it, Some(own));
        let _ = write!(text, "  {} {state}", it.name);
        if it.round_trip_ns > 0 {
            let time = units::nanoseconds(it.round_trip_ns);
            let _ = write!(text, " {time}, loss {:.1}%", loss_percent(it));
        }
    }
    Some(text)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use abi::{Text, cluster::PROTOCOL};
    use zerocopy::FromZeros as _;

    /// A host with a session and a description.
    pub fn host_of(name: &str, flags: u32) -> HostStatus {
        let mut it = HostStatus::new_zeroed();
        it.name = Text::new(name).unwrap_or_default();
        it.flags = flags;
        it.description.kind = DESCRIPTION;
        it.description.protocol = PROTOCOL;
        it
    }

    #[test]
    fn all_hosts_fit_a_line() {
        assert_eq!(line(&[]), None);
        let mut own = host_of("left", host::OWN | host::IN);
        (own.epoch, own.number) = (3, 1);
        let mut it = host_of("right", host::SESSION | host::IN);
        (it.round_trip_ns, it.frames[0], it.resent) = (45_100, 1000, 21);
        let said = line(&[own, it]);
        let expected = "cluster: epoch 3, 2 members  right in 45 us, loss 2.1%";
        assert_eq!(said.as_deref(), Some(expected));
    }

    #[test]
    fn hosts_that_have_left_are_told_from_those_that_join() {
        let (own, left) = (host_of("left", host::OWN), host::SESSION | host::LEFT);
        assert_eq!(state(&host_of("right", left), Some(&own)).0, "left");
        let own = host_of("left", host::OWN | host::LEFT);
        let (state, _, why) = state(&host_of("right", host::SESSION), Some(&own));
        assert_eq!((state, why.as_str()), ("away", "this machine has left"));
    }

    #[test]
    fn all_that_differs_is_named() {
        let own = host_of("left", host::OWN | host::IN);
        let mut it = host_of("right", host::SESSION);
        assert_eq!(state(&it, Some(&own)).0, "joining");
        it.description.zva_log2 = 8;
        it.description.clock_hz = 50_000_000.into();
        it.description.features[0] = 0x11.into();
        let (state, _, why) = state(&it, Some(&own));
        assert_eq!(state, "unfit");
        let all = unfit(&it, &own);
        assert_eq!(all, [Unfit::ZeroedBlock(8, 0), Unfit::Clock(50_000_000, 0)]);
        assert_eq!(why, all[0].to_string());
        let register = registers()[0].name;
        assert_eq!(
            differing(&it, &own),
            [Differing {
                register,
                values: [0x11, 0, 0]
            }]
        );
    }
}
