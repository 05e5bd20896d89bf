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
    let machine = ok(&fake.run("machine"));
    assert!(machine.contains("frame table"));
    assert!(machine.contains("(device, CPU 1)"), "{machine}");
    // The machine that is played has none, and nobody plays that guests' pages have secret hashes.
    assert!(machine.contains("no source of random bits"), "{machine}");
    let json: Value = serde_json::from_str(&ok(&fake.run("machine -o json"))).unwrap();
    assert_eq!(
        (&json["cpus"], &json["random_bits"]),
        (&2.into(), &false.into())
    );
    let stretches = &json["stretches"][1];
    assert_eq!(stretches["cpu"], 1);
    assert_eq!(stretches["longest_ns"]["device"], 150_001);
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
    assert!(!ok(&fake.run("show web1")).contains("links"));
    let pull = "set web1 --link 0=down --link 1=down --link 1=up";
    assert_eq!(ok(&fake.run(pull)), "web1: set\n");
    assert!(ok(&fake.run("show web1")).contains("0 down, 1 up"));
    let json = ok(&fake.run("-o json show web1"));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["net"]["link"], serde_json::json!(["down", "up"]));
    let timed = serde_json::json!({ "most_ns": 8000, "count": 3 });
    assert_eq!(json["net"]["latency"][1], timed);
    assert!(ok(&fake.run("show web1")).contains("mean 5 us; 50 % within 8 us"));
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
        let text = format!(
            "name = 'new'\nmemory = '64MiB'\n[boot]\nkernel = '{kernel}'\nformat = 'flat'\n"
        );
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
fn memory_is_shown_set_and_reclaimed() {
    let fake = Fake::start("mem");
    let table = ok(&fake.run("mem"));
    assert_eq!(table, ok(&fake.run("mem show")));
    assert!(
        table.starts_with("NAME") && table.contains("ENTITLED"),
        "{table}"
    );
    assert!(
        table.contains("saved 84 MiB") && !table.contains("OWED"),
        "{table}"
    );
    assert!(ok(&fake.run("mem --wide")).contains("OWED"));
    let json: Value = serde_json::from_str(&ok(&fake.run("mem -o json"))).unwrap();
    assert_eq!(json["vms"].as_array().unwrap().len(), 3);
    assert_eq!(json["vms"][2]["name"], "web1");
    assert_eq!(json["vms"][2]["events"]["breaks"], 42);
    assert_eq!(json["machine"]["managed"], 2u64 << 30);
    assert!(ok(&fake.run("mem web1")).contains("breaks"));
    assert_eq!(fake.run("mem db").status.code(), Some(12));
    assert_eq!(fake.run("mem nobody").status.code(), Some(11));
    let why = ok(&fake.run("mem why web1"));
    assert!(
        why.contains("= private         950") && why.contains("dirtied: "),
        "{why}"
    );
    assert!(ok(&fake.run("mem reclaim web1 64MiB")).contains("asked for 32 MiB"));
    assert_eq!(fake.run("mem reclaim web1 64").status.code(), Some(2));
    assert_eq!(
        ok(&fake.run("set web1 --base 1GiB --claim grow")),
        "web1: set\n"
    );
    assert!(ok(&fake.run("mem")).contains("1G"));
    assert_eq!(ok(&fake.run("set web1 --hold 100ms")), "web1: set\n");
    assert_eq!(fake.run("set web1 --hold 61s").status.code(), Some(2));
    assert_eq!(
        fake.run("set web1 --base 1000KiB --claim all")
            .status
            .code(),
        Some(2)
    );
    assert_eq!(fake.run("set web1 --base 0MiB").status.code(), Some(2));
}

#[test]
fn what_would_start_is_told_before() {
    let fake = Fake::start("fit");
    let file = vm_file(&fake, "new", "512MiB");
    let told = ok(&fake.run(&format!("mem fit {file} -n 2")));
    let sentence =
        "2 more VMs like new would start; then memory binds (each needs 514 MiB; there is 1 GiB)\n";
    assert_eq!(told, sentence);
    let refused = fake.run(&format!("mem fit {file} -n 3 -o json"));
    assert_eq!(refused.status.code(), Some(14));
    let json: Value = serde_json::from_str(&text(&refused.stdout)).unwrap();
    assert_eq!(
        (json["fits"].as_u64(), json["wanted"].as_u64()),
        (Some(2), Some(3))
    );
    assert_eq!(json["binds"], "memory");
    let told = ok(&fake.run(&format!("run --dry-run {file}")));
    assert_eq!(
        told,
        "new would start: it needs 514 MiB, and there is 1 GiB\n"
    );
    assert!(!ok(&fake.run("list")).contains("new"));
    let large = vm_file(&fake, "large", "2GiB");
    let refused = fake.run(&format!("run --dry-run {large}"));
    assert_eq!(refused.status.code(), Some(14));
    assert!(text(&refused.stdout).contains("large would not start: memory binds"));
    let known = vm_file(&fake, "web1", "512MiB");
    assert_eq!(
        fake.run(&format!("run --dry-run {known}")).status.code(),
        Some(13)
    );
    assert!(ok(&fake.run("start --dry-run db")).contains("db would start"));
    assert_eq!(fake.run("start --dry-run web1").status.code(), Some(12));
    let other = fake.run(&format!("--machine other run --dry-run {large}"));
    assert_eq!(other.status.code(), Some(3));
}

#[test]
fn codes_are_explained() {
    let all = ok(&underpin("explain").output().unwrap());
    assert!(
        all.contains("130  interrupted") && all.contains("no-memory"),
        "{all}"
    );
    let one = ok(&underpin("explain 14").output().unwrap());
    assert!(
        one.starts_with("14 no-memory: ") && one.contains("What to do"),
        "{one}"
    );
    assert_eq!(one, ok(&underpin("explain no-memory").output().unwrap()));
    let json = ok(&underpin("explain 16 -o json").output().unwrap());
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["name"], "busy");
    let unknown = underpin("explain 99").output().unwrap();
    assert_eq!(unknown.status.code(), Some(2));
    assert!(text(&unknown.stderr).contains("'99'"));
    let refused = Fake::start("explain").run("kill nobody");
    assert!(text(&refused.stderr).contains("`underpin explain 11` says more"));
}

#[test]
fn pages_are_compared_while_vms_stand_still() {
    let fake = Fake::start("analyze");
    let path = |name: &str| fake.run_dir.join(name).display().to_string();
    // Of the shared pages, the first 100 are page cache.
    let words = |gfn: u64| {
        let flags = u64::from((0x4_0000..0x4_0064).contains(&gfn)) << 5;
        flags.to_le_bytes()
    };
    let flags: Vec<u8> = (0..0x4_1000).flat_map(words).collect();
    fs::write(path("flags"), flags).unwrap();
    let (csv, svg, flags) = (path("a.csv"), path("a.svg"), path("flags"));
    let told = fake.run(&format!(
        "mem analyze web1 echo --every 100ms --for 250ms --csv {csv} --plot {svg} \
         --kpageflags web1={flags} --kpageflags echo={flags}"
    ));
    let shown = ok(&told);
    for part in [
        "3 snapshots of web1, echo; each VM stood still for",
        "compared 5000 19 MiB 100.0 %",
        "zero 2000 7.8 MiB 40.0 %",
        "saved 1000 3.9 MiB 100.0 % 100 100.0 %",
        "2 3000 100.0 %",
        "1 to 3 intervals 1000 100.0 % 1000 2000 100.0 % 2000",
    ] {
        let found = shown.lines().any(|line| squeezed(line).contains(part));
        assert!(found, "{part} in {shown}");
    }
    assert_eq!(text(&told.stderr).matches("could be saved").count(), 3);
    assert_eq!(fs::read_to_string(csv).unwrap().lines().count(), 4);
    assert!(fs::read_to_string(svg).unwrap().starts_with("<svg"));
    assert!(ok(&fake.run("list")).matches("running").count() == 3);
    let json: Value = serde_json::from_str(&ok(&fake.run("mem analyze -o json"))).unwrap();
    assert_eq!(json["snapshots"][0]["all"]["exploited"], 2000);
    assert!(json["snapshots"][0]["page_cache"].is_null());
    assert_eq!(json["pause_ns"].as_array().unwrap().len(), 3);
    assert_eq!(fake.run("mem analyze db").status.code(), Some(12));
    assert_eq!(
        fake.run("mem analyze --kpageflags web1=").status.code(),
        Some(2)
    );
    let wrong = fake.run(&format!(
        "mem analyze --live --kpageflags web1={}",
        path("a.svg/x")
    ));
    assert_eq!(wrong.status.code(), Some(1));
}

/// A line with one blank for several.
fn squeezed(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A VM file in the machine's directory, with a kernel that the fake's bundle has.
fn vm_file(fake: &Fake, name: &str, memory: &str) -> String {
    fs::write(fake.run_dir.join("tiny"), b"a kernel").unwrap();
    let file = fake.run_dir.join(format!("{name}.toml"));
    let text =
        format!("name = '{name}'\nmemory = '{memory}'\n[boot]\nkernel = 'tiny'\nformat = 'flat'\n");
    fs::write(&file, text).unwrap();
    file.display().to_string()
}

#[test]
fn names_with_numbers_are_listed_by_their_numbers() {
    let fake = Fake::start("order");
    for name in ["web10", "web2"] {
        ok(&fake.run(&format!("run {}", vm_file(&fake, name, "64MiB"))));
    }
    for verb in ["list", "metrics", "top --batch -n 1"] {
        let said = ok(&fake.run(verb));
        let at = ["web1", "web2", "web10"].map(|name| {
            let ends = [" ", "\""].map(|end| said.find(&format!("{name}{end}")));
            ends.into_iter().flatten().min().unwrap()
        });
        assert!(at.is_sorted(), "{verb}: {said}");
    }
    // Of several files, the hypervisor hears in that order too.
    let directory = fake.run_dir.join("vms");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("tiny"), b"a kernel").unwrap();
    for name in ["vm10", "vm2"] {
        let file = vm_file(&fake, name, "64MiB");
        fs::rename(file, directory.join(format!("{name}.toml"))).unwrap();
    }
    let started = ok(&fake.run(&format!("run {}", directory.display())));
    assert_eq!(started, "vm2: started\nvm10: started\n");
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
    let waiting = fake
        .command("-q stop stubborn")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    thread::sleep(Duration::from_millis(200));
    assert_eq!(ok(&fake.run("-q shutdown")), "sim: powered off\n");
    // Who waits is told what happened, and so is who comes before all of the machine is gone.
    let after = ["list", "show web1", "kill web1"].map(|words| fake.run(words));
    for told in after
        .into_iter()
        .chain([waiting.wait_with_output().unwrap()])
    {
        assert_eq!(told.status.code(), Some(3), "{told:?}");
        assert!(
            text(&told.stderr).contains("the machine has been shut down"),
            "{told:?}"
        );
    }
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
    // A client that comes too late is told the same.
    assert_eq!(fake.late().map(|failure| failure.code()), Some(4));
}

#[test]
fn manual_and_completions_name_every_verb() {
    let manual = ok(&underpin("man").output().unwrap());
    let completion = ok(&underpin("completion bash").output().unwrap());
    for verb in [
        "check", "bundle", "sim", "list", "console", "shutdown", "set", "mem", "explain", "top",
        "metrics",
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

#[test]
fn top_prints_samples_without_a_terminal() {
    let fake = Fake::start("top");
    let text = ok(&fake.run("top --batch -n 1 --delay 100ms"));
    assert!(text.contains("NAME") && text.contains("OWED"), "{text}");
    let lines = ok(&fake.run("top --batch -n 2 -d 100ms -o json"));
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2);
    assert_eq!(lines[1]["machine"]["saved"], 84 << 20);
    assert_eq!(lines[1]["vms"][3]["name"], "web1");
    assert_eq!(lines[1]["vms"][3]["memory"]["shared"], 56 << 20);
    assert!(lines[1]["vms"][0]["memory"].is_null());
    assert_eq!(lines[1]["vms"][3]["cpu_percent"], 0.0);
    // Without a terminal, and with words that make no sense.
    for words in ["top", "top -n 1", "top --batch -n 0", "top --batch -d 0s"] {
        assert_eq!(fake.run(words).status.code(), Some(2), "{words}");
    }
}

#[test]
fn trace_counts_by_vm_and_writes_what_a_viewer_opens() {
    let fake = Fake::start("trace");
    let file = fake.run_dir.join("trace.json");
    let out = file.to_str().unwrap();
    let seen = ok(&fake.run(&format!("trace --for 1ms --out {out}")));
    let words = |line: &str| {
        let words = line.split_whitespace().map(str::to_owned);
        words.collect::<Vec<_>>().join(" ")
    };
    let lines: Vec<String> = seen.lines().map(words).collect();
    let expected = [
        "VM CLASS WHAT COUNT TIME MEAN LONGEST",
        "web1 exits memory 1 2 us 2 us 2 us",
        "web1 faults write 1 2 us 2 us 2 us",
        "db shares broken 1",
        "",
        "3 events, 2 lost",
        "1 made no sense",
    ];
    assert_eq!(lines, expected);
    let drawn: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(drawn["otherData"]["lost"], 2);
    let json = ok(&fake.run("-o json trace db --for 1ms --classes shares"));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["events"], &json["seen"][0]["vm"]),
        (&1.into(), &"db".into())
    );
    assert_eq!(fake.run("trace nobody").status.code(), Some(11));
    assert_eq!(fake.run("trace --classes wars").status.code(), Some(2));
    assert!(ok(&fake.run("trace --stop")).contains("traces nothing"));
}

#[test]
fn cluster_probe_tells_times_and_what_is_wrong() {
    let fake = Fake::start("cluster-probe");
    let text = ok(&fake.run("cluster probe right --rounds 4 --bytes 10KiB"));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(
        lines[0].contains("4 round trips") && lines[0].contains("25 us"),
        "{text}"
    );
    assert!(lines[1].contains("12 KiB in 25 us"), "{text}");
    let json = ok(&fake.run("cluster probe right --rounds 2 --bytes 0MiB -o json"));
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["round_trips"]["p99_ns"], 25_000);
    assert_eq!(json["transfer"]["bytes"], 0);
    for (host, status, says) in [
        ("slow", 1, "differs from what was sent"),
        ("stranger", 12, "no session with host 3"),
        ("left", 2, "is the machine itself"),
        ("nobody", 2, "has no host 'nobody'"),
    ] {
        let said = fake.run(&format!("cluster probe {host}"));
        assert_eq!(said.status.code(), Some(status), "{host}");
        let errors = String::from_utf8_lossy(&said.stderr);
        assert!(errors.contains(says), "{host}: {errors}");
    }
}

#[test]
fn cluster_why_names_all_that_does_not_fit() {
    let fake = Fake::start("cluster-why");
    let text = ok(&fake.run("cluster why slow"));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].starts_with("slow: unfit") && lines[1].contains("its clock has 50000000 Hz"));
    let json: Value = serde_json::from_str(&ok(&fake.run("cluster why stranger -o json"))).unwrap();
    assert_eq!(json[0]["state"], "away");
    let none = fake.run("cluster why nobody");
    assert_eq!(none.status.code(), Some(2));
}

#[test]
fn cluster_tells_who_is_in_and_why_others_are_not() {
    let fake = Fake::start("cluster");
    let table = ok(&fake.run("cluster"));
    for part in [
        "left: in epoch 3 with 2 members",
        "slow: its clock has 50000000 Hz, here 0 Hz",
        "stranger: no answer, and 7 frames in its name have another key",
    ] {
        assert!(table.contains(part), "{part} in {table}");
    }
    let right = table
        .lines()
        .find(|line| line.starts_with("right"))
        .unwrap();
    assert!(right.contains("in ") && right.contains("1.5%"), "{right}");
    let json: Value = serde_json::from_str(&ok(&fake.run("cluster -o json"))).unwrap();
    let states: Vec<_> = json
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["state"])
        .collect();
    assert_eq!(states, ["own", "in", "unfit", "away"]);
    assert_eq!(json[1]["received"]["bytes"], 19_000);
    assert_eq!(json[3]["dropped"]["forged"], 7);
}
