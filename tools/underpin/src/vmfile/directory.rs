//! Directories of this system that are disks of VMs: each is copied into a file system when the machine starts.
//!
//! The copy is below the overlays of all VMs that name the directory. The directory itself is only read.

use super::{
    VmFile,
    disk::{Backing, Base},
    disk_file::{DiskFile, name_of, one_path, own_name},
    image::Fault,
};
use crate::{
    failure::{Failure, Result, exit, reason},
    units,
};
use std::{
    env,
    ffi::OsString,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};
use xxhash_rust::xxh3::xxh3_128;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
const SECTOR: u64 = 512;
/// Bytes of an inode, and of the head of a directory's entry.
const INODE: u64 = 256;
const ENTRY: u64 = 8;
/// The longest target of a symbolic link that is in its inode.
const SHORT_LINK: u64 = 59;
/// What is left for VMs to write, at least: bytes and inodes.
const FREE: (u64, u64) = (16 * MIB, 1024);
/// The largest file system: of a hundred times as much, the empty tables alone take minutes to write.
const MOST: u64 = 1 << 40;
/// The longest label of a file system, which guests mount it by.
const LABEL: usize = 16;

/// A directory that VMs see as a disk with a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskDirectory {
    /// Where it is: one path for each directory.
    pub path: PathBuf,
    /// Bytes of its file system.
    pub size: u64,
    /// Inodes of its file system.
    inodes: u64,
    /// What the machine calls the copy, as it does a partition.
    pub name: String,
}

impl DiskDirectory {
    /// Looks at a directory, whose file system is to have `wanted` bytes, or as many as it needs.
    pub fn inspect(path: &Path, wanted: Option<u64>) -> std::result::Result<Self, Fault> {
        let shown = path.display();
        let cannot = |at: &Path, error: &io::Error| {
            let message = format!("cannot read {}: {}", at.display(), reason(error));
            let help = "name a directory that you may read; paths are relative to the VM file";
            (message, help.to_owned())
        };
        if !fs::metadata(path)
            .map_err(|error| cannot(path, &error))?
            .is_dir()
        {
            let message = format!("{shown} is no directory");
            let help = "use image = or file = for a disk that is a file".to_owned();
            return Err((message, help));
        }
        let content = Content::of(path).map_err(|(at, error)| cannot(&at, &error))?;
        let needed = content.needed();
        let size = wanted.unwrap_or(needed);
        if !(needed..=MOST).contains(&size) || !size.is_multiple_of(MIB) {
            let [size, needed, most] = [size, needed, MOST].map(units::size);
            let message = format!("a file system of {size} is none for {shown}");
            let help = format!("use whole MiB, from {needed} to {most}; or leave size out");
            return Err((message, help));
        }
        let path = one_path(path).map_err(|error| cannot(path, &error))?;
        // Two sizes are two copies.
        let name = name_of(&path, wanted);
        Ok(Self {
            inodes: content.inodes_needed(),
            path,
            size,
            name,
        })
    }

    /// The copy of it, in a directory for copies.
    pub fn copy_in(&self, copies: &Path) -> DiskFile {
        DiskFile {
            path: copies.join(format!("{}.ext4", self.name)),
            size: self.size,
            name: self.name.clone(),
        }
    }

    /// Makes the copy anew, with what the directory has now.
    ///
    /// # Errors
    /// There is no mke2fs; it cannot read all of the directory, or write the copy; the directory has grown beyond `size`.
    pub fn make(&self, copy: &Path) -> Result<()> {
        let shown = self.path.display();
        if copy.starts_with(&self.path) {
            let message = format!("the copy of {shown} would be in it: {}", copy.display());
            let help = "set UNDERPIN_CACHE to a directory outside it";
            return Err(Failure::new(exit::FILE, message).help(help));
        }
        let made = Command::new("mke2fs")
            .args(self.words(copy))
            .env("PATH", with_sbin())
            .stdin(Stdio::null())
            .output();
        let made = made.map_err(|error| {
            let message = format!("cannot run mke2fs to copy {shown}: {}", reason(&error));
            Failure::new(exit::FILE, message).help("install e2fsprogs")
        })?;
        if made.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&made.stderr);
        let last = said.trim().lines().last().unwrap_or("it does not say why");
        let message = format!("mke2fs cannot copy {shown}: {last}");
        let help = "look whether you may read all of it, and whether there is room; it may have grown: add size = \"...\"";
        Err(Failure::new(exit::FILE, message).help(help))
    }

    /// The words of mke2fs. The journal would protect what is lost anyhow.
    fn words(&self, copy: &Path) -> Vec<OsString> {
        let id = uuid(xxh3_128(self.name.as_bytes()));
        let label = own_name(&self.path, LABEL);
        let inodes = self.inodes;
        let words = format!(
            "-q -F -t ext4 -b {BLOCK} -m 0 -O ^has_journal,^resize_inode -U {id} -L {label} -N {inodes} \
             -E hash_seed={id},lazy_itable_init=0 -d"
        );
        let mut words: Vec<OsString> = words.split(' ').map(OsString::from).collect();
        words.push(self.path.clone().into());
        words.push(copy.into());
        words.push(format!("{}k", self.size >> 10).into());
        words
    }
}

/// A number as file systems write it that call it their own.
fn uuid(number: u128) -> String {
    let digits = format!("{number:032x}");
    let ends = [0, 8, 12, 16, 20, 32];
    let groups: Vec<&str> = ends.windows(2).map(|at| &digits[at[0]..at[1]]).collect();
    groups.join("-")
}

/// Where programs are, as root's and everybody's.
fn with_sbin() -> OsString {
    let mut path = env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin");
    path
}

/// What a directory has in it.
#[derive(Debug, Default)]
struct Content {
    /// In whole blocks.
    bytes: u64,
    inodes: u64,
}

impl Content {
    /// Looks at all of a directory; what it fails at comes with the error.
    fn of(path: &Path) -> std::result::Result<Self, (PathBuf, io::Error)> {
        let mut content = Self::default();
        let mut left = vec![path.to_owned()];
        while let Some(directory) = left.pop() {
            let failed = |error| (directory.clone(), error);
            let mut names = 0;
            for entry in fs::read_dir(&directory).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                let path = entry.path();
                names += ENTRY + (entry.file_name().len() as u64).next_multiple_of(4);
                let found = entry.metadata().map_err(|error| (path.clone(), error))?;
                content.inodes += 1;
                // What does not fit into the inode takes a block.
                let attributes = rustix::fs::llistxattr_query(&path);
                content.bytes += BLOCK * u64::from(attributes.is_ok_and(|bytes| bytes > 0));
                if found.is_dir() {
                    left.push(path);
                } else if found.is_file() {
                    // Holes stay holes.
                    let bytes = found.len().min(found.blocks() * SECTOR);
                    content.bytes += bytes.next_multiple_of(BLOCK);
                } else if found.is_symlink() && found.len() > SHORT_LINK {
                    content.bytes += BLOCK;
                }
            }
            // Blocks of names are not full to the brim.
            content.bytes += (names + names / 4 + 1).next_multiple_of(BLOCK);
        }
        Ok(content)
    }

    /// Inodes of a file system that has enough for all of it, and for some to write.
    fn inodes_needed(&self) -> u64 {
        self.inodes + self.inodes / 4 + FREE.1
    }

    /// Bytes of a file system that has room for all of it, and some to write.
    fn needed(&self) -> u64 {
        let used = self.bytes + self.inodes_needed() * INODE;
        let free = (self.bytes / 8).max(FREE.0);
        (used + used / 16 + free).next_multiple_of(MIB)
    }
}

impl VmFile {
    /// The directories that are disks of this VM.
    pub fn disk_directories(&self) -> impl Iterator<Item = &DiskDirectory> {
        self.disks.iter().filter_map(|disk| match &disk.backing {
            Backing::CopyOnWrite(Base::Directory(directory), _) => Some(directory),
            _ => None,
        })
    }
}
