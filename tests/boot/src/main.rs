//! Runs the boot tests: `cargo run -p tests_boot -- --list` names them.
#![forbid(unsafe_code)]

use clap::Parser;
use std::{path::PathBuf, process::ExitCode};
use tests_boot::{assets, scenarios, suite::Suite};

/// Boots real kernels and bare guests on simulated machines under Underpin.
#[derive(Debug, Parser)]
#[command(name = "boot-tests")]
struct Options {
    /// Only scenarios whose names contain one of these
    filters: Vec<String>,
    /// Also the slow ones
    #[arg(long)]
    soak: bool,
    /// How many at once
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Names them and runs none
    #[arg(long)]
    list: bool,
    /// Where logs go [default: boot-logs in the target directory]
    #[arg(long)]
    logs: Option<PathBuf>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if let Err(why) = scenarios::check_choices() {
        eprintln!("boot-tests: {why}");
        return ExitCode::from(2);
    }
    let mut chosen = scenarios::all();
    let named = |name: &str| {
        options
            .filters
            .iter()
            .any(|filter| name.contains(filter.as_str()))
    };
    chosen.retain(|s| {
        if options.filters.is_empty() {
            options.soak || !s.slow
        } else {
            named(&s.name)
        }
    });
    if options.list {
        for scenario in &chosen {
            println!(
                "{}{}",
                scenario.name,
                if scenario.slow { " (slow)" } else { "" }
            );
        }
        return ExitCode::SUCCESS;
    }
    if chosen.is_empty() {
        eprintln!("boot-tests: no scenario has such a name; --list shows them");
        return ExitCode::from(2);
    }
    let logs = options
        .logs
        .unwrap_or_else(|| assets::root().join("target/boot-logs"));
    println!(
        "running {} scenarios, {} at a time",
        chosen.len(),
        options.jobs
    );
    let suite = Suite {
        command: assets::command(),
        logs,
        jobs: options.jobs,
    };
    let tally = suite.run(chosen, |line| println!("{line}"));
    // In cargo's words, so that one reader counts all tests.
    let verdict = if tally.failed == 0 { "ok" } else { "FAILED" };
    println!(
        "test result: {verdict}. {} passed; {} failed",
        tally.passed, tally.failed
    );
    if tally.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
