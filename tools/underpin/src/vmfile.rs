//! VM files: the description of one VM, in TOML. Every problem is told with its place in the file.

use crate::{
    failure::{Failure, Result, exit},
    order::natural_by,
};
use abi::{
    Text,
    bundle::{
        self, DISK_NEVER_SHARE, DISKS_MAX, DiskRecord, NET_PLAIN, NET_UPLINK, NETS_MAX, NO_ENTRY,
        NetRecord, VM_AUTOSTART, VM_RESTART, VmRecord, disk_mode, kind,
    },
    coherence::WITHOUT,
};
use std::{
    env, fs,
    ops::RangeInclusive,
    path::{Path, PathBuf},
};

mod decode;
mod directory;
mod disk;
mod disk_file;
mod hosts;
mod image;
mod memory;
mod net;
mod partitions;
mod region;
pub(crate) mod section;

pub use directory::DiskDirectory;
pub use disk::{Backing, Base, Disk, Overlay};
pub use disk_file::DiskFile;
pub use hosts::Hosts;
pub use memory::{Memory, Sharing};
pub use net::Net;
pub(crate) use net::parse_mac;
pub use region::Region;

/// The most vCPUs a VM may have.
pub const CPUS_MAX: u32 = 16;
/// A VM's memory is a multiple of this many bytes: a stage-2 block.
pub const MEMORY_STEP: u64 = 2 << 20;
/// How many bytes of memory a VM may have.
pub const MEMORY: RangeInclusive<u64> = 64 << 20..=256 << 30;
/// The most nodes a machine has.
pub const NODES_MAX: u32 = 64;

/// A VM file that was read and checked.
#[derive(Clone, Debug)]
pub struct VmFile {
    /// The file.
    pub path: PathBuf,
    /// The VM's name.
    pub name: String,
    /// How many vCPUs it has.
    pub cpus: u32,
    /// Its memory.
    pub memory: Memory,
    /// How it shares memory with other VMs.
    pub sharing: Sharing,
    /// Its share of CPU time against other VMs; 256 is usual.
    pub weight: u32,
    /// The most CPU time it may have, in percent of one CPU for each vCPU; 0: no limit.
    pub cap: u16,
    /// The nodes it may use, a bit each; 0: the hypervisor chooses.
    pub nodes: u64,
    /// The hosts that it spans.
    pub hosts: Hosts,
    /// What they leave out of the protocol for its pages: a bit each by the place in `abi::coherence::SWITCHES`.
    pub without: u16,
    /// Whether it starts with the machine.
    pub autostart: bool,
    /// Whether it starts again when it asks for a reset.
    pub restart: bool,
    /// An arm64 Image, or a flat image.
    pub kernel: PathBuf,
    /// The initial RAM disk.
    pub initrd: Option<PathBuf>,
    /// The kernel's command line.
    pub args: String,
    /// Its disks.
    pub disks: Vec<Disk>,
    /// Its network devices.
    pub nets: Vec<Net>,
    /// Regions of memory that it shares.
    pub regions: Vec<Region>,
    /// What it may ask of the hypervisor: one of `abi::bundle::control_rights`.
    pub control: u8,
}

impl VmFile {
    /// Reads a VM file and looks at the files that it names.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path)
            .map_err(|error| Failure::vm_file("cannot read the VM file", path, &error))?;
        Self::parse(path, &text)
    }

    /// As [`VmFile::read`], with the file's text given. Other files are found relative to `path`.
    pub fn parse(path: &Path, text: &str) -> Result<Self> {
        decode::decode(path, text)
    }

    /// The files behind the VM, with their kinds (`abi::bundle::kind`).
    pub fn files(&self) -> impl Iterator<Item = (u32, &Path)> {
        let disks = self
            .disks
            .iter()
            .filter_map(Disk::image)
            .map(|image| (kind::DISK, image));
        let initrd = self.initrd.as_deref().map(|initrd| (kind::INITRD, initrd));
        std::iter::once((kind::KERNEL, self.kernel.as_path()))
            .chain(initrd)
            .chain(disks)
    }

    /// The VM as the hypervisor takes it; `entry` tells the bundle's entry number of a file of
    /// some kind.
    pub fn record(&self, mut entry: impl FnMut(u32, &Path) -> Result<u32>) -> Result<VmRecord> {
        let mut disks = [DiskRecord::default(); DISKS_MAX];
        for (record, disk) in disks.iter_mut().zip(&self.disks) {
            *record = DiskRecord {
                entry: disk
                    .image()
                    .map_or(Ok(NO_ENTRY), |image| entry(kind::DISK, image))?,
                partition: disk.partition().map_or_else(Text::default, Text::cut),
                block_size: disk.block_size,
                limit: disk.limit,
                flags: if disk.never_share {
                    DISK_NEVER_SHARE
                } else {
                    0
                },
                ..DiskRecord::default()
            };
            match &disk.backing {
                Backing::CopyOnWrite(_, Overlay { size, on }) => {
                    record.mode = disk_mode::COW;
                    record.overlay_max = *size;
                    record.overlay_on = on.as_deref().map_or_else(Text::default, Text::cut);
                }
                Backing::ReadOnly(_) => record.mode = disk_mode::READ_ONLY,
                Backing::Partition(_) | Backing::File(_) => record.mode = disk_mode::PERSISTENT,
            }
        }
        let Memory {
            base,
            max,
            swap,
            hold_ms,
        } = &self.memory;
        let sharing = &self.sharing;
        let initrd = self.initrd.as_deref();
        Ok(VmRecord {
            name: Text::cut(&self.name),
            flags: if self.autostart { VM_AUTOSTART } else { 0 }
                | if self.restart { VM_RESTART } else { 0 },
            hosts: 0,
            vcpus: self.cpus,
            memory: *max,
            base: *base,
            weight: self.weight,
            cap: self.cap,
            switched: self.without ^ WITHOUT,
            nodes: self.nodes,
            kernel: entry(kind::KERNEL, &self.kernel)?,
            initrd: initrd.map_or(Ok(NO_ENTRY), |initrd| entry(kind::INITRD, initrd))?,
            group: Text::cut(&sharing.group),
            claim: sharing.claim,
            hide: sharing.hide.into(),
            blocks: sharing.blocks,
            never_share: sharing.never.into(),
            control: self.control,
            reserved: 0,
            hold_ms: *hold_ms,
            swap: swap.as_deref().map_or_else(Text::default, Text::cut),
            disks,
            nets: self.net_records(),
            regions: region::records(&self.regions),
            command_line: Text::cut(&self.args),
        })
    }
}

impl VmFile {
    fn net_records(&self) -> [NetRecord; NETS_MAX] {
        let mut nets = [NetRecord::default(); NETS_MAX];
        for (record, net) in nets.iter_mut().zip(&self.nets) {
            *record = NetRecord {
                switch: Text::cut(&net.switch),
                mac: net.mac,
                mtu: net.mtu,
                flags: if net.offloads { 0 } else { NET_PLAIN }
                    | if net.uplink { NET_UPLINK } else { 0 },
                learns: net.learns,
                reserved: 0,
                limit: net.limit,
                floods: net.floods,
            };
        }
        nets
    }
}

/// Whether a VM may have this name.
pub fn is_name(name: &str) -> bool {
    let character = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=31).contains(&name.len()) && name.bytes().all(character)
}

/// Where downloaded and built files are kept.
pub fn cache_dir() -> PathBuf {
    let variable = |name: &str| {
        env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    variable("UNDERPIN_CACHE").unwrap_or_else(|| {
        let home = || variable("HOME").unwrap_or_default().join(".cache");
        variable("XDG_CACHE_HOME")
            .unwrap_or_else(home)
            .join("underpin")
    })
}

/// Reads several VM files; a directory stands for the `*.toml` files in it. Refuses two VMs of
/// one name, partitions and files of which two uses exclude each other, and more VMs than a bundle
/// holds.
pub fn read_all(paths: &[PathBuf]) -> Result<Vec<VmFile>> {
    let mut vms: Vec<VmFile> = Vec::new();
    let mut failures = Vec::new();
    for path in expand(paths)? {
        match VmFile::read(&path) {
            Err(failure) => failures.push(failure),
            Ok(vm) => {
                if let Some(other) = vms.iter().find(|other| other.name == vm.name) {
                    let (a, b) = (other.path.display(), path.display());
                    let message = format!("{a} and {b} both describe a VM named '{}'", vm.name);
                    let failure = Failure::new(exit::FILE, message);
                    failures.push(failure.help("give one of them another name"));
                }
                vms.push(vm);
            }
        }
    }
    failures.extend(partitions::conflicts(&vms));
    failures.extend(disk_file::conflicts(&vms));
    if vms.len() > bundle::ENTRIES_MAX as usize / 2 {
        let message = format!("{} VMs are more than one machine takes", vms.len());
        failures.push(Failure::new(exit::FILE, message).help("use fewer files"));
    }
    Failure::join(failures).map_or(Ok(vms), Err)
}

fn expand(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let failed = |error| Failure::vm_file("cannot read the directory", path, &error);
        let mut inside = Vec::new();
        for entry in fs::read_dir(path).map_err(failed)? {
            let file = entry.map_err(failed)?.path();
            if file
                .extension()
                .is_some_and(|extension| extension == "toml")
            {
                inside.push(file);
            }
        }
        if inside.is_empty() {
            let message = format!("no VM file (*.toml) is in {}", path.display());
            return Err(Failure::new(exit::FILE, message));
        }
        natural_by(&mut inside, |path| path.display().to_string());
        files.extend(inside);
    }
    Ok(files)
}

#[cfg(test)]
mod tests;
