//! What each verb of the command does.

use crate::{
    beneath::{self, Stage},
    bundle::{entry_name, is_entry_of},
    cli::{Blocks, Claim, Cli, Run, Set, Verb},
    control::{Client, vm_name},
    failure::{Failure, Result, exit},
    output::{Output, print},
    progress::Progress,
    sim::RunDir,
    units,
    vmfile::{self, VmFile},
};
use abi::{
    Text,
    bundle::{NET_DOWN, VmRecord, block_policy, claim, kind},
    control::{SetRequest, code, request, state},
};
use clap::CommandFactory as _;
use serde_json::{Value, json};
use std::{
    fs,
    io::{self, Write as _},
    path::Path,
    time::Duration,
};

mod cluster;
mod console;
mod drain;
mod explain;
mod files;
mod fit;
mod list;
mod machine;
mod mem;
mod membership;
mod metrics;
mod numa;
mod park;
mod probe;
mod report;
mod serve;
mod show;
mod simulate;
mod span;
mod top;
mod trace;

/// How long the machine may take to power off.
const POWER_OFF_TIME: Duration = Duration::from_mins(1);

/// What every verb needs to know.
struct Context {
    output: Output,
    progress: Progress,
    run: RunDir,
}

/// Does what the command line says; returns the exit status.
pub fn run(cli: Cli) -> Result<u8> {
    let run = RunDir::of(cli.machine.as_deref().unwrap_or(usual_machine()))?;
    let context = Context {
        output: Output::new(cli.output),
        progress: Progress::new(cli.quiet),
        run,
    };
    let context = match &cli.host {
        Some(host) => context.of(context.run.of_host(host)?),
        None => context,
    };
    match cli.verb {
        Verb::Check { files } => files::check(&context, &files)?,
        Verb::Bundle {
            files,
            out,
            membership,
        } => files::bundle(&context, &files, &out, &membership)?,
        Verb::Cluster { verb: None } => membership::status(&context)?,
        Verb::Cluster { verb: Some(verb) } => membership::cluster(&context, &verb)?,
        Verb::Span { verb } => span::span(&context, &verb)?,
        Verb::Drain(options) => drain::drain(&context, &options.name)?,
        Verb::Sim(options) => return simulate::run(&context, &options),
        Verb::Run(options) if options.dry_run => return fit::run_dry(&context, &options.files),
        Verb::Run(options) => return context.run_files(&options),
        Verb::Serve(options) => return serve::serve(&context, &options),
        Verb::List => list::list(&context)?,
        Verb::Nodes => list::nodes(&context)?,
        Verb::Machine => machine::machine(&context)?,
        Verb::Show(vm) => show::show(&context, &vm.vm)?,
        Verb::Console(options) => console::console(&context, &options)?,
        Verb::Start { vm, dry_run: false } => context.about(request::START, &vm, "started")?,
        Verb::Start { vm, .. } => return fit::start_dry(&context, &vm),
        Verb::Kill(vm) => context.about(request::KILL, &vm.vm, "killed")?,
        Verb::Pause(vm) => context.about(request::PAUSE, &vm.vm, "paused")?,
        Verb::Resume(vm) => context.about(request::RESUME, &vm.vm, "goes on")?,
        Verb::Reset(vm) => context.about(request::RESET, &vm.vm, "reset")?,
        Verb::Stop { vm, timeout } => context.stop(&vm, timeout)?,
        Verb::Set(options) => context.set(&options)?,
        Verb::Mem(options) => return mem::mem(&context, options),
        Verb::Numa { verb } => numa::numa(&context, verb)?,
        Verb::Top(options) => top::top(&context, &options)?,
        Verb::Trace(options) => trace::trace(&context, &options)?,
        Verb::Report(options) => report::report(&context, &options)?,
        Verb::Metrics(options) => metrics::metrics(&context, &options)?,
        Verb::Explain { code } => explain::explain(&context, code.as_deref())?,
        Verb::Stage(options) => stage(&context, &options)?,
        Verb::Os0(verb) => return os0(&context, verb),
        Verb::Shutdown => {
            for host in context.hosts() {
                host.shutdown()?;
            }
        }
        Verb::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "underpin", &mut script);
            print(&String::from_utf8_lossy(&script))?;
        }
        Verb::Man { directory } => manual(directory.as_deref())?,
    }
    Ok(exit::OK)
}

/// The machine that is meant where none is named.
fn usual_machine() -> &'static str {
    if beneath::is_here() {
        beneath::MACHINE
    } else {
        "sim"
    }
}

impl Context {
    /// The command for this machine, as one would type it.
    fn command(&self) -> String {
        let command = match self.run.machine() {
            usual if usual == usual_machine() => "underpin".to_owned(),
            other => format!("underpin --machine {other}"),
        };
        match self.run.host() {
            None => command,
            Some(host) => format!("{command} --host {host}"),
        }
    }

    /// The same for another machine, or a host of this one.
    fn of(&self, run: RunDir) -> Self {
        let output = match run.host() {
            None => self.output,
            Some(host) => self.output.of_host(host),
        };
        Self {
            output,
            progress: self.progress,
            run,
        }
    }

    /// One for each host, where the machine is a cluster and no host was named; else this one alone.
    fn hosts(&self) -> Vec<Self> {
        let hosts = match self.run.host() {
            None => self.run.hosts(),
            Some(_) => Vec::new(),
        };
        if hosts.is_empty() {
            return vec![self.of(self.run.clone())];
        }
        hosts.into_iter().map(|host| self.of(host)).collect()
    }

    /// Looks at each host that it reaches until one has what is looked for; otherwise, why it has not reached one, if so.
    fn search<T>(
        &self,
        mut look: impl FnMut(Client) -> Result<Option<T>>,
    ) -> Result<std::result::Result<T, Option<Failure>>> {
        let mut unreached = None;
        for host in self.hosts() {
            match host.connect() {
                Ok(client) => {
                    if let Some(found) = look(client)? {
                        return Ok(Ok(found));
                    }
                }
                Err(failure) => unreached = Some(failure),
            }
        }
        Ok(Err(unreached))
    }

    /// Shows what each host tells: to programs in one list, to people beneath each host's name.
    fn show_of_hosts<T>(
        &self,
        ask: impl Fn(&Self) -> Result<Vec<T>>,
        json: impl Fn(&[T]) -> Vec<Value>,
        table: impl Fn(&[T], Output) -> String,
    ) -> Result<()> {
        let mut all = Vec::new();
        for host in self.hosts() {
            all.push((host.output, ask(&host)?));
        }
        let to_programs = || {
            let of = |(host, told): &(Output, Vec<T>)| {
                let told = json(told).into_iter();
                told.map(|it| host.of_its_host(it)).collect::<Vec<_>>()
            };
            all.iter().flat_map(of).collect()
        };
        let to_people = |output| {
            let of = |(host, told): &(Output, Vec<T>)| {
                let title = host.host().map(|name| format!("{name}:\n"));
                title.unwrap_or_default() + &table(told, output)
            };
            all.iter().map(of).collect::<Vec<_>>().join("\n")
        };
        self.output.result(to_programs, to_people)
    }

    fn connect(&self) -> Result<Client> {
        if self.run.is_beneath() && beneath::state().is_ok_and(|state| state["parked"] == true) {
            let failure = Failure::new(code::WRONG_STATE as u8, "the VMs are parked");
            return Err(failure.help("underpin attach lets them go on"));
        }
        self.run.connect()
    }

    /// Tells that something was done.
    fn done(&self, vm: &str, what: &str) -> Result<()> {
        self.output.result(
            || json!({ "name": vm, "done": what }),
            |_| format!("{vm}: {what}\n"),
        )
    }

    fn about(&self, request: u32, vm: &str, done: &str) -> Result<()> {
        self.connect()?.about(request, vm)?;
        self.done(vm, done)
    }

    /// Adds VMs to the running machine, or starts a machine for them.
    fn run_files(&self, options: &Run) -> Result<u8> {
        let vms = vmfile::read_all(&options.files)?;
        let connected = self.connect();
        if !options.loan.is_usual() && (connected.is_ok() || !self.run.is_beneath()) {
            let message =
                "only a machine that is made now of this system's memory takes --lend and --disk";
            return Err(Failure::new(exit::USAGE, message).help("leave them out"));
        }
        let mut client = match connected {
            Ok(client) => client,
            Err(none) if none.code() == exit::NO_MACHINE && self.run.is_beneath() => {
                return serve::run(self, options, &vms);
            }
            Err(none) if none.code() == exit::NO_MACHINE => {
                self.progress.say(&format!(
                    "no machine '{}' runs: starting one",
                    self.run.machine()
                ));
                return simulate::run_some(self, &options.files);
            }
            Err(failure) => return Err(failure),
        };
        for vm in &vms {
            self.run.has_disks(vm)?;
            let record = record_of(&mut client, vm)?;
            client.create(&record)?;
            if !vm.autostart {
                client.about(request::START, &vm.name)?;
            }
            self.done(&vm.name, "started")?;
        }
        Ok(exit::OK)
    }

    fn stop(&self, vm: &str, timeout: Duration) -> Result<()> {
        let mut client = self.connect()?;
        client.about(request::STOP, vm)?;
        let waiting = self.progress.wait(format!("waiting for {vm} to end"));
        let ended = client.wait_state(vm, state::ENDED, timeout);
        waiting.finish_and_clear();
        let Some(status) = ended? else {
            let message = format!("{vm} has not ended in {} s", timeout.as_secs());
            let help = format!("wait longer with --timeout, or end it at once: underpin kill {vm}");
            return Err(Failure::new(exit::TIMEOUT, message).help(help));
        };
        self.done(vm, &format!("ended: {}", status.reason))
    }

    fn set(&self, options: &Set) -> Result<()> {
        let mut set = SetRequest::about(vm_name(&options.vm)?);
        let SetRequest { to, mask } = &mut set;
        change(options.weight, (&mut to.weight, &mut mask.weight), !0);
        change(options.cap, (&mut to.cap, &mut mask.cap), !0);
        change(options.base, (&mut to.base, &mut mask.base), !0);
        change(options.max, (&mut to.memory, &mut mask.memory), !0);
        let claim = options.claim.map(|claim| match claim {
            Claim::None => claim::NONE,
            Claim::Grow => claim::GROW,
            Claim::Start => claim::START,
        });
        change(claim, (&mut to.claim, &mut mask.claim), !0);
        let blocks = options.blocks.map(|blocks| match blocks {
            Blocks::Share => block_policy::SHARE,
            Blocks::Keep => block_policy::KEEP,
        });
        change(blocks, (&mut to.blocks, &mut mask.blocks), !0);
        let (never, hide) = (options.never.map(u8::from), options.hide.map(u8::from));
        change(never, (&mut to.never_share, &mut mask.never_share), !0);
        change(hide, (&mut to.hide, &mut mask.hide), !0);
        change(options.hold, (&mut to.hold_ms, &mut mask.hold_ms), !0);
        change(options.group, (&mut to.group, &mut mask.group), Text::ONES);
        // The last word about a device counts.
        for (device, up) in &options.link {
            if let (Some(to), Some(mask)) = (to.nets.get_mut(*device), mask.nets.get_mut(*device)) {
                to.flags = if *up { 0 } else { NET_DOWN };
                mask.flags = NET_DOWN;
            }
        }
        self.connect()?.set(&set)?;
        self.done(&options.vm, "set")
    }

    fn shutdown(&self) -> Result<()> {
        let mut client = self.connect()?;
        let waiting = self
            .progress
            .wait("waiting for the machine to power off".to_owned());
        let asked = if self.run.is_beneath() {
            kill_all(&mut client)
        } else {
            client.request(request::POWER_OFF, &[]).map(drop)
        };
        let gone = asked.and_then(|()| client.wait_gone(POWER_OFF_TIME));
        waiting.finish_and_clear();
        match gone {
            Ok(true) => self.done(self.run.machine(), "powered off"),
            // The machine may be gone before its answer arrives.
            Err(failure) if failure.is_gone() => self.done(self.run.machine(), "powered off"),
            Err(failure) => Err(failure),
            Ok(false) => {
                let message = "the machine has not powered off";
                Err(Failure::new(exit::TIMEOUT, message).help("end the `underpin sim` process"))
            }
        }
    }
}

/// Ends all VMs. The machine is this system's own: its memory comes back by itself then.
fn kill_all(client: &mut Client) -> Result<()> {
    for vm in client.list()? {
        if ![state::DEFINED, state::ENDED].contains(&vm.state) {
            client.about(request::KILL, &vm.name.to_string())?;
        }
    }
    Ok(())
}

/// For the system that this command runs in.
fn os0(context: &Context, verb: tools_os0::Verb) -> Result<u8> {
    use tools_os0::Verb::{Attach, Detach};
    let is_lent = || beneath::state().is_ok_and(|state| state["lent"].as_u64() > Some(0));
    match verb {
        Detach {
            park: true,
            dry_run: false,
        } if is_lent() => park::park(context, &verb),
        Attach {
            dry_run: false,
            clock,
        } => park::attach(context, verb, clock),
        _ => os0_alone(context, verb),
    }
}

/// `underpin stage`.
fn stage(context: &Context, options: &Stage) -> Result<()> {
    if options.drop {
        beneath::unstage()?;
        return context.done(context.run.machine(), "has nothing staged");
    }
    let size = beneath::stage(&context.run, options)?;
    let done = format!(
        "starts anew by itself from now on ({} staged)",
        units::size(size)
    );
    context.done("this system", &done)
}

/// What concerns no VM.
fn os0_alone(context: &Context, verb: tools_os0::Verb) -> Result<u8> {
    let ended = tools_os0::run(verb, context.output.is_json(), &tools_os0::Running);
    told(&ended)
}

fn told(ended: &tools_os0::Ended) -> Result<u8> {
    print(&ended.output)?;
    // Nobody is left to be told that standard error is gone.
    let _ = io::stderr().write_all(ended.error.as_bytes());
    Ok(ended.status)
}

/// A VM as the machine takes it: its files are looked up in the machine's bundle.
fn record_of(client: &mut Client, vm: &VmFile) -> Result<VmRecord> {
    vm.hosts_in(None)?;
    let entries = client.entries()?;
    vm.record(|kind, path| {
        let size = fs::metadata(path)
            .map_err(|e| Failure::file("cannot read", path, &e))?
            .len();
        let base = entry_name(kind, path);
        let same = |e: &&abi::control::EntryStatus| {
            let name = e.name.as_str().is_some_and(|name| is_entry_of(&base, name));
            e.kind == kind && e.size == size && name
        };
        entries
            .iter()
            .find(same)
            .map(|e| e.number)
            .ok_or_else(|| not_in_bundle(kind, path, &vm.path))
    })
}

fn not_in_bundle(kind: u32, path: &Path, file: &Path) -> Failure {
    let what = match kind {
        kind::KERNEL => "kernel",
        kind::INITRD => "initrd",
        _ => "disk image",
    };
    let message = format!(
        "the {what} {} is not in the running machine's bundle",
        path.display()
    );
    let help = format!(
        "the machine takes files only when it starts: underpin shutdown, then underpin sim OTHERS... {}",
        file.display()
    );
    Failure::new(exit::FILE, message).help(help)
}

/// Writes the manual: one page to standard output, or a page for each verb to a directory.
fn manual(directory: Option<&Path>) -> Result<()> {
    let command = Cli::command();
    if let Some(directory) = directory {
        let failed = |error| Failure::file("cannot write the manual to", directory, &error);
        fs::create_dir_all(directory).map_err(failed)?;
        return clap_mangen::generate_to(command, directory).map_err(failed);
    }
    let mut page = Vec::new();
    let failed = |error: std::io::Error| Failure::new(exit::FAILED, error.to_string());
    clap_mangen::Man::new(command)
        .render(&mut page)
        .map_err(failed)?;
    print(&String::from_utf8_lossy(&page))
}

/// Sets a field of a description and all of its mask, where a value was given.
fn change<T: Copy>(value: Option<T>, (to, mask): (&mut T, &mut T), all: T) {
    if let Some(value) = value {
        (*to, *mask) = (value, all);
    }
}
