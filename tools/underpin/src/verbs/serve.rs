//! `underpin serve`, and `underpin run` where the machine is made of this system's own memory.

use super::{Context, simulate};
use crate::{
    beneath::Machine,
    cli::{Run, Serve},
    control::{Client, state_event},
    failure::{Failure, Result, exit},
    output::print,
    units,
    vmfile::{self, VmFile},
};
use abi::control::state;
use std::{
    env,
    ffi::OsString,
    sync::atomic::Ordering,
    thread,
    time::{Duration, Instant},
};
use tools_abi::status::VmStatus;

/// How long the hypervisor may take to answer for the first time.
const READY_TIME: Duration = Duration::from_mins(1);
/// How often memory is asked for once all VMs have ended, and how long in between.
const TRIES: u32 = 600;
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// Serves until all VMs have ended and their memory is back.
pub fn serve(context: &Context, options: &Serve) -> Result<u8> {
    if !context.run.is_beneath() {
        let message = "Underpin is not beneath this system, which so lends no memory to VMs";
        let help = "`underpin doctor` tells what is missing; `underpin sim FILES` starts a \
            simulated machine; leave --machine out where Underpin is beneath this system";
        return Err(Failure::new(exit::USAGE, message).help(help));
    }
    if options.detach && !options.detached {
        return simulate::detach(context, env::args_os().skip(1).collect());
    }
    let vms = if options.files.is_empty() {
        Vec::new()
    } else {
        vmfile::read_all(&options.files)?
    };
    let machine = Machine::start(context.run.clone(), &vms, &options.loan, context.progress)?;
    let interrupted = simulate::watch_signals(machine.broker())?;
    let ended = follow(context, options, &vms, &machine);
    if interrupted.load(Ordering::Relaxed) {
        context
            .progress
            .say("the VMs go on; `underpin serve` serves them again");
        return Ok(exit::INTERRUPTED);
    }
    ended?;
    context
        .progress
        .say("all VMs have ended; their memory is back");
    Ok(exit::OK)
}

/// `underpin run`: leaves a server of these VMs behind.
pub fn run(context: &Context, options: &Run, vms: &[VmFile]) -> Result<u8> {
    let status = simulate::detach(context, server(options))?;
    if status != exit::OK {
        return Ok(status);
    }
    let mut client = context.connect()?;
    let mut refused = Vec::new();
    for vm in vms {
        let (status, _) = client.show(&vm.name)?;
        if is_idle(&status) {
            refused.extend(simulate::refusal(&mut client, &status));
        } else {
            context.done(&vm.name, "started")?;
        }
    }
    Failure::join(refused).map_or(Ok(exit::OK), Err)
}

/// The words of the command that serves what is to run.
fn server(options: &Run) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["serve".into(), "--detach".into()];
    if let Some(bytes) = options.loan.lend {
        words.extend(["--lend".into(), format!("{}MiB", bytes >> 20).into()]);
    }
    for disk in &options.loan.disks {
        words.extend(["--disk".into(), disk.word()]);
    }
    words.push("--".into());
    words.extend(options.files.iter().map(|file| file.as_os_str().to_owned()));
    words
}

fn follow(context: &Context, options: &Serve, vms: &[VmFile], machine: &Machine) -> Result<()> {
    let started = Instant::now();
    let mut client = machine.client()?;
    let status = client.hello(READY_TIME)?;
    let (cpus, free) = (status.cpus, units::size(status.memory_free));
    context.progress.say(&format!(
        "the hypervisor answers after {:.1} s: {cpus} CPUs, {free} free for VMs",
        started.elapsed().as_secs_f64()
    ));
    if let Err(none) = start(vms, &mut client) {
        machine.repay()?;
        return Err(none);
    }
    if options.detached {
        // From now on, the terminal's Ctrl-C and hang-up are not for this process.
        let _ = rustix::process::setsid();
        print(&format!("{}\n", simulate::READY))?;
    }
    let mut states = simulate::States::new();
    for _ in 0..TRIES {
        wait_all(context, vms, &mut states, &mut client)?;
        if machine.repay().is_ok() {
            return Ok(());
        }
        // The last of a VM is taken apart after it has ended; or somebody has started another.
        thread::sleep(TRY_AGAIN);
    }
    machine.repay()
}

/// Starts those that have not by themselves. Where none runs then, it says why.
fn start(vms: &[VmFile], client: &mut Client) -> Result<()> {
    let mut refused = Vec::new();
    for status in client.list()?.iter().filter(|status| is_idle(status)) {
        if vms.iter().any(|vm| vm.name == status.name.to_string()) {
            refused.extend(simulate::refusal(client, status));
        }
    }
    match Failure::join(refused) {
        Some(refused) if client.list()?.iter().all(is_idle) => Err(refused),
        _ => Ok(()),
    }
}

/// Whether it has never run.
fn is_idle(vm: &VmStatus) -> bool {
    vm.state == state::DEFINED || simulate::is_refused(vm)
}

/// Waits until no VM runs, or is about to.
fn wait_all(
    context: &Context,
    vms: &[VmFile],
    states: &mut simulate::States,
    client: &mut Client,
) -> Result<()> {
    for vm in client.list()? {
        simulate::changed(context, states, &vm);
    }
    let is_over = |(name, (now, _)): (&String, &(u32, u32))| match *now {
        state::DEFINED => !vms.iter().any(|vm| vm.name == *name),
        now => now == state::ENDED,
    };
    while !states.iter().all(is_over) {
        if let Some(frame) = client.event(None)?
            && let Some(vm) = state_event(&frame)
        {
            simulate::changed(context, states, &vm);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Verb};
    use clap::Parser as _;

    /// What `run` is told reaches the server that it leaves behind.
    #[test]
    fn a_server_is_told_what_run_was_told() {
        let told = [
            "underpin",
            "run",
            "--lend",
            "340MiB",
            "--disk",
            "data=/a b",
            "x.toml",
        ];
        let Verb::Run(run) = Cli::parse_from(told).verb else {
            panic!("no run");
        };
        let words = server(&run);
        let Verb::Serve(serve) =
            Cli::parse_from([OsString::from("underpin")].into_iter().chain(words)).verb
        else {
            panic!("no serve");
        };
        assert_eq!(serve.loan.lend, Some(340 << 20));
        assert_eq!(serve.loan.disks.len(), 1);
        assert_eq!((serve.files, serve.detach), (run.files, true));
    }
}
