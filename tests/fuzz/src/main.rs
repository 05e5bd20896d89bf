//! Fuzzes the targets for a while: see the README.
#![forbid(unsafe_code)]

use clap::Parser;
use std::process::ExitCode;
use std::time::Duration;
use tests_fuzz::{Failure, Mutator, TARGETS, Target, campaign, replay, save_failure, seeds};

/// Runs fuzz targets on their seeds and on mutations of them.
#[derive(Parser)]
struct Arguments {
    /// The target; all of them in turn where it is not given
    #[arg(value_parser = TARGETS.iter().map(|(name, _)| *name).collect::<Vec<_>>())]
    target: Option<String>,
    /// How long to fuzz, shared between the targets
    #[arg(long, default_value_t = 10)]
    seconds: u32,
    /// What determines the inputs
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let wanted = |name: &str| {
        arguments
            .target
            .as_ref()
            .is_none_or(|target| target == name)
    };
    let chosen: Vec<_> = TARGETS.iter().filter(|(name, _)| wanted(name)).collect();
    let time = Duration::from_secs(arguments.seconds.into()) / chosen.len() as u32;
    let mut outcome = ExitCode::SUCCESS;
    for (name, target) in chosen {
        match fuzz(name, *target, arguments.seed, time) {
            Ok(runs) => println!("{name}: {runs} inputs survived"),
            Err(failure) => {
                report(name, arguments.seed, &failure);
                outcome = ExitCode::FAILURE;
            }
        }
    }
    outcome
}

fn fuzz(name: &str, target: Target, seed: u64, time: Duration) -> Result<u64, Failure> {
    let seeds = seeds(name);
    replay(target, &seeds)?;
    let mutator = Mutator::new(seed, seeds.into_iter().map(|(_, bytes)| bytes));
    campaign(target, mutator, time)
}

fn report(name: &str, seed: u64, failure: &Failure) {
    eprintln!("{name}: {failure}, with --seed {seed}");
    match save_failure(name, failure) {
        Ok(path) => eprintln!("{name}: saved as {}", path.display()),
        Err(error) => eprintln!("{name}: could not be saved: {error}"),
    }
}
