//! Machines whose clock counts instructions: the same files in, the same bytes out.
//!
//! Nothing may reach such a machine from outside while it runs, or its next interrupt would come
//! at a time that the host decides. So Underpin's control channel, which `underpin sim` answers,
//! ends in a file here; what EL2 would tell the command is read from there.

use crate::{project, step::Outcome};
use abi::control::{FrameHeader, MAGIC, RawVm, VmName, event, state};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};
use tests_boot::assets;
use toml::Table;
use tools_abi::EXIT_CLASSES;
use tools_abi::status::VmStatus;
use zerocopy::FromBytes as _;

/// How long a machine may run.
const RUN_MAX: Duration = Duration::from_mins(8);
/// How often its files are looked at.
const POLL: Duration = Duration::from_millis(250);
/// Two nanoseconds for each instruction; a calendar that begins with the machine; no randomness
/// in the device tree (for EL2 the same in each run); and virtio devices that are served by the CPU that rings them.
const COUNTED: &str = "-nodefaults -no-user-config -no-reboot -display none -monitor none \
    -cpu neoverse-n1 -accel tcg,thread=single -icount shift=1,sleep=off \
    -rtc base=2026-01-01,clock=vm -M virt,gic-version=3,dtb-randomness=off \
    -global virtio-mmio.force-legacy=false -global virtio-mmio.ioeventfd=off";

/// What boots.
pub struct Guest {
    /// Its name, and that of its directory.
    pub name: &'static str,
    /// Its CPUs.
    pub cpus: u32,
    /// Its kernel, or a flat image.
    pub kernel: PathBuf,
    /// Its initial RAM disk.
    pub initrd: Option<PathBuf>,
    /// Its command line.
    pub args: &'static str,
    /// Its disk, in a VM.
    pub disk: Option<PathBuf>,
}

/// What a run left.
#[derive(PartialEq)]
pub struct Run {
    /// What the guest wrote to its console.
    pub console: String,
    /// What EL2 wrote to its log.
    pub log: String,
    /// Exits by class, without those that did not happen.
    pub exits: Vec<(&'static str, u64)>,
}

/// Runs a guest at EL1 of a machine with 512 MiB.
///
/// # Errors
/// It does not power off in time.
pub fn bare(guest: &Guest) -> Outcome<Run> {
    let directory = directory(guest, "bare")?;
    let console = directory.join("console.log");
    let mut qemu = qemu(guest.cpus, "512M", &console);
    qemu.arg("-kernel")
        .arg(&guest.kernel)
        .args(["-append", guest.args]);
    if let Some(initrd) = &guest.initrd {
        qemu.arg("-initrd").arg(initrd);
    }
    let mut machine = start(&mut qemu, &console)?;
    machine.wait_until(|| false)?;
    Ok(Run {
        console: text(&console),
        log: String::new(),
        exits: Vec::new(),
    })
}

/// Runs a guest in a VM of 512 MiB, alone on a machine with 2 GiB and `cpus` CPUs; `el2` is
/// Underpin's own command line.
///
/// # Errors
/// The VM does not end in time, or the bundle cannot be made.
pub fn under_underpin(guest: &Guest, cpus: u32, el2: &str) -> Outcome<Run> {
    let directory = directory(guest, "vm")?;
    let bundle = bundle(guest, &directory)?;
    let (log, control) = (directory.join("el2.log"), directory.join("control"));
    let _ = fs::remove_file(&control); // absent is fine
    let mut qemu = qemu(cpus, "2G", &log);
    qemu.args([
        "-M",
        "virtualization=on,dtb-randomness=on",
        "-seed",
        "1",
        "-kernel",
    ])
    .arg(assets::image());
    qemu.args(["-append", el2, "-initrd"]).arg(bundle);
    qemu.arg("-chardev")
        .arg(format!("file,id=control,path={}", control.display()));
    qemu.args([
        "-device",
        "virtio-serial-device,max_ports=1",
        "-device",
        "virtconsole,chardev=control",
    ]);
    let ended = || Said::read(&control).ended.is_some();
    start(&mut qemu, &log)?.wait_until(ended)?;
    let said = Said::read(&control);
    let exits = said
        .ended
        .map(|status| EXIT_CLASSES.into_iter().zip(status.exits))
        .into_iter()
        .flatten();
    Ok(Run {
        console: String::from_utf8_lossy(&said.console).into_owned(),
        log: text(&log),
        exits: exits.filter(|(_, count)| *count > 0).collect(),
    })
}

fn directory(guest: &Guest, kind: &str) -> Outcome<PathBuf> {
    let path = project::products()
        .join("bench")
        .join(format!("{}-{kind}", guest.name));
    fs::create_dir_all(&path)
        .map_err(|error| format!("cannot make {}: {error}", path.display()))?;
    Ok(path)
}

/// What a file holds, as text.
pub fn text(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// Writes the guest's VM file and makes a bundle of it.
fn bundle(guest: &Guest, directory: &Path) -> Outcome<PathBuf> {
    let (file, bundle) = (directory.join("vm.toml"), directory.join("vm.bundle"));
    fs::write(&file, vm_file(guest))
        .map_err(|error| format!("cannot write {}: {error}", file.display()))?;
    let mut command = Command::new(assets::command());
    command.args(["bundle", "-O"]).arg(&bundle).arg(&file);
    let output = command
        .output()
        .map_err(|error| format!("cannot run underpin: {error}"))?;
    if output.status.success() {
        return Ok(bundle);
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

fn vm_file(guest: &Guest) -> String {
    let path = |path: &PathBuf| path.display().to_string();
    let mut boot = Table::new();
    boot.insert("kernel".into(), path(&guest.kernel).into());
    boot.insert("args".into(), guest.args.into());
    if let Some(initrd) = &guest.initrd {
        boot.insert("initrd".into(), path(initrd).into());
    }
    let mut vm = Table::new();
    vm.insert("name".into(), guest.name.into());
    vm.insert("cpus".into(), guest.cpus.into());
    vm.insert("memory".into(), "512MiB".into());
    vm.insert("boot".into(), boot.into());
    if let Some(disk) = &guest.disk {
        let mut table = Table::new();
        table.insert("image".into(), path(disk).into());
        table.insert("mode".into(), "cow".into());
        vm.insert("disk".into(), vec![table].into());
    }
    vm.to_string()
}

/// QEMU, which dies with this thread.
pub fn qemu(cpus: u32, memory: &str, serial: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "qemu-system-aarch64"]);
    command.args(COUNTED.split_whitespace());
    command.args(assets::counted_clock());
    command.args(["-smp", &cpus.to_string(), "-m", memory, "-serial"]);
    command.arg(format!("file:{}", serial.display()));
    command.stdin(Stdio::null()).stdout(Stdio::null());
    // What it complains of is found beside what the machine says.
    let complaints = fs::File::create(complaints(serial));
    command.stderr(complaints.map_or_else(|_| Stdio::null(), Stdio::from));
    command
}

/// Where QEMU's own words go.
fn complaints(serial: &Path) -> PathBuf {
    serial.with_extension("qemu")
}

/// A QEMU that runs, and where its own words go; it ends with this value.
pub struct Qemu(Child, PathBuf);

/// Starts a [`qemu`] with that serial port.
///
/// # Errors
/// It cannot be run.
pub fn start(qemu: &mut Command, serial: &Path) -> Outcome<Qemu> {
    let child = qemu
        .spawn()
        .map_err(|error| format!("cannot run QEMU: {error}"))?;
    Ok(Qemu(child, complaints(serial)))
}

impl Qemu {
    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }

    /// What QEMU itself has said, such as that its clock was late.
    pub fn complaints(&self) -> String {
        text(&self.1).trim().to_owned()
    }

    /// Waits until QEMU ends by itself, or until there is nothing left to wait for.
    fn wait_until(&mut self, done: impl Fn() -> bool) -> Outcome {
        let deadline = Instant::now() + RUN_MAX;
        while !done() {
            match self.0.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => {
                    return Err(format!("QEMU failed ({status}): {}", self.complaints()));
                }
                Err(error) => return Err(format!("cannot look after QEMU: {error}")),
            }
            if Instant::now() > deadline {
                return Err(format!("it did not end in {} s", RUN_MAX.as_secs()));
            }
            sleep(POLL);
        }
        Ok(())
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        // It may have ended by itself, which is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What EL2 has sent through the control channel.
#[derive(Default)]
struct Said {
    console: Vec<u8>,
    ended: Option<VmStatus>,
}

impl Said {
    fn read(path: &Path) -> Self {
        Self::decode(&fs::read(path).unwrap_or_default())
    }

    /// Takes apart all frames that are complete.
    fn decode(mut bytes: &[u8]) -> Self {
        let mut said = Self::default();
        while let Ok((header, rest)) = FrameHeader::read_from_prefix(bytes)
            && header.magic == MAGIC
            && let Some((payload, next)) = rest.split_at_checked(header.length as usize)
        {
            if header.kind == event::CONSOLE_OUTPUT {
                let output = payload.get(size_of::<VmName>()..);
                said.console.extend(output.unwrap_or_default());
            } else if header.kind == event::STATE
                && let Ok((status, _)) = RawVm::read_from_prefix(payload)
            {
                said.ended = (status.state == state::ENDED).then(|| VmStatus::from(&status));
            }
            bytes = next;
        }
        said
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::{FromZeros as _, IntoBytes as _};

    fn frame(kind: u32, payload: &[u8]) -> Vec<u8> {
        let header = FrameHeader {
            magic: MAGIC,
            kind,
            tag: 0,
            length: payload.len() as u32,
        };
        [header.as_bytes(), payload].concat()
    }

    #[test]
    fn frames_are_taken_apart_as_they_come() {
        let name = VmName::cut("a");
        let output = frame(event::CONSOLE_OUTPUT, &[name.as_bytes(), b"hello"].concat());
        let mut status = RawVm::new_zeroed();
        status.state = state::ENDED;
        let bytes = [output, frame(event::STATE, status.as_bytes())].concat();
        let said = Said::decode(&bytes);
        assert!(said.console == b"hello" && said.ended.is_some());
        let said = Said::decode(&bytes[..bytes.len() - 1]);
        assert!(said.console == b"hello" && said.ended.is_none());
        assert!(Said::decode(b"noise that is no frame").console.is_empty());
    }

    #[test]
    fn vm_file_is_toml() {
        let guest = Guest {
            name: "a",
            cpus: 2,
            kernel: "k".into(),
            initrd: Some("i".into()),
            args: "quiet",
            disk: Some("d".into()),
        };
        let table: Table = vm_file(&guest).parse().unwrap();
        assert_eq!(table["cpus"].as_integer(), Some(2));
        assert_eq!(table["disk"][0]["mode"].as_str(), Some("cow"));
    }
}
