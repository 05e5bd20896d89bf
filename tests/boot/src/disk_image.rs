//! Disk images that scenarios make for themselves, with the tools of the host.

use crate::{Outcome, because};
use std::{
    fs::{self, File},
    io::{Read, Seek, SeekFrom, Write as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Bytes of each of a physical disk's partitions.
pub const PARTITION: u64 = 48 << 20;
/// The partitions' names, in the order in which they lie on the disk.
pub const PARTITIONS: [&str; 2] = ["data", "spare"];
/// Where the first partition begins, in bytes; the others follow without gaps.
pub const FIRST_PARTITION: u64 = 1 << 20;
/// The type of partitions of a Linux, as sfdisk reads it.
pub const LINUX: &str = "linux";
/// That of Linux's swap.
const SWAP: &str = "swap";
/// That of partitions for overlays.
pub const FOR_OVERLAYS: &str = "7d4e0c2a-91b6-4f35-a8e7-55ad2f3c90b1";
/// Bytes that the second copy of the partition table may take at the end.
const TABLE: u64 = 1 << 20;

/// Runs a program of the host and tells why it failed.
///
/// # Errors
/// The program is missing or its status is not among `good`.
pub fn tool(program: &str, words: &[&str], input: &str, good: &[i32]) -> Outcome {
    let tried = format!("cannot run {program}");
    // Administrators' tools are not on everybody's path.
    let path = format!(
        "{}:/usr/sbin:/sbin",
        std::env::var("PATH").unwrap_or_default()
    );
    let mut command = Command::new(program);
    command
        .args(words)
        .env("PATH", path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().map_err(because(&tried))?;
    if let Some(mut pipe) = child.stdin.take() {
        pipe.write_all(input.as_bytes()).map_err(because(&tried))?;
    }
    let output = child.wait_with_output().map_err(because(&tried))?;
    if output
        .status
        .code()
        .is_some_and(|code| good.contains(&code))
    {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    Err(format!(
        "{program} {} ended with {}: {}",
        words.join(" "),
        output.status,
        String::from_utf8_lossy(&said).trim()
    ))
}

/// `scratch.img`: 4 MiB of nothing, for a disk that only has to be there.
///
/// # Errors
/// It cannot be written.
pub fn scratch(directory: &Path) -> Outcome {
    blank(&directory.join("scratch.img"), 4 << 20)
}

/// A script as a disk, which the guest runs.
///
/// # Errors
/// It cannot be written.
pub fn script(directory: &Path, name: &str, text: &str) -> Outcome {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(bytes.len().next_multiple_of(4096), 0);
    fs::write(directory.join(name), bytes).map_err(because(format!("cannot write {name}")))
}

/// A file of so many bytes of nothing.
///
/// # Errors
/// It cannot be written.
pub fn blank(path: &Path, size: u64) -> Outcome {
    let file = File::create(path).map_err(because(format!("cannot make {}", path.display())))?;
    file.set_len(size)
        .map_err(because(format!("cannot make {}", path.display())))
}

/// A physical disk with a GUID partition table and an empty ext4 in each of [`PARTITIONS`], the second of which is
/// of the type of Linux's swap.
///
/// # Errors
/// A tool is missing or fails.
pub fn partitioned(directory: &Path) -> Outcome<PathBuf> {
    let path = directory.join("disk.img");
    let text = path.display().to_string();
    let parts = PARTITIONS.into_iter().zip([LINUX, SWAP]);
    let parts: Vec<_> = parts.map(|(name, kind)| (name, PARTITION, kind)).collect();
    for start in with_partitions(&path, &parts)? {
        let offset = format!("offset={start}");
        let blocks = format!("{}k", PARTITION >> 10);
        let words = ["-q", "-F", "-b", "4096", "-E", &offset, &text, &blocks];
        tool("mkfs.ext4", &words, "", &[0])?;
    }
    Ok(path)
}

/// A physical disk with a GUID partition table and partitions of these names, bytes, multiples of
/// a MiB, and types, that hold zeroes; gives where each begins.
///
/// # Errors
/// A tool is missing or fails.
pub fn with_partitions(path: &Path, parts: &[(&str, u64, &str)]) -> Outcome<Vec<u64>> {
    let bytes: u64 = parts.iter().map(|(_, bytes, _)| bytes).sum();
    blank(path, FIRST_PARTITION + bytes + TABLE)?;
    let mut starts = Vec::new();
    let mut start = FIRST_PARTITION;
    let mut table = vec!["label: gpt".to_owned()];
    for (name, bytes, kind) in parts {
        let sectors = (start / 512, bytes / 512);
        table.push(format!(
            "start={}, size={}, type={kind}, name={name}",
            sectors.0, sectors.1
        ));
        starts.push(start);
        start += bytes;
    }
    let words = ["--quiet", "--no-reread", &path.display().to_string()];
    tool("sfdisk", &words, &table.join("\n"), &[0])?;
    Ok(starts)
}

/// A physical disk whose only partition, of this name, holds what an image holds.
///
/// # Errors
/// A tool is missing or fails, or the image cannot be read.
pub fn with_image(path: &Path, name: &str, image: &Path) -> Outcome {
    let tried = || format!("cannot copy {} to {}", image.display(), path.display());
    let mut from = File::open(image).map_err(because(tried()))?;
    let bytes = from.metadata().map_err(because(tried()))?.len();
    let starts = with_partitions(path, &[(name, bytes.next_multiple_of(1 << 20), LINUX)])?;
    let mut to = File::options().write(true).open(path);
    let to = to
        .as_mut()
        .map_err(|error| format!("{}: {error}", tried()))?;
    to.seek(SeekFrom::Start(starts[0]))
        .map_err(because(tried()))?;
    std::io::copy(&mut from, to).map_err(because(tried()))?;
    Ok(())
}

/// An ext4 file system of so many MiB that holds what is in a directory.
///
/// # Errors
/// A tool is missing or fails.
pub fn populated(image: &Path, tree: &Path, mib: u64) -> Outcome {
    let (image, tree) = (image.display().to_string(), tree.display().to_string());
    let size = format!("{mib}m");
    let words = ["-q", "-F", "-b", "4096", "-d", &tree, &image, &size];
    tool("mkfs.ext4", &words, "", &[0])
}

/// The first bytes of a partition, read from the image by the host.
///
/// # Errors
/// The image cannot be read.
pub fn read_partition(image: &Path, number: u64, length: usize) -> Outcome<Vec<u8>> {
    let tried = || format!("cannot read {}", image.display());
    let mut file = File::open(image).map_err(because(tried()))?;
    file.seek(SeekFrom::Start(FIRST_PARTITION + PARTITION * number))
        .map_err(because(tried()))?;
    let mut bytes = vec![0; length];
    file.read_exact(&mut bytes).map_err(because(tried()))?;
    Ok(bytes)
}

/// Writes the first partition into a file of its own, checks its file system as a boot would
/// (the journal is replayed, nothing else may need repair), and lists what is in it.
///
/// # Errors
/// The file system needs more than its journal.
pub fn check_first_partition(disk: &Path, directory: &Path) -> Outcome<Vec<(String, Vec<u8>)>> {
    let alone = directory.join("partition.img");
    let bytes = read_partition(disk, 0, PARTITION as usize)?;
    fs::write(&alone, bytes).map_err(because("cannot write partition.img"))?;
    let text = alone.display().to_string();
    // 1: errors were corrected, which for -p includes the replayed journal; 4 and up: were not.
    tool("e2fsck", &["-p", "-f", &text], "", &[0, 1])?;
    tool("e2fsck", &["-n", "-f", &text], "", &[0])?;
    let files = directory.join("files");
    let _ = fs::remove_dir_all(&files); // absent is fine
    fs::create_dir_all(&files).map_err(because("cannot make a directory"))?;
    tool(
        "debugfs",
        &["-R", &format!("rdump / {}", files.display()), &text],
        "",
        &[0],
    )?;
    let mut found = Vec::new();
    for entry in fs::read_dir(&files)
        .map_err(because("cannot list files"))?
        .flatten()
        .filter(|e| e.path().is_file())
    {
        let bytes = fs::read(entry.path()).map_err(because("cannot read a file"))?;
        found.push((entry.file_name().to_string_lossy().into_owned(), bytes));
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_is_partitioned_formatted_and_clean() {
        let directory = std::env::temp_dir().join(format!("disk-image-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let disk = partitioned(&directory).unwrap();
        let mut table = [0; 8];
        File::open(&disk).unwrap().read_exact_at_512(&mut table);
        assert_eq!(&table, b"EFI PART");
        assert_eq!(check_first_partition(&disk, &directory).unwrap(), vec![]);
        fs::remove_dir_all(&directory).unwrap();
    }

    trait At512 {
        fn read_exact_at_512(&self, bytes: &mut [u8]);
    }

    impl At512 for File {
        fn read_exact_at_512(&self, bytes: &mut [u8]) {
            std::os::unix::fs::FileExt::read_exact_at(self, bytes, 512).unwrap();
        }
    }
}
