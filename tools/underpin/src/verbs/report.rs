//! `underpin report`: records a run, and draws it as a page.

use super::{Context, top::batch};
use crate::{
    cli::Report,
    failure::{Failure, Result, exit, reason},
    report::{Run, html},
    watch::{Sample, rates::Rates},
};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::{
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

/// What the samples are called in the directory.
const SAMPLES: &str = "samples.jsonl";
/// What the page is called.
const PAGE: &str = "index.html";
/// How soon a signal is heard.
const LOOK_TIME: Duration = Duration::from_millis(100);

/// Makes the page, of a run that is recorded or of one that was.
pub fn report(context: &Context, options: &Report) -> Result<()> {
    let directory = &options.directory;
    fs::create_dir_all(directory)
        .map_err(|error| Failure::file("cannot make the directory", directory, &error))?;
    let (text, source) = if let Some(file) = &options.from {
        let text =
            fs::read_to_string(file).map_err(|error| Failure::file("cannot read", file, &error))?;
        (text, file.clone())
    } else {
        let text = record(context, options)?;
        let file = directory.join(SAMPLES);
        write(&file, &text)?;
        (text, file)
    };
    let run = Run::parse(&text).map_err(|what| {
        let message = format!("{} holds no samples: {what}", source.display());
        Failure::new(exit::FILE, message).help("record some: underpin top --batch -n 60 -o json")
    })?;
    let page = directory.join(PAGE);
    write(&page, &html(&run))?;
    let (page, samples) = (page.display().to_string(), run.points.len());
    context.output.result(
        || json!({ "page": page, "samples": samples, "vms": run.names() }),
        |_| format!("{page}: {samples} samples of {} VMs\n", run.names().len()),
    )
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|error| Failure::file("cannot write", path, &error))
}

/// Samples until the time is over or a signal ends it, a line each.
fn record(context: &Context, options: &Report) -> Result<String> {
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&ended)).map_err(|error| {
            let message = format!("cannot listen to signals: {}", reason(&error));
            Failure::new(exit::FAILED, message)
        })?;
    }
    let mut client = context.connect()?;
    let end = Instant::now() + options.time;
    let mut before = Sample::take(&mut client, |_| false)?;
    let mut text = String::new();
    let waiting = context
        .progress
        .wait("recording; Ctrl-C ends it".to_owned());
    while Instant::now() < end && !ended.load(Ordering::Relaxed) {
        let next = Instant::now() + options.every;
        while !ended.load(Ordering::Relaxed) && Instant::now() < next {
            let left = next.saturating_duration_since(Instant::now());
            thread::sleep(left.min(LOOK_TIME));
        }
        let after = Sample::take(&mut client, |_| false)?;
        if let Some(rates) = Rates::between(&before, &after) {
            // Writing to a string cannot fail.
            let json = context.output.of_its_host(batch::to_json(&after, &rates));
            let _ = writeln!(text, "{json}");
            before = after;
        }
    }
    waiting.finish_and_clear();
    Ok(text)
}
