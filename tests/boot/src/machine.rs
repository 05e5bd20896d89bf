//! One simulated machine, driven through the `underpin` command.

pub use crate::hardware::Hardware;
use crate::{
    Outcome, assets, because,
    status::{
        self, MachineStatus, MemStatus, Memory, NodeStatus, NumaStatus, VcpuStatus, VmDetails,
        VmStatus,
    },
    vm::Vm,
};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

/// The machine's name. Machines of one name do not meet: each has a directory of its own.
const NAME: &str = "sim";
/// How often consoles and states are looked at.
const POLL: Duration = Duration::from_millis(250);
/// How long EL2 may take until it answers its first request, on a host that is busy.
const START_MAX: Duration = Duration::from_mins(3);
/// How long a machine may take to power itself off before it is killed.
const SHUTDOWN_MAX: Duration = Duration::from_secs(30);

/// A machine that runs. Dropped, it is killed.
#[derive(Debug)]
pub struct Machine {
    command: PathBuf,
    directory: PathBuf,
    sim: Child,
    /// Whoever types at a VM's console stays there.
    typists: BTreeMap<String, Child>,
    ended: bool,
}

impl Machine {
    /// Starts a machine whose files all lie in `directory`.
    ///
    /// # Errors
    /// The command cannot be started.
    pub fn start(
        command: &Path,
        directory: &Path,
        hardware: &Hardware,
        vms: &[Vm],
    ) -> Outcome<Self> {
        let files = directory.join("vms");
        fs::create_dir_all(&files).map_err(because("cannot make a directory for VM files"))?;
        for vm in vms {
            vm.write(&files)?;
        }
        let cache = directory.join("cache");
        assets::private_cache(&cache)?;
        let log =
            File::create(directory.join("sim.log")).map_err(because("cannot write sim.log"))?;
        let errors = log.try_clone().map_err(because("cannot write sim.log"))?;
        // The machine dies with this thread, so that a killed test leaves no QEMU behind.
        let mut sim = Command::new("setpriv");
        sim.args(["--pdeathsig", "TERM"])
            .arg(command)
            .args(["--machine", NAME, "sim"]);
        sim.args(&hardware.options).arg(&files);
        let image = if hardware.has_hooks {
            assets::hooked_image()
        } else {
            assets::image()
        };
        sim.env("XDG_RUNTIME_DIR", directory)
            .env("UNDERPIN_IMAGE", image)
            .env("UNDERPIN_CACHE", cache)
            .envs(
                hardware
                    .counts
                    .iter()
                    .map(|file| ("UNDERPIN_SIM_PROFILE", file)),
            )
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors);
        let sim = sim
            .spawn()
            .map_err(because(format!("cannot start {}", command.display())))?;
        Ok(Self {
            command: command.to_owned(),
            directory: directory.to_owned(),
            sim,
            typists: BTreeMap::new(),
            ended: false,
        })
    }

    /// Waits until EL2 answers.
    ///
    /// # Errors
    /// The machine dies or keeps silent.
    pub fn await_answer(&mut self) -> Outcome {
        let deadline = Instant::now() + START_MAX;
        loop {
            self.check_alive()?;
            match self.run(&["list", "-o", "json"]) {
                Ok(_) => return Ok(()),
                Err(why) if Instant::now() > deadline => {
                    return Err(format!(
                        "EL2 kept silent for {} s: {why}",
                        START_MAX.as_secs()
                    ));
                }
                Err(_) => sleep(POLL),
            }
        }
    }

    /// Waits until the machine has ended by itself (`--exit-when-done`, `--unasked`), and asks nothing of it
    /// meanwhile.
    ///
    /// # Errors
    /// It fails, with its last words, or does not end in time.
    pub fn await_end(&mut self, within: Duration) -> Outcome {
        let status = self.await_exit(within)?;
        let said = fs::read_to_string(self.directory.join("sim.log")).unwrap_or_default();
        let failed = || format!("the machine failed ({status}): {}", said.trim());
        status.success().then_some(()).ok_or_else(failed)
    }

    /// Waits until the machine's process has ended; its exit status.
    ///
    /// # Errors
    /// It does not end in time.
    pub fn await_exit(&mut self, within: Duration) -> Outcome<ExitStatus> {
        let deadline = Instant::now() + within;
        loop {
            let ended = self.sim.try_wait();
            if let Some(status) = ended.map_err(because("cannot look after the machine"))? {
                self.ended = true;
                return Ok(status);
            }
            if Instant::now() > deadline {
                return Err(format!("the machine did not end in {} s", within.as_secs()));
            }
            sleep(POLL);
        }
    }

    /// Fails where the machine's process has ended.
    pub fn check_alive(&mut self) -> Outcome {
        match self
            .sim
            .try_wait()
            .map_err(because("cannot look after the machine"))?
        {
            None => Ok(()),
            Some(status) => {
                let said = fs::read_to_string(self.directory.join("sim.log")).unwrap_or_default();
                let said = said.trim_end();
                Err(format!("the machine ended by itself ({status}): {said}"))
            }
        }
    }

    /// A verb of the command on this machine.
    fn verb(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.command);
        command.args(["--machine", NAME]).args(words);
        command
            .env("XDG_RUNTIME_DIR", &self.directory)
            .env("UNDERPIN_IMAGE", assets::image())
            .env("UNDERPIN_CACHE", self.directory.join("cache"))
            .stdin(Stdio::null());
        command
    }

    /// Runs a verb that must succeed; gives what it printed.
    ///
    /// # Errors
    /// The verb's own sentence.
    pub fn run(&self, words: &[&str]) -> Outcome<String> {
        let output = self.output(words)?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// As [`Self::run`]; gives what it said of its steps.
    ///
    /// # Errors
    /// The verb's own sentence.
    pub fn told(&self, words: &[&str]) -> Outcome<String> {
        self.both(words).map(|(_, said)| said)
    }

    /// As [`Self::run`]; gives what it printed, and what it said of its steps.
    ///
    /// # Errors
    /// The verb's own sentence.
    pub fn both(&self, words: &[&str]) -> Outcome<(String, String)> {
        let output = self.output(words)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok((text(&output.stdout), text(&output.stderr)))
    }

    fn output(&self, words: &[&str]) -> Outcome<Output> {
        let output = self
            .verb(words)
            .output()
            .map_err(because("cannot run underpin"))?;
        if output.status.success() {
            return Ok(output);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!(
            "'underpin {}' failed ({}): {}",
            words.join(" "),
            output.status,
            said.trim()
        ))
    }

    /// Starts a verb that works for a while; what it prints waits for whoever takes it.
    ///
    /// # Errors
    /// The command cannot be run.
    pub fn spawn(&self, words: &[&str]) -> Outcome<Child> {
        let mut verb = self.verb(words);
        verb.stdout(Stdio::piped()).stderr(Stdio::null());
        verb.spawn().map_err(because("cannot run underpin"))
    }

    /// Runs a verb that must be refused; gives its exit status.
    ///
    /// # Errors
    /// It was done.
    pub fn refused(&self, words: &[&str]) -> Outcome<i32> {
        let status = self
            .verb(words)
            .output()
            .map_err(because("cannot run underpin"))?
            .status;
        match status.code() {
            Some(code) if code != 0 => Ok(code),
            _ => Err(format!(
                "'underpin {}' was not refused ({status})",
                words.join(" ")
            )),
        }
    }

    /// Types at a VM's console.
    ///
    /// # Errors
    /// The console cannot be opened.
    pub fn type_line(&mut self, vm: &str, line: &str) -> Outcome {
        self.type_by(&["console", vm], line)
    }

    /// Types where that verb leads to.
    ///
    /// # Errors
    /// The console cannot be opened.
    pub fn type_by(&mut self, words: &[&str], line: &str) -> Outcome {
        let typist = words.join(" ");
        let tried = || format!("cannot type by '{typist}'");
        if !self.typists.contains_key(&typist) {
            let mut console = self.verb(words);
            console
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            let child = console.spawn().map_err(because(tried()))?;
            self.typists.insert(typist.clone(), child);
        }
        let input = self.typists.get_mut(&typist).and_then(|t| t.stdin.as_mut());
        let input = input.ok_or_else(tried)?;
        writeln!(input, "{line}").map_err(because(tried()))
    }

    /// All VMs.
    ///
    /// # Errors
    /// The verb fails or prints what cannot be read.
    pub fn list(&self) -> Outcome<Vec<VmStatus>> {
        status::parse("list", &self.run(&["list", "-o", "json"])?)
    }

    /// One VM.
    ///
    /// # Errors
    /// As [`Self::list`], or there is no such VM.
    pub fn vm(&self, name: &str) -> Outcome<VmStatus> {
        let found = self.list()?.into_iter().find(|vm| vm.name == name);
        found.ok_or_else(|| format!("'underpin list' does not show '{name}'"))
    }

    /// How long each vCPU of a VM ran, in nanoseconds.
    ///
    /// # Errors
    /// As [`Self::list`].
    pub fn vcpu_run_times(&self, vm: &str) -> Outcome<Vec<u64>> {
        Ok(self.vcpus(vm)?.iter().map(|vcpu| vcpu.run_ns).collect())
    }

    /// Each vCPU of a VM.
    ///
    /// # Errors
    /// As [`Self::list`].
    pub fn vcpus(&self, vm: &str) -> Outcome<Vec<VcpuStatus>> {
        let shown: VmDetails = status::parse("show", &self.run(&["show", vm, "-o", "json"])?)?;
        Ok(shown.vcpu)
    }

    /// Where VMs' memory is.
    ///
    /// # Errors
    /// As [`Self::list`].
    pub fn numa(&self) -> Outcome<Vec<NumaStatus>> {
        status::parse("numa", &self.run(&["numa", "-o", "json"])?)
    }

    /// The machine as a whole.
    ///
    /// # Errors
    /// As [`Self::list`].
    pub fn status(&self) -> Outcome<MachineStatus> {
        status::parse("machine", &self.run(&["machine", "-o", "json"])?)
    }

    /// The machine's nodes.
    ///
    /// # Errors
    /// As [`Self::list`].
    pub fn nodes(&self) -> Outcome<Vec<NodeStatus>> {
        status::parse("nodes", &self.run(&["nodes", "-o", "json"])?)
    }

    /// A running VM's memory.
    ///
    /// # Errors
    /// As [`Self::list`].
    pub fn mem(&self, vm: &str) -> Outcome<MemStatus> {
        let memory: Memory = status::parse("mem", &self.run(&["mem", "-o", "json"])?)?;
        let found = memory.vms.into_iter().find(|status| status.name == vm);
        found.ok_or_else(|| format!("'underpin mem' does not show '{vm}'"))
    }

    /// What a VM has written to its console since the machine started.
    pub fn console(&self, vm: &str) -> String {
        let log = self
            .run_directory()
            .map(|run| run.join("consoles").join(format!("{vm}.log")));
        let bytes = log.and_then(|log| fs::read(log).ok()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The socket of QEMU's monitor.
    pub fn qmp(&self) -> Option<PathBuf> {
        Some(self.run_directory()?.join("qmp.sock"))
    }

    /// The socket at which a host of a cluster is asked.
    pub fn control_socket(&self, host: &str) -> Option<PathBuf> {
        Some(self.run_directory()?.join(host).join("control.sock"))
    }

    /// What EL2 has said, last words included.
    pub fn hypervisor_log(&self) -> String {
        let log = self.run_directory().map(|run| run.join("hypervisor.log"));
        let bytes = log.and_then(|log| fs::read(log).ok()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The same for a host of a cluster.
    pub fn host_log(&self, host: &str) -> String {
        let run = self.run_directory().map(|run| run.join(host));
        let log = run.and_then(|run| fs::read(run.join("hypervisor.log")).ok());
        String::from_utf8_lossy(&log.unwrap_or_default()).into_owned()
    }

    /// As [`Self::console`], of a host of a cluster.
    pub fn host_console(&self, host: &str, vm: &str) -> String {
        let run = self.run_directory().map(|run| run.join(host));
        let log = run.map(|run| run.join("consoles").join(format!("{vm}.log")));
        let bytes = log.and_then(|log| fs::read(log).ok()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Where the command keeps consoles and logs: below a directory named after the user.
    fn run_directory(&self) -> Option<PathBuf> {
        let mut users = fs::read_dir(&self.directory).ok()?.flatten();
        let user =
            users.find(|entry| entry.file_name().to_string_lossy().starts_with("underpin-"))?;
        let run = user.path().join(NAME);
        run.is_dir().then_some(run)
    }

    /// Waits until a VM's console has said `text` for the `times`-th time; gives that line, as far
    /// as it has come.
    ///
    /// # Errors
    /// The time is over, or the VM or the machine has ended without it.
    pub fn expect(
        &mut self,
        vm: &str,
        text: &str,
        times: usize,
        within: Duration,
    ) -> Outcome<String> {
        let deadline = Instant::now() + within;
        loop {
            // The state first: what an ended VM has not said by now, it will never say.
            let alive = self.check_alive();
            let ended = alive.is_ok() && self.vm(vm).is_ok_and(|status| status.state == "ended");
            let console = self.console(vm);
            if let Some((at, _)) = console.match_indices(text).nth(times.saturating_sub(1)) {
                let (before, after) = console.split_at(at);
                let begin = before.lines().last().filter(|_| !before.ends_with('\n'));
                let rest = after.lines().next().unwrap_or_default();
                return Ok(format!("{}{rest}", begin.unwrap_or_default()));
            }
            alive?;
            if ended {
                let reason = self.vm(vm)?.reason;
                return Err(format!("'{vm}' ended ({reason}) without saying '{text}'"));
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "'{vm}' did not say '{text}' in {} s",
                    within.as_secs()
                ));
            }
            sleep(POLL);
        }
    }

    /// Waits until a VM has said that, and asks the machine nothing meanwhile: an answer is work of EL2.
    ///
    /// # Errors
    /// The time is over or the machine has ended.
    pub fn hear(&mut self, vm: &str, text: &str, within: Duration) -> Outcome {
        let deadline = Instant::now() + within;
        while !self.console(vm).contains(text) {
            self.check_alive()?;
            if Instant::now() > deadline {
                let seconds = within.as_secs();
                return Err(format!("'{vm}' did not say '{text}' in {seconds} s"));
            }
            sleep(POLL);
        }
        Ok(())
    }

    /// Waits until a VM is in the state; gives its status.
    ///
    /// # Errors
    /// The time is over or the machine has ended.
    pub fn await_state(&mut self, vm: &str, state: &str, within: Duration) -> Outcome<VmStatus> {
        let deadline = Instant::now() + within;
        loop {
            self.check_alive()?;
            let status = self.vm(vm)?;
            if status.state == state {
                return Ok(status);
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "'{vm}' is {} and not {state} after {} s",
                    status.state,
                    within.as_secs()
                ));
            }
            sleep(POLL);
        }
    }

    /// Whether the machine has ended.
    pub fn has_ended(&mut self) -> bool {
        self.ended || self.check_alive().is_err()
    }

    /// Powers the machine off, as `underpin shutdown` does, unless it has ended.
    ///
    /// # Errors
    /// It does not end in time.
    pub fn shut_down(&mut self) -> Outcome {
        if self.ended {
            return Ok(());
        }
        self.end().map(drop)
    }

    /// As [`Self::shut_down`]; the exit status.
    ///
    /// # Errors
    /// As there.
    pub fn end(&mut self) -> Outcome<ExitStatus> {
        self.run(&["shutdown"])?;
        self.await_exit(SHUTDOWN_MAX)
    }

    /// Waits for its end, however long.
    ///
    /// # Errors
    /// The operating system does not say.
    pub fn wait(&mut self) -> Outcome<ExitStatus> {
        let status = self
            .sim
            .wait()
            .map_err(because("cannot wait for the machine"))?;
        self.ended = true;
        Ok(status)
    }

    /// Kills the machine as a power failure would: QEMU dies with its broker.
    pub fn kill(&mut self) {
        self.ended = true;
        // They may have ended already, which is as good.
        for child in self.typists.values_mut().chain([&mut self.sim]) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// The process of QEMU of one of several hosts.
    ///
    /// # Errors
    /// It is not there.
    pub fn qemu_of(&self, host: &str) -> Outcome<String> {
        let run = self.run_directory().ok_or("no machine runs")?.join(host);
        let run = run.display().to_string();
        let processes = fs::read_dir("/proc").map_err(because("cannot list processes"))?;
        let is_its = |words: &str| words.contains("qemu-system-") && words.contains(&run);
        let found = processes.flatten().find(|process| {
            fs::read_to_string(process.path().join("cmdline")).is_ok_and(|words| is_its(&words))
        });
        let found = found.ok_or_else(|| format!("no QEMU of {host} is there"))?;
        Ok(found.file_name().display().to_string())
    }

    /// Kills the QEMU of one of several hosts.
    ///
    /// # Errors
    /// It is not there, or `kill` fails.
    pub fn kill_host(&self, host: &str) -> Outcome {
        let process = self.qemu_of(host)?;
        let mut kill = Command::new("kill");
        let status = kill.arg("-KILL").arg(process).status();
        let status = status.map_err(because("cannot run kill"))?;
        let failed = || format!("kill failed ({status})");
        status.success().then_some(()).ok_or_else(failed)
    }

    /// Copies consoles and logs to where people find them after the test.
    pub fn save_logs(&self, to: &Path) {
        let run = self.run_directory();
        let consoles = run.as_ref().map(|run| run.join("consoles"));
        let sources = [run, consoles, Some(self.directory.clone())];
        for log in sources
            .into_iter()
            .flatten()
            .filter_map(|source| fs::read_dir(source).ok())
            .flatten()
            .flatten()
        {
            let path = log.path();
            if path.extension().is_some_and(|extension| extension == "log") {
                // Logs are a help; a test does not fail for want of them.
                let _ = fs::copy(&path, to.join(log.file_name()));
            }
        }
        for host in ["host0", "host1"] {
            let log = self.host_log(host);
            if !log.is_empty() {
                let _ = fs::write(to.join(format!("{host}.log")), log);
            }
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill();
    }
}
