//! The disks of a VM file.

use super::{
    decode::Decoder,
    directory::DiskDirectory,
    disk_file::DiskFile,
    image::Wanted,
    section::{Found, Section},
};
use abi::bundle::DISKS_MAX;
use std::path::{Path, PathBuf};

/// Where an overlay is that is on no partition.
const MEMORY: &str = "memory";

const KEYS: [&str; 10] = [
    "image",
    "partition",
    "file",
    "directory",
    "size",
    "mode",
    "overlay",
    "block_size",
    "limit",
    "never_share",
];

/// What may be behind a disk, by the key that names it.
const BACKINGS: [(&str, &str); 4] = [
    ("image", "an image"),
    ("partition", "a partition"),
    ("file", "a file"),
    ("directory", "a directory"),
];

/// A disk of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// What is behind it.
    pub backing: Backing,
    /// The logical block size in bytes: 512 or 4096.
    pub block_size: u32,
    /// Bytes that may be read and written in a second of the guest's time; 0: no limit.
    pub limit: u64,
    /// Whether nothing read from it is shared with other VMs.
    pub never_share: bool,
}

/// What is behind a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A base under a private overlay.
    CopyOnWrite(Base, Overlay),
    /// An image that cannot be written.
    ReadOnly(PathBuf),
    /// The partition of that name of a disk of the machine.
    Partition(String),
    /// A file of this system.
    File(DiskFile),
}

/// What a VM writes over a base.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overlay {
    /// Bytes that it may grow to; 0: as many as the disk has.
    pub size: u64,
    /// The partition of that name of a disk of the machine that it is on; otherwise it is in memory.
    pub on: Option<String>,
}

/// What is below an overlay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Base {
    /// An image.
    Image(PathBuf),
    /// The partition of that name of a disk of the machine, which is only read.
    Partition(String),
    /// A copy of a directory of this system.
    Directory(DiskDirectory),
}

impl Disk {
    /// The image behind it, unless that is a partition.
    pub fn image(&self) -> Option<&Path> {
        match &self.backing {
            Backing::CopyOnWrite(Base::Image(image), _) | Backing::ReadOnly(image) => Some(image),
            Backing::CopyOnWrite(Base::Partition(_) | Base::Directory(_), _)
            | Backing::Partition(_)
            | Backing::File(_) => None,
        }
    }

    /// The name by which the machine knows the partition or file behind it, unless that is an image.
    pub fn partition(&self) -> Option<&str> {
        match &self.backing {
            Backing::CopyOnWrite(Base::Partition(name), _) | Backing::Partition(name) => Some(name),
            Backing::File(file) => Some(&file.name),
            Backing::CopyOnWrite(Base::Directory(directory), _) => Some(&directory.name),
            Backing::CopyOnWrite(Base::Image(_), _) | Backing::ReadOnly(_) => None,
        }
    }
}

impl Decoder<'_> {
    /// All disks.
    pub fn disks(&self, root: &Section<'_, '_>) -> Vec<Disk> {
        let sections = root.sections("[[disk]]", "disk", &KEYS);
        if let Some(extra) = sections.get(DISKS_MAX) {
            let message = format!("{} disks are more than a VM may have", sections.len());
            let help = format!("use at most {DISKS_MAX}");
            self.problems.add(extra.span(), message, &help);
        }
        sections
            .iter()
            .filter_map(|section| self.disk(section))
            .collect()
    }

    fn disk(&self, disk: &Section<'_, '_>) -> Option<Disk> {
        let block_size = self.block_size(disk);
        let limit = disk.rate("limit", "\"5MB/s\"").unwrap_or(0);
        let never_share = disk.boolean("never_share", false);
        let mut named = BACKINGS.iter().filter(|(key, _)| disk.has(key).is_some());
        let (key, one) = named.next().copied().unwrap_or_else(|| {
            let help = "add image = \"PATH\", partition = \"NAME\", file = \"PATH\", or directory = \"PATH\"";
            disk.missing("image", help);
            ("", "")
        });
        if let Some((other_key, other)) = named.next() {
            let message = format!("a disk cannot be both {one} and {other}");
            let span = disk.has(other_key).unwrap_or_default();
            let help = "remove one of the two keys";
            self.problems.add(&span, message, help);
            return None;
        }
        let has_size = ["file", "directory"].contains(&key);
        if let (Some(span), false) = (disk.has("size"), has_size) {
            let message = "only a disk that is a file or a directory has a size of its own";
            let message = message.to_owned();
            self.problems.add(&span, message, "remove it");
        }
        let backing = match key {
            "image" => self.image(disk, block_size)?,
            "partition" => self.partition(disk)?,
            "file" => self.disk_file(disk)?,
            "directory" => self.disk_directory(disk)?,
            _ => return None,
        };
        Some(Disk {
            backing,
            block_size,
            limit,
            never_share,
        })
    }

    fn block_size(&self, disk: &Section<'_, '_>) -> u32 {
        let size = disk.number("block_size", 512..4097, 512);
        if let (false, Some(span)) = (size == 512 || size == 4096, disk.has("block_size")) {
            let message = format!("a block size of {size} is not known");
            self.problems.add(&span, message, "use 512 or 4096");
        }
        size
    }

    fn image(&self, disk: &Section<'_, '_>, block_size: u32) -> Option<Backing> {
        let mode = disk.choice("mode", &["cow", "read-only"]);
        let overlay = self.overlay(disk);
        let file = self.file(disk, "image", Wanted::Disk)?;
        if !file.size.is_multiple_of(u64::from(block_size)) {
            let message = format!(
                "the image has {} bytes, no multiple of {block_size}",
                file.size
            );
            let help =
                "use a smaller block_size, or make the image longer: truncate --size=%4096 FILE";
            self.problems
                .add(&disk.has("image").unwrap_or_default(), message, help);
        }
        if mode == "read-only" {
            self.no_overlay(disk, "read-only", "remove it, or use mode = \"cow\"");
            return Some(Backing::ReadOnly(file.path));
        }
        Some(Backing::CopyOnWrite(Base::Image(file.path), overlay))
    }

    fn partition(&self, disk: &Section<'_, '_>) -> Option<Backing> {
        let mode = disk.choice("mode", &["persistent", "cow"]);
        let overlay = self.overlay(disk);
        let name = self.partition_name(disk, "partition")?;
        if mode == "cow" {
            return Some(Backing::CopyOnWrite(Base::Partition(name), overlay));
        }
        let help = "remove it, as what is written stays in the partition, or use mode = \"cow\"";
        self.no_overlay(disk, "persistent", help);
        Some(Backing::Partition(name))
    }

    /// `file = "data.img"`, with `size = "8GiB"` where it is to be made.
    fn disk_file(&self, disk: &Section<'_, '_>) -> Option<Backing> {
        disk.choice("mode", &["persistent"]);
        self.no_overlay(
            disk,
            "persistent",
            "remove it, as what is written stays in the file",
        );
        let (found, size) = sized(disk, "file")?;
        DiskFile::inspect(&self.path(found.value), size)
            .map_err(|(message, help)| self.problems.add(&found.span, message, &help))
            .ok()
            .map(Backing::File)
    }

    /// `directory = "www"`, with `size = "8GiB"` where its file system is to have more room than it needs.
    fn disk_directory(&self, disk: &Section<'_, '_>) -> Option<Backing> {
        disk.choice("mode", &["cow"]);
        let overlay = self.overlay(disk);
        let (found, size) = sized(disk, "directory")?;
        DiskDirectory::inspect(&self.path(found.value), size)
            .map_err(|(message, help)| self.problems.add(&found.span, message, &help))
            .ok()
            .map(|directory| Backing::CopyOnWrite(Base::Directory(directory), overlay))
    }

    fn no_overlay(&self, disk: &Section<'_, '_>, mode: &str, help: &str) {
        if let Some(span) = disk.has("overlay") {
            let message = format!("a {mode} disk has no overlay");
            self.problems.add(&span, message, help);
        }
    }

    /// `overlay = "1GiB"` or `overlay = { size = "1GiB", on = "memory" }`.
    fn overlay(&self, disk: &Section<'_, '_>) -> Overlay {
        let example = "\"1GiB\"";
        let bytes = |found: Option<Found<u64>>| found.map_or(0, |found| found.value);
        if !disk.is_table("overlay") {
            let size = bytes(disk.size("overlay", example));
            return Overlay { size, on: None };
        }
        let Some(overlay) = disk.section("overlay", "overlay", &["size", "on"]) else {
            return Overlay::default();
        };
        let on = self.partition_name(&overlay, "on");
        let on = on.filter(|name| name != MEMORY);
        let size = bytes(overlay.size("size", example));
        Overlay { size, on }
    }
}

/// A path, and the size that is wanted, if one is.
fn sized<'s>(disk: &Section<'s, '_>, key: &str) -> Option<(Found<&'s str>, Option<u64>)> {
    let size = disk.size("size", "\"8GiB\"");
    let found = disk.text(key, "\"PATH\"")?;
    let is_wrong = disk.has("size").is_some() && size.is_none();
    (!is_wrong).then(|| (found, size.map(|size| size.value)))
}
