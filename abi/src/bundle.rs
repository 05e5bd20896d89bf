//! The bundle: one file with all that VMs are made of, laid in memory by the boot loader
//! (`linux,initrd-start` of the machine's device tree).
//!
//! A [`Header`], then its [`Entry`] table, then the entries' bytes, each from an offset that is a
//! multiple of 4 KiB, so that pages of a disk image or a kernel are frames of the machine.

use crate::Text;
use core::fmt;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The first eight bytes of a bundle.
pub const MAGIC: [u8; 8] = *b"UNDERPIN";
/// The layout's version; a reader refuses every other.
pub const VERSION: u32 = 1;
/// Entries begin at multiples of this many bytes.
pub const ENTRY_ALIGN: u64 = 4096;
/// The most entries a bundle may have.
pub const ENTRIES_MAX: u32 = 256;
/// The most disks a VM may have.
pub const DISKS_MAX: usize = 4;
/// "No entry", where an entry's number is optional.
pub const NO_ENTRY: u32 = u32::MAX;

/// The bundle's first bytes. Filled by the tool that builds it.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// [`VERSION`].
    pub version: u32,
    /// How many entries follow, at most [`ENTRIES_MAX`].
    pub entries: u32,
    /// Bytes of the whole bundle.
    pub size: u64,
    /// Zero.
    pub reserved: u64,
}
const _: () = assert!(size_of::<Header>() == 32);

/// One thing in the bundle.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Entry {
    /// What it is: one of [`kind`].
    pub kind: u32,
    /// Zero.
    pub reserved: u32,
    /// Where its bytes begin, from the bundle's first byte.
    pub offset: u64,
    /// How many bytes it has.
    pub size: u64,
    /// Its name, unique among entries of its kind.
    pub name: Text<40>,
}
const _: () = assert!(size_of::<Entry>() == 64);

/// What an entry can be.
pub mod kind {
    /// A [`super::VmRecord`].
    pub const VM: u32 = 1;
    /// An arm64 `Image`, or a flat image entered at its first byte.
    pub const KERNEL: u32 = 2;
    /// An initial RAM disk.
    pub const INITRD: u32 = 3;
    /// A raw disk image: a read-only base.
    pub const DISK: u32 = 4;
}

/// How a VM uses a disk.
pub mod disk_mode {
    /// No disk in this place.
    pub const NONE: u32 = 0;
    /// A base image of the bundle under a private overlay in memory, gone when the VM ends.
    pub const COW: u32 = 1;
    /// A partition of a physical disk, written through, for one VM at a time.
    pub const PERSISTENT: u32 = 2;
    /// A base image of the bundle that cannot be written.
    pub const READ_ONLY: u32 = 3;
}

/// One disk of a VM.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DiskRecord {
    /// One of [`disk_mode`].
    pub mode: u32,
    /// The base's entry number; [`NO_ENTRY`] for a persistent disk.
    pub entry: u32,
    /// The logical block size: 512 or 4096 bytes.
    pub block_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Bytes the overlay may grow to; 0: as many as the disk has.
    pub overlay_max: u64,
    /// Bytes of the disk; 0: as many as the base has.
    pub size: u64,
    /// The name of the partition behind a persistent disk.
    pub partition: Text<40>,
}
const _: () = assert!(size_of::<DiskRecord>() == 72);

/// [`VmRecord::flags`]: started when the machine has booted.
pub const VM_AUTOSTART: u32 = 1 << 0;
/// [`VmRecord::flags`]: started again when it asks for a reset (otherwise a reset ends it).
pub const VM_RESTART: u32 = 1 << 1;

/// The description of a VM, as the tool made it from the VM's file.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct VmRecord {
    /// Its name, unique on the machine.
    pub name: Text<32>,
    /// Bits `VM_*`.
    pub flags: u32,
    /// Virtual CPUs, from 1.
    pub vcpus: u32,
    /// Bytes of memory, a multiple of 2 MiB.
    pub memory: u64,
    /// Its share of CPU time against other VMs' vCPUs; 256 is usual.
    pub weight: u32,
    /// The most CPU time it may have, in percent of one CPU for each vCPU; 0: no limit.
    pub cap: u32,
    /// The nodes it may use, a bit each; 0: the hypervisor chooses.
    pub nodes: u64,
    /// The kernel's entry number.
    pub kernel: u32,
    /// The initial RAM disk's entry number, or [`NO_ENTRY`].
    pub initrd: u32,
    /// Its disks; the first with [`disk_mode::NONE`] ends the list.
    pub disks: [DiskRecord; DISKS_MAX],
    /// The kernel's command line.
    pub command_line: Text<1024>,
}
const _: () = assert!(size_of::<VmRecord>() == 72 + 4 * 72 + 1024);

/// What is wrong with a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BundleError {
    /// It is shorter than its header.
    Short(usize),
    /// It does not begin with [`MAGIC`].
    NotABundle,
    /// It has a version that this reader does not know.
    Version(u32),
    /// It says it has more bytes than are there, or more entries than allowed.
    Truncated(u64),
    /// The entry with this number lies outside the bundle or on an odd offset.
    Entry(u32),
    /// This VM's entry has the wrong size or text that is not UTF-8.
    Vm(u32),
}

impl fmt::Display for BundleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short(size) => write!(f, "{size} bytes are too few for a bundle"),
            Self::NotABundle => write!(f, "no bundle: the first bytes are not UNDERPIN"),
            Self::Version(v) => write!(f, "bundle version {v}, this reader knows {VERSION}"),
            Self::Truncated(size) => {
                write!(f, "the bundle claims {size} bytes or entries it has not")
            }
            Self::Entry(n) => write!(f, "entry {n} lies outside the bundle"),
            Self::Vm(n) => write!(f, "entry {n} is no VM description"),
        }
    }
}

impl core::error::Error for BundleError {}

/// A checked view of a bundle's bytes.
#[derive(Clone, Copy, Debug)]
pub struct Bundle<'a> {
    bytes: &'a [u8],
    entries: u32,
}

impl<'a> Bundle<'a> {
    /// Checks header and entry table. `bytes` may go on behind the bundle's end.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BundleError> {
        let (header, _) =
            Header::read_from_prefix(bytes).map_err(|_| BundleError::Short(bytes.len()))?;
        if header.magic != MAGIC {
            return Err(BundleError::NotABundle);
        }
        if header.version != VERSION {
            return Err(BundleError::Version(header.version));
        }
        let truncated = BundleError::Truncated(header.size);
        let size = usize::try_from(header.size).map_err(|_| truncated)?;
        let bundle = Self {
            bytes: bytes.get(..size).ok_or(truncated)?,
            entries: header.entries,
        };
        let table = u64::from(header.entries) * size_of::<Entry>() as u64;
        if header.entries > ENTRIES_MAX || header.size < size_of::<Header>() as u64 + table {
            return Err(truncated);
        }
        for n in 0..header.entries {
            let entry = bundle.entry(n).ok_or(BundleError::Entry(n))?;
            if !entry.offset.is_multiple_of(ENTRY_ALIGN) || bundle.content(&entry).is_none() {
                return Err(BundleError::Entry(n));
            }
        }
        Ok(bundle)
    }

    /// Entry `n`; `None` past the last.
    pub fn entry(&self, n: u32) -> Option<Entry> {
        if n >= self.entries {
            return None;
        }
        let start = size_of::<Header>() + n as usize * size_of::<Entry>();
        let (entry, _) = Entry::read_from_prefix(self.bytes.get(start..)?).ok()?;
        Some(entry)
    }

    /// All entries with their numbers.
    pub fn entries(&self) -> impl Iterator<Item = (u32, Entry)> + '_ {
        (0..self.entries).filter_map(|n| Some((n, self.entry(n)?)))
    }

    /// The entry of that kind and name.
    pub fn find(&self, kind: u32, name: &str) -> Option<(u32, Entry)> {
        self.entries()
            .find(|(_, e)| e.kind == kind && e.name.as_str() == Some(name))
    }

    /// An entry's bytes.
    pub fn content(&self, entry: &Entry) -> Option<&'a [u8]> {
        let start = usize::try_from(entry.offset).ok()?;
        let end = start.checked_add(usize::try_from(entry.size).ok()?)?;
        self.bytes.get(start..end)
    }

    /// The bytes of entry `n` if it is of that kind.
    pub fn content_of(&self, n: u32, kind: u32) -> Option<&'a [u8]> {
        let entry = self.entry(n).filter(|e| e.kind == kind)?;
        self.content(&entry)
    }

    /// The VM description in entry `n`.
    pub fn vm(&self, n: u32) -> Result<VmRecord, BundleError> {
        let bytes = self.content_of(n, kind::VM).ok_or(BundleError::Vm(n))?;
        let record = VmRecord::read_from_bytes(bytes).map_err(|_| BundleError::Vm(n))?;
        let texts = record.name.as_str().is_some() && record.command_line.as_str().is_some();
        if texts && !record.name.is_empty() {
            Ok(record)
        } else {
            Err(BundleError::Vm(n))
        }
    }
}

#[cfg(test)]
mod tests;
