//! A machine that belongs to an operating system, with the hypervisor resident beneath it: QEMU
//! with boot modules and without a bundle. Nothing is asked of EL2 from outside; all that is seen
//! is the machine's console.

mod disk;

use crate::{
    Outcome, archive, assets, because,
    vm::{NO_SELF_TESTS, Vm},
};
use abi::upgrade::{Mark, VERSION};
pub use disk::Format;
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};
use tools_abi::image::seal;

const POLL: Duration = Duration::from_millis(250);
const COUNTED: &str = "-accel tcg,thread=single -icount shift=0,sleep=off -M dtb-randomness=on -seed 1 -rtc base=2026-01-01,clock=vm";
const CONSOLE: &str = "os0.log";
/// A network of QEMU's own, without a way out.
const NETWORK: &str = "user,id=net,restrict=on,guestfwd=tcp:10.0.2.100:7-cmd:cat";
/// The parts of OS-0's first program, where it looks for them.
const PARTS: [&str; 9] = [
    "os0.d/beside.sh",
    "os0.d/cost.sh",
    "os0.d/demo.sh",
    "os0.d/end.sh",
    "os0.d/lend.sh",
    "os0.d/load.sh",
    "os0.d/network.sh",
    "os0.d/park.sh",
    "os0.d/switch.sh",
];
/// What no console may say: the operating system's complaints, and EL2's.
const COMPLAINTS: [&str; 9] = [
    "os0: failed",
    "EPITAPH",
    "Kernel panic",
    "Oops",
    "BUG:",
    "rcu: INFO",
    "lockup",
    "Call trace",
    "Attempted to kill init",
];

/// Those of them that a panic on purpose says.
const PANICS: [&str; 2] = ["Kernel panic", "Call trace"];

/// The kernel and the machine it owns.
#[derive(Clone, Debug)]
pub struct Os0 {
    kernel: Kernel,
    cpus: u32,
    memory: &'static str,
    cpu: &'static str,
    arguments: String,
    disk: Option<Disk>,
    has_nic: bool,
    has_module: bool,
    is_counted: bool,
    beneath: Beneath,
    options: &'static str,
    has_hooks: bool,
    vms: Vec<Vm>,
    has_images: bool,
    has_mke2fs: bool,
    starts_anew: bool,
    expects: Vec<(String, Duration)>,
}

#[derive(Clone, Debug)]
enum Kernel {
    /// One of the asset cache.
    Debian(&'static str),
    /// A file that is none.
    Nonsense,
}

/// What the kernel starts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Beneath {
    /// EL2's image, which starts the kernel.
    Underpin,
    /// Nothing: the kernel has EL2 itself.
    Nothing,
    /// Nothing, on a machine without EL2: firmware is called by HVC.
    NoEl2,
}

#[derive(Clone, Copy, Debug)]
enum Disk {
    /// So many bytes of nothing.
    Empty(u64),
    /// The same, of which so many bytes are written in a second.
    Slow(u64, u32),
    /// So many bytes of zeroes, each request of which takes as long as on a disk: always longer than nothing.
    Late(u64),
    /// So many bytes of nothing for a VM, whose writes and flushes are logged.
    Logged(u64, Format),
    /// An image of the asset cache, whose changes are dropped.
    Cached(&'static str),
}

impl Os0 {
    /// A kernel of the asset cache that does `actions` (`os0.do=`, assets/os0/init).
    pub fn new(kernel: &'static str, cpus: u32, memory: &'static str, actions: &str) -> Self {
        Self {
            kernel: Kernel::Debian(kernel),
            cpus,
            memory,
            cpu: "max,pauth=off",
            arguments: format!("console=ttyAMA0 {NO_SELF_TESTS} rdinit=/os0 os0.do={actions}"),
            disk: None,
            has_nic: false,
            has_module: false,
            is_counted: false,
            beneath: Beneath::Underpin,
            options: "",
            has_hooks: false,
            vms: Vec::new(),
            has_images: false,
            has_mke2fs: false,
            starts_anew: false,
            expects: Vec::new(),
        }
    }

    /// A boot module that is no kernel.
    pub fn nonsense() -> Self {
        Self {
            kernel: Kernel::Nonsense,
            ..Self::new("trixie-cloud", 1, "1G", "")
        }
    }

    /// With another CPU than QEMU's `max`.
    #[must_use]
    pub fn cpu(mut self, model: &'static str) -> Self {
        self.cpu = model;
        self
    }

    /// With an empty disk behind PCI, whose interrupts come as messages.
    #[must_use]
    pub fn disk(mut self, bytes: u64) -> Self {
        self.disk = Some(Disk::Empty(bytes));
        self
    }

    /// As [`Self::disk`], and no more than `rate` bytes are written in a second.
    #[must_use]
    pub fn slow_disk(mut self, bytes: u64, rate: u32) -> Self {
        self.disk = Some(Disk::Slow(bytes, rate));
        self
    }

    /// As [`Self::disk`], and who asks always has to wait.
    #[must_use]
    pub fn late_disk(mut self, bytes: u64) -> Self {
        self.disk = Some(Disk::Late(bytes));
        self
    }

    /// With a disk behind PCI of so many bytes for a VM, whose writes and flushes are logged. What it holds in the end
    /// of what was flushed is added to what the console said: `host: image sha256=SUM`.
    #[must_use]
    pub fn logged_disk(mut self, bytes: u64, format: Format) -> Self {
        self.disk = Some(Disk::Logged(bytes, format));
        self
    }

    /// With a network card behind PCI; what is sent to port 7 of 10.0.2.100 comes back.
    #[must_use]
    pub fn nic(mut self) -> Self {
        self.has_nic = true;
        self
    }

    /// With more words on its command line.
    #[must_use]
    pub fn words(mut self, words: &str) -> Self {
        self.arguments = format!("{} {words}", self.arguments);
        self
    }

    /// With Underpin's kernel module, which switches so many times there and back.
    #[must_use]
    pub fn pairs(mut self, pairs: u32) -> Self {
        self.has_module = true;
        // Linux lets a program reach the interrupt controller only then.
        self.arguments = format!("{} iomem=relaxed os0.pairs={pairs}", self.arguments);
        self
    }

    /// With the kernel module and the command.
    #[must_use]
    pub fn module(mut self) -> Self {
        self.has_module = true;
        self
    }

    /// On another machine.
    #[must_use]
    pub fn beneath(mut self, beneath: Beneath) -> Self {
        self.beneath = beneath;
        self
    }

    /// With a command line for EL2.
    #[must_use]
    pub fn options(mut self, options: &'static str) -> Self {
        self.options = options;
        self
    }

    /// With a hypervisor whose switches and upgrades fail where a test asks for it.
    #[must_use]
    pub fn hooks(mut self) -> Self {
        self.has_hooks = true;
        self.options("inject")
    }

    fn image(&self) -> PathBuf {
        if self.has_hooks {
            assets::hooked_image()
        } else {
            assets::image()
        }
    }

    /// With the kernel module, and time that moves by one nanosecond for each instruction.
    #[must_use]
    pub fn counted(mut self) -> Self {
        self.has_module = true;
        self.is_counted = true;
        self
    }

    /// With the files of VMs that run beside it, in memory that it lends, once it does `beside`.
    #[must_use]
    pub fn beside(mut self, vms: Vec<Vm>) -> Self {
        self.has_module = true;
        self.arguments = format!("{} os0.vms={}", self.arguments, vms.len());
        self.vms = vms;
        self
    }

    /// With images of the hypervisor in `images/`: the one that runs, and others ([`images`]).
    #[must_use]
    pub fn images(mut self) -> Self {
        self.has_images = true;
        self.module()
    }

    /// With what makes disks of directories, as Debian has it.
    #[must_use]
    pub fn mke2fs(mut self) -> Self {
        self.has_mke2fs = true;
        self
    }

    /// With what it stages to be started in its place, in `again/`; it says that it panics, once.
    #[must_use]
    pub fn starts_anew(mut self) -> Self {
        self.starts_anew = true;
        self
    }

    /// With the system on a disk of the asset cache instead of the test's program.
    #[must_use]
    pub fn system(mut self, image: &'static str) -> Self {
        self.disk = Some(Disk::Cached(image));
        "console=ttyAMA0 root=/dev/vda1 rw".clone_into(&mut self.arguments);
        self
    }

    /// The console shows `text`, at most so many seconds after the text before.
    #[must_use]
    pub fn expect(mut self, text: impl Into<String>, seconds: u64) -> Self {
        self.expects
            .push((text.into(), Duration::from_secs(seconds)));
        self
    }

    /// Plays it in `directory`; gives what the console said.
    ///
    /// # Errors
    /// Something expected does not come, or something else does.
    pub fn play(&self, directory: &Path, logs: &Path) -> Outcome<String> {
        self.play_to(directory, logs, &mut |_| ())
    }

    /// As [`Self::play`]; `listener` hears all that the console has said, again and again.
    ///
    /// # Errors
    /// As [`Self::play`].
    pub fn play_to(
        &self,
        directory: &Path,
        logs: &Path,
        listener: &mut dyn FnMut(&str),
    ) -> Outcome<String> {
        let console = logs.join(CONSOLE);
        let said = File::create(&console).map_err(because("cannot write a console's log"))?;
        let errors = said.try_clone().map_err(because("cannot write a log"))?;
        let mut qemu = self.machine(directory, "stdio")?;
        qemu.stdin(Stdio::null()).stdout(said).stderr(errors);
        let mut qemu = qemu.spawn().map_err(because("cannot start QEMU"))?;
        let outcome = self.watch(&mut qemu, &console, listener);
        // It may have powered itself off, which is as good.
        let _ = qemu.kill();
        let _ = qemu.wait();
        outcome?;
        let mut said = read(&console);
        if let Some(Disk::Logged(bytes, format)) = self.disk {
            said.push_str(&disk::flushed_sum(directory, bytes, format)?);
        }
        Ok(said)
    }

    /// Gives the machine to whoever is at this terminal, until it is powered off.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn lend(&self, directory: &Path) -> Outcome {
        // With Ctrl-C for the machine, and Ctrl-A X to end it.
        let status = self.machine(directory, "mon:stdio")?.status();
        status.map_err(because("cannot start QEMU")).map(drop)
    }

    /// The command that starts it, with its console on the standard streams.
    fn machine(&self, directory: &Path, serial: &str) -> Outcome<Command> {
        let kernel = self.kernel_file(directory)?;
        let initrd = directory.join("initrd");
        if let Kernel::Debian(name) = self.kernel {
            let program = |name| {
                let file = assets::root().join("assets/os0").join(name);
                assets::read(&file)
            };
            let mut files = vec![("os0", program("init")?)];
            for part in PARTS {
                files.push((part, program(part.trim_start_matches("os0.d/"))?));
            }
            if self.has_module {
                files.extend(beside_module(name)?);
            }
            if self.has_images {
                files.extend(images(self.image())?);
            }
            if self.starts_anew {
                archive::initrd(&initrd, name, &files)?;
                let again = fs::read(&initrd).map_err(because("cannot read an initrd"))?;
                files.push(("again/initrd", again));
            }
            let mut own = self.vm_files(name)?;
            if self.has_mke2fs {
                own.extend(mke2fs()?);
            }
            files.extend(
                own.iter()
                    .map(|(path, bytes)| (path.as_str(), bytes.clone())),
            );
            archive::initrd(&initrd, name, &files)?;
        } else {
            fs::write(&initrd, b"nothing").map_err(because("cannot write an initrd"))?;
        }
        // The machine dies with this thread, so that a killed test leaves no QEMU behind.
        let mut qemu = Command::new("setpriv");
        qemu.args(["--pdeathsig", "KILL", "qemu-system-aarch64"])
            .args(["-M", self.machine_type()])
            // Not reserved on the host, so that a machine can be larger than its host.
            .args(["-object", &memory_backend(self.memory)])
            .args(["-cpu", self.cpu])
            .args(["-smp", &self.cpus.to_string(), "-m", self.memory])
            .args(["-nodefaults", "-no-user-config", "-no-reboot"])
            .args(["-display", "none", "-serial", serial]);
        if self.beneath == Beneath::Underpin {
            qemu.arg("-kernel")
                .arg(self.image())
                .args(["-append", self.options])
                .args(["-device", &self.kernel_module(&kernel)])
                .args(["-device", &module("0x58000000", "initrd", &initrd)]);
        } else {
            qemu.arg("-kernel").arg(&kernel).arg("-initrd").arg(&initrd);
            qemu.args(["-append", &self.arguments]);
        }
        if self.is_counted {
            qemu.args(COUNTED.split(' ')).args(assets::counted_clock());
        } else {
            qemu.args(["-accel", "tcg,thread=multi"]);
        }
        self.add_devices(&mut qemu, directory)?;
        Ok(qemu)
    }

    fn add_devices(&self, qemu: &mut Command, directory: &Path) -> Outcome {
        if let Some(disk) = self.disk_options(directory)? {
            qemu.args(["-drive", &disk])
                .args(["-device", "virtio-blk-pci,drive=disk"]);
        }
        if self.has_nic {
            qemu.args(["-netdev", NETWORK])
                .args(["-device", "virtio-net-pci,netdev=net,romfile="]);
        }
        Ok(())
    }

    fn machine_type(&self) -> &'static str {
        match self.beneath {
            Beneath::NoEl2 => "virt,gic-version=3,memory-backend=ram",
            _ => "virt,virtualization=on,gic-version=3,memory-backend=ram",
        }
    }

    /// The VMs' files, `vms/NAME.toml`, and what they boot from, in an asset cache `cache/`.
    fn vm_files(&self, kernel: &str) -> Outcome<Vec<(String, Vec<u8>)>> {
        let mut files = Vec::new();
        for vm in &self.vms {
            files.push((format!("vms/{}.toml", vm.name), vm.to_toml()?.into_bytes()));
            if let Some(guest) = vm.cached_guest() {
                let path = assets::guest(guest);
                let bytes = fs::read(&path).map_err(because(format!("cannot read {path}")))?;
                files.push((format!("cache/guests/{guest}.img"), bytes));
            }
        }
        if !files.is_empty() {
            for asset in [
                format!("kernels/{kernel}/vmlinuz"),
                format!("initramfs/{kernel}.cpio.gz"),
            ] {
                let bytes = assets::read_cached(&asset)?;
                files.push((format!("cache/{asset}"), bytes));
            }
        }
        Ok(files)
    }

    fn kernel_file(&self, directory: &Path) -> Outcome<PathBuf> {
        match self.kernel {
            Kernel::Debian(name) => assets::cached(&format!("kernels/{name}/vmlinuz")),
            Kernel::Nonsense => {
                let path = directory.join("kernel");
                fs::write(&path, [0x5a; 4096]).map_err(because("cannot write a kernel"))?;
                Ok(path)
            }
        }
    }

    fn kernel_module(&self, kernel: &Path) -> String {
        let arguments = self.arguments.replace(',', ",,");
        format!(
            "{},bootargs={arguments}",
            module("0x50000000", "kernel", kernel)
        )
    }

    fn disk_options(&self, directory: &Path) -> Outcome<Option<String>> {
        let (path, more) = match self.disk {
            None => return Ok(None),
            Some(Disk::Late(bytes)) => {
                let options = "if=none,id=disk,driver=null-co,read-zeroes=on";
                return Ok(Some(format!("{options},size={bytes},latency-ns=200000")));
            }
            Some(Disk::Empty(bytes)) => (disk::empty_disk(directory, bytes)?, String::new()),
            Some(Disk::Slow(bytes, rate)) => {
                let limit = format!(",throttling.bps-write={rate}");
                (disk::empty_disk(directory, bytes)?, limit)
            }
            Some(Disk::Logged(bytes, format)) => {
                return disk::logged(directory, bytes, format).map(Some);
            }
            Some(Disk::Cached(name)) => {
                let name = name.strip_prefix("cache:").unwrap_or(name);
                (assets::cached(name)?, ",snapshot=on".to_owned())
            }
        };
        let file = path.display();
        Ok(Some(format!(
            "if=none,id=disk,format=raw,file={file}{more}"
        )))
    }

    fn watch(&self, qemu: &mut Child, console: &Path, listener: &mut dyn FnMut(&str)) -> Outcome {
        let mut seen = 0;
        for (text, within) in &self.expects {
            let deadline = Instant::now() + *within;
            loop {
                // The state first: what an ended machine has not said by now, it will never say.
                let ended = qemu.try_wait().map_err(because("cannot look after QEMU"))?;
                let said = read(console);
                listener(&said);
                let is_meant = |words: &str| self.starts_anew && PANICS.contains(&words);
                let mut complaints = COMPLAINTS.iter().filter(|words| !is_meant(words));
                if let Some(complaint) = complaints.find(|words| said.contains(**words)) {
                    return Err(format!("the console says '{complaint}'"));
                }
                if let Some(at) = said.get(seen..).and_then(|rest| rest.find(text.as_str())) {
                    seen += at;
                    break;
                }
                if let Some(status) = ended {
                    return Err(format!("QEMU ended ({status}) without '{text}'"));
                }
                if Instant::now() > deadline {
                    return Err(format!("'{text}' did not come in {} s", within.as_secs()));
                }
                sleep(POLL);
            }
        }
        Ok(())
    }
}

/// The kernel module, what tests of it need, and the command.
fn beside_module(kernel: &str) -> Outcome<Vec<(&'static str, Vec<u8>)>> {
    let module = assets::module(kernel);
    let parts = [
        ("underpin.ko", module.clone()),
        ("rogue.ko", module.with_file_name("rogue.ko")),
        ("kexec", module.with_file_name("kexec")),
        ("services", module.with_file_name("services")),
        ("fragment", module.with_file_name("fragment")),
        ("underpin", assets::arm64_command()),
    ];
    let read = |(name, path): (&'static str, PathBuf)| {
        let shown = path.display();
        let tried = format!("cannot read {shown} (scripts/setup or `xtask build` makes it)");
        Ok((name, fs::read(&path).map_err(because(tried))?))
    };
    parts.into_iter().map(read).collect()
}

/// `mke2fs`, and libraries where the loader finds them.
fn mke2fs() -> Outcome<Vec<(String, Vec<u8>)>> {
    let root = assets::cached("mke2fs")?;
    let mut files = vec![(
        "sbin/mke2fs".to_owned(),
        assets::read(&root.join("mke2fs"))?,
    )];
    let libraries = fs::read_dir(root.join("lib")).map_err(because("cannot read mke2fs/lib"))?;
    for library in libraries {
        let library = library.map_err(because("cannot read mke2fs/lib"))?;
        let name = library.file_name();
        files.push((
            format!("lib/{}", name.display()),
            assets::read(&library.path())?,
        ));
    }
    Ok(files)
}

/// Images of the hypervisor: `same` as the one that runs; `other`, laid out differently inside; `changed`
/// on its way; and `future`, which reads nothing that the one that runs could leave for it.
fn images(own: PathBuf) -> Outcome<Vec<(&'static str, Vec<u8>)>> {
    let read = |path: PathBuf| {
        fs::read(&path).map_err(because(format!(
            "cannot read {} (`xtask build` makes it)",
            path.display()
        )))
    };
    let same = read(own)?;
    let mut changed = same.clone();
    changed[0x4_0000] ^= 1;
    let mut future = same.clone();
    let mark = Mark {
        oldest: VERSION + 1,
        newest: VERSION + 1,
        ..Mark::of(&same).map_err(|misfit| format!("the image is not sealed: {misfit:?}"))?
    };
    if !seal(mark, &mut future) {
        return Err("the image cannot be sealed".to_owned());
    }
    Ok(vec![
        ("images/same", same),
        ("images/other", read(assets::other_image())?),
        ("images/changed", changed),
        ("images/future", future),
    ])
}

/// One boot module for QEMU's guest-loader.
fn module(address: &str, kind: &str, path: &Path) -> String {
    let path = path.display().to_string().replace(',', ",,");
    format!("guest-loader,addr={address},{kind}={path}")
}

fn memory_backend(size: &str) -> String {
    format!("memory-backend-ram,id=ram,size={size},reserve=off")
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}
