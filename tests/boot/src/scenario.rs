//! A scenario: what is started, what must be seen, and what is checked then.

use crate::{
    Outcome, because, bounds,
    machine::{Hardware, Machine},
    os0::Os0,
    twice::Twice,
    vm::Vm,
};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// What a check does once all expected lines have come.
pub type Check = Box<dyn Fn(&mut Stage) -> Outcome + Send + Sync>;

/// Makes files in the scenario's directory before the machine starts; gives the options of
/// `underpin sim` that name them.
pub type Prepare = fn(&Path) -> Outcome<Vec<String>>;

/// What is checked on the console of a machine that belongs to OS-0.
pub type ConsoleCheck = fn(&str) -> Outcome;

/// A line that a VM's console must show.
#[derive(Clone, Debug)]
pub struct Expect {
    vm: String,
    text: String,
    within: Duration,
}

/// A boot test, as data.
pub struct Scenario {
    /// `topic/case`: names its logs, too.
    pub name: String,
    /// Only in `xtask soak`.
    pub slow: bool,
    pub(crate) prepare: Option<Prepare>,
    pub(crate) hardware: Hardware,
    pub(crate) vms: Vec<Vm>,
    twice: Option<Twice>,
    expects: Vec<Expect>,
    checks: Vec<Check>,
    /// The machine's owner, where it is not Underpin.
    os0: Option<Os0>,
    console: Option<ConsoleCheck>,
}

impl Scenario {
    /// A machine that belongs to an operating system.
    pub fn os0(name: impl Into<String>, os0: Os0) -> Self {
        Self {
            os0: Some(os0),
            ..Self::new(name, Hardware::new(1, "1G"), Vec::new())
        }
    }

    /// A further check of what OS-0's console said.
    #[must_use]
    pub fn console(mut self, check: ConsoleCheck) -> Self {
        self.console = Some(check);
        self
    }

    /// VMs on a machine.
    pub fn new(name: impl Into<String>, hardware: Hardware, vms: Vec<Vm>) -> Self {
        let (expects, checks) = (Vec::new(), Vec::new());
        Self {
            name: name.into(),
            slow: false,
            prepare: None,
            hardware,
            vms,
            expects,
            checks,
            os0: None,
            console: None,
            twice: None,
        }
    }

    /// In place of checks: its hosts run twice. All that they leave must be equal to the bit.
    #[must_use]
    pub fn twice(mut self, twice: Twice) -> Self {
        self.twice = Some(twice);
        self.slow()
    }

    /// With files that the machine or its VMs need. VM files may name them as `../FILE`.
    #[must_use]
    pub fn prepare(mut self, prepare: Prepare) -> Self {
        self.prepare = Some(prepare);
        self
    }

    /// A line with `text` comes on the VM's console, at most so many seconds after the one before.
    #[must_use]
    pub fn expect(mut self, vm: &str, text: impl Into<String>, seconds: u64) -> Self {
        let within = Duration::from_secs(seconds);
        self.expects.push(Expect {
            vm: vm.to_owned(),
            text: text.into(),
            within,
        });
        self
    }

    /// A further check, after all lines have come.
    #[must_use]
    pub fn check(mut self, check: impl Fn(&mut Stage) -> Outcome + Send + Sync + 'static) -> Self {
        self.checks.push(Box::new(check));
        self
    }

    /// Whether its machine is several hosts.
    pub fn has_hosts(&self) -> bool {
        self.hardware.options.iter().any(|word| word == "--hosts")
    }

    /// Left to `xtask soak`.
    #[must_use]
    pub fn slow(mut self) -> Self {
        self.slow = true;
        self
    }

    /// Runs it in `directory`, a fresh one of its own, and leaves its logs in `logs`.
    ///
    /// # Errors
    /// What was not as it should be.
    pub fn run(&self, command: &Path, directory: &Path, logs: &Path) -> Result<(), Failure> {
        if let Some(os0) = &self.os0 {
            let said = os0.play(directory, logs).map_err(Failure::of_machine)?;
            return self
                .console
                .map_or(Ok(()), |check| check(&said))
                .map_err(Failure::of_machine);
        }
        if let Some(twice) = &self.twice {
            let compared = twice.play(self, command, directory, logs);
            return compared.map_err(Failure::of_machine);
        }
        let mut stage = Stage {
            command: command.to_owned(),
            directory: directory.to_owned(),
            hardware: None,
            machine: None,
        };
        let outcome = self.play(&mut stage);
        // What is still running ends here, so that its last words are in the logs.
        if let Some(machine) = &mut stage.machine {
            let ended = if outcome.is_ok() {
                machine.shut_down()
            } else {
                Ok(())
            };
            machine.kill();
            machine.save_logs(logs);
            return outcome.and_then(|()| ended.map_err(Failure::of_machine));
        }
        outcome
    }

    fn play(&self, stage: &mut Stage) -> Result<(), Failure> {
        let mut hardware = self.hardware.clone();
        if let Some(prepare) = self.prepare {
            hardware
                .options
                .extend(prepare(&stage.directory).map_err(Failure::of_machine)?);
        }
        stage
            .boot(&hardware, &self.vms)
            .map_err(Failure::of_machine)?;
        for expect in &self.expects {
            let seen = stage
                .machine()
                .and_then(|m| m.expect(&expect.vm, &expect.text, 1, expect.within));
            seen.map_err(|why| Failure {
                why,
                vm: Some(expect.vm.clone()),
            })?;
        }
        for check in &self.checks {
            check(stage).map_err(Failure::of_machine)?;
        }
        if hardware.is_counted() && hardware.is_single() {
            bounds::stretches(stage).map_err(Failure::of_machine)?;
        }
        Ok(())
    }
}

/// Why a scenario failed.
#[derive(Debug)]
pub struct Failure {
    /// The sentence.
    pub why: String,
    /// The VM whose console tells more, where one VM is to blame.
    pub vm: Option<String>,
}

impl Failure {
    /// One that no single VM is to blame for.
    pub fn of_machine(why: String) -> Self {
        Self { why, vm: None }
    }
}

/// Where a scenario plays: its directory and the machine that runs there now.
#[derive(Debug)]
pub struct Stage {
    command: PathBuf,
    /// The scenario's own directory, gone when it ends.
    pub directory: PathBuf,
    hardware: Option<Hardware>,
    machine: Option<Machine>,
}

impl Stage {
    /// The machine.
    ///
    /// # Errors
    /// None runs.
    pub fn machine(&mut self) -> Outcome<&mut Machine> {
        self.machine
            .as_mut()
            .ok_or_else(|| "no machine runs".to_owned())
    }

    /// Pulls the machine's plug and starts the same machine with other VMs: disks keep what was
    /// written to them, nothing else is left.
    ///
    /// # Errors
    /// As [`Self::boot`].
    pub fn lose_power(&mut self, vms: &[Vm]) -> Outcome {
        self.machine()?.kill();
        let hardware = self.hardware.clone().ok_or("no machine ran")?;
        self.boot(&hardware, vms)
    }

    /// Starts a machine, after the one before it has been killed.
    ///
    /// # Errors
    /// It cannot be started, or EL2 does not answer.
    pub fn boot(&mut self, hardware: &Hardware, vms: &[Vm]) -> Outcome {
        self.machine = None;
        // VM files of the machine before are not this one's.
        let files = self.directory.join("vms");
        if files.exists() {
            fs::remove_dir_all(&files).map_err(because("cannot remove old VM files"))?;
        }
        self.hardware = Some(hardware.clone());
        let machine = Machine::start(&self.command, &self.directory, hardware, vms)?;
        // Kept even where it never answers: its logs say why.
        self.machine.insert(machine).await_answer()
    }
}
