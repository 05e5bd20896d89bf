//! `--host`: every verb that asks a machine asks the host that is named, and no other.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod fake;

use clap::{Command, CommandFactory as _};
use fake::Fake;
use std::collections::BTreeSet;
use underpin::cli::Cli;

/// A command of each verb that asks a machine.
const ASKS: &[&str] = &[
    "cluster",
    "cluster why right",
    "cluster probe right",
    "span why web1",
    "span move web1 1 right",
    "drain right",
    "list",
    "show web1",
    "start web1",
    "stop web1",
    "kill web1",
    "pause web1",
    "resume web1",
    "reset web1",
    "set web1 --weight 5",
    "mem",
    "mem show",
    "mem why web1",
    "mem fit FILE",
    "mem reclaim web1 64MiB",
    "mem recount",
    "mem analyze",
    "numa",
    "numa show",
    "numa why web1",
    "numa move web1 0",
    "top --batch -n 1",
    "metrics",
    "report DIRECTORY",
    "trace",
    "console web1",
    "nodes",
    "machine",
    "shutdown",
];

/// Verbs that ask no machine that runs, or begin one: they work on files, say what is known, and make what is simulated; `serve` and
/// those from `stage` on are of the system that the command runs in, which is no host of a simulated cluster. `run` asks the machine
/// if it runs, and else begins one.
const ASK_NOBODY: &[&str] = &[
    "check",
    "bundle",
    "cluster key",
    "cluster check",
    "sim",
    "run",
    "explain",
    "completion",
    "man",
    "serve",
    "stage",
    "doctor",
    "attach",
    "detach",
    "upgrade",
    "status",
    "log",
];

/// The words of each verb that can be typed, and whether it takes `--host`.
fn verbs(command: &Command, words: &str, all: &mut Vec<(String, bool)>) {
    for verb in command
        .get_subcommands()
        .filter(|it| it.get_name() != "help")
    {
        let words = format!("{words} {}", verb.get_name()).trim().to_owned();
        if !verb.is_subcommand_required_set() {
            let mut arguments = verb.get_arguments();
            let takes_host =
                arguments.any(|it| it.get_id() == "host" && it.get_long() == Some("host"));
            all.push((words.clone(), takes_host));
        }
        verbs(verb, &words, all);
    }
}

#[test]
fn every_verb_that_asks_a_machine_asks_the_host_that_is_named() {
    let mut tree = Cli::command();
    tree.build();
    let mut all = Vec::new();
    verbs(&tree, "", &mut all);
    let names: BTreeSet<&str> = all.iter().map(|(words, _)| words.as_str()).collect();
    let without: Vec<_> = all.iter().filter(|(_, takes_host)| !takes_host).collect();
    assert!(without.is_empty(), "no --host: {without:?}");
    // The longest verb with which the words of a command begin.
    let verb = |words: &&str| {
        let begins = |it: &&&str| *words == **it || words.starts_with(&format!("{it} "));
        *names
            .iter()
            .filter(begins)
            .max_by_key(|it| it.len())
            .unwrap()
    };
    let known: BTreeSet<&str> = ASKS
        .iter()
        .map(verb)
        .chain(ASK_NOBODY.iter().copied())
        .collect();
    assert_eq!(known, names, "a verb is in neither list");

    let fake = Fake::start("hosts");
    let file = fake.run_dir.join("vm.toml");
    std::fs::write(
        &file,
        "name = \"new\"\nmemory = \"64MiB\"\n[boot]\nkernel = \"kernel\"\nformat = \"flat\"\n",
    )
    .unwrap();
    std::fs::write(fake.run_dir.join("kernel"), [0; 64]).unwrap();
    for words in ASKS {
        let words = words.replace("FILE", file.to_str().unwrap());
        let words = words.replace("DIRECTORY", fake.run_dir.join("report").to_str().unwrap());
        let said = fake.run(&format!("--host host9 {words}"));
        let errors = String::from_utf8_lossy(&said.stderr).into_owned();
        let is_refused =
            said.status.code() == Some(3) && errors.contains("no host9 of machine 'sim'");
        assert!(is_refused, "{words}: {:?}: {errors}", said.status.code());
    }
}
