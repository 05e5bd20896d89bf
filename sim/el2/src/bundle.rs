//! A bundle: what the boot loader lays into memory for the hypervisor (`abi::bundle`).

use crate::wire::{self, Net};
use abi::Text;
use abi::bundle::{
    ClusterRecord, DEFAULT_GROUP, DISK_NEVER_SHARE, DiskRecord, ENTRY_ALIGN, Entry, Header, MAGIC,
    NET_UPLINK, NO_ENTRY, NetRecord, VERSION, VM_AUTOSTART, VM_RESTART, VmRecord, block_policy,
    disk_mode, kind,
};
use zerocopy::{FromZeros, IntoBytes};

/// What is behind a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// The base, and memory over it.
    Memory,
    /// The base, and a partition over it.
    Partition,
    /// A partition, which keeps what is written.
    Own,
}

/// A VM to run.
#[derive(Clone, Debug)]
pub struct Vm {
    /// Its name.
    pub name: String,
    /// Its share group.
    pub group: String,
    /// vCPUs.
    pub vcpus: u32,
    /// Bytes of memory.
    pub memory: u64,
    /// Its kernel: a flat image.
    pub kernel: Vec<u8>,
    /// The most CPU time it may have, in percent; 0: all.
    pub cap: u32,
    /// A reset starts it again.
    pub restarts: bool,
    /// Its large mappings stay whole.
    pub keeps_blocks: bool,
    /// Its guest cannot time which pages are shared.
    pub hides: bool,
    /// Nothing of it is shared.
    pub never_shares: bool,
    /// Its number, and its network device.
    pub number: u8,
    /// See [`Self::number`].
    pub net: Option<Net>,
    /// What is behind its disk.
    pub disk: Backing,
    /// Bytes that its disk may move in a second; 0: no limit.
    pub disk_limit: u64,
    /// Bytes that an overlay may grow to; 0: as many as the disk has.
    pub overlay_max: u64,
    /// Nothing that is read from its disk is shared.
    pub disk_never_shares: bool,
    /// Its share of CPU time.
    pub weight: u32,
    /// It may be swapped out.
    pub swaps: bool,
}

impl Vm {
    /// The partitions that it has alone, by name; `true`: what they hold may be overwritten.
    pub fn partitions(&self) -> Vec<(String, bool)> {
        let number = self.number;
        let disk = match self.disk {
            Backing::Memory => None,
            Backing::Partition => Some((format!("over{number}"), true)),
            Backing::Own => Some((format!("own{number}"), false)),
        };
        let swap = self.swaps.then(|| (format!("swap{number}"), true));
        disk.into_iter().chain(swap).collect()
    }
}

/// The bundle of the first `described` of these VMs, and the kernels of all. Equal kernels are one entry.
pub fn build(vms: &[Vm], described: usize) -> Vec<u8> {
    let kernels = kernels(vms);
    let records = vms.iter().take(described).map(|vm| record(vm, vms));
    let records: Vec<VmRecord> = records.collect();
    let kernels = kernels.iter().enumerate();
    let kernels = kernels.map(|(n, kernel)| (kind::KERNEL, format!("kernel{n}"), *kernel));
    let records = vms.iter().zip(&records);
    let records = records.map(|(vm, record)| (kind::VM, vm.name.clone(), record.as_bytes()));
    lay_out(&kernels.chain(records).collect::<Vec<_>>())
}

/// The bundle of a host of a cluster, with a VM and its kernel if it has one.
pub fn of_host(cluster: &ClusterRecord, vm: Option<(&VmRecord, &[u8])>) -> Vec<u8> {
    let mut contents = Vec::new();
    if let Some((record, kernel)) = vm {
        contents.push((kind::KERNEL, "kernel".into(), kernel));
        let name = record.name.as_str().unwrap_or_default();
        contents.push((kind::VM, name.to_owned(), record.as_bytes()));
    }
    contents.push((kind::CLUSTER, "cluster".into(), cluster.as_bytes()));
    lay_out(&contents)
}

/// A bundle of entries: their kinds, names and contents.
fn lay_out(contents: &[(u32, String, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; size_of::<Header>() + contents.len() * size_of::<Entry>()];
    let mut entries: Vec<Entry> = Vec::new();
    for (kind, name, content) in contents {
        bytes.resize(bytes.len().next_multiple_of(ENTRY_ALIGN as usize), 0);
        entries.push(Entry {
            kind: *kind,
            reserved: 0,
            offset: bytes.len() as u64,
            size: content.len() as u64,
            name: text(name),
        });
        bytes.extend_from_slice(content);
    }
    bytes.resize(bytes.len().next_multiple_of(ENTRY_ALIGN as usize), 0);
    let header = Header {
        magic: MAGIC,
        version: VERSION,
        entries: contents.len() as u32,
        size: bytes.len() as u64,
        reserved: 0,
    };
    let head = [header.as_bytes(), entries.as_bytes()].concat();
    bytes[..head.len()].copy_from_slice(&head);
    bytes
}

/// The different kernels of these VMs.
fn kernels(vms: &[Vm]) -> Vec<&[u8]> {
    let mut kernels: Vec<&[u8]> = Vec::new();
    for vm in vms {
        if !kernels.contains(&vm.kernel.as_slice()) {
            kernels.push(&vm.kernel);
        }
    }
    kernels
}

fn text<const N: usize>(of: &str) -> Text<N> {
    Text::new(of).unwrap_or_default()
}

/// A VM's description, in a bundle of all these VMs.
pub fn record(vm: &Vm, vms: &[Vm]) -> VmRecord {
    let kernel = kernels(vms)
        .into_iter()
        .position(|kernel| kernel == vm.kernel);
    let mut record = VmRecord::new_zeroed();
    record.name = text(&vm.name);
    record.flags = VM_AUTOSTART | if vm.restarts { VM_RESTART } else { 0 };
    record.cap = vm.cap as u16;
    record.blocks = u8::from(vm.keeps_blocks) * block_policy::KEEP;
    (record.hide, record.never_share) = (vm.hides.into(), vm.never_shares.into());
    record.vcpus = vm.vcpus;
    record.memory = vm.memory;
    record.base = vm.memory;
    record.weight = vm.weight;
    record.kernel = kernel.map_or(NO_ENTRY, |number| number as u32);
    record.initrd = NO_ENTRY;
    let group = if vm.group.is_empty() {
        DEFAULT_GROUP
    } else {
        &vm.group
    };
    record.group = text(group);
    let is_own = vm.disk == Backing::Own;
    let own = format!("own{}", vm.number);
    record.disks[0] = DiskRecord {
        mode: if is_own {
            disk_mode::PERSISTENT
        } else {
            disk_mode::COW
        },
        entry: NO_ENTRY,
        block_size: 512,
        partition: text(if is_own { &own } else { crate::disk::NAME }),
        limit: vm.disk_limit,
        overlay_max: vm.overlay_max,
        flags: u32::from(vm.disk_never_shares) * DISK_NEVER_SHARE,
        ..DiskRecord::default()
    };
    if vm.disk == Backing::Partition {
        record.disks[0].overlay_on = text(&format!("over{}", vm.number));
    }
    if vm.swaps {
        record.swap = text(&format!("swap{}", vm.number));
        record.base = vm.memory / 2;
    }
    if let Some(net) = vm.net {
        record.nets[0] = NetRecord {
            switch: text(net.switch),
            mac: wire::address(vm.number),
            mtu: 1500,
            flags: if net.has_uplink { NET_UPLINK } else { 0 },
            ..NetRecord::default()
        };
    }
    record
}
