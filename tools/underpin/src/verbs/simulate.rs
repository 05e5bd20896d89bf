//! `underpin sim`: starts a machine and stays as its broker.

use super::{Context, cluster};
use crate::{
    cli::{Cli, Sim, Verb},
    control::{Broker, Client, state_event},
    failure::{Failure, Result, exit, reason},
    order::natural,
    output::print,
    sim::{Machine, Shape},
    units,
    vmfile::{self, VmFile},
};
use abi::control::{MachineStatus, request, state};
use clap::Parser as _;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::{
    collections::HashMap,
    env,
    ffi::{OsStr, OsString},
    io::{self, BufRead as _, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use tools_abi::status::VmStatus;

/// How long the hypervisor may take to answer for the first time.
const READY_TIME: Duration = Duration::from_mins(2);
/// How long the machine may take to power off.
const END_TIME: Duration = Duration::from_secs(30);
/// What a detached machine writes to the waiting command when its hypervisor answers.
pub const READY: &str = "ready";

/// Starts a machine and follows it to its end, or leaves it running.
pub fn run(context: &Context, options: &Sim) -> Result<u8> {
    if options.detach && !options.detached {
        let words = env::args_os().skip(1).collect();
        return detach(context, words);
    }
    let vms = match context.run.host() {
        None if options.shape.cluster.hosts.is_some() => return cluster::run(context, options),
        None => vmfile::read_all(&options.files)?,
        Some(host) => vmfile::read_all(&cluster::files_of(options, host)?)?,
    };
    let options = &of_host(context, options, &vms);
    if options.exit_when_done && vms.is_empty() {
        let message = "--exit-when-done waits until all VMs have ended, and no VM file is named";
        let help = "name files of VMs; or leave it out, and end the machine with underpin shutdown";
        return Err(Failure::new(exit::USAGE, message).help(help));
    }
    if options.unasked && !vms.iter().any(|vm| vm.autostart) {
        let message = "--unasked waits until VMs have ended, and none is to start by itself";
        let help = "name files of VMs without autostart = false, or leave --unasked out";
        return Err(Failure::new(exit::USAGE, message).help(help));
    }
    context.progress.say(&description(&options.shape)?);
    let started = Instant::now();
    let mut machine = Machine::start(context.run.clone(), &options.shape, &vms, context.progress)?;
    let followed = follow(context, options, &vms, &mut machine, started);
    if let Some(directory) = &options.keep_logs {
        machine.run_dir().keep_logs(directory)?;
    }
    if matches!(followed, Ok(Ending::PoweredOff(_))) {
        machine.wait_end(END_TIME);
    }
    match followed? {
        Ending::PoweredOff(refused) => {
            context.progress.say("the machine has powered off");
            refused.map_or(Ok(exit::OK), Err)
        }
        Ending::Interrupted => Ok(exit::INTERRUPTED),
    }
}

/// The options of one host: it keeps its logs in a directory of its own, and does not wait for VMs that others have.
fn of_host(context: &Context, options: &Sim, vms: &[VmFile]) -> Sim {
    let mut options = options.clone();
    if let Some(host) = context.run.host() {
        options.keep_logs = options.keep_logs.map(|directory| directory.join(host));
        options.exit_when_done &= !vms.is_empty();
        options.unasked &= vms.iter().any(|vm| vm.autostart);
    }
    options
}

/// Starts a machine of the usual shape for some VMs.
pub fn run_some(context: &Context, files: &[PathBuf]) -> Result<u8> {
    let words = ["underpin", "sim", "--"].map(OsStr::new).into_iter();
    let words = words.chain(files.iter().map(|file| file.as_os_str()));
    match Cli::try_parse_from(words).map(|cli| cli.verb) {
        Ok(Verb::Sim(options)) => run(context, &options),
        _ => Err(Failure::new(exit::USAGE, "cannot run these VMs")),
    }
}

/// How a machine ended, where nothing failed.
enum Ending {
    /// VMs may have been refused at its start.
    PoweredOff(Option<Failure>),
    Interrupted,
}

/// Waits for the hypervisor, then tells what becomes of the VMs until the machine ends.
fn follow(
    context: &Context,
    options: &Sim,
    vms: &[VmFile],
    machine: &mut Machine,
    started: Instant,
) -> Result<Ending> {
    let interrupted = watch_signals(machine.broker())?;
    // It may be gone by now.
    let client = machine.client();
    let mut client = client.map_err(|failure| machine.explain(failure))?;
    if !options.unasked {
        let ready = client.hello(options.timeout.unwrap_or(READY_TIME));
        if interrupted.load(Ordering::Relaxed) {
            return Ok(Ending::Interrupted);
        }
        let status = ready.map_err(|failure| machine.explain(failure))?;
        say_ready(context, &status, started);
    }
    if options.detached {
        // From now on, the terminal's Ctrl-C and hang-up are not for this process.
        let _ = rustix::process::setsid();
        print(&format!("{READY}\n"))?;
    }
    let mut seen = Seen {
        started,
        states: States::new(),
        refused: Vec::new(),
    };
    let outcome = events(context, options, vms, &mut client, &mut seen);
    if interrupted.load(Ordering::Relaxed) {
        return Ok(Ending::Interrupted);
    }
    let ends = options.shape.cluster.ends();
    match outcome {
        Err(gone) if gone.is_gone() && ends && machine.has_ended_well() => {
            Ok(Ending::PoweredOff(Failure::join(seen.refused)))
        }
        Err(gone) if gone.is_gone() && !machine.broker().is_powering_off() => {
            Err(machine.explain(gone))
        }
        Err(failure) if !failure.is_gone() => Err(failure),
        _ => Ok(Ending::PoweredOff(Failure::join(seen.refused))),
    }
}

fn say_ready(context: &Context, status: &MachineStatus, started: Instant) {
    let seconds = started.elapsed().as_secs_f64();
    let (cpus, free) = (status.cpus, units::size(status.memory_free));
    context.progress.say(&format!(
        "the hypervisor is up after {seconds:.1} s: {cpus} CPUs, {}, {free} free for VMs",
        count_of_nodes(status.nodes)
    ));
}

/// Whether a VM was to start by itself and was refused.
pub fn is_refused(vm: &VmStatus) -> bool {
    vm.state == state::ENDED && vm.starts == 0
}

/// Why a VM was refused, in full; nothing where it starts now.
pub fn refusal(client: &mut Client, vm: &VmStatus) -> Option<Failure> {
    client.about(request::START, &vm.name.to_string()).err()
}

/// The state of each VM, and how often it had been started, when it was last heard of.
pub type States = HashMap<String, (u32, u32)>;

/// What was seen of VMs since the machine was started.
struct Seen {
    started: Instant,
    states: States,
    /// Why some were refused.
    refused: Vec<Failure>,
}

impl Seen {
    fn note(&mut self, context: &Context, client: &mut Client, vm: &VmStatus) {
        if changed(context, &mut self.states, vm) && is_refused(vm) {
            self.refused.extend(refusal(client, vm));
        }
    }

    /// Those that have not ended. The hypervisor may answer, or tell of others, before it has started those that
    /// start by themselves.
    fn left<'a>(&'a self, vms: &'a [VmFile]) -> Vec<&'a str> {
        let to_start = |name: &str| vms.iter().any(|vm| vm.autostart && vm.name == name);
        let is_left = |name: &&str| match self.states.get(*name) {
            None | Some((state::DEFINED, _)) => to_start(name),
            Some((now, _)) => *now != state::ENDED,
        };
        let names = vms.iter().map(|vm| &*vm.name);
        let names = names.chain(self.states.keys().map(|name| &**name));
        let mut left: Vec<_> = names.filter(is_left).collect();
        left.sort_by(|a, b| natural(a, b));
        left.dedup();
        left
    }

    fn late(&self, vms: &[VmFile]) -> Failure {
        let seconds = self.started.elapsed().as_secs();
        let left = match self.left(vms).as_slice() {
            [] => String::new(),
            names => format!("; not ended: {}", names.join(", ")),
        };
        let message = format!("the machine has not finished in {seconds} s{left}");
        Failure::new(exit::TIMEOUT, message).help("allow more: --timeout")
    }
}

/// Follows state events until all VMs have ended (where that ends the machine) or it is gone; gathers why
/// VMs were refused.
fn events(
    context: &Context,
    options: &Sim,
    vms: &[VmFile],
    client: &mut Client,
    seen: &mut Seen,
) -> Result<()> {
    let deadline = options.timeout.map(|time| seen.started + time);
    let ends = options.shape.cluster.ends();
    if !options.unasked {
        for vm in client.list()? {
            seen.note(context, client, &vm);
        }
    }
    let mut told = false;
    loop {
        let over = !seen.states.is_empty() && seen.left(vms).is_empty();
        if over && (options.exit_when_done || options.unasked) && !ends {
            client.request(request::POWER_OFF, &[])?;
            client.wait_gone(END_TIME)?;
            return Ok(());
        }
        if over && !told && !options.detached {
            context.progress.say(&format!(
                "no VM runs any more; the machine stays up until Ctrl-C or `{} shutdown`",
                context.command()
            ));
        }
        told = over;
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let Some(frame) = client.event(left)? else {
            return Err(seen.late(vms));
        };
        if let Some(vm) = state_event(&frame) {
            seen.note(context, client, &vm);
        }
    }
}

/// Tells a VM's new state, once; whether it is new.
pub fn changed(context: &Context, states: &mut States, vm: &VmStatus) -> bool {
    let (name, now) = (vm.name.to_string(), (vm.state, vm.starts));
    let before = states.insert(name.clone(), now);
    if before == Some(now) {
        return false;
    }
    let what = match vm.state {
        state::RUNNING if before.is_some_and(|(before, _)| before == state::RUNNING) => {
            // One may do nothing else: it is told ever more rarely.
            if !vm.starts.is_power_of_two() {
                return true;
            }
            &format!("was reset, and runs again: start {}", vm.starts)
        }
        state::DEFINED => "defined",
        state::RUNNING => "runs",
        state::PAUSED if vm.reason.is_empty() => "paused",
        state::PAUSED => &format!("paused: {}", vm.reason),
        state::ENDED if is_refused(vm) => &vm.reason.to_string(),
        state::ENDED => &format!("ended: {}", vm.reason),
        _ => return true,
    };
    context.progress.say(&format!("{name}: {what}"));
    true
}

/// On Ctrl-C and the like, cuts everybody off the machine, so that whoever waits for it wakes up.
pub fn watch_signals(broker: &Broker) -> Result<Arc<AtomicBool>> {
    let failed = |error: io::Error| {
        Failure::new(
            exit::FAILED,
            format!("cannot watch signals: {}", reason(&error)),
        )
    };
    let mut signals =
        signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(failed)?;
    let interrupted = Arc::new(AtomicBool::new(false));
    let (flag, broker) = (Arc::clone(&interrupted), broker.clone());
    let watch = move || {
        if signals.forever().next().is_some() {
            flag.store(true, Ordering::Relaxed);
            broker.close();
        }
    };
    thread::Builder::new()
        .name("signals".into())
        .spawn(watch)
        .map_err(failed)?;
    Ok(interrupted)
}

/// Starts this command again with these words as a process of its own, and waits until its
/// hypervisor answers.
pub fn detach(context: &Context, mut words: Vec<OsString>) -> Result<u8> {
    // Behind `--` it would be a file.
    let end = words.iter().position(|word| word == "--");
    words.insert(end.unwrap_or(words.len()), "--detached".into());
    let failed = |error: io::Error| {
        Failure::new(
            exit::FAILED,
            format!("cannot start a process: {}", reason(&error)),
        )
    };
    let mut broker = Command::new(env::current_exe().map_err(failed)?)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let said = broker.stderr.take();
    let told = thread::spawn(move || {
        for line in said
            .into_iter()
            .flat_map(|said| BufReader::new(said).lines())
            .map_while(io::Result::ok)
        {
            let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("{line}\n"));
        }
    });
    let mut line = String::new();
    if let Some(out) = broker.stdout.take() {
        BufReader::new(out).read_line(&mut line).map_err(failed)?;
    }
    if line.trim_end() == READY {
        let (machine, try_it) = (context.run.machine(), context.command());
        context.progress.say(&format!(
            "the machine '{machine}' is left running; try: {try_it} list, {try_it} console VM, {try_it} shutdown"
        ));
        return Ok(exit::OK);
    }
    // What went wrong is said once it has all been read.
    let status = broker.wait().map_err(failed)?;
    let _ = told.join();
    Ok(status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .unwrap_or(exit::FAILED))
}

fn description(shape: &Shape) -> Result<String> {
    let nodes = shape.nodes()?;
    let cpus: u32 = nodes.iter().map(|node| node.cpus).sum();
    let memory = units::size(nodes.iter().map(|node| node.memory).sum());
    let nodes = count_of_nodes(nodes.len() as u32);
    Ok(format!(
        "starting a machine: {nodes}, {cpus} CPUs ({}), {memory}",
        shape.cpu
    ))
}

fn count_of_nodes(nodes: u32) -> String {
    if nodes == 1 {
        "one node".to_owned()
    } else {
        format!("{nodes} nodes")
    }
}
