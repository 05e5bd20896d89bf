//! `underpin cluster`: keys and descriptions of clusters, and their hosts as a machine sees them.

use super::Context;
use crate::{
    cli::ClusterVerb,
    cluster::{self, ClusterFile, Host},
    failure::Result,
    order::natural_by,
    output::{
        Output,
        Side::{Left, Right},
        Table, Tone,
    },
    units,
};
use abi::{
    cluster::DESCRIPTION,
    control::{HostStatus, host},
};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

/// Reasons for a dropped frame, in the order of `model_link::Dropped`.
const DROPPED: [&str; 8] = [
    "foreign",
    "other-cluster",
    "other-session",
    "replayed",
    "forged",
    "unopened",
    "unproved",
    "malformed",
];
/// Places in that of a wrong key, and of another cluster's number.
const FORGED: usize = 4;
const OTHER_CLUSTER: usize = 1;

/// Shows the hosts of the cluster, as each machine sees them.
pub fn status(context: &Context) -> Result<()> {
    let ask = |host: &Context| {
        let mut hosts = host.connect()?.hosts()?;
        natural_by(&mut hosts, |host| host.name.to_string());
        Ok(hosts)
    };
    let json = |hosts: &[HostStatus]| {
        let all = hosts.iter();
        all.map(|host| host_json(host, own(hosts))).collect()
    };
    context.show_of_hosts(ask, json, host_table)
}

/// The machine that was asked.
fn own(hosts: &[HostStatus]) -> Option<&HostStatus> {
    hosts.iter().find(|it| it.flags & host::OWN != 0)
}

/// A host's state, how it stands out, and why the host is not in.
fn state(it: &HostStatus, own: Option<&HostStatus>) -> (&'static str, Tone, String) {
    let count = |place: usize| it.dropped.get(place).copied().unwrap_or(0);
    let is_described = it.description.kind == DESCRIPTION;
    let unfit = own.filter(|_| is_described).and_then(|own| {
        let fits = model_membership::compare(&it.description, &own.description);
        fits.err()
    });
    match it.flags {
        flags if flags & host::OWN != 0 => ("own", Tone::Strong, String::new()),
        flags if flags & host::IN != 0 => ("in", Tone::Good, String::new()),
        flags if flags & host::SESSION != 0 => match unfit {
            Some(why) => ("unfit", Tone::Bad, why.to_string()),
            None => (
                "joining",
                Tone::Still,
                "not all hosts have agreed".to_owned(),
            ),
        },
        _ => {
            let why = if count(FORGED) > 0 {
                format!(
                    "{} of its frames have another key: give all hosts one key file",
                    count(FORGED)
                )
            } else if count(OTHER_CLUSTER) > 0 {
                "its cluster has another number: give all hosts one cluster file".to_owned()
            } else {
                "no answer: is it up, is its mac right, are both cards on one network?".to_owned()
            };
            ("away", Tone::Bad, why)
        }
    }
}

/// Pieces sent again in a hundred frames.
fn loss_percent(it: &HostStatus) -> f64 {
    100.0 * it.resent as f64 / it.frames[0].max(1) as f64
}

fn host_json(it: &HostStatus, own: Option<&HostStatus>) -> Value {
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
        "why": (!why.is_empty()).then_some(why), "epoch": it.epoch,
        "runs_ns": (it.epoch != 0).then_some(it.runs_ns),
        "work_ns": (it.flags & host::OWN != 0).then_some(it.work_ns),
        "round_trip_ns": it.round_trip_ns,
        "sent": { "frames": it.frames[0], "bytes": it.bytes[0] },
        "received": { "frames": it.frames[1], "bytes": it.bytes[1] },
        "resent": it.resent, "timeouts": it.timeouts, "sessions": it.sessions,
        "repeated": it.repeated, "dropped": dropped, "features": features,
    })
}

fn host_table(hosts: &[HostStatus], output: Output) -> String {
    let Some(own) = own(hosts) else {
        return "this machine is in no cluster: its bundle names none\n".to_owned();
    };
    let members = hosts.iter().filter(|it| it.flags & host::IN != 0).count();
    let mut text = match own.epoch {
        0 => format!("{}: alone", own.name),
        epoch => format!("{}: in epoch {epoch} with {members} members", own.name),
    };
    let work = units::nanoseconds(own.work_ns);
    let _ = writeln!(text, "; the hypervisor worked {work} for the cluster");
    let mut table = Table::new(&[
        ("HOST", Left),
        ("STATE", Left),
        ("ROUND TRIP", Right),
        ("SENT", Right),
        ("RECEIVED", Right),
        ("RESENT", Right),
        ("LOSS", Right),
    ]);
    let mut reasons = String::new();
    for it in hosts.iter().filter(|it| it.flags & host::OWN == 0) {
        let (state, tone, why) = state(it, Some(own));
        let round_trip = match it.round_trip_ns {
            0 => String::new(),
            ns => units::nanoseconds(ns),
        };
        table.row([
            it.name.to_string(),
            state.to_owned(),
            round_trip,
            units::short(it.bytes[0]),
            units::short(it.bytes[1]),
            units::count(it.resent),
            format!("{:.1}%", loss_percent(it)),
        ]);
        table.tone(1, tone);
        if !why.is_empty() {
            let _ = writeln!(reasons, "{}: {why}", it.name);
        }
    }
    text.push_str(&table.render(output));
    text + &reasons
}

/// Makes a key, or checks a cluster file.
pub fn cluster(context: &Context, verb: &ClusterVerb) -> Result<()> {
    match verb {
        ClusterVerb::Key { file } => {
            cluster::make_key(file)?;
            let text = |_: Output| {
                format!(
                    "{}: a new key; copy it to each host of the cluster\n",
                    file.display()
                )
            };
            context.output.result(|| json!({ "key": file }), text)
        }
        ClusterVerb::Check { file } => {
            let cluster = ClusterFile::read(file)?;
            if let Some(host) = cluster.hosts.first() {
                cluster.record(&host.name)?;
            }
            let name = |host: &Host| host.name.clone();
            let names: Vec<String> = cluster.hosts.iter().map(name).collect();
            let json = || json!({ "file": file, "number": cluster.number, "hosts": names });
            let text =
                |_: Output| format!("{}: good; hosts {}\n", file.display(), names.join(", "));
            context.output.result(json, text)
        }
    }
}
