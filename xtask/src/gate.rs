//! `xtask test`: everything that must hold before a change is kept, the quick checks first.

use crate::{
    figures, frames, images, licences, lines,
    project::{self, cargo},
    step::{Outcome, Step, Steps, print_line},
    tidy,
};
use std::{
    fmt,
    path::PathBuf,
    process::Command,
    sync::{Mutex, PoisonError},
    thread,
};
use tests_boot::assets;

/// How long the fuzz targets run in the gate, all together, in seconds.
const FUZZ_SECONDS: &str = "10";

/// How long machines live in the gate, in seconds: as many lives as that is time for.
const LIVES_SECONDS: &str = "60";

/// Lives of clusters in the gate, always the same ones: three minutes of CPU time.
const CLUSTERS: &str = "1000";

/// The seed of all property tests in the gate, so that what passed passes again; `soak` looks further.
pub const PROPERTY_SEED: (&str, &str) = ("PROPTEST_RNG_SEED", "20261121");

/// What the measuring machine may use, because it is loaded into QEMU and never linked with the rest.
const SIM_LICENCES: [(&str, &str); 1] = [("qemu-plugin-sys", "GPL-2.0-or-later")];

/// The boot tests of the quick checks, by their whole names: a kernel with several CPUs, disks, the network, sharing,
/// a guest that means ill, and a Linux that Underpin goes beneath.
const TELLING: [&str; 6] = [
    "kernel/trixie-cloud-4-1gib",
    "disk/cow",
    "net/tcp",
    "share/same-image",
    "hostile/bad-virtio",
    "os0/switch-trixie-cloud-4-50",
];

/// How many tests passed and failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    passed: usize,
    failed: usize,
}

impl Tally {
    /// What a test program's `test result:` lines say.
    fn read(output: &str) -> Self {
        let mut tally = Self::default();
        for line in output
            .lines()
            .filter_map(|line| line.trim().strip_prefix("test result:"))
        {
            let words: Vec<&str> = line.split_whitespace().collect();
            for pair in words.windows(2) {
                let number = || pair[0].parse().unwrap_or(0);
                match pair[1].trim_end_matches(';') {
                    "passed" => tally.passed += number(),
                    "failed" => tally.failed += number(),
                    _ => {}
                }
            }
        }
        tally
    }
}

/// Runs the whole gate; gives whether all passed.
pub fn run() -> bool {
    let gate = Gate::new(14);
    gate.check("format", format);
    gate.check("house rules", house_rules);
    gate.check("licences", allowed_licences);
    let built = gate.host_and_images();
    gate.check("machine lives", machine_lives);
    if built {
        gate.check("stack frames", stack_frames);
        gate.check("figures", figures::short::check);
        gate.tests("boot tests", &mut boot_tests(false), true);
    } else {
        gate.nothing_to_boot();
    }
    gate.sum_up()
}

/// Runs what tells most in five minutes; gives whether all passed.
pub fn quick() -> bool {
    let gate = Gate::new(8);
    gate.check("format", format);
    gate.check("house rules", house_rules);
    gate.check("lints of the host", host_lints);
    gate.tests("host tests", &mut host_tests(), false);
    let built = gate.check("build", |step| images::usual(step))
        && gate.check("boot test harness", build_boot_tests);
    if built {
        gate.check("figures", figures::short::check);
        gate.tests("boot tests", boot_tests(false).args(TELLING), true);
    } else {
        gate.nothing_to_boot();
    }
    gate.sum_up()
}

/// Lives of the whole hypervisor in processes of the host, one seed after the other.
fn machine_lives(step: &mut Step<'_>) -> Outcome {
    let words = format!("run --release -q -p sim_el2 -- --seconds {LIVES_SECONDS}");
    step.command(&mut cargo("host", &words))?;
    step.command(&mut cluster_lives("1", CLUSTERS)).map(drop)
}

/// So many lives of clusters over a bad network, from a seed on.
pub fn cluster_lives(seed: &str, lives: &str) -> Command {
    let words = format!("run --release -q -p sim_el2 -- --cluster --seed {seed} --lives {lives}");
    cargo("host", &words)
}

fn host_tests() -> Command {
    let mut tests = cargo("host", "test --workspace --no-fail-fast");
    tests.env(PROPERTY_SEED.0, PROPERTY_SEED.1);
    // Nobody builds a second time what a gate builds: a tenth of the work.
    tests.env("CARGO_INCREMENTAL", "0");
    tests
}

/// The program that runs the boot tests, with the slow ones or without.
pub fn boot_tests(soak: bool) -> Command {
    let mut command = Command::new(assets::target().join("debug/boot-tests"));
    command.args(soak.then_some("--soak"));
    command
}

/// Builds that program.
///
/// # Errors
/// As cargo says.
pub fn build_boot_tests(step: &mut Step<'_>) -> Outcome {
    step.command(&mut cargo("host", "build -p tests_boot"))
        .map(drop)
}

/// The property tests, each with so many random cases that nobody saw before.
pub fn properties(cases: &str) -> Command {
    let mut command = cargo("host", "test --release --workspace --no-fail-fast");
    command.env("PROPTEST_CASES", cases);
    command
}

/// Searches of all states of clusters that are too long for the gate.
pub fn deep_searches() -> Command {
    cargo(
        "host",
        "test --release -p model_cluster --test exhaustive -- --ignored",
    )
}

/// A million meetings of simulated hosts, twice.
pub fn long_lock_step() -> Command {
    let mut command = project::sim_cargo("test -p sim_wire");
    command.args(["--", "--ignored"]);
    command
}

/// The fuzz targets, which share so many seconds, on their saved seeds.
pub fn fuzz(seconds: &str) -> Command {
    cargo(
        "host",
        &format!("run --release -p tests_fuzz -- --seconds {seconds}"),
    )
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

struct Gate {
    steps: Steps,
    tally: Mutex<Tally>,
}

impl Gate {
    fn new(steps: usize) -> Self {
        Self::with_logs(steps, project::products().join("test-logs"))
    }

    fn with_logs(steps: usize, logs: PathBuf) -> Self {
        Self {
            steps: Steps::new(steps, logs),
            tally: Mutex::default(),
        }
    }

    /// Checks and tests what runs on a host, and beside it checks and builds what boots: links and single tests keep one
    /// CPU busy and leave the other free. Gives whether all was built.
    fn host_and_images(&self) -> bool {
        thread::scope(|scope| {
            let images = scope.spawn(|| {
                self.check("lints of images", image_lints);
                self.check("build", |step| {
                    images::all(step)?;
                    step.doing("building the simulation of EL2");
                    images::program(step, "sim_el2")
                })
            });
            self.check("lints of the host", host_lints);
            self.tests("host tests", &mut host_tests(), false);
            let mut simulator = project::sim_cargo("test --no-fail-fast");
            self.tests("simulator tests", &mut simulator, false);
            self.tests("fuzzing", &mut fuzz(FUZZ_SECONDS), false);
            let harness = self.check("boot test harness", build_boot_tests);
            images.join().unwrap_or(false) && harness
        })
    }

    fn nothing_to_boot(&self) {
        print_line("the boot tests were not run, because nothing could be built to boot");
        self.count(0, 1);
    }

    fn count(&self, passed: usize, failed: usize) {
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        tally.passed += passed;
        tally.failed += failed;
    }

    /// A step that counts as one test.
    fn check(&self, name: &str, check: impl FnOnce(&mut Step<'_>) -> Outcome) -> bool {
        let good = self.steps.run(name, check).is_some();
        self.count(good.into(), (!good).into());
        good
    }

    /// A program that runs tests and says how many. A `loud` one's lines are shown as they come,
    /// another's last ones where it fails.
    fn tests(&self, name: &str, command: &mut Command, loud: bool) {
        let mut tally = Tally::default();
        let done = self.steps.run(name, |step| {
            let (good, output) = step.watch(command, |line| {
                if loud && !line.starts_with("test result:") {
                    step.say(line);
                }
            })?;
            tally = Tally::read(&output);
            match (good, loud) {
                (true, _) => Ok(()),
                (false, true) => Err(format!("{} of the {name} failed", tally.failed)),
                (false, false) => Err(step.failed(command, &output)),
            }
        });
        if done.is_none() {
            // What does not even start is a failure, too.
            tally.failed = tally.failed.max(1);
        }
        self.count(tally.passed, tally.failed);
    }

    fn sum_up(&self) -> bool {
        print_line("");
        for step in self.steps.done() {
            print_line(&format!(
                "{:20} {:>8.1} s  {}",
                step.name,
                step.time.as_secs_f32(),
                if step.is_good { "ok" } else { "FAILED" }
            ));
        }
        let tally = *self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        print_line(&tally.to_string());
        tally.failed == 0
    }
}

/// Whether the toolchain for `kind` has the component, of its own version; says so where not.
fn has(step: &Step<'_>, kind: &str, component: &str) -> bool {
    let version = |words: &str| {
        let output = cargo(kind, words)
            .output()
            .ok()
            .filter(|output| output.status.success())?;
        minor_version(&String::from_utf8_lossy(&output.stdout))
    };
    let found = version(&format!("{component} --version"));
    // clippy reads what rustc wrote, and only the same version can.
    let usable = found.is_some() && (component != "clippy" || found == version("--version"));
    if !usable {
        step.say(&format!(
            "skipped for '{kind}': its Rust has no cargo {component} of its own version"
        ));
    }
    usable
}

/// The minor version of Rust in text such as `cargo 1.95.0` or `clippy 0.1.95`.
fn minor_version(text: &str) -> Option<u32> {
    let version = text.split_whitespace().nth(1)?;
    let numbers: Vec<u32> = version
        .split(['.', '-'])
        .map_while(|part| part.parse().ok())
        .collect();
    match numbers[..] {
        [0, 1, minor] | [1, minor, _] => Some(minor),
        _ => None,
    }
}

fn manifests() -> impl Iterator<Item = &'static str> {
    project::EL2_MANIFESTS
        .into_iter()
        .filter(|manifest| project::existing(manifest))
}

fn format(step: &mut Step<'_>) -> Outcome {
    if has(step, "host", "fmt") {
        step.command(&mut cargo("host", "fmt --all --check"))?;
        for manifest in manifests().chain([project::SIM_MANIFEST]) {
            step.command(&mut cargo(
                "host",
                &format!("fmt --all --check --manifest-path {manifest}"),
            ))?;
        }
    }
    Ok(())
}

fn house_rules(_: &mut Step<'_>) -> Outcome {
    let findings = tidy::check(&project::root())
        .map_err(|error| format!("cannot read the project: {error}"))?;
    let mut told: Vec<String> = findings.iter().map(ToString::to_string).collect();
    told.extend(lines::check().err());
    if told.is_empty() {
        Ok(())
    } else {
        Err(told.join("\n"))
    }
}

fn stack_frames(step: &mut Step<'_>) -> Outcome {
    frames::check(step, &project::el2_binary("underpin"))
}

fn host_lints(step: &mut Step<'_>) -> Outcome {
    if has(step, "host", "clippy") {
        step.command(&mut cargo(
            "host",
            "clippy --workspace --all-targets -- -D warnings",
        ))?;
    }
    Ok(())
}

fn image_lints(step: &mut Step<'_>) -> Outcome {
    if has(step, "host", "clippy") {
        let mut sim = project::sim_cargo("clippy --workspace --all-targets");
        step.command(sim.args(["--", "-D", "warnings"]))?;
    }
    if has(step, "el2", "clippy") {
        // A dependency of the image's, which its own lints leave out.
        let metal = ["machine/aarch64/Cargo.toml"];
        for manifest in manifests().chain(metal) {
            step.command(&mut cargo(
                "el2",
                &format!("clippy --release --manifest-path {manifest} -- -D warnings"),
            ))?;
        }
    }
    Ok(())
}

fn allowed_licences(_: &mut Step<'_>) -> Outcome {
    let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut refused = licences::refused(&project::metadata("Cargo.toml", &host)?, &[])?;
    let sim = project::metadata(project::SIM_MANIFEST, &host)?;
    refused.extend(licences::refused(&sim, &SIM_LICENCES)?);
    for manifest in manifests() {
        let metadata = project::metadata(manifest, project::EL2_TARGET)?;
        refused.extend(licences::refused(&metadata, &[])?);
    }
    refused.sort();
    refused.dedup();
    if refused.is_empty() {
        Ok(())
    } else {
        Err(format!(
            "licences that are not allowed:\n{}",
            refused.join("\n")
        ))
    }
}

/// Each check alone, for people.
pub fn alone(name: &str) -> bool {
    let steps = Steps::new(1, project::products().join("test-logs"));
    let done = match name {
        "licences" => steps.run(name, allowed_licences),
        "stack frames" => steps.run(name, stack_frames),
        "figures" => steps.run(name, figures::short::check),
        _ => steps.run(name, house_rules),
    };
    done.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_counted() {
        let logs = std::env::temp_dir().join(format!("gate-{}", std::process::id()));
        let gate = Gate::with_logs(5, logs.clone());
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            command
        };
        gate.tests(
            "good",
            &mut shell("echo 'test result: ok. 4 passed; 0 failed'"),
            true,
        );
        gate.tests(
            "bad",
            &mut shell("echo 'test result: FAILED. 1 passed; 2 failed'; exit 1"),
            true,
        );
        gate.tests(
            "broken",
            &mut shell("echo does not compile; exit 101"),
            false,
        );
        gate.tests("absent", &mut Command::new("/no/such/program"), false);
        gate.check("rules", |_| Err("broken".into()));
        let tally = gate.tally.into_inner().unwrap();
        let expected = Tally {
            passed: 5,
            failed: 5,
        };
        assert_eq!(tally, expected);
        assert_eq!(tally.to_string(), "5 passed, 5 failed");
        std::fs::remove_dir_all(logs).unwrap();
    }

    #[test]
    fn the_quick_checks_have_boot_tests() {
        let all = tests_boot::scenarios::all();
        for name in TELLING {
            let found = all.iter().filter(|one| one.name.contains(name));
            let slow: Vec<bool> = found.map(|one| one.slow).collect();
            assert_eq!(slow, [false], "{name}");
        }
    }

    #[test]
    fn versions_of_tools_are_compared() {
        assert_eq!(
            minor_version("cargo 1.96.0 (abc 2026-01-01) (built from a source tarball)"),
            Some(96)
        );
        assert_eq!(
            minor_version("clippy 0.1.95 (59807616e1 2026-04-14)"),
            Some(95)
        );
        assert_eq!(minor_version("nonsense"), None);
    }

    #[test]
    fn results_are_summed() {
        let output = "running 2 tests\ntest result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s\n\
                      test result: FAILED. 3 passed; 2 failed; 0 ignored\nnoise 5 passed;\n";
        assert_eq!(
            Tally::read(output),
            Tally {
                passed: 15,
                failed: 2
            }
        );
        assert_eq!(Tally::read(""), Tally::default());
    }
}
