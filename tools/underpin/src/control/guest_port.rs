//! The way to the hypervisor from inside one of its VMs: the VM's control port (`control = "read"` or
//! `"all"` in its file).
//!
//! One process may have a port open. It has a broker of its own, so that a command finds there what
//! it finds beside a simulated machine; console output is that since the command began.

use super::{Broker, Client};
use crate::failure::{Failure, Result};
use abi::control::code;
use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    thread::{self, sleep},
    time::{Duration, Instant},
};

/// The port's name, as EL2 tells it.
const NAME: &str = "org.underpin.control";
/// Where Linux lists ports.
const PORTS: &str = "/sys/class/virtio-ports";
/// How long to wait for another command to be done with the port.
const WAIT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(50);

static BROKER: Mutex<Option<Broker>> = Mutex::new(None);

/// The port's device, if this system has one.
pub fn find() -> Option<PathBuf> {
    let ports = fs::read_dir(PORTS).ok()?;
    let is_ours = |port: &PathBuf| {
        let name = fs::read_to_string(port.join("name"));
        name.is_ok_and(|name| name.trim_end() == NAME)
    };
    let port = ports.flatten().map(|port| port.path()).find(is_ours)?;
    Some(Path::new("/dev").join(port.file_name()?))
}

/// A client of this process' broker on the port, which begins with the first; `consoles` is where
/// console output goes.
pub fn connect(port: &Path, consoles: PathBuf) -> Result<Client> {
    let mut broker = BROKER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(broker) = broker.as_ref() {
        return broker.client();
    }
    let failed = |error: io::Error| Failure::file("cannot use the control port", port, &error);
    let (mut up, mut down) = {
        let file = open(port)?;
        (file.try_clone().map_err(failed)?, file)
    };
    fs::create_dir_all(&consoles).map_err(failed)?;
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let (mut to_broker, mut from_broker) = (theirs.try_clone().map_err(failed)?, theirs);
    spawn("from port", move || pump(&mut up, &mut to_broker)).map_err(failed)?;
    spawn("to port", move || pump(&mut from_broker, &mut down)).map_err(failed)?;
    let new = Broker::start(ours, consoles).map_err(failed)?;
    let client = new.client();
    *broker = Some(new);
    client
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = thread::Builder::new().name(name.into());
    thread.spawn(work).map(drop)
}

/// Opens the port, once no other command has it.
fn open(port: &Path) -> Result<File> {
    let deadline = Instant::now() + WAIT;
    loop {
        match OpenOptions::new().read(true).write(true).open(port) {
            Ok(file) => return Ok(file),
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {}
            Err(error) => {
                let failure = Failure::file("cannot open the control port", port, &error);
                return Err(failure.help("root may use it"));
            }
        }
        if Instant::now() > deadline {
            let message = format!("another command has had {} for 10 s", port.display());
            let help = "one command at a time has the control port; end the other one, such as `underpin top`";
            return Err(Failure::new(code::BUSY as u8, message).help(help));
        }
        sleep(POLL);
    }
}

/// Passes on what comes until one side is gone.
fn pump(from: &mut impl io::Read, to: &mut impl io::Write) {
    let mut buffer = [0; 4096];
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return,
        };
        if to
            .write_all(buffer.get(..count).unwrap_or_default())
            .is_err()
        {
            return;
        }
    }
}
