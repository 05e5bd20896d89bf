//! `xtask bench-cluster`: what the link between two hosts carries, and what it costs on each, by the classes of the
//! simulated Ethernet and at 5 % loss.
//!
//! `underpin cluster probe` measures, from one hypervisor to the other. Time is virtual, and an instruction takes 1 ns.

use crate::{
    bench::table::{keep, markdown},
    figures::{self, Measured},
    images, project,
    step::{Outcome, Step, Steps, print_line},
};
use serde_json::{Value, json};
use std::{
    fs,
    path::PathBuf,
    thread::sleep,
    time::{Duration, Instant},
};
use tests_boot::{
    assets, cluster_file,
    machine::{Hardware, Machine},
    vm::Vm,
};

/// Classes of the Ethernet: round trip of a short frame, card to card, and rate.
const CLASSES: [(&str, &str); 5] = [
    ("4us", "4 us, 100 Gbit/s"),
    ("20us", "20 us, 25 Gbit/s"),
    ("60us", "60 us, 10 Gbit/s"),
    ("200us", "200 us, 1 Gbit/s"),
    ("1ms", "1 ms, 1 Gbit/s"),
];
/// Round trips, and short messages at once.
const ROUNDS: u64 = 200;
const BURST: u64 = 20_000;
/// The least part of the throughput without loss that is to be left at 5 % loss.
const LEFT_MIN: f64 = 0.7;
/// What is transferred in each class, with loss and without.
pub const BYTES: &str = "256MiB";
/// How long hosts may take to join.
const PATIENCE: Duration = Duration::from_mins(3);

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// A table.
    Table,
    /// JSON.
    Json,
}

/// Whether frames are encrypted and authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Auth {
    /// As by default.
    On,
    /// `--auth off` on both hosts.
    Off,
}

impl Auth {
    /// Name of the products and of the table in SPECIFICATION.md.
    const fn name(self) -> &'static str {
        match self {
            Self::On => "cluster",
            Self::Off => "cluster-open",
        }
    }
}

/// What was measured of a class.
struct Row {
    what: &'static str,
    /// Nanoseconds of half of the round trips, and of 99 %.
    round_trip_ns: [f64; 2],
    /// Instructions for a short message of many, at its sender and its receiver.
    message: [f64; 2],
    /// The same for a page.
    page: [f64; 2],
    /// Bytes a second without loss, and at 5 %.
    throughput: [f64; 2],
}

/// Measures, and prints; with `write`, also puts the table into SPECIFICATION.md. Gives whether that could be done, and
/// loss cost no more than it may.
pub fn run(auth: Auth, size: &str, format: Format, write: bool) -> bool {
    let mut steps = Steps::new(2 + CLASSES.len(), directory(auth));
    measure(&mut steps, auth, size, format, write).unwrap_or(false)
}

/// Measures with the cipher and, with less to transfer, without.
pub fn run_both(write: bool) -> bool {
    let is_good = run(Auth::On, BYTES, Format::Table, write);
    run(Auth::Off, "16MiB", Format::Table, write) && is_good
}

fn directory(auth: Auth) -> PathBuf {
    project::products().join("bench").join(auth.name())
}

fn measure(steps: &mut Steps, auth: Auth, size: &str, format: Format, write: bool) -> Option<bool> {
    steps.run("build", |step| {
        images::plugin(step)?;
        images::command(step)?;
        images::guests(step)?;
        images::hypervisor(step)
    })?;
    let mut rows = Vec::new();
    for (class, what) in CLASSES {
        rows.push(steps.run(what, |step| of_class(step, auth, class, what, size))?);
    }
    let table = markdown(&table(&rows));
    match format {
        Format::Table => print_line(&format!("\n{table}")),
        Format::Json => print_line(&rows.iter().map(Row::to_json).collect::<Value>().to_string()),
    }
    steps.run("files", |_| {
        figures::record(auth.name(), Measured::of_rows(&self::table(&rows)))?;
        if write {
            keep(auth.name(), &table)
        } else {
            Ok(())
        }
    })?;
    Some(rows.iter().all(|row| row.left() >= LEFT_MIN))
}

fn of_class(
    step: &Step<'_>,
    auth: Auth,
    class: &str,
    what: &'static str,
    size: &str,
) -> Outcome<Row> {
    step.doing("without loss");
    let mut pair = Pair::start(auth, class, "")?;
    let rounds = ROUNDS.to_string();
    let (trips, _) = pair.probe(&["--rounds", &rounds, "--bytes", "0MiB"])?;
    let burst = BURST.to_string();
    let (short, short_theirs) =
        pair.probe(&["--rounds", "0", "--bytes", "0MiB", "--burst", &burst])?;
    let (whole, whole_theirs) = pair.probe(&["--rounds", "0", "--bytes", size])?;
    pair.end()?;
    step.doing("at 5 % loss");
    let mut pair = Pair::start(auth, class, ",lose=5%")?;
    let (lossy, _) = pair.probe(&["--rounds", "0", "--bytes", size])?;
    pair.end()?;
    let pages = number(&whole["transfer"]["pages"])?;
    let rate = |said: &Value| number(&said["transfer"]["bytes_per_second"]);
    let of_trips = |key: &str| number(&trips["round_trips"][key]);
    Ok(Row {
        what,
        round_trip_ns: [of_trips("p50_ns")?, of_trips("p99_ns")?],
        message: [number(&short["burst"]["work_ns"])?, short_theirs].map(|ns| ns / BURST as f64),
        page: [number(&whole["transfer"]["work_ns"])?, whole_theirs].map(|ns| ns / pages),
        throughput: [rate(&whole)?, rate(&lossy)?],
    })
}

fn number(value: &Value) -> Outcome<f64> {
    value
        .as_f64()
        .ok_or_else(|| format!("{value} is no number"))
}

/// Two hosts that have joined.
struct Pair(Machine);

impl Pair {
    fn start(auth: Auth, class: &str, more: &str) -> Outcome<Self> {
        let directory = directory(auth).join(format!("{class}{}", more.len()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory)
            .map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
        let hardware = Hardware::hosts(2, "512M", &format!("class={class}{more}"));
        let mut hardware = cluster_file::joined(hardware, &directory, (2, 1500))?;
        if auth == Auth::Off {
            hardware = hardware.option("--auth=off");
        }
        let vm = Vm::bare("hello", "hello", "").flat();
        let mut machine = Machine::start(&assets::command(), &directory, &hardware, &[vm])?;
        machine.await_answer()?;
        let mut pair = Self(machine);
        let deadline = Instant::now() + PATIENCE;
        while !pair.are_in()? {
            if Instant::now() > deadline {
                return Err(format!(
                    "the hosts do not join: {}",
                    pair.0.host_log("host0")
                ));
            }
            sleep(Duration::from_millis(100));
        }
        Ok(pair)
    }

    fn hosts(&mut self, host: &str) -> Outcome<Vec<Value>> {
        let said = self.0.run(&["--host", host, "cluster", "-o", "json"])?;
        let json: Value =
            serde_json::from_str(&said).map_err(|error| format!("{error}: {said}"))?;
        Ok(json.as_array().cloned().unwrap_or_default())
    }

    fn are_in(&mut self) -> Outcome<bool> {
        for host in ["host0", "host1"] {
            if !self.hosts(host)?.iter().any(|it| it["state"] == "in") {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Instructions that host1 worked for the cluster.
    fn work_of_other(&mut self) -> Outcome<f64> {
        let hosts = self.hosts("host1")?;
        let own = hosts.iter().find(|it| it["state"] == "own");
        number(&own.unwrap_or(&Value::Null)["work_ns"])
    }

    /// Probes from host0 to host1; gives what the command says, and the other's work meanwhile.
    fn probe(&mut self, words: &[&str]) -> Outcome<(Value, f64)> {
        let before = self.work_of_other()?;
        let all = ["--host", "host0", "cluster", "probe", "right", "-o", "json"];
        let said = self.0.run(&[&all, words].concat())?;
        let work = self.work_of_other()? - before;
        let json = serde_json::from_str(&said).map_err(|error| format!("{error}: {said}"))?;
        Ok((json, work))
    }

    fn end(mut self) -> Outcome {
        self.0.shut_down()
    }
}

impl Row {
    /// The part of the throughput that is left at 5 % loss.
    fn left(&self) -> f64 {
        self.throughput[1] / self.throughput[0]
    }

    fn to_json(&self) -> Value {
        json!({
            "class": self.what,
            "round_trip_ns": { "p50": self.round_trip_ns[0], "p99": self.round_trip_ns[1] },
            "message_instructions": { "sender": self.message[0], "receiver": self.message[1] },
            "page_instructions": { "sender": self.page[0], "receiver": self.page[1] },
            "bytes_per_second": self.throughput[0],
            "bytes_per_second_at_5_percent_loss": self.throughput[1],
        })
    }
}

fn table(rows: &[Row]) -> Vec<Vec<String>> {
    let head = [
        "class of the Ethernet",
        "round trip, us",
        "99 % within",
        "instructions a short message, sender",
        "receiver",
        "a page, sender",
        "receiver",
        "pages, MB/s",
        "at 5 % loss",
        "left (aim 0.70)",
    ];
    let mut all = vec![head.map(str::to_owned).to_vec()];
    for row in rows {
        let us = row.round_trip_ns.map(|ns| format!("{:.1}", ns / 1000.0));
        let whole = |value: f64| format!("{value:.0}");
        let [message, page] = [row.message, row.page].map(|sides| sides.map(whole));
        let rates = row.throughput.map(|rate| format!("{:.1}", rate / 1e6));
        let missed = if row.left() < LEFT_MIN {
            ", missed"
        } else {
            ""
        };
        let left = [format!("{:.2}{missed}", row.left())];
        let cells = [&us[..], &message, &page, &rates, &left].concat();
        all.push([&[row.what.to_owned()][..], &cells].concat());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_what_was_measured() {
        let row = Row {
            what: "20 us, 25 Gbit/s",
            round_trip_ns: [61_240.0, 70_000.0],
            message: [400.4, 500.0],
            page: [20_000.0, 22_000.0],
            throughput: [100e6, 71e6],
        };
        let rows = table(std::slice::from_ref(&row));
        let cells = rows[1].iter().map(String::as_str).collect::<Vec<_>>();
        let expected = [
            "20 us, 25 Gbit/s",
            "61.2",
            "70.0",
            "400",
            "500",
            "20000",
            "22000",
            "100.0",
            "71.0",
            "0.71",
        ];
        assert_eq!(cells, expected);
        assert_eq!(rows[0].len(), cells.len());
        let missed = Row {
            throughput: [100e6, 65e6],
            ..row
        };
        assert_eq!(table(&[missed])[1][9], "0.65, missed");
    }
}
