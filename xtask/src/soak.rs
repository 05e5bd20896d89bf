//! `xtask soak`: all boot tests, long fuzzing and many cases of all properties, as often as there is time for.

use crate::{
    gate, images, project,
    step::{Steps, print_line},
};
use std::{
    process::Command,
    time::{Duration, Instant},
};

/// How long the fuzz targets run in a round, all together, in seconds.
const FUZZ_SECONDS: &str = "300";

/// The releases of Debian in which the set-up runs before the rounds, each fresh.
const RELEASES: [&str; 2] = ["bookworm", "trixie"];

/// Random cases of each property test in a round.
const CASES: &str = "20000";

/// Lives of clusters in a round, others in each.
const CLUSTERS: u64 = 100_000;

/// Runs rounds until the time is over; gives whether all passed.
pub fn run(hours: f64) -> bool {
    let time = Duration::try_from_secs_f64(hours * 3600.0).unwrap_or_default();
    let start = Instant::now();
    let steps = Steps::new(2 + RELEASES.len(), project::products().join("soak-logs"));
    let mut sets_up = |release| {
        let mut fresh = Command::new(project::root().join("scripts/fresh"));
        let set_up = steps.run(&format!("set-up in a fresh {release}"), |step| {
            step.command(fresh.arg(release))
        });
        set_up.is_some()
    };
    if !RELEASES.into_iter().all(&mut sets_up) {
        return false;
    }
    let built = steps.run("build", |step| images::all(step)).is_some();
    if !built
        || steps
            .run("boot test harness", gate::build_boot_tests)
            .is_none()
    {
        return false;
    }
    let mut rounds = 0_u64;
    while rounds == 0 || start.elapsed() < time {
        rounds += 1;
        print_line(&format!(
            "round {rounds}, after {:.1} h",
            start.elapsed().as_secs_f64() / 3600.0
        ));
        let steps = Steps::new(6, project::products().join("soak-logs"));
        let (seed, clusters) = (CLUSTERS * rounds, CLUSTERS.to_string());
        for (name, mut command) in [
            ("boot tests", gate::boot_tests(true)),
            ("fuzzing", gate::fuzz(FUZZ_SECONDS)),
            ("property tests", gate::properties(CASES)),
            ("lock-step of hosts", gate::long_lock_step()),
            ("searches of clusters", gate::deep_searches()),
            (
                "lives of clusters",
                gate::cluster_lives(&seed.to_string(), &clusters),
            ),
        ] {
            let done = steps.run(name, |step| {
                let (good, _) = step.watch(&mut command, |line| step.say(line))?;
                if good {
                    Ok(())
                } else {
                    Err(format!("{name} failed in round {rounds}"))
                }
            });
            // A failure is kept as it is, with its logs, for somebody to look at.
            if done.is_none() {
                return false;
            }
        }
    }
    true
}
