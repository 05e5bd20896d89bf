//! `underpin mem analyze`: what VMs could share, for how long, and what they do share.

use super::super::Context;
use crate::{
    analysis::{Analysis, Durations, Found, LASTED, PageFlags, Report, Savings, VmPages, plot},
    cli::Analyze,
    control::Client,
    failure::{Failure, Result, exit, reason},
    output::{
        Output,
        Side::{Left, Right},
        Table, Tone,
    },
    units,
};
use abi::control::{PageStatus, code, request, state};
use serde_json::{Map, Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use tools_abi::status::MemStatus;

/// How often pages are looked at where only the end was said.
const EVERY: Duration = Duration::from_secs(10);
/// How often Ctrl-C is looked for while nothing is done.
const NAP: Duration = Duration::from_millis(50);
const PAGE: u64 = 4096;

/// What was measured beside the pages.
#[derive(Default)]
struct Run {
    names: Vec<String>,
    groups: Vec<String>,
    every: Option<Duration>,
    /// How long each VM stood still each time.
    pauses: Vec<Duration>,
    /// What the accounts of EL2 said was saved when the last snapshot was taken, in bytes.
    saved: u64,
}

/// Takes snapshots, and tells what they show.
pub fn analyze(context: &Context, options: &Analyze) -> Result<()> {
    let stop = stop_on_signals()?;
    let mut client = context.connect()?;
    let every = options.every.or(options.time.map(|_| EVERY));
    let mut run = Run {
        every,
        ..Run::default()
    };
    let mut analysis = Analysis::default();
    let started = Instant::now();
    let mut next = Duration::ZERO;
    loop {
        let vms = snapshot(&mut client, options, &mut run)?;
        if vms.is_empty() {
            break;
        }
        run.saved = client.machine_mem()?.saved;
        let found = analysis.take(started.elapsed(), &vms);
        say(context, found);
        let Some(every) = every.filter(|every| !every.is_zero()) else {
            break;
        };
        next += every;
        let over = options.time.is_some_and(|time| next > time);
        if over || !wait_until(started + next, &stop) {
            break;
        }
    }
    let report = analysis.report();
    if report.found.is_empty() {
        let message = "no VM runs whose pages could be compared";
        return Err(Failure::new(code::WRONG_STATE as u8, message).help("underpin list"));
    }
    write(options.csv.as_deref(), || report.csv())?;
    write(options.plot.as_deref(), || plot::svg(&report))?;
    context.output.result(
        || to_json(&run, &report),
        |output| to_text(&run, &report, output),
    )
}

/// Set by Ctrl-C: a VM that was paused goes on first, and what was found is told.
fn stop_on_signals() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let registered = signal_hook::flag::register(signal, Arc::clone(&stop));
        registered.map_err(|error| {
            let message = format!("cannot watch signals: {}", reason(&error));
            Failure::new(exit::FAILED, message)
        })?;
    }
    Ok(stop)
}

/// `false` where a signal came first.
fn wait_until(time: Instant, stop: &AtomicBool) -> bool {
    while !stop.load(Ordering::Relaxed) {
        let left = time.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        thread::sleep(left.min(NAP));
    }
    false
}

fn write(file: Option<&Path>, content: impl FnOnce() -> String) -> Result<()> {
    file.map_or(Ok(()), |file| {
        fs::write(file, content()).map_err(|error| Failure::file("cannot write", file, &error))
    })
}

fn say(context: &Context, found: &Found) {
    let Savings {
        possible,
        exploited,
        ..
    } = found.all;
    let [pages, possible, exploited] =
        [found.pages, possible, exploited].map(|pages| units::size(pages * PAGE));
    let at = found.at.as_secs();
    let line = format!("after {at} s: {pages} compared, {possible} could be saved, {exploited} is");
    context.progress.say(&line);
}

/// All pages of the VMs that are wanted and run.
fn snapshot(client: &mut Client, options: &Analyze, run: &mut Run) -> Result<Vec<VmPages>> {
    let running = client.mem()?;
    if run.names.is_empty() {
        let known: BTreeSet<String> = running.iter().map(|vm| vm.name.to_string()).collect();
        let flagged = options.kpageflags.iter().map(|(vm, _)| vm);
        for vm in options.vms.iter().chain(flagged) {
            if !known.contains(vm) {
                client.show(vm)?;
                let message = format!("{vm} is not running");
                return Err(Failure::new(code::WRONG_STATE as u8, message));
            }
        }
    }
    let mut vms = Vec::new();
    for vm in running {
        let name = vm.name.to_string();
        if !options.vms.is_empty() && !options.vms.contains(&name) {
            continue;
        }
        let Some((pages, paused)) = pages_of(client, &name, options.live)? else {
            continue;
        };
        run.pauses.extend(paused);
        vms.push(VmPages {
            pages,
            ..described(&vm, options, run)?
        });
    }
    Ok(vms)
}

/// A VM without its pages.
fn described(vm: &MemStatus, options: &Analyze, run: &mut Run) -> Result<VmPages> {
    let name = vm.name.to_string();
    let file = options.kpageflags.iter().find(|(vm, _)| *vm == name);
    let flags = file.map(|(_, file)| {
        let bytes = fs::read(file).map_err(|error| Failure::file("cannot read", file, &error))?;
        PageFlags::read(&bytes).map_err(|what| {
            let message = format!("{} is no copy of /proc/kpageflags: {what}", file.display());
            let help = "in the guest: cat /proc/kpageflags > FILE";
            Failure::new(exit::FILE, message).help(help)
        })
    });
    Ok(VmPages {
        vm: number(&mut run.names, name),
        group: number(&mut run.groups, vm.group.to_string()),
        pages: Vec::new(),
        flags: flags.transpose()?,
    })
}

/// A name's place in a list, which it joins where it is not there.
fn number(names: &mut Vec<String>, name: String) -> u16 {
    let place = names.iter().position(|known| *known == name);
    place.unwrap_or_else(|| {
        names.push(name);
        names.len() - 1
    }) as u16
}

/// A VM's pages while it stands still, and for how long it did; `None` where it has ended.
fn pages_of(
    client: &mut Client,
    vm: &str,
    live: bool,
) -> Result<Option<(Vec<PageStatus>, Option<Duration>)>> {
    let ended = |failure: Failure| match u32::from(failure.code()) {
        code::NO_SUCH_VM | code::WRONG_STATE => Ok(None),
        _ => Err(failure),
    };
    let runs = match client.show(vm) {
        Ok((status, _)) => status.state == state::RUNNING,
        Err(failure) => return ended(failure),
    };
    if live || !runs {
        return client
            .pages(vm)
            .map_or_else(ended, |pages| Ok(Some((pages, None))));
    }
    let started = Instant::now();
    if let Err(failure) = client.about(request::PAUSE, vm) {
        return ended(failure);
    }
    let pages = client.pages(vm);
    // It goes on whatever became of the pages.
    let resumed = client.about(request::RESUME, vm);
    let paused = started.elapsed();
    match (pages, resumed) {
        (Ok(pages), Ok(_)) => Ok(Some((pages, Some(paused)))),
        (Err(failure), _) | (_, Err(failure)) => ended(failure),
    }
}

fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "-".to_owned(),
        _ => format!("{:.1} %", part as f64 * 100.0 / whole as f64),
    }
}

fn to_json(run: &Run, report: &Report) -> Value {
    let savings = |savings: Savings| {
        let named = savings.named().map(|(name, n)| (name.to_owned(), json!(n)));
        Value::Object(named.into_iter().collect::<Map<_, _>>())
    };
    let ranks = |ranks: &mut dyn Iterator<Item = (u64, u64)>| {
        Value::Object(
            ranks
                .map(|(rank, n)| (rank.to_string(), json!(n)))
                .collect::<Map<_, _>>(),
        )
    };
    let snapshot = |(found, lasting): (&Found, &[u64; LASTED.len()])| {
        json!({
            "at_s": found.at.as_secs_f64(), "pages": found.pages, "zero": found.zero,
            "equal_across": found.equal_across, "equal_within": found.equal_within,
            "contents": found.contents, "contents_by_duration": lasting,
            "all": savings(found.all), "page_cache": found.cache.map(savings),
            "saved_by_rank": ranks(&mut found.ranks.iter().map(|(rank, n)| (*rank, *n))),
        })
    };
    let durations = |of: &Durations| json!({ "count": of.count, "left": of.left });
    let pauses = run.pauses.iter().map(|pause| pause.as_nanos() as u64);
    json!({
        "vms": run.names, "every_s": run.every.map(|every| every.as_secs_f64()),
        "pause_ns": pauses.collect::<Vec<_>>(), "saved_by_accounts": run.saved,
        "snapshots": report.found.iter().zip(&report.lasting).map(snapshot).collect::<Vec<_>>(),
        "saved_by_rank": ranks(&mut report.ranks().into_iter()),
        "durations": {
            "from_intervals": LASTED, "contents": durations(&report.contents),
            "zero_pages": durations(&report.zero),
        },
    })
}

fn to_text(run: &Run, report: &Report, output: Output) -> String {
    let mut text = String::new();
    let count = report.found.len();
    let plural = if count == 1 { "" } else { "s" };
    let _ = write!(text, "{count} snapshot{plural} of {}", run.names.join(", "));
    if let (Some(least), Some(most)) = (run.pauses.iter().min(), run.pauses.iter().max()) {
        let [least, most] = [least, most].map(|time| units::nanoseconds(time.as_nanos() as u64));
        let _ = write!(text, "; each VM stood still for {least} to {most}");
    }
    text.push('\n');
    let heading = |text: &mut String, title: &str| {
        let _ = writeln!(text, "\n{}", output.paint(Tone::Strong, title));
    };
    if let Some(last) = report.found.last() {
        heading(&mut text, "Pages in the last snapshot");
        text += &pages_table(last).render(output);
        heading(
            &mut text,
            "What sharing saves and could save there, zeroes apart",
        );
        text += &savings_table(last).render(output);
        let saved = units::size(run.saved);
        let _ = writeln!(text, "by the accounts of EL2, all VMs save {saved}");
    }
    heading(
        &mut text,
        "Possible savings by rank (pages with the same content), all snapshots",
    );
    text += &rank_table(report).render(output);
    if let Some(every) = run.every.filter(|_| count > 1) {
        let every = units::nanoseconds(every.as_nanos() as u64);
        heading(
            &mut text,
            &format!("Opportunities by how long they lasted, intervals of {every}"),
        );
        text += &duration_table(report).render(output);
    }
    text
}

fn pages_table(found: &Found) -> Table {
    let mut table = Table::new(&[
        ("WHAT", Left),
        ("PAGES", Right),
        ("SIZE", Right),
        ("PART", Right),
    ]);
    let rows = [
        ("compared", found.pages),
        ("zero", found.zero),
        ("equal to a page of another VM", found.equal_across),
        ("equal to pages of the same VM", found.equal_within),
    ];
    for (what, pages) in rows {
        table.row([
            what.to_owned(),
            pages.to_string(),
            units::size(pages * PAGE),
            percent(pages, found.pages),
        ]);
    }
    table
}

fn savings_table(found: &Found) -> Table {
    let mut table = Table::new(&[
        ("WHAT", Left),
        ("PAGES", Right),
        ("SIZE", Right),
        ("PART", Right),
        ("PAGE CACHE", Right),
        ("OF IT", Right),
    ]);
    let rows = |savings: Savings| {
        [
            ("share groups allow", savings.allowed()),
            ("  saved", savings.exploited),
            ("  not: nobody joined the frame", savings.missed_alone),
            ("  not: private", savings.missed_private),
            ("share groups keep apart", savings.apart),
            ("all", savings.possible),
        ]
    };
    let of_cache = found.cache.unwrap_or_default();
    for ((what, pages), (_, cached)) in rows(found.all).into_iter().zip(rows(of_cache)) {
        table.row([
            what.to_owned(),
            pages.to_string(),
            units::size(pages * PAGE),
            percent(pages, found.all.allowed()),
            cached.to_string(),
            percent(cached, of_cache.allowed()),
        ]);
    }
    if found.cache.is_none() {
        table.without(&["PAGE CACHE", "OF IT"]);
    }
    table
}

/// Each rank that gives half a percent or more, and the others together.
fn rank_table(report: &Report) -> Table {
    let ranks = report.ranks();
    let all = ranks.values().sum::<u64>();
    let mut table = Table::new(&[("RANK", Left), ("PAGES SAVED", Right), ("PART", Right)]);
    let mut row =
        |rank: String, saved: u64| table.row([rank, saved.to_string(), percent(saved, all)]);
    let mut others = 0;
    for (rank, saved) in ranks {
        if saved.saturating_mul(200) < all {
            others += saved;
        } else {
            row(rank.to_string(), saved);
        }
    }
    row("others".to_owned(), others);
    table
}

fn duration_table(report: &Report) -> Table {
    let mut table = Table::new(&[
        ("LASTED", Left),
        ("CONTENTS", Right),
        ("PART", Right),
        ("AT THE END", Right),
        ("ZERO PAGES", Right),
        ("PART", Right),
        ("AT THE END", Right),
    ]);
    let sum = |durations: &Durations| durations.count.iter().sum::<u64>();
    for (n, name) in plot::LASTED_NAMES.into_iter().enumerate() {
        let cells = |of: &Durations| {
            let (count, left) = (of.count[n], of.left[n]);
            [count.to_string(), percent(count, sum(of)), left.to_string()]
        };
        let [contents, part, left] = cells(&report.contents);
        let [zero, zero_part, zero_left] = cells(&report.zero);
        table.row([
            name.to_owned(),
            contents,
            part,
            left,
            zero,
            zero_part,
            zero_left,
        ]);
    }
    table
}
