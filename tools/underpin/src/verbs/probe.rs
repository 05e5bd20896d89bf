//! `underpin cluster probe`: measures the link to a host by messages between the two hypervisors.

use super::Context;
use crate::{
    cli::Probe,
    control::Client,
    failure::{Failure, Result, exit},
    hosts::own,
    output::Output,
    units,
};
use abi::control::{HostStatus, ProbeRequest};
use serde_json::json;
use std::{
    fmt::Write as _,
    thread,
    time::{Duration, Instant},
};

/// Bytes of a page, which each bulk message has.
const PAGE: u64 = 4096;
/// How often the hypervisor is asked how it goes.
const LOOK_TIME: Duration = Duration::from_millis(2);
/// How long nothing may come.
const PATIENCE: Duration = Duration::from_mins(1);

/// What was measured.
struct Measured {
    /// Nanoseconds of round trips, sorted.
    round_trips: Vec<u64>,
    /// Short messages at once, and nanoseconds until the answer.
    burst: [u64; 2],
    pages: u64,
    /// Nanoseconds until all pages had come, and the answer.
    transfer_ns: u64,
    /// Nanoseconds that this machine worked at EL2 for the cluster, for round trips, burst and pages.
    work_ns: [u64; 3],
}

/// Measures round trips, then a burst, then a transfer of pages.
pub fn probe(context: &Context, options: &Probe) -> Result<()> {
    let pages = options.bytes.div_ceil(PAGE);
    let Ok(count) = u32::try_from(pages) else {
        let message = format!("{} are too much", units::size(options.bytes));
        return Err(Failure::new(exit::USAGE, message).help("use 15TiB at most"));
    };
    let mut client = context.connect()?;
    let mut link = Link::to(&mut client, &options.peer)?;
    let mut work = vec![link.work_ns()?];
    let mut round_trips = Vec::new();
    for _ in 0..options.rounds {
        round_trips.push(link.send(1, false)?);
    }
    round_trips.sort_unstable();
    work.push(link.work_ns()?);
    let burst_ns = link.send(options.burst, false)?;
    work.push(link.work_ns()?);
    let transfer_ns = link.send(count, true)?;
    work.push(link.work_ns()?);
    let between = |n: usize| work[n + 1].saturating_sub(work[n]);
    let measured = Measured {
        round_trips,
        burst: [options.burst.into(), burst_ns],
        pages,
        transfer_ns,
        work_ns: [between(0), between(1), between(2)],
    };
    let host = &options.peer;
    context.output.result(
        || measured.to_json(host),
        |_: Output| measured.to_text(host),
    )
}

/// The link to a host.
struct Link<'a> {
    client: &'a mut Client,
    host: &'a str,
    number: u32,
    sessions: u64,
}

impl<'a> Link<'a> {
    fn to(client: &'a mut Client, host: &'a str) -> Result<Self> {
        let status = find(&client.hosts()?, host)?;
        let (number, sessions) = (status.number, status.sessions);
        Ok(Self {
            client,
            host,
            number,
            sessions,
        })
    }

    fn work_ns(&mut self) -> Result<u64> {
        let hosts = self.client.hosts()?;
        Ok(own(&hosts).map_or(0, |own| own.work_ns))
    }

    /// Sends messages and awaits the answer; gives the nanoseconds from the first message on, none for no messages.
    fn send(&mut self, messages: u32, has_pages: bool) -> Result<u64> {
        if messages == 0 {
            return Ok(0);
        }
        self.client.probe(&ProbeRequest {
            host: self.number,
            messages,
            has_pages: has_pages.into(),
        })?;
        let host = self.host;
        let failed = |what: &str| Failure::new(exit::FAILED, format!("{host}: {what}"));
        let (mut last, mut moved_at) = (u64::MAX, Instant::now());
        loop {
            let status = find(&self.client.hosts()?, host)?;
            let [left, began, ended, is_whole] = status.probe;
            if status.sessions != self.sessions {
                let failure = failed("the session ended meanwhile, and what was sent is lost");
                return Err(failure.help("`underpin cluster` shows the state; try again"));
            }
            if ended != 0 && is_whole == 1 {
                return Ok(ended.saturating_sub(began));
            }
            if ended != 0 {
                return Err(failed("what came differs from what was sent"));
            }
            if left < last {
                (last, moved_at) = (left, Instant::now());
            }
            if moved_at.elapsed() > PATIENCE {
                let failure = failed("no answer for a minute");
                return Err(failure.help("did somebody else begin a probe of the same link?"));
            }
            thread::sleep(LOOK_TIME);
        }
    }
}

fn find(hosts: &[HostStatus], name: &str) -> Result<HostStatus> {
    let mut named = hosts.iter().filter(|it| it.name.as_str() == Some(name));
    let found = named.next().copied();
    let is_own = found.is_some() && found.map(|it| it.number) == own(hosts).map(|it| it.number);
    found.filter(|_| !is_own).ok_or_else(|| {
        let message = if is_own {
            format!("{name} is the machine itself")
        } else {
            format!("the machine's cluster has no host '{name}'")
        };
        Failure::new(exit::USAGE, message).help("`underpin cluster` lists the hosts")
    })
}

impl Measured {
    /// The round trip that so many of a hundred are not longer than.
    fn percentile(&self, percent: usize) -> Option<u64> {
        let place = (self.round_trips.len() * percent).div_ceil(100);
        self.round_trips.get(place.saturating_sub(1)).copied()
    }

    fn bytes_per_second(&self) -> Option<u64> {
        let bytes = u128::from(self.pages * PAGE) * 1_000_000_000;
        let rate = bytes.checked_div(self.transfer_ns.into())?;
        u64::try_from(rate).ok()
    }

    fn to_json(&self, host: &str) -> serde_json::Value {
        json!({
            "host": host,
            "round_trips": {
                "count": self.round_trips.len(), "work_ns": self.work_ns[0],
                "p50_ns": self.percentile(50), "p99_ns": self.percentile(99),
                "least_ns": self.round_trips.first(), "most_ns": self.round_trips.last(),
            },
            "burst": {
                "count": self.burst[0], "ns": self.burst[1], "work_ns": self.work_ns[1],
            },
            "transfer": {
                "pages": self.pages, "bytes": self.pages * PAGE, "ns": self.transfer_ns,
                "bytes_per_second": self.bytes_per_second(), "work_ns": self.work_ns[2],
            },
        })
    }

    fn to_text(&self, host: &str) -> String {
        let mut text = String::new();
        let times = [self.percentile(50), self.percentile(99)].map(|ns| ns.map(units::nanoseconds));
        if let [Some(median), Some(most)] = times {
            let count = self.round_trips.len();
            text = format!(
                "{host}: {count} round trips, half of them within {median}, 99 % within {most}\n"
            );
        }
        let [count, ns] = self.burst;
        if count > 0 {
            let time = units::nanoseconds(ns);
            let _ = writeln!(text, "{host}: {count} short messages at once in {time}");
        }
        if let Some(rate) = self.bytes_per_second() {
            let (bytes, time) = (
                units::size(self.pages * PAGE),
                units::nanoseconds(self.transfer_ns),
            );
            let rate = units::size(rate);
            let _ = writeln!(
                text,
                "{host}: {bytes} in {time}, {rate}/s; all came as it was sent"
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_round_trips() {
        let of = |round_trips: Vec<u64>| Measured {
            round_trips,
            burst: [0; 2],
            pages: 256,
            transfer_ns: 1_000_000,
            work_ns: [0; 3],
        };
        let hundred = of((1..=100).collect());
        assert_eq!(
            [hundred.percentile(50), hundred.percentile(99)],
            [Some(50), Some(99)]
        );
        assert_eq!(of(vec![7]).percentile(99), Some(7));
        assert_eq!(of(Vec::new()).percentile(50), None);
        assert_eq!(hundred.bytes_per_second(), Some(1_048_576_000));
    }
}
