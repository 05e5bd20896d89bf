//! What two VMs at real work could share, for how long, and what they do share (Satori, section 6):
//! gcc, and a web server with static files.

use super::{
    Found,
    crowd::{Crowd, Work, names, vm},
    lab,
};
use crate::step::{Outcome, Step};
use serde::Deserialize;
use std::{
    collections::BTreeMap,
    path::Path,
    process::{Child, Command},
};
use tests_boot::status;

const MACHINE: &str = "768M";
const MEMORY: &str = "192MiB";
/// How often all pages are compared.
const EVERY: &str = "10s";
/// What must be exploited of what the page caches of web servers have in common, in percent.
const AIM: f64 = 94.0;
const HEAD: [&str; 8] = [
    "pages that two VMs have in common",
    "compared, MiB",
    "zero, MiB",
    "page cache: could be saved, MiB",
    "exploited",
    "everything: could be saved, MiB",
    "exploited",
    "longest pause, ms",
];
/// The ranks of Satori's table 1, and the durations of its figures 4 and 5.
const RANKS: [(u64, u64); 4] = [(2, 2), (3, 3), (4, 8), (9, u64::MAX)];
const LASTED: [&str; 4] = ["one snapshot", "1 to 3 intervals", "4 to 15", "16 or more"];

/// `underpin mem analyze -o json`.
#[derive(Deserialize)]
struct Analysis {
    pause_ns: Vec<u64>,
    snapshots: Vec<Snapshot>,
    saved_by_rank: BTreeMap<u64, u64>,
    durations: Durations,
}

/// Pages.
#[derive(Deserialize)]
struct Snapshot {
    pages: u64,
    zero: u64,
    all: Savings,
    page_cache: Option<Savings>,
}

#[derive(Deserialize)]
struct Savings {
    across: u64,
    within: u64,
    exploited: u64,
}

impl Savings {
    fn percent(&self) -> f64 {
        self.exploited as f64 * 100.0 / (self.across + self.within).max(1) as f64
    }
}

#[derive(Deserialize)]
struct Durations {
    contents: Counts,
}

#[derive(Deserialize)]
struct Counts {
    count: Vec<u64>,
}

/// Measures.
pub fn run(step: &mut Step<'_>) -> Outcome<Found> {
    let mut found = Found {
        name: "real-work",
        rows: vec![HEAD.map(str::to_owned).to_vec()],
        notes: Vec::new(),
        wrong: Vec::new(),
        figures: None,
    };
    for (name, file, work) in [
        ("gcc compiles", "gcc", Work::Compile),
        ("web server, static files", "web", Work::Serve),
    ] {
        step.doing(&format!("two VMs: {name}"));
        let (during, after) = measure(file, work)?;
        let last = after.snapshots.last().ok_or("nothing was compared")?;
        let cache = last.page_cache.as_ref().ok_or("no page cache is known")?;
        if work == Work::Serve && cache.percent() < AIM {
            let told = cache.percent();
            found
                .wrong
                .push(format!("{told:.1} % of the page cache, not {AIM} %"));
        }
        found.rows.push(row(name, last, cache, &during));
        found.notes.push(ranks(name, &during));
        found.notes.push(durations(name, &during));
    }
    Ok(found)
}

fn mib(pages: u64) -> String {
    format!("{:.1}", pages as f64 / 256.0)
}

fn row(name: &str, last: &Snapshot, cache: &Savings, during: &Analysis) -> Vec<String> {
    let savings = |savings: &Savings| {
        let all = mib(savings.across + savings.within);
        [all, format!("{:.1} %", savings.percent())]
    };
    let pause = during.pause_ns.iter().max().copied().unwrap_or_default();
    let mut row = vec![name.to_owned(), mib(last.pages), mib(last.zero)];
    row.extend(savings(cache));
    row.extend(savings(&last.all));
    row.push((pause / 1_000_000).to_string());
    row
}

/// Possible savings by how many pages have the same content.
fn ranks(name: &str, during: &Analysis) -> String {
    let all: u64 = during.saved_by_rank.values().sum();
    let parts = RANKS.map(|(from, to)| {
        let saved: u64 = during.saved_by_rank.range(from..=to).map(|(_, n)| n).sum();
        let label = match to {
            _ if from == to => from.to_string(),
            u64::MAX => format!("{from} and more"),
            _ => format!("{from} to {to}"),
        };
        format!(
            "{label} pages {:.1} %",
            saved as f64 * 100.0 / all.max(1) as f64
        )
    });
    let snapshots = during.snapshots.len();
    format!(
        "{name}, possible savings by rank over {snapshots} snapshots: {}",
        parts.join(", ")
    )
}

/// How long two pages or more had the same content.
fn durations(name: &str, during: &Analysis) -> String {
    let count = &during.durations.contents.count;
    let all: u64 = count.iter().sum();
    let parts = LASTED
        .iter()
        .zip(count)
        .map(|(label, n)| format!("{label} {:.1} %", *n as f64 * 100.0 / all.max(1) as f64));
    let parts: Vec<String> = parts.collect();
    format!(
        "{name}, opportunities by how long they lasted, intervals of {EVERY}: {}",
        parts.join(", ")
    )
}

/// What was seen while two VMs worked, and afterwards with their page caches told apart.
fn measure(file: &str, work: Work) -> Outcome<(Analysis, Analysis)> {
    let names = names(2);
    let vms = [vm(1, MEMORY), vm(2, MEMORY)];
    let mut crowd = Crowd::start(&format!("real-work-{file}"), MACHINE, &vms)?;
    for vm in &names {
        crowd.await_boot(vm)?;
    }
    for vm in &names {
        crowd.begin(vm, work)?;
    }
    let at = |extension: &str| -> Outcome<String> {
        let path = lab::directory("")?.join(format!("real-work-{file}.{extension}"));
        Ok(path.display().to_string())
    };
    let (csv, plot) = (at("csv")?, at("svg")?);
    let words = [
        "mem", "analyze", "--every", EVERY, "--csv", &csv, "--plot", &plot, "-o", "json",
    ];
    let during = crowd.machine().spawn(&words)?;
    let worked = crowd.await_work(&names, work, |_| Ok(()));
    let during = interrupt(during);
    worked?;
    let mut words = vec!["mem".to_owned(), "analyze".to_owned()];
    for vm in &names {
        let flags = crowd.page_flags(vm)?;
        words.extend(["--kpageflags".to_owned(), flag(vm, &flags)]);
    }
    words.extend(["-o".to_owned(), "json".to_owned()]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let after = status::parse("mem analyze", &crowd.machine().run(&words)?)?;
    crowd.shut_down()?;
    Ok((during?, after))
}

fn flag(vm: &str, file: &Path) -> String {
    format!("{vm}={}", file.display())
}

/// Ends an analysis as Ctrl-C does; what it found.
fn interrupt(analysis: Child) -> Outcome<Analysis> {
    let id = analysis.id().to_string();
    let sent = Command::new("kill").args(["-INT", &id]).status();
    sent.map_err(|error| format!("cannot end the analysis: {error}"))?;
    let output = analysis.wait_with_output();
    let output = output.map_err(|error| format!("cannot wait for the analysis: {error}"))?;
    status::parse("mem analyze", &String::from_utf8_lossy(&output.stdout))
}
