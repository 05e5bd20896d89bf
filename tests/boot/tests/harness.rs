//! The harness, tested against a stand-in for the `underpin` command.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process,
};
use tests_boot::{
    machine::Hardware,
    scenario::Scenario,
    suite::{Suite, Tally},
    vm::Vm,
};

fn scenario(name: &str, args: &str) -> Scenario {
    Scenario::new(
        name,
        Hardware::new(1, "1G"),
        vec![
            Vm::bare("guest", "none", args),
            Vm::bare("other", "none", ""),
        ],
    )
}

/// Runs scenarios; gives the tally, what was said, and the directory of the logs.
fn run(test: &str, scenarios: Vec<Scenario>) -> (Tally, String, PathBuf) {
    let logs = env::temp_dir().join(format!("harness-{}-{test}", process::id()));
    let command = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake-underpin");
    let suite = Suite {
        command,
        logs: logs.clone(),
        jobs: 2,
    };
    let mut said = String::new();
    let tally = suite.run(scenarios, |line| said.extend([line, "\n"]));
    (tally, said, logs)
}

#[test]
fn passes_what_is_as_expected() {
    let good = |name: &str| {
        scenario(name, "silent")
            .expect("guest", "hello from guest", 5)
            .check(|stage| {
                let machine = stage.machine()?;
                assert_eq!(machine.refused(&["kill", "nobody"])?, 11);
                assert_eq!(machine.vm("other")?.state, "ended");
                Ok(())
            })
    };
    let (tally, said, logs) = run(
        "good",
        vec![good("fake/one"), good("fake/two"), good("fake/three")],
    );
    assert_eq!(
        tally,
        Tally {
            passed: 3,
            failed: 0
        },
        "{said}"
    );
    let kept = fs::read_to_string(logs.join("fake-one/guest.log")).unwrap();
    assert_eq!(kept, "hello from guest\r\n");
    fs::remove_dir_all(logs).unwrap();
}

#[test]
fn shows_the_right_console() {
    let mute = scenario("fake/mute", "silent").expect("guest", "goodbye", 1);
    let over = scenario("fake/over", "crash").expect("guest", "goodbye", 60);
    let dead = scenario("fake/dead", "dies").expect("guest", "hello", 60);
    let (tally, said, logs) = run("bad", vec![mute, over, dead]);
    assert_eq!(
        tally,
        Tally {
            passed: 0,
            failed: 3
        },
        "{said}"
    );
    for part in [
        "FAILED  fake/mute",
        "'guest' did not say 'goodbye' in 1 s",
        "'guest' ended (stage-2 abort) without saying 'goodbye'",
        "the machine ended by itself",
        "| hello from guest",
        "| epitaph: died as asked",
    ] {
        assert!(said.contains(part), "'{part}' is not in:\n{said}");
    }
    // No one blames the other VM where one VM is to blame.
    let after = said.split_once("fake/mute").unwrap().1;
    let mute_only = after.split("FAILED").next().unwrap();
    assert!(!mute_only.contains("hello from other"), "{mute_only}");
    fs::remove_dir_all(logs).unwrap();
}

#[test]
fn a_panicking_check_is_a_failure_and_leaves_nothing() {
    let (tally, said, logs) = run(
        "panic",
        vec![scenario("fake/panic", "silent").check(|_| panic!("on purpose"))],
    );
    assert_eq!(
        tally,
        Tally {
            passed: 0,
            failed: 1
        },
        "{said}"
    );
    let directory = env::temp_dir()
        .join(format!("up{}", process::id()))
        .join("fake-panic");
    assert!(!directory.exists());
    fs::remove_dir_all(logs).unwrap();
}
