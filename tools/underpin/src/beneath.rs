//! The machine that this system owns, with Underpin beneath it: memory on loan, and the broker of
//! the VMs that run in it.
//!
//! A loan is made for some VMs and their files, and holds until all of them have ended. It does not
//! end with the process that made it: another one can go on serving.

use crate::{
    bundle::Plan,
    cli::Loan,
    control::{Broker, Client},
    failure::{Failure, Result, exit},
    progress::Progress,
    sim::{Lock, RunDir},
    units,
    vmfile::{DiskFile, VmFile, cache_dir},
};
use serde_json::Value;
use std::{
    fs::{self, File},
    io::{self, Read, Write},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    thread,
};
use tools_os0::{Asked, DEVICE, Running, System as _, codes};

mod disks;
mod image;
mod stage;

pub use disks::Served;
use disks::Server;
pub use stage::Stage;

/// The machine's name.
pub const MACHINE: &str = "os0";
/// Carries the bytes of the control channel.
const CONTROL: &str = "/dev/underpin-control";
/// What is lent comes in blocks of so many bytes.
const BLOCK: u64 = 2 << 20;
/// What EL2 makes of a loan beside its VMs' memory: pools, caches and what it keeps free.
const OWN: u64 = 32 << 20;
/// Of each VM's memory, what its tables and records take: a part in so many, and so many bytes.
const TABLES: (u64, u64) = (64, 4 << 20);
/// Bytes of memory for each byte of frame table.
const FRAME_TABLE: u64 = 128;

/// Whether Underpin is beneath this system.
pub fn is_here() -> bool {
    Path::new(DEVICE).exists()
}

/// How the module says things stand: `lent`, in bytes, and whether VMs are `parked`.
pub fn state() -> Result<Value> {
    ask("status")
}

/// The machine, served by this process. When it is dropped the VMs go on, unserved.
pub struct Machine {
    broker: Broker,
    run: RunDir,
    _lock: Lock,
}

impl Machine {
    /// Lends memory to these VMs, which start, and serves their disks; or, where there are none, goes
    /// on with those that memory is lent to already.
    pub fn start(run: RunDir, vms: &[VmFile], loan: &Loan, progress: Progress) -> Result<Self> {
        let lock = run.take()?;
        let lent = state()?["lent"].as_u64().unwrap_or(0);
        let server = if !vms.is_empty() {
            if lent > 0 {
                // Where no VM runs any more, a server has ended before it could do so.
                ask("repay")?;
            }
            make(&run, vms, loan, progress)?
        } else if lent > 0 && !loan.disks.is_empty() {
            Some(Server::adopt(&run, &loan.disks)?)
        } else if lent > 0 {
            Server::resume(&run)?
        } else {
            let failure = Failure::new(exit::USAGE, "no memory is lent, and no VM file is named");
            return Err(failure.help("start VMs: underpin run FILE..."));
        };
        let broken =
            |error: io::Error| Failure::file("cannot set up the machine in", run.path(), &error);
        let listener = UnixListener::bind(run.control_socket()).map_err(broken)?;
        if let Some(server) = server {
            server.start().map_err(broken)?;
        }
        let broker = Broker::start(control()?, run.consoles())
            .and_then(|broker| broker.serve(listener).map(|()| broker))
            .map_err(broken)?;
        Ok(Self {
            broker,
            run,
            _lock: lock,
        })
    }

    /// A client of the machine's broker.
    pub fn client(&self) -> Result<Client> {
        self.broker.client()
    }

    /// The machine's broker.
    pub fn broker(&self) -> &Broker {
        &self.broker
    }

    /// Takes the memory back; refused while a VM runs, or has not quite ended.
    pub fn repay(&self) -> Result<()> {
        ask("repay")?;
        self.broker.expect_end();
        // Copies of directories may be large.
        let _ = self.run.remove_copies();
        Ok(())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.broker.close();
        self.run.clear_sockets();
    }
}

/// Lends memory that begins with the bundle of these VMs, and offers disks.
fn make(run: &RunDir, vms: &[VmFile], loan: &Loan, progress: Progress) -> Result<Option<Server>> {
    Server::forget(run);
    let disks = disks_for(loan, &run.make_disks(vms, progress)?);
    let server = if disks.is_empty() {
        None
    } else {
        Some(Server::offer(run, &disks)?)
    };
    let bundle = cache_dir().join("bundles").join("os0.bundle");
    let size = Plan::new(vms)?.write(&bundle, progress)?.size;
    let bytes = loan.lend.unwrap_or_else(|| needed(size, vms));
    progress.say(&format!("lending {}", units::size(bytes)));
    let lent = ask(&format!("lend {} {}", bytes >> 20, bundle.display()));
    // It is in lent memory now, and may be large.
    let _ = fs::remove_file(&bundle);
    lent.map(|_| server)
}

/// What is served to VMs: what the command names, and their own files.
fn disks_for(loan: &Loan, files: &[DiskFile]) -> Vec<Served> {
    let own = files.iter().map(Served::own);
    loan.disks.iter().cloned().chain(own).collect()
}

/// The memory that these VMs need with all theirs in use, and a bundle of so many bytes.
fn needed(bundle: u64, vms: &[VmFile]) -> u64 {
    let of_vm = |vm: &VmFile| vm.memory.max + vm.memory.max / TABLES.0 + TABLES.1;
    let all = bundle + vms.iter().map(of_vm).sum::<u64>() + OWN;
    (all + all / FRAME_TABLE).next_multiple_of(BLOCK)
}

/// Keeps a system ready to be started in the place of this one; gives its bytes.
pub fn stage(run: &RunDir, options: &Stage) -> Result<u64> {
    let bytes = options.build()?;
    let file = run.path().join("stage");
    stage::write(&file, &bytes)?;
    let staged = ask(&format!("stage {}", file.display()));
    let _ = fs::remove_file(&file);
    staged.map(|_| bytes.len() as u64)
}

/// What is staged is this system's memory again.
pub fn unstage() -> Result<()> {
    ask("unstage").map(drop)
}

/// Asks the module; a refusal is a failure with its name's meaning.
fn ask(request: &str) -> Result<Value> {
    let what = request.split(' ').next().unwrap_or(request);
    let parsed = |answer: &str| serde_json::from_str(answer).unwrap_or_default();
    match Running.ask(request) {
        Asked::Done(answer) => Ok(parsed(&answer)),
        Asked::Refused(answer) => {
            let state: Value = parsed(&answer);
            let name = state["refusal"].as_str().unwrap_or("unknown");
            let Some(code) = codes::find(name) else {
                let message = format!("the hypervisor refuses to {what}: {name}");
                return Err(Failure::new(exit::REFUSED, message));
            };
            let message = format!(
                "the hypervisor refuses to {what}: {} ({name})",
                code.meaning
            );
            Err(Failure::new(exit::REFUSED, message).help(code.advice.join("; ")))
        }
        Asked::Failed(error) if error.kind() == io::ErrorKind::OutOfMemory => {
            Err(not_spared(request, state().ok().as_ref()))
        }
        Asked::Failed(error) => {
            let message = format!("cannot ask the hypervisor to {what}: {DEVICE}: {error}");
            Err(Failure::new(exit::NOT_READY, message)
                .help("`underpin doctor` says what is missing"))
        }
    }
}

/// This system has too little memory to lend as much as was asked for, or cannot free it.
fn not_spared(request: &str, state: Option<&Value>) -> Failure {
    let number = |mib: &str| mib.parse::<u64>().ok();
    let asked = request.split(' ').nth(1).and_then(number);
    let spare = state.and_then(|state| state["spare"].as_u64());
    let message = match (asked, spare.map(|spare| spare >> 20)) {
        (Some(asked), Some(spare)) if asked > spare => {
            format!("this system cannot spare {asked} MiB: at most {spare} MiB can be lent now")
        }
        (Some(asked), Some(spare)) => format!(
            "this system cannot free {asked} MiB in runs that can be lent, of {spare} MiB to spare"
        ),
        _ => format!("this system cannot spare so much memory in one run: {request}"),
    };
    let help = "lend less (--lend SIZE, smaller VMs), or free memory: end programs that use much";
    Failure::new(exit::REFUSED, message).help(help)
}

/// The control channel as a stream: two threads carry its bytes. It ends when the memory is back.
fn control() -> Result<UnixStream> {
    let failed = |error: io::Error| Failure::file("cannot open", Path::new(CONTROL), &error);
    let mut options = File::options();
    let device = options
        .read(true)
        .write(true)
        .open(CONTROL)
        .map_err(failed)?;
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    let up = (
        device.try_clone().map_err(failed)?,
        theirs.try_clone().map_err(failed)?,
    );
    for (name, (from, to)) in [
        (
            "from EL2",
            (
                Box::new(up.0) as Box<dyn Read + Send>,
                Box::new(up.1) as Box<dyn Write + Send>,
            ),
        ),
        (
            "to EL2",
            (
                Box::new(theirs.try_clone().map_err(failed)?),
                Box::new(device),
            ),
        ),
    ] {
        let end = theirs.try_clone().map_err(failed)?;
        let carry = move || {
            carry(from, to);
            let _ = end.shutdown(Shutdown::Both);
        };
        thread::Builder::new()
            .name(name.into())
            .spawn(carry)
            .map_err(failed)?;
    }
    Ok(ours)
}

/// Carries bytes until one side ends.
fn carry(mut from: impl Read, mut to: impl Write) {
    let mut buffer = [0; 4096];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(count)
                if to
                    .write_all(buffer.get(..count).unwrap_or_default())
                    .is_ok() => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_vms_are_served_beside_what_is_named() {
        let file = DiskFile {
            path: "/srv/a=b".into(),
            size: 4096,
            name: "a-1".to_owned(),
        };
        let disks = vec![Served::parse("data=/x").unwrap()];
        let served = disks_for(&Loan { lend: None, disks }, &[file]);
        let words: Vec<_> = served.iter().map(Served::word).collect();
        assert_eq!(words, ["data=/x,format=raw", "a-1=/srv/a=b,format=raw"]);
    }
}
