//! `underpin cluster`: keys and descriptions of clusters, and their hosts as a machine sees them.

use super::{Context, probe};
use crate::{
    cli::ClusterVerb,
    cluster::{self, ClusterFile, Host},
    failure::{Failure, Result, exit},
    hosts::{
        CHACHA, cipher, differing, is_open, loss_percent, members, own, state, to_json, unfit,
    },
    order::natural_by,
    output::{
        Output,
        Side::{Left, Right},
        Table,
    },
    units,
};
use abi::control::{HostStatus, host};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Shows the hosts of the cluster, as each machine sees them.
pub fn status(context: &Context) -> Result<()> {
    let ask = |host: &Context| {
        let mut hosts = host.connect()?.hosts()?;
        natural_by(&mut hosts, |host| host.name.to_string());
        Ok(hosts)
    };
    let json = |hosts: &[HostStatus]| {
        let all = hosts.iter();
        all.map(|host| to_json(host, own(hosts))).collect()
    };
    context.show_of_hosts(ask, json, host_table)
}

fn host_table(hosts: &[HostStatus], output: Output) -> String {
    let Some(own) = own(hosts) else {
        return "this machine is in no cluster: its bundle names none\n".to_owned();
    };
    let members = members(hosts);
    let mut text = match own.epoch {
        0 if own.flags & host::LEFT != 0 => {
            format!(
                "{}: has left its cluster, and joins again when it restarts",
                own.name
            )
        }
        0 => format!("{}: alone", own.name),
        epoch => format!("{}: in epoch {epoch} with {members} members", own.name),
    };
    let work = units::nanoseconds(own.work_ns);
    let _ = writeln!(text, "; the hypervisor worked {work} for the cluster");
    if is_open(own) {
        text.push_str(
            "auth is off: whoever reaches the wire can read and change what hosts send\n",
        );
    }
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
        if cipher(it) == Some(CHACHA) {
            let _ = writeln!(
                reasons,
                "{}: frames are sealed by {CHACHA}, as without AES on one side",
                it.name
            );
        }
    }
    text.push_str(&table.render(output));
    text + &reasons
}

/// Tells why a host is not in, as each machine sees it: all in which it does not fit, and what its ID registers lack.
fn why(context: &Context, name: &str) -> Result<()> {
    let ask = |host: &Context| {
        let hosts = host.connect()?.hosts()?;
        if hosts.iter().any(|it| it.name.as_str() == Some(name)) {
            return Ok(hosts);
        }
        let message = format!("the machine's cluster has no host '{name}'");
        Err(Failure::new(exit::USAGE, message).help("`underpin cluster` lists them"))
    };
    let asked = |hosts: &[HostStatus]| {
        let mut named = hosts.iter().filter(|it| it.name.as_str() == Some(name));
        named.next().copied().zip(own(hosts).copied())
    };
    let json = |hosts: &[HostStatus]| {
        let all = asked(hosts).into_iter();
        all.map(|(it, own)| why_json(&it, &own)).collect()
    };
    let text = |hosts: &[HostStatus], _: Output| {
        asked(hosts).map_or_else(String::new, |(it, own)| why_text(&it, &own))
    };
    context.show_of_hosts(ask, json, text)
}

fn why_json(it: &HostStatus, own: &HostStatus) -> Value {
    let (state, _, why) = state(it, Some(own));
    let unfit: Vec<String> = unfit(it, own).iter().map(ToString::to_string).collect();
    let registers = differing(it, own).into_iter().map(|differing| {
        let [there, here, both] = differing.values.map(|value| format!("{value:#x}"));
        json!({ "register": differing.register, "there": there, "here": here, "both": both })
    });
    json!({
        "name": it.name.to_string(), "state": state, "why": (!why.is_empty()).then_some(why),
        "unfit": unfit, "registers": registers.collect::<Value>(),
    })
}

fn why_text(it: &HostStatus, own: &HostStatus) -> String {
    let (state, _, why) = state(it, Some(own));
    let mut text = match state {
        "own" => format!("{}: the machine that was asked\n", it.name),
        "in" => format!("{}: in, since epoch {} or before\n", it.name, it.epoch),
        "unfit" => format!("{}: unfit, and so not in\n", it.name),
        state => format!("{}: {state}: {why}\n", it.name),
    };
    for why in unfit(it, own) {
        let _ = writeln!(text, "  - {why}");
    }
    for differing in differing(it, own) {
        let [there, here, both] = differing.values;
        let _ = writeln!(
            text,
            "  {} is {there:#x} there and {here:#x} here: VMs of both get {both:#x}",
            differing.register
        );
    }
    text
}

/// Measures a link, tells why a host is not in, makes a key, or checks a cluster file.
pub fn cluster(context: &Context, verb: &ClusterVerb) -> Result<()> {
    match verb {
        ClusterVerb::Probe(options) => probe::probe(context, options),
        ClusterVerb::Why { peer } => why(context, peer),
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
            let json = || {
                json!({
                    "file": file, "number": cluster.number, "mtu": cluster.mtu, "hosts": names,
                })
            };
            let text =
                |_: Output| format!("{}: good; hosts {}\n", file.display(), names.join(", "));
            context.output.result(json, text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::tests::host_of;

    #[test]
    fn an_unfit_host_is_told_in_full() {
        let own = host_of("left", host::OWN | host::IN);
        let mut it = host_of("right", host::SESSION);
        it.description.protocol = 9;
        it.description.page_log2 = 16;
        it.description.zva_log2 = 8;
        it.description.clock_hz = 50_000_000.into();
        it.description.features[1] = 0x21.into();
        let text = why_text(&it, &own);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 6, "{text}");
        assert_eq!(lines[0], "right: unfit, and so not in");
        assert!(lines[1].contains("its protocol has version 9, here"));
        assert!(lines[2].contains("its pages have 2^16 bytes, here 2^0"));
        assert!(lines[3].contains("2^8 bytes, here 2^0") && lines[4].contains("50000000 Hz"));
        assert!(lines[5].contains("is 0x21 there and 0x0 here: VMs of both get 0x0"));
        let json = why_json(&it, &own);
        assert_eq!(json["unfit"].as_array().map(Vec::len), Some(4));
        assert_eq!(json["registers"][0]["there"], "0x21");
    }
}
