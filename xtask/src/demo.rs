//! `xtask demo`: real Debian VMs at work on a simulated four-node machine.

use crate::{
    images, project,
    step::{Outcome, Step, Steps, print_line},
};
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs::{self, File},
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};
use tests_boot::{
    assets,
    status::{self, VmStatus},
};

/// The machine of the demo.
const MACHINE: [&str; 6] = ["--nodes", "4", "--cpus", "8", "--memory", "8G"];
/// How often the VMs are looked at.
const POLL: Duration = Duration::from_millis(500);
/// How long the hypervisor may take to answer, and the VMs to do their work.
const START_MAX: Duration = Duration::from_mins(3);
const WORK_MAX: Duration = Duration::from_mins(15);
/// What begins a line that a guest says to people.
const GUEST_LINE: &str = "underpin-guest:";
/// The VM of `demo/` that does no work: it is started where the machine is left to people.
const KEPT: &str = "login";
/// What its console shows when somebody can type there.
const PROMPT: &str = "root@";
const INTRODUCTION: &str = "\
QEMU simulates an arm64 machine of 4 NUMA nodes, 8 CPUs and 8 GiB. Underpin takes it at EL2 and runs
three Debian 13 systems there: 2 vCPUs each, three builds of Linux, one disk image for all. Each
boots with systemd, compiles bzip2 with gcc on both CPUs, and powers itself off.";
/// How often the VMs' figures are told where there is no bar.
const TELL: Duration = Duration::from_secs(15);

/// Runs the demo; gives whether all went well.
pub fn run(keep: bool) -> bool {
    print_line(INTRODUCTION);
    let steps = Steps::new(4, project::products().join("demo-logs"));
    play(&steps, keep).is_some()
}

fn play(steps: &Steps, keep: bool) -> Option<()> {
    steps.run("build", |step| {
        images::command(step)?;
        images::hypervisor(step)
    })?;
    let mut machine = steps.run("start a machine of 4 nodes, 8 CPUs and 8 GiB", |step| {
        Machine::start(step, keep)
    })?;
    steps.run("three Debian VMs boot, compile and power off", |step| {
        machine.watch_work(step)
    })?;
    if keep {
        steps.run("one more Debian, for you", |step| machine.start_kept(step))?;
        machine.leave();
        return Some(());
    }
    steps.run("shut down", |step| machine.shut_down(step))
}

/// What is asked of `underpin mem -o json`.
#[derive(Deserialize)]
struct Memory {
    vms: Vec<VmMemory>,
    machine: MachineMemory,
}

/// Bytes of a VM's memory.
#[derive(Deserialize)]
struct VmMemory {
    name: String,
    shared: u64,
    entitlement: u64,
}

/// Bytes of the machine's memory.
#[derive(Deserialize)]
struct MachineMemory {
    saved: u64,
}

/// The most bytes that a VM had, of each kind: an ended VM holds nothing any more.
#[derive(Clone, Copy, Default)]
struct Most {
    touched: u64,
    shared: u64,
    entitlement: u64,
}

/// The machine, through the `underpin` command. Dropped, it is killed, unless it was left.
struct Machine {
    command: PathBuf,
    sim: Option<Child>,
    heard: BTreeSet<(String, usize)>,
    states: BTreeSet<(String, String)>,
    most: BTreeMap<String, Most>,
    /// The most bytes that sharing has saved at one time.
    saved: u64,
}

impl Machine {
    fn start(step: &Step<'_>, keep: bool) -> Outcome<Self> {
        let command = assets::command();
        let logs = project::products().join("demo-logs");
        fs::create_dir_all(&logs)
            .map_err(|error| format!("cannot make {}: {error}", logs.display()))?;
        let log = logs.join("sim.log");
        let output = File::create(&log)
            .map_err(|error| format!("cannot write {}: {error}", log.display()))?;
        let errors = output.try_clone().map_err(|error| error.to_string())?;
        // In the foreground it sees Ctrl-C as this process does; and it dies with this process,
        // unless it is to be left.
        let mut sim = Command::new(if keep { "env" } else { "setpriv" });
        sim.args(
            (!keep)
                .then_some(["--pdeathsig", "TERM"])
                .into_iter()
                .flatten(),
        );
        sim.arg(&command)
            .arg("sim")
            .args(MACHINE)
            .arg(project::root().join("demo"));
        sim.env("UNDERPIN_IMAGE", assets::image());
        sim.stdin(Stdio::null()).stdout(output).stderr(errors);
        step.doing("QEMU starts; Underpin takes the machine at EL2");
        let sim = sim
            .spawn()
            .map_err(|error| format!("cannot start {}: {error}", command.display()))?;
        let mut machine = Self {
            command,
            sim: Some(sim),
            heard: BTreeSet::new(),
            states: BTreeSet::new(),
            most: BTreeMap::new(),
            saved: 0,
        };
        let deadline = Instant::now() + START_MAX;
        while let Err(why) = machine.list() {
            let ended = machine
                .sim
                .as_mut()
                .is_none_or(|sim| !matches!(sim.try_wait(), Ok(None)));
            if ended || Instant::now() > deadline {
                let said = fs::read_to_string(&log).unwrap_or_default();
                return Err(format!("{}\n{why}", said.trim()));
            }
            sleep(POLL);
        }
        Ok(machine)
    }

    fn verb(&self, words: &[&str]) -> Outcome<String> {
        let output = Command::new(&self.command)
            .args(words)
            .stdin(Stdio::null())
            .output();
        let output =
            output.map_err(|error| format!("cannot run {}: {error}", self.command.display()))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }

    /// The VMs that work.
    fn list(&self) -> Outcome<Vec<VmStatus>> {
        let mut vms: Vec<VmStatus> = status::parse("list", &self.verb(&["list", "-o", "json"])?)?;
        vms.retain(|vm| vm.name != KEPT);
        Ok(vms)
    }

    /// Looks at what the VMs have of the machine's memory.
    fn look_at_memory(&mut self, vms: &[VmStatus]) -> Outcome {
        let memory: Memory = status::parse("mem", &self.verb(&["mem", "-o", "json"])?)?;
        self.saved = self.saved.max(memory.machine.saved);
        for vm in vms {
            let most = self.most.entry(vm.name.clone()).or_default();
            most.touched = most.touched.max(vm.touched);
        }
        for vm in memory.vms {
            let most = self.most.entry(vm.name).or_default();
            most.shared = most.shared.max(vm.shared);
            most.entitlement = most.entitlement.max(vm.entitlement);
        }
        Ok(())
    }

    /// Tells what the VMs say and use until each has done its work and powered itself off; then
    /// shows what they have used.
    fn watch_work(&mut self, step: &Step<'_>) -> Outcome {
        let deadline = Instant::now() + WORK_MAX;
        let mut told = Instant::now();
        loop {
            let vms = self.list()?;
            for vm in &vms {
                self.hear(step, vm)?;
            }
            self.look_at_memory(&vms)?;
            if vms.iter().all(|vm| vm.state == "ended") {
                step.say(&table(&vms, &self.most, self.saved));
                return self.all_compiled(&vms);
            }
            if step.has_bar() || told.elapsed() > TELL {
                told = Instant::now();
                step.doing(
                    &vms.iter()
                        .map(|vm| self.figures(vm))
                        .collect::<Vec<_>>()
                        .join("   "),
                );
            }
            if Instant::now() > deadline {
                let seconds = WORK_MAX.as_secs();
                let late = format!("the VMs have not done their work in {seconds} s");
                let table = table(&vms, &self.most, self.saved);
                return Err(format!("{late}\n{table}"));
            }
            sleep(POLL);
        }
    }

    /// What a VM has used so far, in a few words.
    fn figures(&self, vm: &VmStatus) -> String {
        let most = self.most.get(&vm.name).copied().unwrap_or_default();
        let [touched, shared] = [most.touched, most.shared].map(|bytes| bytes >> 20);
        let run = vm.run_ns as f64 / 1e9;
        let name = &vm.name;
        format!("{name}: {touched} MiB touched, {shared} MiB shared, ran {run:.0} s")
    }

    fn all_compiled(&self, vms: &[VmStatus]) -> Outcome {
        let silent = vms
            .iter()
            .find(|vm| !self.heard.iter().any(|(name, _)| *name == vm.name));
        match silent {
            None => Ok(()),
            Some(vm) => Err(format!(
                "{} ended ({}) without its work",
                vm.name, vm.reason
            )),
        }
    }

    /// Tells what is new of a VM.
    fn hear(&mut self, step: &Step<'_>, vm: &VmStatus) -> Outcome {
        if self.states.insert((vm.name.clone(), vm.state.clone())) {
            step.say(format!("{}: {} {}", vm.name, vm.state, vm.reason).trim_end());
        }
        let console = self
            .verb(&["console", &vm.name, "--log"])
            .unwrap_or_default();
        for (number, line) in console.lines().filter_map(said).enumerate() {
            if self.heard.insert((vm.name.clone(), number)) {
                step.say(&format!("{}: {line}", vm.name));
            }
            if line.contains("failed") {
                return Err(format!("{} has failed: {line}", vm.name));
            }
        }
        Ok(())
    }

    /// Starts the VM that stays, and waits until somebody can type at its console.
    fn start_kept(&self, step: &Step<'_>) -> Outcome {
        step.doing("it boots to a shell");
        self.verb(&["start", KEPT])?;
        let deadline = Instant::now() + START_MAX;
        let console = || self.verb(&["console", KEPT, "--log"]).unwrap_or_default();
        while !console().contains(PROMPT) {
            if Instant::now() > deadline {
                return Err(format!(
                    "{KEPT} has not booted in {} s",
                    START_MAX.as_secs()
                ));
            }
            sleep(POLL);
        }
        Ok(())
    }

    fn shut_down(&mut self, step: &Step<'_>) -> Outcome {
        step.doing("the machine powers off");
        self.verb(&["shutdown"])?;
        if let Some(mut sim) = self.sim.take() {
            sim.wait()
                .map_err(|error| format!("cannot wait for the machine: {error}"))?;
        }
        Ok(())
    }

    /// Leaves the machine up, and says what to do with it.
    fn leave(&mut self) {
        self.sim = None;
        let command = self.command.display();
        print_line("\nThe machine stays up. Try:");
        print_line(&format!("  {command} mem"));
        print_line(&format!("  {command} mem why {KEPT}"));
        print_line(&format!("  {command} console {KEPT}    (Ctrl-] leaves it)"));
        print_line(&format!("and end it with: {command} shutdown"));
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(sim) = &mut self.sim {
            // Power off first, so that the broker cleans up; what does not obey is killed.
            let _ = Command::new(&self.command)
                .arg("shutdown")
                .stderr(Stdio::null())
                .status();
            let _ = sim.kill();
            let _ = sim.wait();
        }
    }
}

/// What a guest's line says to people.
fn said(line: &str) -> Option<&str> {
    line.split_once(GUEST_LINE).map(|(_, said)| said.trim())
}

/// The VMs as people see them: what they were given and took, and what sharing saved; below that
/// where their exits went, the most frequent class first.
fn table(vms: &[VmStatus], most: &BTreeMap<String, Most>, saved: u64) -> String {
    let mut text = format!(
        "\n{:12} {:26} {:>5} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}\n",
        "VM", "kernel", "vCPUs", "memory", "touched", "shared", "entitled", "run", "stolen"
    );
    for vm in vms {
        let most = most.get(&vm.name).copied().unwrap_or_default();
        let amounts = [vm.memory, most.touched, most.shared, most.entitlement];
        let amounts = amounts
            .map(|bytes| format!(" {:>4} MiB", bytes >> 20))
            .concat();
        let (run, stolen) = (vm.run_ns as f64 / 1e9, vm.steal_ns as f64 / 1e9);
        let row = format_args!(
            "{:12} {:26} {:>5}{amounts} {run:>6.1} s {stolen:>6.1} s",
            vm.name, vm.kernel, vm.vcpus
        );
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{row}");
    }
    let _ = writeln!(text, "saved by sharing, at most: {} MiB", saved >> 20);
    let mut sums: BTreeMap<&str, u64> = BTreeMap::new();
    for (class, count) in vms.iter().flat_map(|vm| &vm.exits) {
        *sums.entry(class).or_default() += count;
    }
    let mut classes: Vec<(&str, u64)> = sums.into_iter().filter(|(_, sum)| *sum > 0).collect();
    classes.sort_by_key(|(_, sum)| std::cmp::Reverse(*sum));
    let row = |title: &str, cell: &dyn Fn(&VmStatus) -> String| {
        let cells = vms.iter().map(|vm| format!(" {:>12}", cell(vm)));
        format!("{title:12}{}\n", cells.collect::<String>())
    };
    text += "\n";
    text += &row("exits", &|vm| vm.name.clone());
    for (class, _) in classes {
        text += &row(class, &|vm| vm.exits.get(class).unwrap_or(&0).to_string());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_shows_what_people_ask_for() {
        let json = r#"{"name":"compile-1","kernel":"trixie","state":"running","vcpus":2,"memory":536870912,
            "touched":104857600,"run_ns":2500000000,"steal_ns":0,"exits":{"uart":7,"memory":0,"wfi":30}}"#;
        let vm: VmStatus = serde_json::from_str(json).unwrap();
        let most = Most {
            touched: 100 << 20,
            shared: 60 << 20,
            entitlement: 30 << 20,
        };
        let most = BTreeMap::from([("compile-1".to_owned(), most)]);
        let shown = table(&[vm], &most, 90 << 20);
        let words = |line: usize| shown.lines().nth(line).map(str::split_whitespace);
        let row = "compile-1 trixie 2 512 MiB 100 MiB 60 MiB 30 MiB 2.5 s 0.0 s";
        assert!(words(2).unwrap().eq(row.split(' ')), "{shown}");
        assert!(shown.contains("at most: 90 MiB"), "{shown}");
        let exits: Vec<&str> = shown.lines().skip(5).collect();
        assert_eq!(exits.len(), 3, "{shown}");
        assert!(words(6).unwrap().eq(["wfi", "30"]));
        assert!(words(7).unwrap().eq(["uart", "7"]));
    }

    #[test]
    fn guests_are_heard_amid_noise() {
        assert_eq!(
            said("[  1.0] underpin-guest: compiled bzip2\r"),
            Some("compiled bzip2")
        );
        assert_eq!(said("login:"), None);
    }
}
