//! Files of this system that are disks of VMs, each of one alone.

use super::{
    VmFile,
    disk::Backing,
    image::{Fault, Wanted, wrong_format},
};
use crate::failure::{Failure, Result, exit, reason};
use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A disk's bytes are a multiple of this many, so that one can begin where another ends.
const STEP: u64 = 4096;
/// The most characters of a file's own name in its disk's: with a hyphen and a hash, the 36 of a name in
/// a partition table.
const OWN_NAME: usize = 19;

/// A file that holds what a VM writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskFile {
    /// Where it is, or will be made: one path for each file.
    pub path: PathBuf,
    /// Its bytes.
    pub size: u64,
    /// What the machine calls it, as it does a partition.
    pub name: String,
}

impl DiskFile {
    /// Looks at a file that is there, or could be made with `wanted` bytes.
    pub fn inspect(path: &Path, wanted: Option<u64>) -> std::result::Result<Self, Fault> {
        let shown = path.display();
        let fault = |message: String, help: &str| (message, help.to_owned());
        let cannot = |error: &io::Error| {
            let message = format!("cannot use {shown} as a disk: {}", reason(error));
            fault(
                message,
                "paths are relative to the VM file; its directory must be there",
            )
        };
        let size = match (size_of(path), wanted) {
            (Ok(None), _) => {
                let help =
                    "name a file; a block device is a disk of the machine: underpin sim --disk";
                return Err(fault(format!("{shown} is no regular file"), help));
            }
            (Ok(Some(size)), Some(wanted)) if size != wanted => {
                let message = format!("{shown} has {size} bytes, and size says {wanted}");
                return Err(fault(message, "leave size out to use the file as it is"));
            }
            (Ok(Some(size)), _) => size,
            (Err(error), Some(wanted)) if error.kind() == io::ErrorKind::NotFound => wanted,
            (Err(error), None) if error.kind() == io::ErrorKind::NotFound => {
                let help = "add size = \"8GiB\" to have it made; paths are relative to the VM file";
                return Err(fault(format!("{shown} is not there"), help));
            }
            (Err(error), _) => return Err(cannot(&error)),
        };
        if size == 0 || !size.is_multiple_of(STEP) {
            let message = format!("{shown} has {size} bytes, no multiple of {STEP}");
            let help = format!("make it longer: truncate --size=%{STEP} FILE");
            return Err((message, help));
        }
        if let Some((what, command)) = head(path).and_then(|head| wrong_format(&head, Wanted::Disk))
        {
            return Err((format!("{shown} {what}"), format!("{command} {shown}")));
        }
        let path = one_path(path).map_err(|error| cannot(&error))?;
        let name = name_of(&path, None);
        Ok(Self { path, size, name })
    }

    /// Makes the file where it is not there: it takes room as it is written.
    pub fn make(&self) -> Result<()> {
        let failed = |error: io::Error| Failure::vm_file("cannot make", &self.path, &error);
        match File::options()
            .write(true)
            .create_new(true)
            .open(&self.path)
        {
            Ok(file) => file.set_len(self.size).map_err(failed),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }
}

impl VmFile {
    /// The files that are disks of this VM alone.
    pub fn disk_files(&self) -> impl Iterator<Item = &DiskFile> {
        self.disks.iter().filter_map(|disk| match &disk.backing {
            Backing::File(file) => Some(file),
            _ => None,
        })
    }
}

/// Files that are disks twice.
pub fn conflicts(vms: &[VmFile]) -> Vec<Failure> {
    let of_vm = |vm| VmFile::disk_files(vm).map(move |file| (file, &vm.name));
    let all: Vec<_> = vms.iter().flat_map(of_vm).collect();
    let mut failures = Vec::new();
    for (n, (file, vm)) in all.iter().enumerate() {
        for (_, other) in all
            .iter()
            .skip(n + 1)
            .filter(|(it, _)| it.name == file.name)
        {
            let path = file.path.display();
            let message = format!("{path} is a disk of '{vm}', and a disk of '{other}'");
            let help = "a file is one disk of one VM: give each its own; what many read is image = \"FILE\"";
            failures.push(Failure::new(exit::FILE, message).help(help));
        }
    }
    failures
}

/// The bytes of a regular file that may be read and written; `None` of anything else.
fn size_of(path: &Path) -> io::Result<Option<u64>> {
    if !fs::metadata(path)?.is_file() {
        return Ok(None);
    }
    let file = File::options().read(true).write(true).open(path)?;
    Ok(Some(file.metadata()?.len()))
}

/// The first bytes of a file, where it is there.
fn head(path: &Path) -> Option<Vec<u8>> {
    let mut head = Vec::new();
    let file = File::open(path).ok()?;
    file.take(STEP).read_to_end(&mut head).ok()?;
    Some(head)
}

/// The same path for a file however it is named, there or not.
pub fn one_path(path: &Path) -> io::Result<PathBuf> {
    if let Ok(path) = fs::canonicalize(path) {
        return Ok(path);
    }
    let directory = path.parent().filter(|it| !it.as_os_str().is_empty());
    let directory = fs::canonicalize(directory.unwrap_or(Path::new(".")))?;
    let name = path.file_name();
    name.map(|name| directory.join(name))
        .ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// The beginning of a file's own name, and a hash of its path and of the size that it is to have, if that is said.
pub fn name_of(path: &Path, wanted: Option<u64>) -> String {
    let own = own_name(path, OWN_NAME);
    let seed = wanted.unwrap_or(0);
    let hash = xxh3_64_with_seed(path.as_os_str().as_encoded_bytes(), seed);
    format!("{own}-{hash:016x}")
}

/// The beginning of a file's own name, in letters that need no quotes.
pub fn own_name(path: &Path, characters: usize) -> String {
    let own = path.file_name().unwrap_or_default().to_string_lossy();
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || ".-_".contains(c) {
            c
        } else {
            '_'
        }
    };
    own.chars().map(plain).take(characters).collect()
}
