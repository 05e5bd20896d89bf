//! Hosts of the machine's cluster.

use super::Row;
use super::exposition::{
    Exposition,
    Kind::{Counter, Gauge},
    Value, series,
};
use crate::hosts::{DROPPED, STATES, members, own, state};
use abi::control::HostStatus;

/// Writes what the machine knows of the other hosts, which the label `peer` names, and of its membership.
pub fn write(out: &mut Exposition, hosts: &[HostStatus]) {
    let Some(own) = own(hosts) else { return };
    let epoch = Value::Count(own.epoch);
    let help = "Number of the membership that the machine is in; 0: it is alone.";
    out.one("underpin_cluster_epoch", help, epoch);
    let members = Value::Count(members(hosts) as u64);
    let help = "Hosts of that membership, this machine among them.";
    out.one("underpin_cluster_members", help, members);
    out.family(
        "underpin_cluster_work_seconds_total",
        Counter,
        "Time that CPUs worked at EL2 for the cluster.",
        [series(&[], Value::Nanoseconds(own.work_ns))],
    );
    let unheard = Value::Count(own.dropped[0]);
    out.family(
        "underpin_cluster_unheard_frames_total",
        Counter,
        "Frames of the link from no host, or dropped while too many opened nothing.",
        [series(&[], unheard)],
    );
    let peers: Vec<(String, &HostStatus)> = hosts
        .iter()
        .filter(|it| it.number != own.number)
        .map(|it| (it.name.to_string(), it))
        .collect();
    states(out, &peers, own);
    counts(out, &peers);
}

fn states(out: &mut Exposition, peers: &[(String, &HostStatus)], own: &HostStatus) {
    let all = peers.iter().flat_map(|(name, it)| {
        let is = state(it, Some(own)).0;
        let others = STATES.iter().skip(1);
        others.map(move |state| {
            let labels = [("peer", &**name), ("state", state)];
            series(&labels, Value::Count((is == *state).into()))
        })
    });
    let help = "1 for the state that the host is in, 0 for the others.";
    out.family("underpin_peer_state", Gauge, help, all);
    let known = peers.iter().filter(|(_, it)| it.round_trip_ns > 0);
    out.family(
        "underpin_peer_round_trip_seconds",
        Gauge,
        "Smoothed time until a frame to the host is acknowledged.",
        known.map(|(name, it)| series(&[("peer", name)], Value::Nanoseconds(it.round_trip_ns))),
    );
}

fn counts(out: &mut Exposition, peers: &[(String, &HostStatus)]) {
    let counters: [Row<HostStatus>; 8] = [
        ("sent_frames", "Frames sent to the host.", |it| it.frames[0]),
        (
            "received_frames",
            "Frames of the host that were opened.",
            |it| it.frames[1],
        ),
        ("sent_bytes", "Bytes of frames sent to the host.", |it| {
            it.bytes[0]
        }),
        (
            "received_bytes",
            "Bytes of frames of the host that were opened.",
            |it| it.bytes[1],
        ),
        ("resent_pieces", "Pieces sent again to the host.", |it| {
            it.resent
        }),
        (
            "repeated_pieces",
            "Pieces of the host that came more than once.",
            |it| it.repeated,
        ),
        ("timeouts", "Retransmission timeouts.", |it| it.timeouts),
        ("sessions", "Sessions with the host.", |it| it.sessions),
    ];
    for (name, help, value) in counters {
        let one =
            |(peer, it): &(String, &HostStatus)| series(&[("peer", peer)], Value::Count(value(it)));
        let name = format!("underpin_peer_{name}_total");
        out.family(&name, Counter, help, peers.iter().map(one));
    }
    let dropped = peers.iter().flat_map(|(peer, it)| {
        let named = DROPPED.iter().zip(it.dropped);
        named.map(move |(why, n)| series(&[("peer", peer), ("why", why)], Value::Count(n)))
    });
    out.family(
        "underpin_peer_dropped_frames_total",
        Counter,
        "Frames in the host's name that were dropped, by reason.",
        dropped,
    );
}
