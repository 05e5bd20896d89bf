//! `underpin sim` from start to end, with a stand-in for QEMU: this program itself, whose standard
//! input is the control channel.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod fake;

use fake::Hypervisor;
use std::{
    env, fs,
    io::{self, BufRead as _, BufReader},
    os::{
        fd::AsFd as _,
        unix::{fs::PermissionsExt as _, net::UnixStream},
    },
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

/// The name of the variable that turns this program into QEMU; its value is how that ends.
const ROLE: &str = "UNDERPIN_TEST_ROLE";

/// Not a test of its own: what runs when a test starts "QEMU".
#[test]
fn stand_in_for_qemu() {
    let Ok(role) = env::var(ROLE) else { return };
    let log = env::var("UNDERPIN_TEST_LOG").unwrap();
    fs::write(log, format!("EL2 is up\nprocess {}\n", std::process::id())).unwrap();
    if role == "dies" {
        std::process::exit(3);
    }
    let control = io::stdin().as_fd().try_clone_to_owned().unwrap();
    if !Hypervisor::new(UnixStream::from(control)).serve() {
        // QEMU does not mind that nobody listens any more.
        thread::sleep(Duration::from_secs(20));
    }
}

/// A directory with a PATH, a cache and a machine's files.
struct Place(PathBuf);

impl Place {
    fn new(test: &str) -> Self {
        let path = env::temp_dir().join(format!("underpin-sim-{}-{test}", std::process::id()));
        fs::create_dir_all(path.join("bin")).unwrap();
        let script = "#!/bin/sh\nfor a; do case $a in file:*) export UNDERPIN_TEST_LOG=${a#file:};; esac; done\n\
                      exec \"$UNDERPIN_TEST_QEMU\" stand_in_for_qemu --exact --nocapture\n";
        let qemu = path.join("bin/qemu-system-aarch64");
        fs::write(&qemu, script).unwrap();
        fs::set_permissions(&qemu, fs::Permissions::from_mode(0o755)).unwrap();
        fs::write(path.join("image"), "EL2").unwrap();
        fs::write(path.join("kernel"), "a kernel").unwrap();
        let vm = "name = 'web1'\nmemory = '64MiB'\n[boot]\nkernel = 'kernel'\nformat = 'flat'\n";
        fs::write(path.join("web1.toml"), vm).unwrap();
        Self(path)
    }

    fn command(&self, role: &str, words: &str) -> Command {
        let path = env::var("PATH").unwrap();
        let mut command = fake::underpin(words);
        command
            .current_dir(&self.0)
            .env("PATH", format!("{}:{path}", self.0.join("bin").display()))
            .env("XDG_RUNTIME_DIR", &self.0)
            .env("UNDERPIN_CACHE", self.0.join("cache"))
            .env("UNDERPIN_IMAGE", self.0.join("image"))
            .env("UNDERPIN_TEST_QEMU", env::current_exe().unwrap())
            .env(ROLE, role)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn run(&self, words: &str) -> Output {
        self.command("lives", words).output().unwrap()
    }

    /// Starts `sim` in the foreground and waits until its hypervisor is up.
    fn sim(&self, words: &str) -> (Child, BufReader<std::process::ChildStderr>) {
        let mut sim = self
            .command("lives", &format!("sim web1.toml {words}"))
            .spawn()
            .unwrap();
        let mut said = BufReader::new(sim.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("the hypervisor is up") {
            line.clear();
            assert_ne!(said.read_line(&mut line).unwrap(), 0, "sim ended early");
        }
        (sim, said)
    }

    fn run_dir(&self) -> PathBuf {
        self.0.join(format!(
            "underpin-{}/sim",
            rustix::process::getuid().as_raw()
        ))
    }

    /// Waits until the stand-in's process has ended.
    fn qemu_is_gone(&self) -> bool {
        let log = fs::read_to_string(self.run_dir().join("hypervisor.log")).unwrap();
        let id = log
            .lines()
            .last()
            .unwrap()
            .strip_prefix("process ")
            .unwrap()
            .to_owned();
        let deadline = Instant::now() + Duration::from_mins(1);
        while Instant::now() < deadline {
            match fs::read_to_string(format!("/proc/{id}/stat")) {
                Ok(stat) if !stat.contains(") Z ") => thread::sleep(Duration::from_millis(10)),
                _ => return true,
            }
        }
        false
    }

    fn has_sockets(&self) -> bool {
        self.run_dir().join("control.sock").exists()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn signal(child: &Child, signal: rustix::process::Signal) {
    let id = rustix::process::Pid::from_raw(child.id() as i32).unwrap();
    rustix::process::kill_process(id, signal).unwrap();
}

#[test]
fn a_machine_starts_tells_its_vms_and_is_shut_down() {
    let place = Place::new("life");
    let (sim, said) = place.sim("");
    let second = place.run("sim");
    assert_eq!(second.status.code(), Some(1));
    assert!(stderr(&second).contains("is already running"), "{second:?}");
    assert!(place.run("kill echo").status.success());
    assert!(place.run("shutdown").status.success());
    let lines: Vec<String> = said.lines().map_while(io::Result::ok).collect();
    for line in [
        "web1: runs",
        "db: ended: powered off",
        "echo: ended: powered off",
        "the machine has powered off",
    ] {
        assert!(
            lines.iter().any(|said| said == line),
            "{line} in {lines:#?}"
        );
    }
    assert!(sim.wait_with_output().unwrap().status.success());
    assert!(place.qemu_is_gone() && !place.has_sockets());
    assert_eq!(place.run("list").status.code(), Some(3));
}

#[test]
fn a_machine_ends_when_its_vms_have_and_its_logs_are_kept() {
    let place = Place::new("done");
    let (sim, _said) = place.sim("--exit-when-done --keep-logs kept");
    for vm in ["web1", "echo", "stubborn"] {
        assert!(place.run(&format!("kill {vm}")).status.success());
    }
    assert!(sim.wait_with_output().unwrap().status.success());
    assert!(
        fs::read_to_string(place.0.join("kept/hypervisor.log"))
            .unwrap()
            .contains("EL2 is up")
    );
    assert!(place.qemu_is_gone());
}

#[test]
fn a_detached_machine_stays_until_shut_down() {
    let place = Place::new("detach");
    let started = place.run("sim --detach web1.toml");
    assert!(started.status.success(), "{started:?}");
    assert!(
        stderr(&started).contains("is left running; try: underpin list"),
        "{started:?}"
    );
    assert!(place.run("list").status.success());
    assert!(place.run("shutdown").status.success());
    assert!(place.qemu_is_gone());
}

#[test]
fn a_machine_of_another_name_is_told_of() {
    let place = Place::new("name");
    let started = place.run("--machine two sim --detach web1.toml");
    assert!(
        stderr(&started).contains("underpin --machine two list"),
        "{started:?}"
    );
    let none = place.run("list");
    assert_eq!(none.status.code(), Some(3), "{none:?}");
    assert!(
        stderr(&none).contains("'two' runs: --machine two"),
        "{none:?}"
    );
    assert!(place.run("--machine two shutdown").status.success());
}

#[test]
fn resets_are_told_of_at_their_powers_of_two() {
    let place = Place::new("resets");
    let (sim, said) = place.sim("");
    for _ in 0..3 {
        assert!(place.run("reset web1").status.success());
    }
    assert!(place.run("shutdown").status.success());
    let told = said.lines().map_while(io::Result::ok);
    let told: Vec<String> = told.filter(|line| line.contains("was reset")).collect();
    assert_eq!(
        told,
        [
            "web1: was reset, and runs again: start 2",
            "web1: was reset, and runs again: start 4"
        ]
    );
    assert!(sim.wait_with_output().unwrap().status.success());
}

#[test]
fn interrupts_and_even_a_kill_leave_nothing_running() {
    let place = Place::new("signals");
    for wanted in [rustix::process::Signal::INT, rustix::process::Signal::TERM] {
        let (sim, _said) = place.sim("");
        signal(&sim, wanted);
        assert_eq!(sim.wait_with_output().unwrap().status.code(), Some(130));
        assert!(place.qemu_is_gone() && !place.has_sockets());
    }
    let (mut sim, _said) = place.sim("");
    sim.kill().unwrap();
    sim.wait().unwrap();
    assert!(place.qemu_is_gone());
    let (sim, _said) = place.sim("");
    signal(&sim, rustix::process::Signal::HUP);
    assert_eq!(sim.wait_with_output().unwrap().status.code(), Some(130));
}

/// A Linux over several hosts is told of its ticks; other guests have none.
#[test]
fn check_warns_of_ticks_on_several_hosts() {
    let place = Place::new("ticks");
    let mut image = [0; 128];
    image[56..60].copy_from_slice(b"ARM\x64");
    fs::write(place.0.join("Image"), image).unwrap();
    let warns = |root: &str, boot: &str| {
        let vm = format!("name = 'wide'\nmemory = '64MiB'\n{root}\n[boot]\n{boot}\n");
        fs::write(place.0.join("wide.toml"), vm).unwrap();
        let said = place.run("check wide.toml");
        assert!(said.status.success(), "{said:?}");
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        said.contains("wide.toml: warning: timer ticks") && said.contains("nohz_full=1-N")
    };
    let (wide, linux) = ("cpus = 2\nhosts = 2", "kernel = 'Image'");
    assert!(warns(wide, linux));
    assert!(warns(wide, &format!("{linux}\nargs = 'quiet'")));
    assert!(!warns(
        wide,
        &format!("{linux}\nargs = 'quiet nohz_full=1'")
    ));
    assert!(!warns("cpus = 2", linux));
    assert!(!warns(wide, "kernel = 'kernel'\nformat = 'flat'"));
}

/// A file that is a VM's disk is made when its machine starts, not when it is checked, and a directory is copied; and
/// a machine that runs takes no more of them.
#[test]
fn files_of_vms_are_disks_from_the_start() {
    let place = Place::new("files");
    let vm = |name: &str, disks: &str| {
        let vm = fs::read_to_string(place.0.join("web1.toml")).unwrap();
        let vm = vm.replace("web1", name);
        fs::write(place.0.join(format!("{name}.toml")), vm + disks).unwrap();
    };
    let directory = "[[disk]]\ndirectory = 'www'\n";
    fs::create_dir(place.0.join("www")).unwrap();
    fs::write(place.0.join("www/notice"), "open till six").unwrap();
    let own = "[[disk]]\nfile = 'own.img'\nsize = '1GiB'\n";
    vm("own", &format!("{own}{directory}"));
    vm("late", "[[disk]]\nfile = 'late.img'\nsize = '1GiB'\n");
    vm("two", directory);
    vm("larger", &format!("{directory}size = '64MiB'\n"));
    let file = place.0.join("own.img");
    assert!(place.run("check own.toml").status.success() && !file.exists());
    let (sim, _said) = place.sim("own.toml two.toml");
    assert_eq!(fs::metadata(&file).unwrap().len(), 1 << 30);
    // Two VMs, one copy.
    let copy = fs::canonicalize(place.run_dir().join("file-1")).unwrap();
    assert!(fs::metadata(&copy).unwrap().len() >= 16 << 20);
    assert!(!place.run_dir().join("file-2").exists());
    assert_eq!(
        fs::canonicalize(place.run_dir().join("file-0")).unwrap(),
        fs::canonicalize(&file).unwrap()
    );
    let late = place.run("run late.toml");
    assert_eq!(late.status.code(), Some(6), "{late:?}");
    assert!(
        stderr(&late).contains("late.img is no disk of the running machine"),
        "{late:?}"
    );
    assert!(
        stderr(&late).contains("start it with late.toml too"),
        "{late:?}"
    );
    assert!(!place.0.join("late.img").exists());
    let larger = place.run("run larger.toml");
    assert!(
        stderr(&larger).contains("www is no disk of the running machine"),
        "{larger:?}"
    );
    // This one gets as far as its kernel.
    let again = place.run("run own.toml");
    assert!(stderr(&again).contains("bundle"), "{again:?}");
    assert!(place.run("shutdown").status.success());
    assert!(sim.wait_with_output().unwrap().status.success());
    assert!(!copy.exists());
}

#[test]
fn a_machine_that_dies_tells_its_last_words() {
    let place = Place::new("dies");
    for words in ["sim web1.toml", "sim --detach web1.toml"] {
        let dead = place.command("dies", words).output().unwrap();
        assert_eq!(dead.status.code(), Some(4), "{dead:?}");
        assert!(stderr(&dead).contains("EL2 is up"), "{dead:?}");
    }
}

#[test]
fn a_machine_that_takes_too_long_is_ended() {
    let place = Place::new("timeout");
    let late = place.run("sim web1.toml --timeout 1s");
    assert_eq!(late.status.code(), Some(5), "{late:?}");
    assert!(
        stderr(&late).contains("not ended: echo, stubborn, web1"),
        "{late:?}"
    );
    assert!(place.qemu_is_gone() && !place.has_sockets());
}

/// Hosts with stand-ins for QEMU. They are not in lock-step: that needs QEMU itself.
const TWO_HOSTS: &str = "sim --hosts 2 --free";

/// What a cluster says until all its hosts are up.
fn cluster(place: &Place, words: &str) -> (Child, BufReader<std::process::ChildStderr>) {
    let mut sim = place.command("lives", words).spawn().unwrap();
    let mut said = BufReader::new(sim.stderr.take().unwrap());
    let mut all = String::new();
    // Lines of hosts and of the command come by different pipes, in any order.
    let wanted = [
        "host0: the hypervisor is up",
        "host1: the hypervisor is up",
        "all hosts are up",
    ];
    while !wanted.iter().all(|line| all.contains(line)) {
        assert_ne!(
            said.read_line(&mut all).unwrap(),
            0,
            "it ended early: {all}"
        );
    }
    (sim, said)
}

#[test]
fn hosts_of_a_cluster_are_named() {
    let place = Place::new("hosts");
    let (sim, said) = cluster(&place, &format!("{TWO_HOSTS} web1.toml --keep-logs kept"));
    for host in ["host0", "host1"] {
        let list = place.run(&format!("-o json --host {host} list"));
        let json: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
        assert_eq!(json[0]["host"], host, "{json}");
        assert!(place.run_dir().join(host).join("hypervisor.log").exists());
    }
    let all = place.run("list");
    let text = String::from_utf8(all.stdout).unwrap();
    assert!(
        text.starts_with("host0:\n") && text.contains("\nhost1:\n"),
        "{text}"
    );
    let all = place.run("-o json list");
    let json: serde_json::Value = serde_json::from_slice(&all.stdout).unwrap();
    let hosts = json
        .as_array()
        .unwrap()
        .iter()
        .map(|vm| vm["host"].as_str().unwrap());
    assert_eq!(
        hosts.collect::<std::collections::BTreeSet<_>>().len(),
        2,
        "{json}"
    );
    // One is named, or nothing is done.
    let none = place.run("kill echo");
    assert_eq!(none.status.code(), Some(3), "{none:?}");
    assert!(
        stderr(&none).contains("'sim' is a cluster, and no host of it is named"),
        "{none:?}"
    );
    assert!(stderr(&none).contains("host0, host1"), "{none:?}");
    assert!(place.run("--host host1 kill echo").status.success());
    let metrics = String::from_utf8(place.run("--host host1 metrics").stdout).unwrap();
    assert!(metrics.contains("{host=\"host1\""), "{metrics}");
    let second = place.run("sim web1.toml");
    assert!(stderr(&second).contains("is already running"), "{second:?}");
    // All hosts end.
    assert!(place.run("shutdown").status.success());
    let lines: Vec<String> = said.lines().map_while(io::Result::ok).collect();
    for line in [
        "host1: echo: ended: powered off",
        "host0: the machine has powered off",
        "all hosts have ended",
    ] {
        assert!(
            lines.iter().any(|said| said.starts_with(line)),
            "{line} in {lines:#?}"
        );
    }
    assert!(sim.wait_with_output().unwrap().status.success());
    for host in ["host0", "host1"] {
        assert!(
            place
                .0
                .join("kept")
                .join(host)
                .join("hypervisor.log")
                .exists(),
            "{host}"
        );
        assert!(!place.run_dir().join(host).join("control.sock").exists());
    }
}

#[test]
fn a_host_that_dies_is_named_and_the_others_go_on() {
    let place = Place::new("host-dies");
    let (sim, said) = cluster(&place, &format!("{TWO_HOSTS} web1.toml"));
    let log = fs::read_to_string(place.run_dir().join("host1/hypervisor.log")).unwrap();
    let process = log
        .lines()
        .last()
        .unwrap()
        .strip_prefix("process ")
        .unwrap();
    let process = rustix::process::Pid::from_raw(process.parse().unwrap()).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    let mut said = said.lines().map_while(io::Result::ok);
    assert!(said.any(|line| line == "host1 has ended with status 4; the others go on"));
    assert!(place.run("--host host0 list").status.success());
    assert_eq!(place.run("--host host1 list").status.code(), Some(3));
    assert!(place.run("shutdown").status.success());
    // As the first that failed.
    assert_eq!(sim.wait_with_output().unwrap().status.code(), Some(4));
}

#[test]
fn hosts_end_when_the_command_does() {
    let place = Place::new("hosts-end");
    let (sim, _said) = cluster(
        &place,
        &format!("{TWO_HOSTS} --detached --on host1=web1.toml"),
    );
    signal(&sim, rustix::process::Signal::TERM);
    assert_eq!(sim.wait_with_output().unwrap().status.code(), Some(130));
    let (mut sim, _said) = cluster(&place, TWO_HOSTS);
    sim.kill().unwrap();
    sim.wait().unwrap();
    let sockets = ["host0", "host1"].map(|host| place.run_dir().join(host).join("control.sock"));
    let deadline = Instant::now() + Duration::from_mins(1);
    while sockets.iter().any(|socket| socket.exists()) {
        assert!(Instant::now() < deadline, "hosts live on");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_cluster_that_cannot_be_is_refused() {
    let place = Place::new("no-cluster");
    let vm = fs::read_to_string(place.0.join("web1.toml")).unwrap();
    let disk = "[[disk]]\nfile = 'own.img'\nsize = '1GiB'\n";
    fs::write(place.0.join("own.toml"), vm + disk).unwrap();
    for (words, code, said) in [
        ("sim --hosts 1", 2, "1 is not in 2..=8"),
        ("sim --hosts 9", 2, "9 is not in 2..=8"),
        ("sim --hosts 2 --net", 2, "'--net'"),
        ("sim --wire lose=1%", 2, "--hosts"),
        ("sim --hosts 2 --free --wire lose=1%", 2, "'--free'"),
        (
            "sim --hosts 2 --wire me=1",
            2,
            "'me' is set by the command itself",
        ),
        (
            "sim --hosts 2 --on host2=web1.toml",
            2,
            "'host2' is no host of this cluster",
        ),
        (
            "sim --hosts 2 --cpu-on host3=max",
            2,
            "'host3' is no host of this cluster",
        ),
        (
            "sim --hosts 2 --cluster c.toml --auth host4=off",
            2,
            "'host4' is no host of this cluster",
        ),
        (
            "sim --hosts 2 --on web1.toml",
            2,
            "'web1.toml' does not begin with a host, as in host1=...",
        ),
        (
            "sim --hosts 2 --free --timeout 5s own.toml",
            2,
            "has a disk in a file, and cannot run on all hosts",
        ),
        (
            "sim --hosts 2 --free --exit-when-done",
            2,
            "no VM file is named",
        ),
        ("--host one list", 2, "'one' cannot be a host's name"),
        ("--host host1 list", 3, "no host1 of machine 'sim' runs"),
        (
            "--host host1 sim web1.toml",
            2,
            "there is no cluster with a host1",
        ),
        (
            "sim --hosts 2 --wire-plugin /nowhere web1.toml",
            6,
            "/nowhere is not there",
        ),
    ] {
        let output = place.run(words);
        assert_eq!(output.status.code(), Some(code), "{words}: {output:?}");
        assert!(stderr(&output).contains(said), "{words}: {output:?}");
    }
}
