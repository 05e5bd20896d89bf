//! `xtask mutants`: each kept fault, put into a copy of the sources, must be noticed by its test.
//!
//! A file of `tests/mutants/` begins with `What:`, a sentence that says which fault it is, and `Caught-by:`,
//! which is `host ARGUMENTS` of `cargo test`, `boot SCENARIOS`, or `bench ARGUMENTS` of `xtask bench`; the patch follows.
//!
//! All tests first run once without a fault, where each must pass, unless they are trusted to: after a gate that passed.
//! The faults follow in the order of their tests, so that neighbours touch the same crates: taking one out and putting the
//! next one in is one build.

use crate::{
    gate::PROPERTY_SEED,
    project,
    step::{Outcome, Step, Steps, print_line},
};
use std::{
    fmt, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};
use tests_boot::assets;

/// One fault.
#[derive(Debug, PartialEq, Eq)]
struct Mutant {
    name: String,
    what: String,
    caught_by: Test,
    patch: PathBuf,
}

impl Mutant {
    fn is_one_of(&self, names: &[String]) -> bool {
        let test = self.caught_by.to_string();
        names
            .iter()
            .any(|part| self.name.contains(part) || test.contains(part))
    }
}

/// Who is to notice it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Test {
    /// Arguments of `cargo test`.
    Host(String),
    /// Boot scenarios.
    Boot(String),
    /// Arguments of `xtask bench`.
    Bench(String),
}

/// What became of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Caught,
    Lives,
}

/// Runs those whose name or test contains one of `names`, or all; gives whether every one was caught. Tests that are
/// `trusted` do not run without a fault first.
pub fn run(names: &[String], trusted: bool) -> bool {
    let chosen = match read(&project::root().join("tests/mutants")) {
        Ok(mut mutants) => {
            mutants.retain(|mutant| names.is_empty() || mutant.is_one_of(names));
            mutants.sort_by(|one, other| one.caught_by.cmp(&other.caught_by));
            mutants
        }
        Err(why) => {
            print_line(&why);
            return false;
        }
    };
    if chosen.is_empty() {
        print_line("no file of tests/mutants/ has such a name or test");
        return false;
    }
    let mut tests: Vec<&Test> = chosen.iter().map(|mutant| &mutant.caught_by).collect();
    tests.dedup();
    let copy = project::products().join("mutants");
    let runs = if trusted { 0 } else { tests.len() };
    let count = 1 + runs + chosen.len();
    let steps = Steps::new(count, project::products().join("mutant-logs"));
    let made = steps.run("copy of HEAD", |_| {
        check_out(&copy)?;
        lend_modules(&copy)
    });
    if made.is_none() {
        return false;
    }
    tests.retain(|test| trusted || sound(&steps, test, &copy));
    let caught = |mutant: &&Mutant| try_one(&steps, mutant, tests.as_slice(), &copy);
    let caught = chosen.iter().filter(caught).count();
    print_line(&format!(
        "{caught} passed, {} failed",
        chosen.len() - caught
    ));
    caught == chosen.len()
}

/// Whether a test passes without a fault.
fn sound(steps: &Steps, test: &Test, copy: &Path) -> bool {
    let name = format!("without a fault: {test}");
    let passed = steps.run(&name, |step| match judge(step, test, copy)? {
        Fate::Lives => Ok(()),
        Fate::Caught => Err("the test fails without a fault".to_owned()),
    });
    passed.is_some()
}

/// Puts a fault in, runs its test and takes it out again; gives whether it was caught.
fn try_one(steps: &Steps, mutant: &Mutant, sound: &[&Test], copy: &Path) -> bool {
    let caught = steps.run(&mutant.name, |step| {
        if !sound.contains(&&mutant.caught_by) {
            return Err("its test fails without the fault, too".to_owned());
        }
        must(git(copy).arg("apply").arg(&mutant.patch))
            .map_err(|why| format!("the patch does not apply any more: {why}"))?;
        let fate = judge(step, &mutant.caught_by, copy);
        must(git(copy).args(["checkout", "--force", "--", "."]))?;
        // A failing case that a property test has left would catch the next fault in its place.
        must(git(copy).args(["clean", "--force", "-d", "--quiet"]))?;
        match fate? {
            Fate::Caught => Ok(()),
            Fate::Lives => Err(format!("not noticed by its test: {}", mutant.what)),
        }
    });
    caught.is_some()
}

/// The files of faults that cannot be put in any more, as the lines around their place have changed, and why.
pub fn stale(root: &Path) -> Vec<(String, String)> {
    let directory = "tests/mutants";
    let mutants = match read(&root.join(directory)) {
        Ok(mutants) => mutants,
        Err(why) => return vec![(directory.to_owned(), why)],
    };
    let stale = mutants.iter().filter_map(|mutant| {
        let applies = must(git(root).args(["apply", "--check"]).arg(&mutant.patch));
        let why = applies.err()?;
        let path = format!("{directory}/{}.patch", mutant.name);
        Some((path, format!("does not apply any more: {}", why.trim_end())))
    });
    stale.collect()
}

/// All faults that are kept, by name.
fn read(directory: &Path) -> Outcome<Vec<Mutant>> {
    let entries = fs::read_dir(directory)
        .map_err(|error| format!("cannot read {}: {error}", directory.display()))?;
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    paths.retain(|path| {
        path.extension()
            .is_some_and(|extension| extension == "patch")
    });
    paths.sort();
    paths.iter().map(|path| {
        let text = fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        parse(path, &text).ok_or_else(|| format!("{}: the first lines must be `What:` and `Caught-by:` with `host ...`, `boot ...` or `bench ...`", path.display()))
    }).collect()
}

fn parse(path: &Path, text: &str) -> Option<Mutant> {
    let line = |head: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(head))
            .map(str::trim)
    };
    let (kind, words) = line("Caught-by:")?.split_once(' ')?;
    let caught_by = match kind {
        "host" => Test::Host(words.to_owned()),
        "boot" => Test::Boot(words.to_owned()),
        "bench" => Test::Bench(words.to_owned()),
        _ => return None,
    };
    Some(Mutant {
        name: path.file_stem()?.to_str()?.to_owned(),
        what: line("What:")?.to_owned(),
        caught_by,
        patch: path.to_owned(),
    })
}

fn git(directory: &Path) -> Command {
    let mut git = Command::new("git");
    git.arg("-C").arg(directory);
    git
}

fn must(command: &mut Command) -> Outcome {
    let output = command
        .output()
        .map_err(|error| format!("cannot run git: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Makes the copy what HEAD is; what was built there before stays.
fn check_out(copy: &Path) -> Outcome {
    let root = project::root();
    if !copy.join(".git").exists() {
        must(git(&root).args(["worktree", "prune"]))?;
        return must(
            git(&root)
                .args(["worktree", "add", "--force", "--detach"])
                .arg(copy)
                .arg("HEAD"),
        );
    }
    let head = git(&root).args(["rev-parse", "HEAD"]).output();
    let head = head.map_err(|error| format!("cannot run git: {error}"))?;
    let head = String::from_utf8_lossy(&head.stdout).trim().to_owned();
    must(git(copy).args(["checkout", "--force", "--detach", &head]))
}

/// Scenarios beneath a Linux need the kernel modules that `scripts/setup` has built; the copy has none of its own, so
/// that a fault in them is not to be kept here.
fn lend_modules(copy: &Path) -> Outcome {
    let (own, lent) = (
        assets::target().join("modules"),
        copy.join("target/modules"),
    );
    if !own.exists() || lent.exists() {
        return Ok(());
    }
    let linked = fs::create_dir_all(copy.join("target")).and_then(|()| symlink(&own, &lent));
    linked.map_err(|error| format!("cannot link {}: {error}", lent.display()))
}

/// Builds the copy, which must work, and runs the test.
fn judge(step: &mut Step<'_>, test: &Test, copy: &Path) -> Outcome<Fate> {
    let cargo = |words: &str| {
        let mut command = Command::new(copy.join("scripts/cargo"));
        command
            .arg("host")
            .args(words.split_whitespace())
            .current_dir(copy);
        for variable in [
            "RUSTC",
            "RUSTDOC",
            "CARGO",
            "RUSTUP_TOOLCHAIN",
            "CARGO_TARGET_DIR",
            "CARGO_MANIFEST_DIR",
        ] {
            command.env_remove(variable);
        }
        command.env(PROPERTY_SEED.0, PROPERTY_SEED.1);
        command
    };
    let mut test = match test {
        Test::Host(words) => {
            step.command(&mut cargo(&format!("test --no-run {words}")))?;
            cargo(&format!("test {words}"))
        }
        Test::Boot(words) => {
            step.command(&mut cargo(&format!("run -p xtask -- {}", build(words))))?;
            step.command(&mut cargo("build -p tests_boot"))?;
            cargo(&format!("run -p tests_boot -- {words}"))
        }
        Test::Bench(words) => {
            step.command(&mut cargo("run -p xtask -- build"))?;
            cargo(&format!("run -p xtask -- bench {words}"))
        }
    };
    let (passed, _) = step.watch(&mut test, |_| {})?;
    Ok(if passed { Fate::Lives } else { Fate::Caught })
}

/// The task that builds what boot scenarios need: only those beneath a Linux replace the hypervisor by another.
fn build(scenarios: &str) -> &'static str {
    if scenarios.contains("os0") {
        "build"
    } else {
        "build --usual"
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, words) = match self {
            Self::Host(words) => ("host", words),
            Self::Boot(words) => ("boot", words),
            Self::Bench(words) => ("bench", words),
        };
        write!(f, "{kind} {words}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mutant_names_its_test() {
        let path = Path::new("tests/mutants/area-name.patch");
        let text =
            "What: a thing is left out.\nCaught-by: host -p model_x --test y\ndiff --git a/x b/x\n";
        let mutant = parse(path, text).unwrap();
        assert_eq!(
            (mutant.name.as_str(), mutant.what.as_str()),
            ("area-name", "a thing is left out.")
        );
        assert_eq!(
            mutant.caught_by,
            Test::Host("-p model_x --test y".to_owned())
        );
        assert_eq!(parse(path, "What: x\nCaught-by: nobody\n"), None);
    }

    #[test]
    fn a_mutant_whose_place_is_gone_is_found() {
        let root = std::env::temp_dir().join(format!("mutants-{}", std::process::id()));
        fs::create_dir_all(root.join("tests/mutants")).unwrap();
        let head = "What: x is y.\nCaught-by: host -p model_x\n\n";
        let diff = "--- a/x\n+++ b/x\n@@ -1,1 +1,1 @@\n-x\n+y\n";
        fs::write(root.join("tests/mutants/x.patch"), head.to_owned() + diff).unwrap();
        fs::write(root.join("x"), "x\n").unwrap();
        assert_eq!(stale(&root), []);
        fs::write(root.join("x"), "z\n").unwrap();
        assert_eq!(stale(&root)[0].0, "tests/mutants/x.patch");
        fs::remove_dir_all(root).unwrap();
    }
}
