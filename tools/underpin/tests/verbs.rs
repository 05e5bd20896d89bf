//! The whole command against a fake hypervisor that speaks the control protocol: no QEMU.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod fake;

use fake::{Fake, underpin};
use serde_json::Value;
use std::{
    fs,
    io::Write as _,
    process::{Output, Stdio},
    thread,
    time::Duration,
};

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn ok(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    text(&output.stdout)
}

#[test]
fn list_and_show_tell_what_the_hypervisor_says() {
    let fake = Fake::start("list");
    let table = ok(&fake.run("list"));
    let lines: Vec<&str> = table.lines().collect();
    let columns: Vec<&str> = lines[0].split_whitespace().collect();
    let expected = [
        "NAME", "STATE", "KERNEL", "VCPUS", "MEMORY", "TOUCHED", "RUN", "STEAL", "EXITS", "REASON",
    ];
    assert_eq!(columns, expected);
    assert!(
        lines[1].starts_with("db        ended") && lines[1].ends_with("powered off"),
        "{table}"
    );
    assert!(
        lines[4].starts_with("web1      running") && lines[4].contains("512 MiB"),
        "{table}"
    );
    let json: Value = serde_json::from_str(&ok(&fake.run("list -o json"))).unwrap();
    assert_eq!(json[3]["name"], "web1");
    assert_eq!(json[3]["memory"], 512 << 20);
    assert_eq!(json[3]["exits"]["uart"], 7);
    let shown = ok(&fake.run("show web1"));
    for part in [
        "web1  running",
        "Memory",
        "CPU time",
        "Exits",
        "uart",
        "vCPUs",
        "0x1000",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    assert!(ok(&fake.run("nodes")).contains("1.5 GiB"));
    assert!(ok(&fake.run("machine")).contains("frame table"));
    let json: Value = serde_json::from_str(&ok(&fake.run("machine -o json"))).unwrap();
    assert_eq!(json["cpus"], 2);
}

#[test]
fn refusals_carry_the_hypervisors_code_and_sentence() {
    let fake = Fake::start("refusals");
    let refused = fake.run("kill nobody");
    assert_eq!(refused.status.code(), Some(11));
    let said = text(&refused.stderr);
    assert!(
        said.contains("no VM is named nobody") && said.contains("underpin list"),
        "{said}"
    );
    let refused = fake.run("-o json pause db");
    assert_eq!(refused.status.code(), Some(12));
    let json: Value = serde_json::from_str(&text(&refused.stderr)).unwrap();
    assert_eq!(json["error"]["code"], 12);
    assert_eq!(fake.run("kill Not_A_Name").status.code(), Some(11));
    assert_eq!(fake.run("set web1").status.code(), Some(2));
    assert_eq!(fake.run("--machine other list").status.code(), Some(3));
}

#[test]
fn vms_are_driven_through_their_states() {
    let fake = Fake::start("states");
    assert_eq!(ok(&fake.run("pause web1")), "web1: paused\n");
    assert_eq!(ok(&fake.run("resume web1")), "web1: goes on\n");
    assert_eq!(ok(&fake.run("set web1 --weight 512")), "web1: set\n");
    assert!(ok(&fake.run("show web1")).contains("512"));
    assert_eq!(ok(&fake.run("-q stop web1")), "web1: ended: powered off\n");
    assert_eq!(ok(&fake.run("start web1")), "web1: started\n");
    let stubborn = fake.run("-q stop stubborn --timeout 200ms");
    assert_eq!(stubborn.status.code(), Some(5));
    assert!(text(&stubborn.stderr).contains("underpin kill stubborn"));
}

#[test]
fn a_console_shows_its_log_and_takes_what_is_typed() {
    let fake = Fake::start("console");
    let mut console = fake.command("-q console echo");
    let mut console = console
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // More than one CONSOLE_INPUT holds, and the fake takes at most 1000 bytes at a time.
    let typed = "0123456789abcdef".repeat(700);
    console
        .stdin
        .take()
        .unwrap()
        .write_all(typed.as_bytes())
        .unwrap();
    while fs::read(fake.run_dir.join("consoles/echo.log"))
        .unwrap_or_default()
        .len()
        < typed.len()
    {
        thread::sleep(Duration::from_millis(10));
    }
    ok(&fake.run("kill echo"));
    let shown = console.wait_with_output().unwrap();
    assert!(shown.status.success());
    assert_eq!(text(&shown.stdout), typed);
    assert_eq!(ok(&fake.run("console --log echo")), typed);
}

#[test]
fn run_finds_the_files_of_the_bundle() {
    let fake = Fake::start("run");
    let vm = |kernel: &str| {
        fs::write(fake.run_dir.join(kernel), b"a kernel").unwrap();
        let file = fake.run_dir.join("new.toml");
        let text = format!("name = 'new'\nmemory = '64MiB'\n[boot]\nkernel = '{kernel}'\n");
        fs::write(&file, text).unwrap();
        format!("run {}", file.display())
    };
    let unknown = fake.run(&vm("other"));
    assert_eq!(unknown.status.code(), Some(6));
    assert!(text(&unknown.stderr).contains("not in the running machine's bundle"));
    assert_eq!(ok(&fake.run(&vm("tiny"))), "new: started\n");
    assert!(ok(&fake.run("list")).contains("new"));
    assert_eq!(fake.run(&vm("tiny")).status.code(), Some(13));
}

#[test]
fn many_commands_at_once_get_their_own_answers() {
    let fake = Fake::start("many");
    thread::scope(|scope| {
        for n in 0..8 {
            let fake = &fake;
            scope.spawn(move || {
                let name = ["web1", "db", "echo", "stubborn"][n % 4];
                for _ in 0..3 {
                    let json = ok(&fake.run(&format!("-o json show {name}")));
                    let json: Value = serde_json::from_str(&json).unwrap();
                    assert_eq!(json["name"], name);
                }
            });
        }
    });
}

#[test]
fn the_machines_end_reaches_every_command() {
    let fake = Fake::start("end");
    assert_eq!(ok(&fake.run("-q shutdown")), "sim: powered off\n");
    let fake = Fake::start("death");
    let waiting = fake
        .command("-q stop stubborn")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    thread::sleep(Duration::from_millis(200));
    fake.die();
    let waiting = waiting.wait_with_output().unwrap();
    assert_eq!(waiting.status.code(), Some(4), "{waiting:?}");
}

#[test]
fn manual_and_completions_name_every_verb() {
    let manual = ok(&underpin("man").output().unwrap());
    let completion = ok(&underpin("completion bash").output().unwrap());
    for verb in [
        "check", "bundle", "sim", "list", "console", "shutdown", "set",
    ] {
        assert!(manual.contains(verb), "{verb}");
        assert!(completion.contains(verb), "{verb}");
    }
    assert!(manual.contains("Exit status"));
    for shell in ["zsh", "fish"] {
        assert!(!ok(&underpin(&format!("completion {shell}")).output().unwrap()).is_empty());
    }
}

#[test]
fn a_reader_that_has_gone_is_no_error() {
    let mut command = underpin("completion bash");
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
}
