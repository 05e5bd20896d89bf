//! Runs scenarios, two at a time, and says what came of each.

use crate::{
    because,
    scenario::{Failure, Scenario},
};
use std::{
    collections::VecDeque,
    env, fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    process,
    sync::{Mutex, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

/// Lines of a console and of the hypervisor's log that a failure shows.
const TAIL_LINES: usize = 25;

/// Lines of what the command said that a failure shows.
const COMMAND_LINES: usize = 8;
const COMMAND_LOG: &str = "sim.log";
const HYPERVISOR_LOG: &str = "hypervisor.log";

/// How scenarios are run.
#[derive(Clone, Debug)]
pub struct Suite {
    /// The `underpin` command.
    pub command: PathBuf,
    /// Each scenario's logs go into a directory of its name here.
    pub logs: PathBuf,
    /// How many run at once.
    pub jobs: usize,
}

/// How many scenarios passed and failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Those that passed.
    pub passed: usize,
    /// Those that did not.
    pub failed: usize,
}

/// One scenario's end.
struct Report {
    name: String,
    time: Duration,
    outcome: Result<(), Failure>,
}

impl Suite {
    /// Runs them all; hands each finished line to `say`.
    pub fn run(&self, scenarios: Vec<Scenario>, mut say: impl FnMut(&str)) -> Tally {
        let queue = Mutex::new(VecDeque::from(scenarios));
        let mut tally = Tally::default();
        thread::scope(|scope| {
            let (sender, reports) = mpsc::channel();
            for _ in 0..self.jobs.max(1) {
                let (sender, queue) = (sender.clone(), &queue);
                scope.spawn(move || {
                    while let Some(scenario) = next(queue) {
                        if sender.send(self.run_one(&scenario)).is_err() {
                            return;
                        }
                    }
                });
            }
            drop(sender);
            for report in reports {
                self.tell(&report, &mut tally, &mut say);
            }
        });
        tally
    }

    fn run_one(&self, scenario: &Scenario) -> Report {
        let start = Instant::now();
        let outcome = self.play(scenario);
        Report {
            name: scenario.name.clone(),
            time: start.elapsed(),
            outcome,
        }
    }

    fn play(&self, scenario: &Scenario) -> Result<(), Failure> {
        let flat = scenario.name.replace('/', "-");
        // Short: the path of a Unix socket may have 107 bytes.
        let directory = env::temp_dir()
            .join(format!("up{}", process::id()))
            .join(&flat);
        let logs = self.logs.join(&flat);
        let fresh = |path: &Path| {
            let _ = fs::remove_dir_all(path); // absent is fine
            fs::create_dir_all(path).map_err(because(format!("cannot make {}", path.display())))
        };
        fresh(&directory)
            .and_then(|()| fresh(&logs))
            .map_err(Failure::of_machine)?;
        let run = AssertUnwindSafe(|| scenario.run(&self.command, &directory, &logs));
        let outcome = catch_unwind(run)
            .unwrap_or_else(|_| Err(Failure::of_machine("the test panicked".into())));
        // The logs are saved; the rest is bundles and sockets.
        let _ = fs::remove_dir_all(&directory);
        let _ = directory.parent().map(fs::remove_dir); // the last one out takes the parent along
        outcome
    }

    fn tell(&self, report: &Report, tally: &mut Tally, say: &mut impl FnMut(&str)) {
        let seconds = report.time.as_secs_f32();
        let Err(failure) = &report.outcome else {
            tally.passed += 1;
            return say(&format!("ok      {} ({seconds:.1} s)", report.name));
        };
        tally.failed += 1;
        say(&format!(
            "FAILED  {} ({seconds:.1} s): {}",
            report.name, failure.why
        ));
        let logs = self.logs.join(report.name.replace('/', "-"));
        for log in logs_to_show(&logs, failure.vm.as_deref()) {
            say(&format!("        from {}:", log.display()));
            for line in excerpt(&log) {
                say(&format!("        | {line}"));
            }
        }
    }
}

fn next(queue: &Mutex<VecDeque<Scenario>>) -> Option<Scenario> {
    queue
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .pop_front()
}

/// The logs that tell most: what the command said, then the guilty VM's console, or every VM's
/// where none is to blame, then the hypervisor's log.
fn logs_to_show(logs: &Path, vm: Option<&str>) -> Vec<PathBuf> {
    let (first, last) = (logs.join(COMMAND_LOG), logs.join(HYPERVISOR_LOG));
    let mut shown: Vec<PathBuf> = match vm {
        Some(vm) => vec![logs.join(format!("{vm}.log"))],
        None => fs::read_dir(logs)
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path())
            .collect(),
    };
    shown.retain(|path| *path != first && *path != last);
    shown.sort();
    shown.insert(0, first);
    shown.push(last);
    shown.retain(|path| fs::metadata(path).is_ok_and(|metadata| metadata.len() > 0));
    shown
}

/// The last lines of a log, but the first ones of the command's, which begins with what went
/// wrong; without what would steer a terminal.
fn excerpt(log: &Path) -> Vec<String> {
    let text = String::from_utf8_lossy(&fs::read(log).unwrap_or_default()).into_owned();
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let shown = if log.ends_with(COMMAND_LOG) {
        &lines[..lines.len().min(COMMAND_LINES)]
    } else {
        &lines[lines.len().saturating_sub(TAIL_LINES)..]
    };
    let clean = |line: &&str| line.chars().filter(|c| !c.is_control()).take(200).collect();
    shown.iter().map(clean).collect()
}
