//! The simulated machine: a QEMU child with the hypervisor in it, and the broker beside it.

use crate::{
    bundle::Plan,
    control::{Broker, Client, console_log},
    failure::{Failure, Result, exit},
    progress::Progress,
    vmfile::{VmFile, cache_dir},
};
use abi::control::MachineStatus;
use std::{
    env,
    fs::{self, File},
    io::{self, BufRead as _, BufReader, Write as _},
    os::{
        fd::OwnedFd,
        unix::{
            net::{UnixListener, UnixStream},
            process::CommandExt as _,
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

pub mod cluster;
mod flash;
mod own_disks;
mod rundir;
mod shape;

pub use flash::Flash;
pub use rundir::{Lock, RunDir, tail};
pub use shape::{Files, NodeShape, Shape};

const QEMU: &str = "qemu-system-aarch64";
/// How long QEMU may take to end once it has closed the control channel.
const GONE_TIME: Duration = Duration::from_secs(2);

/// A machine that runs. It ends when this value is dropped, or with the thread that started it
/// (however that ends).
pub struct Machine {
    qemu: Child,
    broker: Broker,
    run: RunDir,
    /// Passes on what the emulator says of other hosts.
    telling: Option<JoinHandle<()>>,
    _lock: Lock,
}

impl Machine {
    /// Builds the bundle of these VMs and starts a machine with it. Its hypervisor is not yet up:
    /// see [`Machine::wait_ready`].
    pub fn start(run: RunDir, shape: &Shape, vms: &[VmFile], progress: Progress) -> Result<Self> {
        let image = find_image(shape.image.as_deref())?;
        let membership = run.host().map(|host| shape.cluster.membership(host));
        let membership = membership.transpose()?.flatten();
        let own = shape.cluster.own_bundle(&run, membership.is_some());
        let plan = Plan::with_cluster(vms, membership)?;
        let bundle = bundle_path(run.machine(), own);
        let qmp = run.path().join("qmp.sock");
        let log = run.hypervisor_log();
        let lock = run.take()?;
        let own_disks = run.make_disks(vms, progress)?;
        let written = plan.write(&bundle, progress)?;
        if written.anew && written.tally.images > 0 {
            progress.say(&format!("the bundle has {}", written.tally));
        }
        let files = Files {
            image: &image,
            bundle: (&bundle, written.size),
            log: &log,
            qmp: &qmp,
            ram: &run.memory(),
            own_disks: own_disks::compose(run.path(), &own_disks)?,
            port: run.port(&shape.cluster)?,
        };
        if shape.flash.flash {
            Flash::lay_out(&shape.nodes()?, files.ram)?;
        }
        let arguments = shape.arguments(&files)?;
        let broken =
            |error: io::Error| Failure::file("cannot set up the machine in", run.path(), &error);
        let (ours, theirs) = UnixStream::pair().map_err(broken)?;
        let listener = UnixListener::bind(run.control_socket()).map_err(broken)?;
        let said = File::create(run.emulator_log()).map_err(broken)?;
        // setpriv: QEMU is killed when this thread ends, even where it cannot clean up.
        let mut qemu = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", QEMU])
            .args(arguments)
            // The terminal's Ctrl-C is for the broker, which ends QEMU.
            .process_group(0)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(said.try_clone().map_err(broken)?)
            .stderr(if run.host().is_some() {
                Stdio::piped()
            } else {
                Stdio::from(said.try_clone().map_err(broken)?)
            })
            .spawn()
            .map_err(|error| missing("setpriv", "util-linux", &error))?;
        let telling = qemu
            .stderr
            .take()
            .map(|stderr| tell(stderr, said, progress));
        let started = Broker::start(ours, run.consoles())
            .and_then(|broker| broker.serve(listener).map(|()| broker))
            .map_err(broken);
        match started {
            Ok(broker) => Ok(Self {
                qemu,
                broker,
                run,
                telling,
                _lock: lock,
            }),
            Err(failure) => {
                end(&run, qemu);
                Err(failure)
            }
        }
    }

    /// A client of the machine's broker.
    pub fn client(&self) -> Result<Client> {
        self.broker.client()
    }

    /// The machine's broker.
    pub fn broker(&self) -> &Broker {
        &self.broker
    }

    /// The machine's directory.
    pub fn run_dir(&self) -> &RunDir {
        &self.run
    }

    /// Waits until the hypervisor answers.
    pub fn wait_ready(&mut self, client: &mut Client, time: Duration) -> Result<MachineStatus> {
        client.hello(time).map_err(|failure| self.explain(failure))
    }

    /// Adds the machine's last words to a failure that is about the machine.
    pub fn explain(&mut self, failure: Failure) -> Failure {
        match failure.code() {
            exit::TIMEOUT => self.failure("the hypervisor does not answer", exit::TIMEOUT),
            exit::MACHINE_DIED => self.death(),
            _ => failure,
        }
    }

    /// Whether QEMU has ended as if all were well, or does so soon.
    pub fn has_ended_well(&mut self) -> bool {
        let deadline = Instant::now() + GONE_TIME;
        loop {
            match self.qemu.try_wait() {
                Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(10)),
                Ok(Some(status)) => return status.success(),
                _ => return false,
            }
        }
    }

    /// Why the machine, which is gone, died.
    fn death(&mut self) -> Failure {
        let deadline = Instant::now() + GONE_TIME;
        loop {
            match self.qemu.try_wait() {
                Ok(Some(status)) if status.code() == Some(127) => {
                    return missing(QEMU, "qemu-system-arm", &io::ErrorKind::NotFound.into());
                }
                Ok(Some(status)) => {
                    return self.failure(
                        &format!("the machine died (QEMU: {status})"),
                        exit::MACHINE_DIED,
                    );
                }
                _ if Instant::now() > deadline => break,
                _ => thread::sleep(Duration::from_millis(10)),
            }
        }
        self.failure(
            "the hypervisor closed the control channel",
            exit::MACHINE_DIED,
        )
    }

    fn failure(&mut self, what: &str, code: u8) -> Failure {
        if let (Some(telling), Ok(Some(_))) = (self.telling.take(), self.qemu.try_wait()) {
            let _ = telling.join();
        }
        let words = self.run.last_words();
        let words = if words.is_empty() {
            "(nothing)".to_owned()
        } else {
            words
        };
        Failure::new(code, format!("{what}. Its last words:\n{words}")).help(format!(
            "all of it: {}",
            self.run.hypervisor_log().display()
        ))
    }

    /// Waits until QEMU has ended after a power off; kills it after `time`.
    pub fn wait_end(mut self, time: Duration) {
        let deadline = Instant::now() + time;
        while Instant::now() < deadline && matches!(self.qemu.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.broker.close();
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
        self.run.clear_sockets();
        // As large as the machine's memory, and of no use to anybody.
        let _ = fs::remove_dir_all(self.run.memory());
        let _ = self.run.remove_copies();
    }
}

/// The bundle of a machine; `own` is the host that has VMs of its own, if one has.
pub fn bundle_path(machine: &str, own: Option<&str>) -> PathBuf {
    let host = own.map(|host| format!(".{host}")).unwrap_or_default();
    cache_dir()
        .join("bundles")
        .join(format!("{machine}{host}.bundle"))
}

/// Writes what the emulator says to its log, and tells at once what the wire's plugin says: it is about other hosts.
fn tell(said: impl io::Read + Send + 'static, mut log: File, progress: Progress) -> JoinHandle<()> {
    thread::spawn(move || {
        for line in BufReader::new(said).lines().map_while(io::Result::ok) {
            // A log that cannot be written is missed when it is read.
            let _ = writeln!(log, "{line}");
            if let Some(line) = line.strip_prefix("underpin sim: ") {
                progress.say(line);
            }
        }
    })
}

fn end(run: &RunDir, mut qemu: Child) {
    let _ = qemu.kill();
    let _ = qemu.wait();
    run.clear_sockets();
}

fn missing(program: &str, package: &str, error: &io::Error) -> Failure {
    let reason = crate::failure::reason(error);
    Failure::new(
        exit::MACHINE_DIED,
        format!("cannot start {program}: {reason}"),
    )
    .help(format!("install it: apt install {package}"))
}

/// The hypervisor's image: the one named, else `$UNDERPIN_IMAGE`, else that of the source tree
/// around this program or the current directory.
fn find_image(named: Option<&Path>) -> Result<PathBuf> {
    let variable = env::var_os("UNDERPIN_IMAGE")
        .filter(|image| !image.is_empty())
        .map(PathBuf::from);
    let given = named.map(Path::to_owned).or(variable);
    let found = given.clone().or_else(|| {
        let program = env::current_exe().ok();
        let here = env::current_dir().ok();
        let places = [program, here];
        let trees = places.iter().flatten().flat_map(|place| place.ancestors());
        trees
            .map(|tree| tree.join("target/el2/underpin.img"))
            .find(|image| image.is_file())
    });
    match found {
        Some(image) if image.is_file() => Ok(image),
        Some(image) => {
            let message = format!("the hypervisor's image {} is not there", image.display());
            Err(Failure::new(exit::FILE, message).help("look at --image and $UNDERPIN_IMAGE"))
        }
        None => Err(Failure::new(exit::FILE, "no hypervisor image is found")
            .help("build it in the source tree (`make`), or name it: --image FILE")),
    }
}

/// Waits until a VM's console has said `text` since the machine started; returns all it said. The
/// failure carries the console's end.
pub fn wait_console(
    run: &RunDir,
    client: &mut Client,
    vm: &str,
    text: &str,
    time: Duration,
) -> Result<String> {
    let deadline = Instant::now() + time;
    client.watch(vm)?;
    let mut log = console_log::Reader::open(run.console_log(vm), u64::MAX);
    let mut said = Vec::new();
    let mut buffer = [0; 16 * 1024];
    loop {
        while let Ok(n @ 1..) = log.read(&mut buffer) {
            said.extend_from_slice(buffer.get(..n).unwrap_or_default());
        }
        if said
            .windows(text.len().max(1))
            .any(|window| window == text.as_bytes())
        {
            return Ok(String::from_utf8_lossy(&said).into_owned());
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if client.event(Some(left))?.is_none() {
            let end = tail(&run.console_log(vm), 25);
            let message = format!(
                "{vm} has not said '{text}' in {} s. Its console ends:\n{end}",
                time.as_secs()
            );
            return Err(Failure::new(exit::TIMEOUT, message));
        }
    }
}
