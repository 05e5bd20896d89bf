//! The directory of a running machine: its sockets, logs and lock.

use super::cluster::{self, Cluster, HOSTS_MAX, Port};
use crate::{
    beneath,
    control::{Client, console_log, guest_port},
    failure::{Failure, Result, exit},
    progress::Progress,
    units,
    vmfile::{self, DiskFile, VmFile, cache_dir},
};
use std::{
    collections::BTreeSet,
    env,
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::{
        fs::{DirBuilderExt as _, MetadataExt as _},
        net::UnixStream,
    },
    path::{Path, PathBuf},
};
use xxhash_rust::xxh3::xxh3_64;

/// Where a machine's files are; it may run or not.
#[derive(Clone, Debug)]
pub struct RunDir {
    machine: String,
    /// Where it is one host of a cluster.
    host: Option<String>,
    path: PathBuf,
}

/// Held while a machine runs.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl RunDir {
    /// The directory of the machine of that name.
    pub fn of(machine: &str) -> Result<Self> {
        if !vmfile::is_name(machine) {
            let message = format!("'{machine}' cannot be a machine's name");
            let help = "use 1 to 31 characters: small letters a to z, digits and hyphens";
            return Err(Failure::new(exit::USAGE, message).help(help));
        }
        let runtime = env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
        let runtime = runtime.map_or_else(|| PathBuf::from("/tmp"), PathBuf::from);
        let user = rustix::process::getuid().as_raw();
        let path = runtime.join(format!("underpin-{user}")).join(machine);
        Ok(Self {
            machine: machine.to_owned(),
            host: None,
            path,
        })
    }

    /// That of one host, where the machine is a cluster. Inside a VM, hosts have the names of the cluster's file.
    pub fn of_host(&self, host: &str) -> Result<Self> {
        let number = host.strip_prefix("host").unwrap_or_default();
        let is_simulated = !number.is_empty() && number.chars().all(|c| c.is_ascii_digit());
        let is_known = is_simulated || guest_port::find().is_some() && vmfile::is_name(host);
        if !is_known {
            let message = format!("'{host}' cannot be a host's name");
            return Err(Failure::new(exit::USAGE, message).help("use host0, host1 and so on"));
        }
        Ok(Self {
            machine: self.machine.clone(),
            host: Some(host.to_owned()),
            path: self.path.join(host),
        })
    }

    /// The host's name, where it is one of a cluster.
    pub fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    /// The hosts that run, where it is a cluster.
    pub fn hosts(&self) -> Vec<Self> {
        let names = (0..HOSTS_MAX).map(cluster::name);
        let hosts = names.filter_map(|name| self.of_host(&name).ok());
        hosts
            .filter(|host| UnixStream::connect(host.control_socket()).is_ok())
            .collect()
    }

    /// How the host is joined to the others of this cluster.
    pub fn port(&self, cluster: &Cluster) -> Result<Option<Port>> {
        let Some(host) = self.host() else {
            return Ok(None);
        };
        Ok(Some(Port {
            me: cluster.number(host)?,
            cluster: self.path.parent().unwrap_or(&self.path).to_owned(),
            host_dir: self.path.clone(),
        }))
    }

    /// The machine's name.
    pub fn machine(&self) -> &str {
        &self.machine
    }

    /// Whether it is the machine that this system lends memory to.
    pub fn is_beneath(&self) -> bool {
        self.machine == beneath::MACHINE
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The socket where the broker serves commands.
    pub fn control_socket(&self) -> PathBuf {
        self.path.join("control.sock")
    }

    /// What the hypervisor wrote to its UART.
    pub fn hypervisor_log(&self) -> PathBuf {
        self.path.join("hypervisor.log")
    }

    /// What QEMU and the broker said.
    pub fn emulator_log(&self) -> PathBuf {
        self.path.join("qemu.log")
    }

    /// The directory of the console logs.
    pub fn consoles(&self) -> PathBuf {
        self.path.join("consoles")
    }

    /// The memory of a measuring machine.
    pub fn memory(&self) -> PathBuf {
        self.path.join("memory")
    }

    /// A VM's console log.
    pub fn console_log(&self, vm: &str) -> PathBuf {
        console_log::path(&self.consoles(), vm)
    }

    /// Where the names of files that are disks of the machine's VMs are.
    fn disk_files(&self) -> PathBuf {
        self.path.join("files.list")
    }

    /// Where copies of directories are that are disks of the machine's VMs.
    fn copies(&self) -> PathBuf {
        let hash = xxh3_64(self.path.as_os_str().as_encoded_bytes());
        let name = format!("{}-{hash:016x}", self.machine);
        cache_dir().join("directories").join(name)
    }

    /// Removes the copies of directories, which are made anew for the next start.
    pub fn remove_copies(&self) -> io::Result<()> {
        match fs::remove_dir_all(self.copies()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes the files that are disks of these VMs, where they are not there, and copies of directories, and keeps in
    /// mind that the machine has them: all of them.
    pub fn make_disks(&self, vms: &[VmFile], progress: Progress) -> Result<Vec<DiskFile>> {
        let mut all: Vec<DiskFile> = vms.iter().flat_map(VmFile::disk_files).cloned().collect();
        all.iter().try_for_each(DiskFile::make)?;
        all.extend(self.copy_directories(vms, progress)?);
        let names: Vec<&str> = all.iter().map(|file| &*file.name).collect();
        let path = self.disk_files();
        fs::write(&path, names.join("\n"))
            .map_err(|error| Failure::file("cannot write", &path, &error))?;
        Ok(all)
    }

    /// Copies directories that are disks of these VMs, each once.
    fn copy_directories(&self, vms: &[VmFile], progress: Progress) -> Result<Vec<DiskFile>> {
        let copies = self.copies();
        let failed =
            |error: io::Error| Failure::file("cannot copy directories to", &copies, &error);
        self.remove_copies().map_err(failed)?;
        let mut made: Vec<DiskFile> = Vec::new();
        for directory in vms.iter().flat_map(VmFile::disk_directories) {
            if made.iter().any(|copy| copy.name == directory.name) {
                continue;
            }
            let copy = directory.copy_in(&copies);
            let (size, path) = (units::size(copy.size), directory.path.display());
            progress.say(&format!("copying {path} into a file system of {size}"));
            fs::create_dir_all(&copies).map_err(failed)?;
            directory.make(&copy.path)?;
            made.push(copy);
        }
        Ok(made)
    }

    /// Refuses a VM with a file or directory that the running machine has no disk of.
    pub fn has_disks(&self, vm: &VmFile) -> Result<()> {
        let list = fs::read_to_string(self.disk_files()).unwrap_or_default();
        let files = vm.disk_files().map(|file| (&file.name, &file.path, "file"));
        let directories = vm.disk_directories();
        let directories = directories.map(|it| (&it.name, &it.path, "directory"));
        let is_missing = |(name, ..): &(&String, _, _)| !list.lines().any(|it| it == *name);
        let Some((_, path, kind)) = files.chain(directories).find(is_missing) else {
            return Ok(());
        };
        let message = format!(
            "the {kind} {} is no disk of the running machine",
            path.display()
        );
        let help = format!(
            "the machine takes files and directories only when it starts: end it, and start it with {} too",
            vm.path.display()
        );
        Err(Failure::new(exit::FILE, message).help(help))
    }

    /// Makes the directory anew and takes its lock; fails when the machine runs.
    pub fn take(&self) -> Result<Lock> {
        self.make_private()?;
        let path = self.path.join("lock");
        let failed = |error: io::Error| Failure::file("cannot lock", &path, &error);
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path);
        let file = file
            .as_mut()
            .map_err(|error| Failure::file("cannot lock", &path, error))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::Error(error)) => return Err(failed(error)),
            Err(TryLockError::WouldBlock) => {
                let mut owner = String::new();
                let _ = file.read_to_string(&mut owner);
                let message = format!(
                    "a machine '{}' is already running (process {})",
                    self.machine,
                    owner.trim()
                );
                let help = "end it with `underpin shutdown`, or name this one: --machine NAME";
                return Err(Failure::new(exit::FAILED, message).help(help));
            }
        }
        file.set_len(0).map_err(failed)?;
        writeln!(file, "{}", std::process::id()).map_err(failed)?;
        self.clear_sockets();
        for log in [self.hypervisor_log(), self.emulator_log()] {
            let _ = fs::remove_file(log);
        }
        let _ = fs::remove_dir_all(self.consoles());
        fs::create_dir(self.consoles()).map_err(failed)?;
        Ok(Lock {
            _file: file.try_clone().map_err(failed)?,
        })
    }

    /// Makes the directory, and refuses one that others could have put there.
    fn make_private(&self) -> Result<()> {
        let failed = |error: io::Error| Failure::file("cannot make", &self.path, &error);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.path)
            .map_err(failed)?;
        let user = rustix::process::getuid().as_raw();
        for directory in [self.path.parent().unwrap_or(&self.path), &self.path] {
            let metadata = fs::symlink_metadata(directory).map_err(failed)?;
            if !metadata.is_dir() || metadata.uid() != user || metadata.mode() & 0o077 != 0 {
                let message = format!("{} is not private to this user", directory.display());
                let help = "remove it, or set XDG_RUNTIME_DIR to a directory of yours";
                return Err(Failure::new(exit::FAILED, message).help(help));
            }
        }
        Ok(())
    }

    /// Removes the sockets of a machine that has ended.
    pub fn clear_sockets(&self) {
        for socket in [self.control_socket(), self.path.join("qmp.sock")] {
            let _ = fs::remove_file(socket);
        }
    }

    /// Connects to the machine's broker, or, inside one of its VMs, to the hypervisor.
    pub fn connect(&self) -> Result<Client> {
        if let Ok(stream) = UnixStream::connect(self.control_socket()) {
            return Ok(Client::new(stream));
        }
        if let Some(port) = guest_port::find().filter(|_| !self.is_beneath()) {
            let client = guest_port::connect(&port, self.consoles())?;
            return match self.host() {
                None => Ok(client),
                Some(host) => client.at(host),
            };
        }
        let hosts = self.hosts();
        if let Some(first) = hosts.first().and_then(Self::host) {
            let names: Vec<&str> = hosts.iter().filter_map(Self::host).collect();
            let message = format!(
                "'{}' is a cluster, and no host of it is named",
                self.machine
            );
            let help = format!("name one of {}, as in --host {first}", names.join(", "));
            return Err(Failure::new(exit::NO_MACHINE, message).help(help));
        }
        let of = self
            .host()
            .map(|host| format!("{host} of "))
            .unwrap_or_default();
        let message = format!("no {}machine '{}' runs", of, self.machine);
        let help = if self.is_beneath() {
            "start VMs: underpin run FILE...; or serve those that run: underpin serve"
        } else {
            "start one: underpin sim FILE...; or ask inside a VM whose file says control = \"read\" or \"all\""
        };
        let others = self.others().into_iter();
        let others = others.map(|name| format!("'{name}' runs: --machine {name}; "));
        let help = others.chain([help.to_owned()]).collect::<String>();
        Err(Failure::new(exit::NO_MACHINE, message).help(help))
    }

    /// The names of other machines of this user that run.
    fn others(&self) -> BTreeSet<String> {
        let machines = self.path.parent().and_then(|all| fs::read_dir(all).ok());
        let names = machines.into_iter().flatten().flatten();
        names
            .filter_map(|entry| Self::of(entry.file_name().to_str()?).ok())
            .filter(|other| UnixStream::connect(other.control_socket()).is_ok())
            .map(|other| other.machine)
            .collect()
    }

    /// The last lines of the hypervisor's log, or of QEMU's where that one is empty.
    pub fn last_words(&self) -> String {
        let words = tail(&self.hypervisor_log(), 25);
        if words.is_empty() {
            tail(&self.emulator_log(), 25)
        } else {
            words
        }
    }

    /// Copies the logs to a directory.
    pub fn keep_logs(&self, directory: &Path) -> Result<()> {
        let failed = |error: io::Error| Failure::file("cannot keep the logs in", directory, &error);
        fs::create_dir_all(directory.join("consoles")).map_err(failed)?;
        let wire = cluster::wire_report(&self.path);
        for log in [self.hypervisor_log(), self.emulator_log(), wire] {
            if let Some(name) = log.file_name().filter(|_| log.exists()) {
                fs::copy(&log, directory.join(name)).map_err(failed)?;
            }
        }
        for log in fs::read_dir(self.consoles()).map_err(failed)? {
            let log = log.map_err(failed)?;
            fs::copy(log.path(), directory.join("consoles").join(log.file_name()))
                .map_err(failed)?;
        }
        Ok(())
    }
}

/// The last lines of a file; what cannot be read is empty.
pub fn tail(path: &Path, lines: usize) -> String {
    let read = || -> io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(16 * 1024)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let text = String::from_utf8_lossy(&read().unwrap_or_default()).replace('\r', "");
    let all: Vec<&str> = text.trim_end().lines().collect();
    all.get(all.len().saturating_sub(lines)..)
        .unwrap_or_default()
        .join("\n")
}
