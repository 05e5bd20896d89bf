//! `underpin sim --hosts`: starts a process of this command for each host, passes on what they say, and ends with the last.

use super::{Context, simulate::READY};
use crate::{
    bundle::Plan,
    cli::Sim,
    failure::{Failure, Result, exit, reason},
    output::print,
    sim::{bundle_path, cluster},
    vmfile::{self, VmFile},
};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::{
    env,
    ffi::OsString,
    io::{self, BufRead as _, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// How soon the end of a host or a signal is noticed.
const LOOK_TIME: Duration = Duration::from_millis(50);
/// How long a host's last words are waited for, once its process has ended.
const LAST_WORDS_TIME: Duration = Duration::from_secs(2);

/// A host's process.
struct Host {
    name: String,
    child: Child,
    /// Passes on what it says.
    said: Option<JoinHandle<()>>,
    /// VMs are to run on it.
    has_vms: bool,
    /// Its exit status, once it has ended.
    ended: Option<u8>,
    /// It was told to end.
    told: bool,
}

/// Starts the hosts and follows them to their end, or leaves them running.
pub fn run(context: &Context, options: &Sim) -> Result<u8> {
    let cluster = &options.shape.cluster;
    for host in cluster.named() {
        cluster.number(host)?;
    }
    // Fails here, once, and not in each host.
    options.shape.nodes()?;
    let mut are_members = true;
    for host in cluster.names() {
        are_members &= cluster.membership(&host)?.is_some();
    }
    let vms = vmfile::read_all(&options.files)?;
    refuse_shared_disks(&vms)?;
    if options.exit_when_done && vms.is_empty() && cluster.on.is_empty() {
        let message = "--exit-when-done waits until all VMs have ended, and no VM file is named";
        return Err(Failure::new(exit::USAGE, message).help("name files of VMs, or leave it out"));
    }
    let _lock = context.run.take()?;
    cluster::connect(cluster, context.run.path())?;
    // All hosts without VMs and a cluster of their own boot from it.
    if !are_members {
        Plan::new(&vms)?.write(&bundle_path(context.run.machine(), None), context.progress)?;
    }
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ended)).map_err(|error| {
            let message = format!("cannot watch signals: {}", reason(&error));
            Failure::new(exit::FAILED, message)
        })?;
    }
    let names = cluster.names();
    context
        .progress
        .say(&format!("starting {} hosts", names.len()));
    let (sender, ready) = channel();
    let start = |name: &String| {
        let has_vms = !vms.is_empty() || !cluster.files_on(name).is_empty();
        Host::start(name, has_vms, options, &sender)
    };
    let hosts = names.iter().map(start).collect::<Result<Vec<_>>>()?;
    drop(sender);
    Hosts { hosts, ready: 0 }.follow(context, options, &ready, &ended)
}

/// A file that is a VM's disk belongs to one VM on one host.
fn refuse_shared_disks(vms: &[VmFile]) -> Result<()> {
    let Some(vm) = vms.iter().find(|vm| vm.disk_files().next().is_some()) else {
        return Ok(());
    };
    let message = format!(
        "{} has a disk in a file, and cannot run on all hosts",
        vm.name
    );
    let help = format!("name its host: --on host0={}", vm.path.display());
    Err(Failure::new(exit::USAGE, message).help(help))
}

/// This command's own words, for one host.
fn words_for(name: &str, words: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = words.collect();
    let end = words.iter().position(|word| word == "--");
    let end = end.unwrap_or(words.len());
    let files = words.split_off(end);
    words.retain(|word| word != "--detach" && word != "--detached");
    words.extend(["--host", name, "--detached"].map(OsString::from));
    words.extend(files);
    words
}

impl Host {
    fn start(name: &str, has_vms: bool, options: &Sim, ready: &Sender<()>) -> Result<Self> {
        let failed = |error: io::Error| cluster::not_started(name, &error);
        // setpriv: the host's broker ends in order when this process ends, however it does.
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "TERM"])
            .arg(env::current_exe().map_err(failed)?)
            .args(words_for(name, env::args_os().skip(1)))
            // The terminal's Ctrl-C is for this process.
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let before = format!("{name}: ");
        let said = child.stderr.take();
        let said = said.map(|said| thread::spawn(move || pass_on(said, &before)));
        if let Some(out) = child.stdout.take() {
            let ready = ready.clone();
            thread::spawn(move || {
                let mut lines = BufReader::new(out).lines().map_while(io::Result::ok);
                if lines.any(|line| line.trim_end() == READY) {
                    // Nobody waits for it any more where all is over.
                    let _ = ready.send(());
                }
            });
        }
        Ok(Self {
            name: name.to_owned(),
            child,
            said,
            has_vms: has_vms && options.exit_when_done,
            ended: None,
            told: false,
        })
    }

    fn tell_to_end(&mut self) {
        if self.ended.is_none() && !self.told {
            self.told = true;
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
        }
    }

    /// Whether it has just ended; what it said last has been passed on then, if that does not take too long.
    fn has_just_ended(&mut self) -> bool {
        if self.ended.is_some() {
            return false;
        }
        let Ok(Some(status)) = self.child.try_wait() else {
            return false;
        };
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        self.ended = Some(code.unwrap_or(exit::MACHINE_DIED));
        let until = Instant::now() + LAST_WORDS_TIME;
        // A process that it has left behind may keep the pipe open.
        while self.said.as_ref().is_some_and(|it| !it.is_finished()) && Instant::now() < until {
            thread::sleep(LOOK_TIME / 10);
        }
        true
    }

    /// It failed by itself, with this status.
    fn failed(&self) -> Option<u8> {
        self.ended
            .filter(|status| *status != exit::OK && !self.told)
    }
}

/// Passes on what a host says, with its name before each line.
fn pass_on(said: impl io::Read, before: &str) {
    for line in BufReader::new(said).lines().map_while(io::Result::ok) {
        // Nobody is left to be told that standard error is gone.
        let _ = io::Write::write_fmt(&mut io::stderr(), format_args!("{before}{line}\n"));
    }
}

struct Hosts {
    hosts: Vec<Host>,
    ready: usize,
}

impl Hosts {
    fn follow(
        mut self,
        context: &Context,
        options: &Sim,
        ready: &Receiver<()>,
        ended: &AtomicBool,
    ) -> Result<u8> {
        let all = self.hosts.len();
        while self.hosts.iter().any(|host| host.ended.is_none()) {
            match ready.recv_timeout(LOOK_TIME) {
                Ok(()) => {
                    self.ready += 1;
                    if self.ready == all {
                        self.are_up(context, options)?;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => thread::sleep(LOOK_TIME),
            }
            let is_interrupted = ended.load(Ordering::Relaxed);
            let mut is_over = is_interrupted;
            for host in &mut self.hosts {
                if host.has_just_ended()
                    && let Some(status) = host.failed()
                {
                    let rest = if self.ready < all {
                        "all end"
                    } else {
                        "the others go on"
                    };
                    let name = &host.name;
                    context
                        .progress
                        .say(&format!("{name} has ended with status {status}; {rest}"));
                    is_over |= self.ready < all;
                }
            }
            is_over |= self.are_done();
            if is_over {
                self.hosts.iter_mut().for_each(Host::tell_to_end);
            }
        }
        let failed = self.hosts.iter().find_map(Host::failed);
        if ended.load(Ordering::Relaxed) {
            return Ok(exit::INTERRUPTED);
        }
        if failed.is_none() {
            context.progress.say("all hosts have ended");
        }
        Ok(failed.unwrap_or(exit::OK))
    }

    /// All hosts with VMs that are to end have ended, where there are some.
    fn are_done(&self) -> bool {
        let mut with_vms = self.hosts.iter().filter(|host| host.has_vms).peekable();
        with_vms.peek().is_some() && with_vms.all(|host| host.ended.is_some())
    }

    fn are_up(&self, context: &Context, options: &Sim) -> Result<()> {
        let names: Vec<&str> = self.hosts.iter().map(|host| &*host.name).collect();
        let command = context.command();
        context.progress.say(&format!(
            "all hosts are up; try: {command} list, {command} --host {} list, {command} shutdown",
            names.first().copied().unwrap_or_default()
        ));
        if options.detached {
            // From now on, the terminal's Ctrl-C and hang-up are not for this process.
            let _ = rustix::process::setsid();
            print(&format!("{READY}\n"))?;
        }
        Ok(())
    }
}

/// The files of VMs for the host that this process starts.
pub fn files_of(options: &Sim, host: &str) -> Result<Vec<PathBuf>> {
    let cluster = &options.shape.cluster;
    cluster.number(host)?;
    let mut files = options.files.clone();
    files.extend(cluster.files_on(host));
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_gets_the_words_of_all() {
        let words = |text: &str| -> Vec<OsString> { text.split(' ').map(OsString::from).collect() };
        let given = words("--machine m sim --hosts 2 --detach --detached a.toml -- --detach");
        assert_eq!(
            words_for("host1", given.into_iter()),
            words("--machine m sim --hosts 2 a.toml --host host1 --detached -- --detach")
        );
    }
}
