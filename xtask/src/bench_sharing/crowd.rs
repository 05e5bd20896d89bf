//! Debian's programs at work in several VMs at once, on a machine with an ordinary clock. All have
//! the same base, on a partition, so that what they share can be taken back.

use super::lab;
use crate::{project, step::Outcome};
use serde::Deserialize;
use std::{
    env, fs,
    path::PathBuf,
    process::{self, Command},
    thread::sleep,
    time::{Duration, Instant},
};
use tests_boot::{
    assets, disk_image,
    machine::{Hardware, Machine},
    status,
    vm::Vm,
};

/// How long a VM may take to boot and to do its work, beside others.
const BOOT_MAX: Duration = Duration::from_mins(15);
const WORK_MAX: Duration = Duration::from_mins(30);
/// How often one looks.
const POLL: Duration = Duration::from_secs(2);
/// The partition with Debian.
const BASE: &str = "debian";
/// What a VM says when its work is done.
const DONE: &str = "work-done-42";
/// Debian's programs, on the VM's own copy of the disk or on one that nobody writes.
const MOUNT: &str = "mount -t ext4 /dev/vda1 /mnt; for d in proc dev sys; do mount -o bind /$d /mnt/$d; \
                     done; mount -t tmpfs run /mnt/run";
const MOUNT_READ_ONLY: &str = "mount -t ext4 -o ro /dev/vda1 /mnt";
/// gcc makes a program of bzip2's source: what it needs to read is what the demo's whole job needs.
const COMPILE: &str = "chroot /mnt /bin/sh -c 'cd /usr/src/bzip2; gcc -O0 -o /run/made bzip2recover.c; \
                       /run/made 2>&1 | grep -q usage && echo compiled-$((6 * 7))'";
/// A web server, and somebody who gets all its files.
const SERVE: &str = "ifconfig lo up; cd /mnt/usr; httpd -p 80 -h .; \
                     find bin lib -type f -size +64k -size -2048k | sort | head -n 150 >/tmp/files";
const LOAD: &str = "sed s,^,127.0.0.1/, /tmp/files | xargs -n 1 wget -q -O - | sha256sum";

/// What the VMs do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// gcc compiles and links.
    Compile,
    /// A web server gives out its files, twice.
    Serve,
}

impl Work {
    fn line(self) -> String {
        let done = "echo work-done-$((6 * 7))";
        match self {
            Self::Compile => format!("{MOUNT}; {COMPILE}; {done}"),
            Self::Serve => format!("{MOUNT_READ_ONLY}; {SERVE}; {LOAD}; {LOAD}; {done}"),
        }
    }

    /// Part of what a VM says on the way, if all goes well.
    fn proof(self) -> &'static str {
        match self {
            Self::Compile => "compiled-42",
            // The checksum of the files, as each VM must find it.
            Self::Serve => "  -",
        }
    }
}

/// `underpin mem -o json`.
#[derive(Deserialize)]
pub struct Memory {
    pub vms: Vec<VmMemory>,
    pub machine: MachineMemory,
}

/// Bytes of a VM's memory.
#[derive(Deserialize)]
pub struct VmMemory {
    pub private: u64,
    pub shared: u64,
    pub overlay: u64,
    pub tables: u64,
}

/// Bytes of the machine's memory.
#[derive(Deserialize)]
pub struct MachineMemory {
    pub free: u64,
    pub reserve: u64,
    pub bases: u64,
    pub shared: u64,
    pub saved: u64,
    pub cached: u64,
    pub records: u64,
}

impl Memory {
    /// A sum over all VMs.
    pub fn sum(&self, of: fn(&VmMemory) -> u64) -> u64 {
        self.vms.iter().map(of).sum()
    }
}

/// VMs on a machine.
pub struct Crowd {
    machine: Machine,
    directory: PathBuf,
    logs: PathBuf,
}

/// A VM that waits for what it is to do.
pub fn vm(n: usize, memory: &str) -> Vm {
    let vm = Vm::linux(&name(n), "trixie-cloud", "shell").memory(memory);
    vm.args("nokaslr kpti=off cma=0").cow_partition(BASE)
}

/// The name of such a VM.
pub fn name(n: usize) -> String {
    format!("vm{n}")
}

impl Crowd {
    /// Starts a machine with two CPUs.
    ///
    /// # Errors
    /// It does not start.
    pub fn start(name: &str, memory: &str, vms: &[Vm]) -> Outcome<Self> {
        // Short: the path of a Unix socket may have 107 bytes.
        let directory = env::temp_dir()
            .join(format!("upc{}", process::id()))
            .join(name);
        let _ = fs::remove_dir_all(&directory); // absent is fine
        fs::create_dir_all(&directory)
            .map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
        let logs = lab::directory(&format!("logs-{name}"))?;
        let hardware = Hardware::new(2, memory).option("--disk");
        let hardware = hardware.option(disk()?.display().to_string());
        let machine = Machine::start(&assets::command(), &directory, &hardware, vms)?;
        let mut crowd = Self {
            machine,
            directory,
            logs,
        };
        crowd.machine.await_answer()?;
        Ok(crowd)
    }

    /// The machine.
    pub fn machine(&mut self) -> &mut Machine {
        &mut self.machine
    }

    /// Waits until a VM can be told what to do.
    ///
    /// # Errors
    /// It does not boot.
    pub fn await_boot(&mut self, vm: &str) -> Outcome {
        self.machine
            .expect(vm, "ready kernel=", 1, BOOT_MAX)
            .map(drop)
    }

    /// Tells a VM to begin.
    ///
    /// # Errors
    /// Nobody can type at its console.
    pub fn begin(&mut self, vm: &str, work: Work) -> Outcome {
        self.machine.type_line(vm, &work.line())
    }

    /// Whether a VM has done its work.
    ///
    /// # Errors
    /// It has ended, or done something else.
    pub fn is_done(&mut self, vm: &str, work: Work) -> Outcome<bool> {
        self.machine.check_alive()?;
        let status = self.machine.vm(vm)?;
        // Whoever compares its pages pauses it, and gives no reason.
        let goes_on =
            status.state == "running" || status.state == "paused" && status.reason.is_empty();
        if !goes_on {
            return Err(format!("{vm} is {}: {}", status.state, status.reason));
        }
        let console = self.machine.console(vm);
        match (console.contains(DONE), console.contains(work.proof())) {
            (true, false) => Err(format!("{vm} has not worked: {}", last_lines(&console))),
            (is_done, _) => Ok(is_done),
        }
    }

    /// Waits until all have done their work, and looks every now and then.
    ///
    /// # Errors
    /// As [`Self::is_done`], or the time is over.
    pub fn await_work(
        &mut self,
        vms: &[String],
        work: Work,
        mut look: impl FnMut(&mut Self) -> Outcome,
    ) -> Outcome {
        let deadline = Instant::now() + WORK_MAX;
        loop {
            look(self)?;
            let mut done = 0;
            for vm in vms {
                done += usize::from(self.is_done(vm, work)?);
            }
            if done == vms.len() {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "{done} of {} VMs did their work in time",
                    vms.len()
                ));
            }
            sleep(POLL);
        }
    }

    /// Who has what.
    ///
    /// # Errors
    /// EL2 does not answer.
    pub fn memory(&self) -> Outcome<Memory> {
        status::parse("mem", &self.machine.run(&["mem", "-o", "json"])?)
    }

    /// A copy of a guest's `/proc/kpageflags`, for `underpin mem analyze`.
    ///
    /// # Errors
    /// The guest does not give it.
    pub fn page_flags(&mut self, vm: &str) -> Outcome<PathBuf> {
        let words = "echo flags-begin-$((6 * 7)); gzip -c </proc/kpageflags | base64; echo flags-end-$((6 * 7))";
        self.machine.type_line(vm, words)?;
        self.machine.expect(vm, "flags-end-42", 1, BOOT_MAX)?;
        let console = self.machine.console(vm);
        let text = console
            .split_once("flags-begin-42")
            .and_then(|(_, rest)| rest.split_once("flags-end-42"));
        let (text, _) = text.ok_or_else(|| format!("{vm} does not give its page flags"))?;
        let [packed, flags] =
            ["packed", "flags"].map(|what| self.directory.join(format!("{vm}.{what}")));
        fs::write(&packed, text).map_err(|error| format!("cannot write page flags: {error}"))?;
        let unpack = "tr -d '\\r' <\"$1\" | base64 -d | gzip -d >\"$2\"";
        let status = Command::new("sh")
            .args(["-c", unpack, "sh"])
            .args([&packed, &flags])
            .status();
        match status {
            Ok(status) if status.success() => Ok(flags),
            _ => Err(format!("the page flags of {vm} cannot be unpacked")),
        }
    }

    /// Ends the machine.
    ///
    /// # Errors
    /// It does not end.
    pub fn shut_down(mut self) -> Outcome {
        self.machine.shut_down()
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.machine.kill();
        self.machine.save_logs(&self.logs);
        let _ = fs::remove_dir_all(&self.directory);
        let _ = self.directory.parent().map(fs::remove_dir); // the last one out takes the parent along
    }
}

fn last_lines(console: &str) -> String {
    let lines: Vec<&str> = console.lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}

/// The machine's disk: Debian on a partition. Made once, as nobody writes it.
fn disk() -> Outcome<PathBuf> {
    let path = project::products().join("bench-sharing/debian.disk");
    let image = assets::cache().map(|cache| cache.join("debian13.img"));
    let image = image.ok_or("there is no cache of assets")?;
    let time = |path: &PathBuf| fs::metadata(path).and_then(|data| data.modified()).ok();
    if time(&path).is_none() || time(&path) < time(&image) {
        disk_image::with_image(&path, BASE, &image)?;
    }
    Ok(path)
}

/// MiB, for a table.
pub fn mib(bytes: u64) -> String {
    format!("{:.0}", bytes as f64 / f64::from(1 << 20))
}

/// The names of so many VMs.
pub fn names(count: usize) -> Vec<String> {
    (1..=count).map(name).collect()
}
