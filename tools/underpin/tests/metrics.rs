//! What `underpin metrics` says, read by a strict parser of Prometheus' text format 0.0.4.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test ends where something is not as it should be"
)]

mod fake;

use abi::{
    Text,
    control::{CpuStatus, MachineStatus, NodeStatus, state},
};
use fake::Fake;
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    process::Stdio,
};
use tools_abi::status::{MachineMem, MemStatus, VcpuStatus, VmStatus};
use underpin::{
    metrics,
    watch::{Sample, VmSample},
};
use zerocopy::FromZeros as _;

type Labels = BTreeMap<String, String>;
/// Series by name and labels.
type All = BTreeMap<(String, Labels), f64>;

/// Reads the text; says what is wrong with it.
fn parse(text: &str) -> Result<All, String> {
    if !text.ends_with('\n') {
        return Err("the last line does not end".to_owned());
    }
    let mut all = All::new();
    let mut families = BTreeSet::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let (name, help) = line
            .strip_prefix("# HELP ")
            .and_then(|rest| rest.split_once(' '))
            .ok_or(format!("no family begins with {line}"))?;
        let plain = |text: &str| !text.is_empty() && !text.contains('\\');
        if !is_name(name, true) || !plain(help) || !families.insert(name) {
            return Err(format!("wrong, or twice: {line}"));
        }
        let kind = lines.next().and_then(|line| line.strip_prefix("# TYPE "));
        let kind = kind
            .and_then(|rest| rest.strip_prefix(name))
            .map(str::trim_start);
        match kind {
            Some("counter") if name.ends_with("_total") => {}
            Some("gauge" | "histogram") if !name.ends_with("_total") => {}
            _ => return Err(format!("{name} is {kind:?}")),
        }
        let mut series = 0;
        let is_histogram = kind == Some("histogram");
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            let rest = line.strip_prefix(name).ok_or(line)?;
            let endings = ["_bucket", "_sum", "_count"];
            let ending = endings.iter().find(|ending| rest.starts_with(**ending));
            let ending = ending.filter(|_| is_histogram).copied().unwrap_or_default();
            if is_histogram && ending.is_empty() {
                return Err(format!("no part of a histogram: {line}"));
            }
            let (labels, value) = parse_series(&rest[ending.len()..])?;
            if labels.contains_key("le") != (ending == "_bucket") {
                return Err(format!("a bound where none belongs, or none: {line}"));
            }
            if all
                .insert((format!("{name}{ending}"), labels), value)
                .is_some()
            {
                return Err(format!("twice: {line}"));
            }
            series += 1;
        }
        if series == 0 {
            return Err(format!("{name} is empty"));
        }
        if is_histogram {
            check_histogram(&all, name)?;
        }
    }
    Ok(all)
}

/// Buckets rise, and the one without a bound holds all.
fn check_histogram(all: &All, name: &str) -> Result<(), String> {
    let counts = all
        .iter()
        .filter(|((of, _), _)| *of == format!("{name}_count"));
    for ((_, labels), count) in counts {
        let of_this = |found: &Labels| {
            let mut found = found.clone();
            let bound = found.remove("le")?;
            (found == *labels).then_some(bound)
        };
        let buckets = all
            .iter()
            .filter(|((of, _), _)| *of == format!("{name}_bucket"));
        let mut buckets: Vec<(f64, f64)> = buckets
            .filter_map(|((_, found), value)| Some((of_this(found)?.parse().ok()?, *value)))
            .collect();
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        let rises = buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1);
        let has_sum = all.contains_key(&(format!("{name}_sum"), labels.clone()));
        if !rises || !has_sum || buckets.last() != Some(&(f64::INFINITY, *count)) {
            return Err(format!("{name} of {labels:?}: {buckets:?}"));
        }
    }
    Ok(())
}

fn is_name(name: &str, colon: bool) -> bool {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_' || (colon && c == ':');
    name.starts_with(first) && name.chars().all(|c| first(c) || c.is_ascii_digit())
}

fn parse_series(text: &str) -> Result<(Labels, f64), String> {
    let (mut labels, mut rest) = (Labels::new(), text);
    if let Some(inside) = text.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, value) = rest
                .split_once("=\"")
                .ok_or(format!("no label in {text}"))?;
            let (value, after) = parse_value(value)?;
            if !is_name(label, false) || labels.insert(label.to_owned(), value).is_some() {
                return Err(format!("label {label} in {text}"));
            }
            rest = after;
            if let Some(end) = rest.strip_prefix('}') {
                rest = end;
                break;
            }
            rest = rest
                .strip_prefix(',')
                .ok_or(format!("no comma in {text}"))?;
        }
    }
    let number = rest
        .strip_prefix(' ')
        .ok_or(format!("no blank in {text}"))?;
    let digits = number
        .chars()
        .all(|c| c.is_ascii_digit() || ".-".contains(c));
    let number = number.parse().map_err(|_| format!("no number in {text}"))?;
    if digits {
        Ok((labels, number))
    } else {
        Err(format!("odd number in {text}"))
    }
}

/// A label's value up to its closing quote, and what follows that.
fn parse_value(text: &str) -> Result<(String, &str), String> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((value, &text[at + 1..])),
            '\\' => value.push(match chars.next() {
                Some((_, 'n')) => '\n',
                Some((_, c @ ('"' | '\\'))) => c,
                _ => return Err(format!("wrong escape in {text}")),
            }),
            c => value.push(c),
        }
    }
    Err(format!("no closing quote in {text}"))
}

fn find(all: &All, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let labels = labels
        .iter()
        .map(|(l, v)| ((*l).to_owned(), (*v).to_owned()));
    all.get(&(name.to_owned(), labels.collect())).copied()
}

const ODD: &str = "a\"b\\n\nc{x=\"y\"} 1";

fn sample() -> Sample {
    let vm = |name: &str| {
        let mut status = VmStatus::new_zeroed();
        (status.state, status.run_ns) = (state::PAUSED, 1_000_000_001);
        (status.kernel, status.exits[6]) = (Text::cut(name), 7);
        (status.exit_ns[6], status.disk_ns) = (1_500_000_000, 9_000);
        (status.disk_latency[0], status.disk_latency[15]) = (2, 1);
        (status.net_latency[1], status.net_ns) = (3, 15_000);
        let mut memory = MemStatus::new_zeroed();
        (memory.balance, memory.events[5], memory.owed) = (-4096, 42, u64::MAX);
        VmSample {
            name: name.to_owned(),
            status,
            memory: Some(memory),
            vcpus: Some(vec![VcpuStatus::new_zeroed(); 2]),
        }
    };
    let mut idle = vm("idle");
    (idle.memory, idle.vcpus) = (None, None);
    let mut cpu = CpuStatus::new_zeroed();
    cpu.stretch_ns[7] = 90_000;
    Sample {
        machine: MachineStatus::new_zeroed(),
        memory: MachineMem::new_zeroed(),
        cpus: vec![cpu],
        nodes: vec![NodeStatus::new_zeroed(); 2],
        hosts: fake::hosts::all().to_vec(),
        vms: vec![vm(""), vm(ODD), vm("a"), idle],
    }
}

#[test]
fn times_of_exits_disks_and_frames_are_seconds() {
    let all = parse(&metrics::text(&sample(), None)).unwrap();
    for (name, labels, value) in [
        (
            "underpin_vm_exit_seconds_total",
            &[("vm", "a"), ("class", "uart")][..],
            1.5,
        ),
        (
            "underpin_vm_disk_request_duration_seconds_bucket",
            &[("vm", "a"), ("le", "0.000004000")],
            2.0,
        ),
        (
            "underpin_vm_disk_request_duration_seconds_bucket",
            &[("vm", "a"), ("le", "+Inf")],
            3.0,
        ),
        (
            "underpin_vm_net_frame_duration_seconds_bucket",
            &[("vm", "a"), ("le", "0.000004000")],
            0.0,
        ),
        (
            "underpin_vm_net_frame_duration_seconds_count",
            &[("vm", "a")],
            3.0,
        ),
        (
            "underpin_vm_net_frame_duration_seconds_sum",
            &[("vm", "a")],
            15e-6,
        ),
        (
            "underpin_cpu_longest_stretch_seconds",
            &[("cpu", "0"), ("kind", "end")],
            9e-5,
        ),
    ] {
        assert_eq!(find(&all, name, labels), Some(value), "{name} {labels:?}");
    }
}

#[test]
fn all_series_are_well_formed_and_there_once() {
    let text = metrics::text(&sample(), None);
    let all = parse(&text).unwrap();
    for (name, labels, value) in [
        (
            "underpin_vm_exits_total",
            &[("vm", "a"), ("class", "uart")][..],
            7.0,
        ),
        (
            "underpin_vm_exits_total",
            &[("vm", ODD), ("class", "uart")],
            7.0,
        ),
        (
            "underpin_vm_run_seconds_total",
            &[("vm", "")],
            1.000_000_001,
        ),
        (
            "underpin_vm_state",
            &[("vm", "a"), ("state", "paused")],
            1.0,
        ),
        (
            "underpin_vm_state",
            &[("vm", "a"), ("state", "running")],
            0.0,
        ),
        ("underpin_vm_memory_balance_bytes", &[("vm", "a")], -4096.0),
        (
            "underpin_vm_memory_events_total",
            &[("vm", "a"), ("event", "breaks")],
            42.0,
        ),
        ("underpin_node_memory_free_bytes", &[("node", "1")], 0.0),
        (
            "underpin_vcpu_idle_seconds_total",
            &[("vm", "a"), ("vcpu", "1")],
            0.0,
        ),
        ("underpin_uptime_seconds", &[], 0.0),
    ] {
        assert_eq!(
            find(&all, name, labels),
            Some(value),
            "{name} {labels:?} in {text}"
        );
    }
    let info = all
        .keys()
        .find(|(name, _)| name == "underpin_build_info")
        .unwrap();
    assert_eq!(info.1["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(
        find(&all, "underpin_vm_memory_base_bytes", &[("vm", "idle")]),
        None
    );
    // A machine without VMs.
    let none = Sample {
        vms: Vec::new(),
        cpus: Vec::new(),
        nodes: Vec::new(),
        hosts: Vec::new(),
        ..sample()
    };
    assert!(parse(&metrics::text(&none, None)).unwrap().len() > 10);
}

#[test]
fn hosts_of_a_cluster_are_peers() {
    let all = parse(&metrics::text(&sample(), Some("host0"))).unwrap();
    let find = |name: &str, labels: &[(&str, &str)]| {
        let labels = labels.iter().chain(&[("host", "host0")]);
        let labels = labels.map(|(label, value)| (label.to_string(), value.to_string()));
        all.get(&(name.to_owned(), labels.collect())).copied()
    };
    assert_eq!(find("underpin_cluster_epoch", &[]), Some(3.0));
    assert_eq!(find("underpin_cluster_members", &[]), Some(2.0));
    for (peer, state) in [("right", "in"), ("slow", "unfit"), ("stranger", "away")] {
        for other in ["in", "joining", "unfit", "away"] {
            let is = find("underpin_peer_state", &[("peer", peer), ("state", other)]);
            assert_eq!(
                is,
                Some(f64::from(u8::from(other == state))),
                "{peer} {other}"
            );
        }
    }
    let right = [("peer", "right")];
    assert_eq!(
        find("underpin_peer_round_trip_seconds", &right),
        Some(25e-6)
    );
    assert_eq!(
        find("underpin_peer_sent_bytes_total", &right),
        Some(20_000.0)
    );
    assert_eq!(find("underpin_peer_resent_pieces_total", &right), Some(3.0));
    let forged = [("peer", "stranger"), ("why", "forged")];
    assert_eq!(
        find("underpin_peer_dropped_frames_total", &forged),
        Some(7.0)
    );
    assert_eq!(
        find("underpin_peer_sent_bytes_total", &[("peer", "left")]),
        None
    );
}

#[test]
fn the_parser_refuses_what_is_wrong() {
    let family = "# HELP a_total A.\n# TYPE a_total counter\n";
    let with = |series: &str| parse(&format!("{family}{series}"));
    assert!(with("a_total{x=\"1\"} 1\n").is_ok());
    for wrong in [
        "",
        "a_total 1",
        "a_total{x=\"1\"} 1\na_total{x=\"1\"} 2\n",
        "a_total{x=\"1} 1\n",
        "a_total{x=\"\\t\"} 1\n",
        "a_total{x=\"1\"}1\n",
        "a_total{1x=\"1\"} 1\n",
        "a_total{x=\"1\",x=\"1\"} 1\n",
        "a_total NaN\n",
        "b_total 1\n",
    ] {
        assert!(with(wrong).is_err(), "{wrong}");
    }
    assert!(parse("# HELP a A.\n# TYPE a counter\na 1\n").is_err());
}

#[test]
fn the_command_prints_and_serves_them() {
    let fake = Fake::start("metrics");
    let output = fake.run("metrics");
    let all = parse(str::from_utf8(&output.stdout).unwrap()).unwrap();
    let exits = [("vm", "web1"), ("class", "uart")];
    assert_eq!(find(&all, "underpin_vm_exits_total", &exits), Some(7.0));
    assert_eq!(
        find(
            &all,
            "underpin_vcpu_migrations_total",
            &[("vm", "db"), ("vcpu", "0")]
        ),
        Some(0.0)
    );

    let mut server = fake.command("metrics --listen 127.0.0.1:0");
    let mut server = server.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(server.stderr.take().unwrap())
        .read_line(&mut said)
        .unwrap();
    let address = said
        .split(' ')
        .nth(3)
        .unwrap()
        .trim_end_matches(';')
        .to_owned();
    let get = |request: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    };
    let reply = get("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    let (head, body) = reply.split_once("\r\n\r\n").unwrap();
    assert!(
        head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"),
        "{head}"
    );
    assert!(
        head.contains(&format!("Content-Length: {}\r\n", body.len())),
        "{head}"
    );
    assert_eq!(
        find(&parse(body).unwrap(), "underpin_vm_exits_total", &exits),
        Some(7.0)
    );
    assert!(get("HEAD /metrics HTTP/1.1\r\n\r\n").ends_with("\r\n\r\n"));
    assert!(get("GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(get("POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
    assert!(get("hello\r\n\r\n").starts_with("HTTP/1.1 400"));
    fake.run("-q shutdown");
    assert!(get("GET /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 503"));
    server.kill().unwrap();
    server.wait().unwrap();
}

#[test]
fn series_of_a_host_name_it() {
    let plain = parse(&metrics::text(&sample(), None)).unwrap();
    let text = metrics::text(&sample(), Some("host1"));
    let all = parse(&text).unwrap();
    assert_eq!(all.len(), plain.len());
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        assert!(line.contains("{host=\"host1\""), "{line}");
    }
    let labels = [("host", "host1"), ("vm", "a"), ("le", "+Inf")];
    let name = "underpin_vm_disk_request_duration_seconds_bucket";
    assert_eq!(find(&all, name, &labels), Some(3.0));
}
