//! Runs targets on seeds and on what the mutator makes of them.

use crate::{Mutator, Target};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A target that takes longer than this of a CPU's time on one input has an unbounded loop somewhere.
const SLOW: Duration = Duration::from_secs(2);

/// An input that a target did not survive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The input.
    pub input: Vec<u8>,
    /// Where it comes from: a seed's path, or how many inputs came before.
    pub origin: String,
    /// What went wrong.
    pub reason: &'static str,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} on {} ({} bytes)",
            self.reason,
            self.origin,
            self.input.len()
        )
    }
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("seeds")
        .join(name)
}

/// The saved inputs of target `name` with their file names, in order.
pub fn seeds(name: &str) -> Vec<(String, Vec<u8>)> {
    let files = std::fs::read_dir(folder(name))
        .into_iter()
        .flatten()
        .flatten();
    let mut seeds: Vec<_> = files
        .filter_map(|file| {
            let bytes = std::fs::read(file.path()).ok()?;
            Some((file.file_name().to_string_lossy().into_owned(), bytes))
        })
        .collect();
    seeds.sort();
    seeds
}

/// Keeps the input of a failure among the seeds of target `name`; where.
pub fn save_failure(name: &str, failure: &Failure) -> std::io::Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    failure.input.hash(&mut hasher);
    let path = folder(name).join(format!("failure-{:016x}", hasher.finish()));
    std::fs::create_dir_all(folder(name))?;
    std::fs::write(&path, &failure.input)?;
    Ok(path)
}

/// Runs `target` on every one of `seeds`.
pub fn replay(target: Target, seeds: &[(String, Vec<u8>)]) -> Result<(), Failure> {
    seeds
        .iter()
        .try_for_each(|(name, input)| run(target, input, || format!("seed {name}")))
}

/// Runs `target` on what the mutator gives until `time` is up; on how many inputs.
pub fn campaign(target: Target, mut mutator: Mutator, time: Duration) -> Result<u64, Failure> {
    let start = Instant::now();
    let mut runs = 0;
    while start.elapsed() < time {
        let input = mutator.input();
        run(target, &input, || format!("input {runs}"))?;
        runs += 1;
    }
    Ok(runs)
}

/// What an input takes of the CPU's time when it is run again: the host may have had other work before.
fn taken(target: Target, input: &[u8]) -> Duration {
    let (begun, from) = (Instant::now(), busy());
    target(input);
    let taken = from.zip(busy()).map(|(from, to)| to.saturating_sub(from));
    taken.unwrap_or_else(|| begun.elapsed())
}

/// The time that this thread has run on a CPU, where Linux tells it.
fn busy() -> Option<Duration> {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let ns = told.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(ns))
}

fn run(target: Target, input: &[u8], origin: impl Fn() -> String) -> Result<(), Failure> {
    let start = Instant::now();
    let survived = catch_unwind(|| target(input)).is_ok();
    let reason = match survived {
        true if start.elapsed() < SLOW || taken(target, input) < SLOW => return Ok(()),
        true => "too slow",
        false => "panic",
    };
    Err(Failure {
        input: input.to_vec(),
        origin: origin(),
        reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHILE: Duration = Duration::from_millis(300);

    fn spins(_: &[u8]) {
        let begun = busy();
        while busy()
            .zip(begun)
            .is_some_and(|(now, begun)| now < begun + WHILE)
        {}
    }

    fn waits(_: &[u8]) {
        std::thread::sleep(WHILE);
    }

    #[test]
    fn what_an_input_takes_is_the_cpus_time() {
        assert!(taken(spins, b"") >= WHILE);
        assert!(taken(waits, b"") < WHILE / 2);
    }
}
