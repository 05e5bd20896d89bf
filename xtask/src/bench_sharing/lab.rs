//! A machine with several VMs whose clock counts instructions, and to which nothing is said until
//! they have done their work: so a run can be repeated bit for bit.

use crate::{
    bench::counted::{self, Qemu},
    project,
    step::Outcome,
};
use abi::control::{
    FrameHeader, MAGIC, NodeStatus, REPLY, RawVm, ReadRequest, ReplyHeader, VmName, event, request,
    state,
};
use std::{
    collections::BTreeMap,
    fs,
    io::{ErrorKind, Read as _, Write as _},
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};
use tests_boot::assets;
use tools_abi::status::{MachineMem, MemStatus, VmStatus};
use zerocopy::{FromBytes, IntoBytes as _};

/// How long the VMs may take for their work, and EL2 to answer.
const WORK_MAX: Duration = Duration::from_mins(15);
const ANSWER_MAX: Duration = Duration::from_mins(1);
/// How long one look at the control channel waits.
const POLL: Duration = Duration::from_millis(200);

/// The machine.
pub struct Lab {
    qemu: Qemu,
    control: UnixStream,
    unread: Vec<u8>,
    consoles: BTreeMap<String, String>,
    ended: BTreeMap<String, String>,
    replies: BTreeMap<u32, Vec<u8>>,
    tag: u32,
    log: PathBuf,
}

/// Files of an experiment.
pub fn directory(name: &str) -> Outcome<PathBuf> {
    let path = project::products().join("bench-sharing").join(name);
    fs::create_dir_all(&path)
        .map_err(|error| format!("cannot make {}: {error}", path.display()))?;
    Ok(path)
}

impl Lab {
    /// Starts a machine with one CPU and VMs by their files' text.
    ///
    /// # Errors
    /// The bundle cannot be made, or QEMU not be run.
    pub fn start(name: &str, memory: &str, vms: &[String]) -> Outcome<Self> {
        Self::start_with(&assets::image(), "", name, memory, vms)
    }

    /// The same, where `image` is the hypervisor and `el2` its command line.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_with(
        image: &Path,
        el2: &str,
        name: &str,
        memory: &str,
        vms: &[String],
    ) -> Outcome<Self> {
        Self::start_on(None, (image, el2), name, memory, vms)
    }

    /// The same, where the machine has a disk. How long that takes is for the host to say: of such a machine only what
    /// EL2 works is counted.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_on(
        disk: Option<&Path>,
        (image, el2): (&Path, &str),
        name: &str,
        memory: &str,
        vms: &[String],
    ) -> Outcome<Self> {
        let directory = directory(name)?;
        let bundle = bundle(&directory, vms)?;
        let log = directory.join("el2.log");
        // What another run warned of is none of this one's.
        let _ = fs::remove_file(&log); // absent is fine
        let (ours, theirs) =
            UnixStream::pair().map_err(|error| format!("cannot make a channel: {error}"))?;
        let wait = ours.set_read_timeout(Some(POLL));
        wait.map_err(|error| format!("cannot make a channel: {error}"))?;
        let mut qemu = counted::qemu(1, memory, &log);
        qemu.args([
            "-M",
            "virtualization=on,dtb-randomness=on",
            "-seed",
            "1",
            "-kernel",
        ])
        .arg(image)
        .args(["-append", el2, "-initrd"])
        .arg(bundle);
        if let Some(disk) = disk {
            let file = "driver=raw,node-name=disk,file.driver=file,file.filename=";
            qemu.arg("-blockdev")
                .arg(format!("{file}{}", disk.display()))
                .args(["-device", "virtio-blk-device,drive=disk"]);
        }
        qemu.args(["-chardev", "socket,id=control,fd=0"]);
        qemu.args(["-device", "virtio-serial-device,max_ports=1"]);
        qemu.args(["-device", "virtconsole,chardev=control"]);
        qemu.stdin(Stdio::from(OwnedFd::from(theirs)));
        Ok(Self {
            qemu: counted::start(&mut qemu, &log)?,
            control: ours,
            unread: Vec::new(),
            consoles: BTreeMap::new(),
            ended: BTreeMap::new(),
            replies: BTreeMap::new(),
            tag: 0,
            log,
        })
    }

    /// What a VM has said.
    pub fn console(&self, vm: &str) -> &str {
        self.consoles.get(vm).map_or("", String::as_str)
    }

    /// Waits until each of the VMs has said that it is done.
    ///
    /// # Errors
    /// One has ended, or the time is over.
    pub fn await_all(&mut self, vms: &[&str], done: &str) -> Outcome {
        let deadline = Instant::now() + WORK_MAX;
        while !vms.iter().all(|vm| self.console(vm).contains(done)) {
            self.listen(deadline)?;
            self.all_run()?;
        }
        Ok(())
    }

    /// Waits until the VM has said that it is done, and looks each time that it says so.
    ///
    /// # Errors
    /// As [`Self::await_all`], or what a look gives.
    pub fn await_looks(
        &mut self,
        vm: &str,
        (asked, done): (&str, &str),
        mut look: impl FnMut(&mut Self) -> Outcome,
    ) -> Outcome {
        let mut looks = 0;
        let deadline = Instant::now() + WORK_MAX;
        while !self.console(vm).contains(done) {
            self.listen(deadline)?;
            self.all_run()?;
            while looks < self.console(vm).matches(asked).count() {
                looks += 1;
                look(self)?;
            }
        }
        Ok(())
    }

    fn all_run(&self) -> Outcome {
        let Some((vm, reason)) = self.ended.first_key_value() else {
            return Ok(());
        };
        let said = self.console(vm);
        Err(format!("{vm} has ended ({reason}):\n{said}"))
    }

    /// A VM's memory.
    ///
    /// # Errors
    /// EL2 does not answer, or there is no such VM.
    pub fn mem(&mut self, vm: &str) -> Outcome<MemStatus> {
        let machine = self.one(request::HELLO, &[])?;
        Ok(MemStatus::of(&self.raw(vm)?, &machine))
    }

    /// How a VM stands.
    ///
    /// # Errors
    /// EL2 does not answer, or there is no such VM.
    pub fn vm(&mut self, vm: &str) -> Outcome<VmStatus> {
        Ok(VmStatus::from(&self.raw(vm)?))
    }

    fn raw(&mut self, vm: &str) -> Outcome<RawVm> {
        self.one(request::LIST, read(vm).as_bytes())
    }

    /// The machine's memory.
    ///
    /// # Errors
    /// EL2 does not answer.
    pub fn machine(&mut self) -> Outcome<MachineMem> {
        let machine = self.one(request::HELLO, &[])?;
        Ok(MachineMem::of(&machine, &[self.node()?]))
    }

    /// The machine's only node.
    ///
    /// # Errors
    /// EL2 does not answer.
    pub fn node(&mut self) -> Outcome<NodeStatus> {
        self.one(request::NODES, read("").as_bytes())
    }

    fn one<T: FromBytes>(&mut self, kind: u32, payload: &[u8]) -> Outcome<T> {
        let first = self.ask(kind, payload)?.into_iter().next();
        first.ok_or_else(|| "EL2's answer is empty".to_owned())
    }

    /// Asks EL2; gives the records of its answer.
    fn ask<T: FromBytes>(&mut self, kind: u32, payload: &[u8]) -> Outcome<Vec<T>> {
        self.tag += 1;
        let header = FrameHeader {
            magic: MAGIC,
            kind,
            tag: self.tag,
            length: payload.len() as u32,
        };
        let sent = self
            .control
            .write_all(&[header.as_bytes(), payload].concat());
        sent.map_err(|error| format!("cannot ask EL2: {error}"))?;
        let deadline = Instant::now() + ANSWER_MAX;
        let reply = loop {
            if let Some(reply) = self.replies.remove(&self.tag) {
                break reply;
            }
            self.listen(deadline)?;
        };
        let (header, mut rest) =
            ReplyHeader::read_from_prefix(&reply).map_err(|_| "EL2's answer is too short")?;
        if header.code != 0 {
            return Err(String::from_utf8_lossy(rest).into_owned());
        }
        let mut records = Vec::new();
        while let Ok((record, next)) = T::read_from_prefix(rest) {
            records.push(record);
            rest = next;
        }
        Ok(records)
    }

    /// Takes what EL2 has sent.
    fn listen(&mut self, deadline: Instant) -> Outcome {
        let mut bytes = [0; 4096];
        match self.control.read(&mut bytes) {
            Ok(count) if count > 0 => self.unread.extend(&bytes[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                let warns = warns(&counted::text(&self.log));
                if !self.qemu.runs() || warns || Instant::now() > deadline {
                    return Err(self.silent());
                }
            }
            _ => return Err(self.silent()),
        }
        let mut at = 0;
        while let Ok((header, rest)) = FrameHeader::read_from_prefix(&self.unread[at..])
            && header.magic == MAGIC
            && let Some(payload) = rest.get(..header.length as usize)
        {
            let payload = payload.to_vec();
            at += size_of::<FrameHeader>() + payload.len();
            self.take(header, payload);
        }
        self.unread.drain(..at);
        Ok(())
    }

    fn take(&mut self, header: FrameHeader, payload: Vec<u8>) {
        if header.kind & REPLY != 0 {
            self.replies.insert(header.tag, payload);
        } else if header.kind == event::CONSOLE_OUTPUT
            && let Ok((name, output)) = VmName::read_from_prefix(&payload)
        {
            let console = self.consoles.entry(text(name)).or_default();
            console.push_str(&String::from_utf8_lossy(output));
        } else if header.kind == event::STATE
            && let Ok((status, _)) = RawVm::read_from_prefix(&payload)
            && status.state == state::ENDED
        {
            let reason = status.reason.as_str().unwrap_or_default();
            self.ended.insert(text(status.name), reason.to_owned());
        }
    }

    fn silent(&self) -> String {
        let log = counted::text(&self.log);
        let tail: Vec<&str> = log.lines().rev().take(12).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        let said: Vec<String> = self
            .consoles
            .iter()
            .map(|(vm, said)| format!("{vm}: {}", said.lines().last().unwrap_or_default()))
            .collect();
        format!(
            "the machine did not do its work; EL2's log ends:\n{}\n{}",
            tail.join("\n"),
            said.join("\n")
        )
    }
}

/// Whether EL2's log warns, as of a VM that cannot start. Where it has hooks for tests it also tells of long stretches, which a
/// hook's own work may be.
fn warns(log: &str) -> bool {
    let warnings = log.lines().filter_map(|line| line.split_once("] warn  "));
    warnings
        .map(|(_, what)| what)
        .any(|what| !what.starts_with("a stretch of ") && !what.starts_with("at "))
}

fn read(vm: &str) -> ReadRequest {
    let name = VmName::cut(vm);
    ReadRequest { name, from: 0 }
}

fn text(name: VmName) -> String {
    name.as_str().unwrap_or_default().to_owned()
}

/// Writes VM files and makes a bundle of them.
fn bundle(directory: &Path, vms: &[String]) -> Outcome<PathBuf> {
    let bundle = directory.join("vms.bundle");
    let mut command = Command::new(assets::command());
    command.args(["bundle", "-O"]).arg(&bundle);
    for (n, vm) in vms.iter().enumerate() {
        let file = directory.join(format!("vm{n}.toml"));
        fs::write(&file, vm)
            .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
        command.arg(file);
    }
    let output = command
        .output()
        .map_err(|error| format!("cannot run underpin: {error}"))?;
    if output.status.success() {
        return Ok(bundle);
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

#[cfg(test)]
mod tests {
    use super::warns;

    #[test]
    fn a_long_stretch_is_no_warning() {
        let log = "underpin [   2.0] warn  a stretch of Exit took 2122464 ns; last exit 0\n\
                   underpin [   2.0] warn  at 4000 ns: hypervisor/src/run/mod.rs:1:1, 10 (and 0 before)\n\
                   underpin [   2.0] info  one starts: 1 vCPUs, 64 MiB, node 0\n";
        assert!(!warns(log));
        assert!(warns(
            "underpin [   0.1] warn  vm one does not start: no memory"
        ));
    }
}
