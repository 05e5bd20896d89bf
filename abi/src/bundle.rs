//! The bundle: one file with all that VMs are made of, laid in memory by the boot loader
//! (`linux,initrd-start` of the machine's device tree).
//!
//! A [`Header`], then its [`Entry`] table, then the entries' bytes in the table's order, each from
//! an offset that is a multiple of 4 KiB, so that pages of an image or a kernel are frames of the
//! machine.
//!
//! Disk images are stored by block. A disk's entry holds its *block map*, a `u32` for each 4 KiB
//! of the image: 0 where all are zeroes, otherwise the number, from 1, of a page in the bundle's
//! one [`kind::BLOCKS`] entry. Equal blocks, of one image or of several, are one page there, as
//! long as the images belong to one share group: that of the first VM in the table with the image.

mod cluster;

pub use cluster::{ClusterRecord, MTU_PAGE, MTU_STANDARD};

use crate::Text;
use core::ops::Range;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The first eight bytes of a bundle.
pub const MAGIC: [u8; 8] = *b"UNDERPIN";
/// The layout's version; a reader refuses every other.
pub const VERSION: u32 = 5;
/// Entries begin at multiples of this many bytes, and zeroes fill them up to it.
pub const ENTRY_ALIGN: u64 = 4096;
/// Bytes of a block of a disk image, and of a page in [`kind::BLOCKS`].
pub const BLOCK_SIZE: usize = 4096;
/// The most entries a bundle may have.
pub const ENTRIES_MAX: u32 = 256;
/// The most disks a VM may have.
pub const DISKS_MAX: usize = 4;
/// The most network devices a VM may have.
pub const NETS_MAX: usize = 2;
/// The most shared regions that a VM may have.
pub const REGIONS_MAX: usize = 4;
/// The most bytes of a shared region; all are multiples of 2 MiB.
pub const REGION_SIZE_MAX: u64 = 1 << 30;
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
    /// How many bytes it has; of a [`kind::DISK`], the bytes of the image.
    pub size: u64,
    /// Its name, unique among entries of its kind.
    pub name: Text<40>,
}
const _: () = assert!(size_of::<Entry>() == 64);

impl Entry {
    /// How many bytes it has in the bundle: of a [`kind::DISK`], those of its block map.
    pub const fn stored(&self) -> u64 {
        match self.kind {
            kind::DISK => self.size.div_ceil(BLOCK_SIZE as u64) * size_of::<U32>() as u64,
            _ => self.size,
        }
    }

    /// Whether VMs may have its pages as memory.
    const fn is_mappable(&self) -> bool {
        matches!(self.kind, kind::KERNEL | kind::INITRD | kind::BLOCKS)
    }
}

/// What an entry can be.
pub mod kind {
    /// A [`super::VmRecord`].
    pub const VM: u32 = 1;
    /// An arm64 `Image`, or a flat image entered at its first byte.
    pub const KERNEL: u32 = 2;
    /// An initial RAM disk.
    pub const INITRD: u32 = 3;
    /// The block map of a raw disk image: a read-only base.
    pub const DISK: u32 = 4;
    /// The different blocks of all disk images, whole pages. At most one entry is of this kind.
    pub const BLOCKS: u32 = 5;
    /// A [`super::ClusterRecord`]. At most one entry is of this kind.
    pub const CLUSTER: u32 = 6;
}

/// How a VM uses a disk.
pub mod disk_mode {
    /// No disk in this place.
    pub const NONE: u32 = 0;
    /// A base under a private overlay, gone when the VM ends. The base is an image of the bundle, or,
    /// where [`super::DiskRecord::entry`] is [`super::NO_ENTRY`], a partition.
    pub const COW: u32 = 1;
    /// A partition of a physical disk, written through, for one VM at a time.
    pub const PERSISTENT: u32 = 2;
    /// A base image of the bundle that cannot be written.
    pub const READ_ONLY: u32 = 3;
}

/// [`DiskRecord::flags`]: nothing that is read from it is shared with other VMs.
pub const DISK_NEVER_SHARE: u32 = 1 << 0;

/// One disk of a VM.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DiskRecord {
    /// One of [`disk_mode`].
    pub mode: u32,
    /// The base's entry number; [`NO_ENTRY`] where a partition is behind the disk.
    pub entry: u32,
    /// The logical block size: 512 or 4096 bytes.
    pub block_size: u32,
    /// Bits `DISK_*`.
    pub flags: u32,
    /// Bytes the overlay may grow to; 0: as many as the disk has.
    pub overlay_max: u64,
    /// Bytes of the disk; 0: as many as the base has.
    pub size: u64,
    /// Bytes that may be read and written in a second of the guest's time; 0: no limit.
    pub limit: u64,
    /// The name of the partition behind the disk, where it has no entry.
    pub partition: Text<40>,
    /// The name of the partition that the overlay is on; empty: it is in memory.
    pub overlay_on: Text<40>,
}
const _: () = assert!(size_of::<DiskRecord>() == 120);

/// [`NetRecord::flags`]: the device takes and gives no frames without checksums, and no long ones.
pub const NET_PLAIN: u32 = 1 << 0;
/// [`NetRecord::flags`]: the switch has a way out, through the machine's network card or OS-0.
pub const NET_UPLINK: u32 = 1 << 1;
/// [`NetRecord::flags`]: its link is down until somebody says otherwise.
pub const NET_DOWN: u32 = 1 << 2;

/// One network device of a VM.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NetRecord {
    /// The name of the switch that it is plugged into; empty: no device in this place.
    pub switch: Text<24>,
    /// Its address, which is nobody else's on that switch.
    pub mac: [u8; 6],
    /// The longest packet that it sends and receives in one frame, in bytes.
    pub mtu: u16,
    /// Bits `NET_*`.
    pub flags: u32,
    /// How many more addresses it may send from: where the VM is itself a bridge.
    pub learns: u16,
    /// Zero.
    pub reserved: u16,
    /// Bytes that it may send in a second; 0: no limit.
    pub limit: u64,
    /// Frames that it may send in a second to more than one receiver; 0: no limit.
    pub floods: u64,
}
const _: () = assert!(size_of::<NetRecord>() == 56);

/// [`RegionRecord::flags`]: the VM may read it, and not write.
pub const REGION_READ_ONLY: u32 = 1 << 0;

/// One region of memory that a VM shares on purpose with others of its group.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RegionRecord {
    /// The region's name; empty: no region in this place.
    pub name: Text<24>,
    /// Its bytes, as all VMs that use it must say.
    pub size: u64,
    /// Bits `REGION_*`.
    pub flags: u32,
    /// Zero.
    pub reserved: u32,
}
const _: () = assert!(size_of::<RegionRecord>() == 40);

/// [`VmRecord::flags`]: started when the machine has booted.
pub const VM_AUTOSTART: u16 = 1 << 0;
/// [`VmRecord::flags`]: started again when it asks for a reset (otherwise a reset ends it).
pub const VM_RESTART: u16 = 1 << 1;
/// [`VmRecord::flags`]: all of them.
pub const VM_FLAGS: u16 = VM_AUTOSTART | VM_RESTART;

/// The share group of VMs that name none.
pub const DEFAULT_GROUP: &str = "default";

/// [`VmRecord::claim`]: who gets the memory that sharing saves.
pub mod claim {
    /// The machine.
    pub const NONE: u8 = 0;
    /// The VMs that share: they grow beyond their base.
    pub const GROW: u8 = 1;
    /// More VMs of the group, started from it.
    pub const START: u8 = 2;
    /// The last of them.
    pub const LAST: u8 = START;
}

/// The most of [`VmRecord::hold_ms`].
pub const HOLD_MS_MAX: u16 = 60_000;

/// [`VmRecord::blocks`]: what becomes of a 2 MiB mapping with a page in it that could be shared.
pub mod block_policy {
    /// It is split, and the page shared.
    pub const SHARE: u8 = 0;
    /// It stays, and the page is copied.
    pub const KEEP: u8 = 1;
    /// The last of them.
    pub const LAST: u8 = KEEP;
}

/// [`VmRecord::control`]: what a VM may ask of the hypervisor through its control port.
pub mod control_rights {
    /// It has no such port.
    pub const NONE: u8 = 0;
    /// How its own share group stands.
    pub const READ: u8 = 1;
    /// Everything.
    pub const ALL: u8 = 2;
    /// The last of them.
    pub const LAST: u8 = ALL;
}

/// The description of a VM, as the tool made it from the VM's file.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct VmRecord {
    /// Its name, unique on the machine.
    pub name: Text<32>,
    /// Bits `VM_*`.
    pub flags: u16,
    /// The hosts of the cluster that it spans, a bit each by their place; 0: it is this machine's alone.
    pub hosts: u16,
    /// Virtual CPUs, from 1.
    pub vcpus: u32,
    /// The most bytes of memory it can have, a multiple of 2 MiB: what the guest finds at boot.
    pub memory: u64,
    /// Bytes of memory it is always granted, a multiple of 2 MiB, at most `memory`.
    pub base: u64,
    /// Its share of CPU time against other VMs' vCPUs; 256 is usual.
    pub weight: u32,
    /// The most CPU time it may have, in percent of one CPU for each vCPU; 0: no limit.
    pub cap: u16,
    /// What its hosts do for its pages otherwise than where nothing is said: a bit each by the place in
    /// [`SWITCHES`](crate::coherence::SWITCHES).
    pub switched: u16,
    /// The nodes it may use, a bit each; 0: the hypervisor chooses.
    pub nodes: u64,
    /// The kernel's entry number.
    pub kernel: u32,
    /// The initial RAM disk's entry number, or [`NO_ENTRY`].
    pub initrd: u32,
    /// The share group's name: VMs of one group share memory among themselves only. Not empty.
    pub group: Text<24>,
    /// One of [`claim`].
    pub claim: u8,
    /// 1: hide from the guest, as far as time tells it, which pages are shared; 0: do not.
    pub hide: u8,
    /// One of [`block_policy`].
    pub blocks: u8,
    /// 1: nothing of it is shared with other VMs; 0: sharing is allowed.
    pub never_share: u8,
    /// One of [`control_rights`].
    pub control: u8,
    /// Zero.
    pub reserved: u8,
    /// Milliseconds, at most [`HOLD_MS_MAX`], that memory which its guest reports free stays bound before
    /// it is given away.
    pub hold_ms: u16,
    /// The name of the partition it may be swapped to; empty: none.
    pub swap: Text<40>,
    /// Its disks; the first with [`disk_mode::NONE`] ends the list.
    pub disks: [DiskRecord; DISKS_MAX],
    /// Its network devices; the first without a switch ends the list.
    pub nets: [NetRecord; NETS_MAX],
    /// Regions of memory that it shares; the first without a name ends the list.
    pub regions: [RegionRecord; REGIONS_MAX],
    /// The kernel's command line.
    pub command_line: Text<1024>,
}
const _: () = assert!(size_of::<VmRecord>() == 152 + 4 * 120 + 2 * 56 + 4 * 40 + 1024);

/// What is wrong with a bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BundleError {
    /// It is shorter than its header.
    #[error("{0} bytes are too few for a bundle")]
    Short(usize),
    /// It does not begin with [`MAGIC`].
    #[error("no bundle: the first bytes are not UNDERPIN")]
    NotABundle,
    /// It has a version that this reader does not know.
    #[error("bundle version {0}, this reader knows {VERSION}: build it again, underpin bundle")]
    Version(u32),
    /// It says it has more bytes than are there, or more entries than allowed.
    #[error("the bundle claims {0} bytes or entries it has not")]
    Truncated(u64),
    /// The entry with this number lies outside the bundle, on an odd offset or over the one before
    /// it, has more than zeroes behind its end, or is a second [`kind::BLOCKS`].
    #[error("entry {0} does not lie well in the bundle")]
    Entry(u32),
    /// The block map of the entry with this number names a block that is not there.
    #[error("entry {0} names a block that the bundle has not")]
    Map(u32),
    /// This VM's entry has the wrong size or text that is not UTF-8.
    #[error("entry {0} is no VM description")]
    Vm(u32),
    /// This entry has the wrong size, names no hosts or two alike, or is a second cluster.
    #[error("entry {0} is no cluster description: build the bundle again, underpin bundle")]
    Cluster(u32),
}

impl VmRecord {
    /// Whether only one VM of this description can run: it has a partition for itself.
    pub fn is_alone(&self) -> bool {
        let is_own =
            |disk: &DiskRecord| disk.mode == disk_mode::PERSISTENT || !disk.overlay_on.is_empty();
        !self.swap.is_empty() || self.disks.iter().any(is_own)
    }

    /// Whether all texts are UTF-8, and name and group say something.
    pub fn has_texts(&self) -> bool {
        let has_names =
            |d: &DiskRecord| d.partition.as_str().is_some() && d.overlay_on.as_str().is_some();
        let disks = self.disks.iter().all(has_names);
        let nets = self.nets.iter().all(|net| net.switch.as_str().is_some());
        let regions = self.regions.iter().all(|it| it.name.as_str().is_some());
        let own = self.command_line.as_str().is_some() && self.swap.as_str().is_some();
        let said = |text: Option<&str>| text.is_some_and(|text| !text.is_empty());
        disks && nets && regions && own && said(self.name.as_str()) && said(self.group.as_str())
    }
}

/// A page's bytes.
pub type Page = [u8; BLOCK_SIZE];

/// Where a block of an image is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'a> {
    /// Nowhere: zeroes.
    Zero,
    /// In the bundle: the page, and its number in [`kind::BLOCKS`] from 0. Blocks with one number
    /// are one page, so they are equal.
    Page(&'a Page, u32),
}

/// A disk image in a bundle.
#[derive(Clone, Copy, Debug)]
pub struct Image<'a> {
    size: u64,
    map: &'a [U32],
    pages: &'a [Page],
}

impl<'a> Image<'a> {
    /// Its bytes.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// How many blocks it has; the last may go on beyond the image's end, with zeroes.
    pub const fn blocks(&self) -> u64 {
        self.map.len() as u64
    }

    /// Where block `number` is. Behind the image's end there are zeroes.
    pub fn block(&self, number: u64) -> Place<'a> {
        // `Bundle::parse` has seen that every page is there.
        let page = || {
            let number = self.map.get(usize::try_from(number).ok()?)?.get();
            let number = number.checked_sub(1)?;
            Some(Place::Page(self.pages.get(number as usize)?, number))
        };
        page().unwrap_or(Place::Zero)
    }

    fn is_whole(&self) -> bool {
        self.map
            .iter()
            .all(|n| n.get() as usize <= self.pages.len())
    }
}

/// A checked view of a bundle's bytes.
#[derive(Clone, Copy, Debug)]
pub struct Bundle<'a> {
    bytes: &'a [u8],
    entries: u32,
    pages: &'a [Page],
}

impl<'a> Bundle<'a> {
    /// Checks header, entry table and block maps. `bytes` may go on behind the bundle's end.
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
        let mut bundle = Self {
            bytes: bytes.get(..size).ok_or(truncated)?,
            entries: header.entries,
            pages: &[],
        };
        let table = u64::from(header.entries) * size_of::<Entry>() as u64;
        let mut end = size_of::<Header>() as u64 + table;
        if header.entries > ENTRIES_MAX || header.size < end {
            return Err(truncated);
        }
        for n in 0..header.entries {
            end = bundle.open(n, end).ok_or(BundleError::Entry(n))?;
        }
        for (n, _) in bundle.entries() {
            if bundle.image(n).is_some_and(|image| !image.is_whole()) {
                return Err(BundleError::Map(n));
            }
        }
        Ok(bundle)
    }

    /// Checks how entry `n` lies, behind those that go up to `end`; where it ends itself.
    fn open(&mut self, n: u32, end: u64) -> Option<u64> {
        let entry = self.entry(n)?;
        let range = self.range(&entry)?;
        let whole = range.end.next_multiple_of(BLOCK_SIZE);
        let padded = self.bytes.get(range.end..whole)?.iter().all(|b| *b == 0);
        if !padded || entry.offset < end || !entry.offset.is_multiple_of(ENTRY_ALIGN) {
            return None;
        }
        if entry.kind == kind::BLOCKS {
            if !self.pages.is_empty() {
                return None;
            }
            self.pages = self.content(&entry)?.as_chunks().0;
        }
        Some(range.end as u64)
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

    /// Where an entry's bytes are in the bundle; what follows up to a whole page is zero.
    fn range(&self, entry: &Entry) -> Option<Range<usize>> {
        let start = usize::try_from(entry.offset).ok()?;
        let end = start.checked_add(usize::try_from(entry.stored()).ok()?)?;
        (end <= self.bytes.len()).then_some(start..end)
    }

    /// An entry's bytes; of a [`kind::DISK`], its block map ([`Bundle::image`] reads it).
    pub fn content(&self, entry: &Entry) -> Option<&'a [u8]> {
        self.bytes.get(self.range(entry)?)
    }

    /// The bytes of entry `n` if it is of that kind.
    pub fn content_of(&self, n: u32, kind: u32) -> Option<&'a [u8]> {
        let entry = self.entry(n).filter(|e| e.kind == kind)?;
        self.content(&entry)
    }

    /// The disk image in entry `n`.
    pub fn image(&self, n: u32) -> Option<Image<'a>> {
        let entry = self.entry(n).filter(|e| e.kind == kind::DISK)?;
        Some(Image {
            size: entry.size,
            map: FromBytes::ref_from_bytes(self.content(&entry)?).ok()?,
            pages: self.pages,
        })
    }

    /// The pages, as ranges of the bundle's bytes, that VMs may have as memory: those of kernels,
    /// initial RAM disks and disk blocks. They are whole and hold nothing else.
    pub fn pages(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.entries().filter_map(|(_, entry)| {
            let range = self.range(&entry).filter(|_| entry.is_mappable())?;
            Some(range.start..range.end.next_multiple_of(BLOCK_SIZE))
        })
    }

    /// The VM description in entry `n`.
    pub fn vm(&self, n: u32) -> Result<VmRecord, BundleError> {
        let record = self.content_of(n, kind::VM);
        let record = record.and_then(|bytes| VmRecord::read_from_bytes(bytes).ok());
        record.filter(VmRecord::has_texts).ok_or(BundleError::Vm(n))
    }
}

#[cfg(test)]
mod tests;
