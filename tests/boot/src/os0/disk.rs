//! OS-0's disk, and what is found on it afterwards.

use crate::{Outcome, because, write_log};
use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

pub fn empty_disk(directory: &Path, bytes: u64) -> Outcome<PathBuf> {
    let path = directory.join("disk.img");
    let disk = File::create(&path).map_err(because("cannot make a disk"))?;
    disk.set_len(bytes).map_err(because("cannot make a disk"))?;
    Ok(path)
}

/// What a disk of OS-0's holds whose writes and flushes are logged.
#[derive(Clone, Copy, Debug)]
pub enum Format {
    /// Its bytes are a VM's.
    Raw,
    /// A qcow2 image of QEMU's at the beginning of a larger disk.
    Qcow2,
}

impl Format {
    /// Makes it, of `bytes` zeroes for the VM.
    fn make(self, path: &Path, bytes: u64) -> Outcome {
        let size = match self {
            Self::Raw => bytes,
            Self::Qcow2 => 2 * bytes,
        };
        match self {
            Self::Raw => drop(File::create(path).map_err(because("cannot make a disk"))?),
            Self::Qcow2 => {
                let mut create = Command::new("qemu-img");
                create.args(["create", "-q", "-f", "qcow2"]).arg(path);
                run(create.arg(bytes.to_string()))?;
            }
        }
        let disk = File::options().write(true).open(path);
        let disk = disk.map_err(because("cannot open a disk"))?;
        disk.set_len(size)
            .map_err(because("cannot make a disk larger"))
    }

    /// The checksum of what the VM has on it; an image is whole.
    fn sum(self, directory: &Path, disk: &Path) -> Outcome<String> {
        match self {
            Self::Raw => sum(disk),
            Self::Qcow2 => image_sum(directory, disk),
        }
    }
}

/// QEMU's words for a disk whose writes and flushes are logged.
pub fn logged(directory: &Path, bytes: u64, format: Format) -> Outcome<String> {
    let (disk, log) = (directory.join("disk.img"), directory.join("writes.dm"));
    format.make(&disk, bytes)?;
    File::create(&log).map_err(because("cannot make a write log"))?;
    let raw = |node: &str, path: &Path| {
        let path = path.display();
        format!("{node}.driver=raw,{node}.file.driver=file,{node}.file.filename={path}")
    };
    Ok(format!(
        "if=none,id=disk,driver=blklogwrites,{},{}",
        raw("file", &disk),
        raw("log", &log)
    ))
}

/// What that disk holds for the VM if power is lost right after the last flush.
pub fn flushed_sum(directory: &Path, bytes: u64, format: Format) -> Outcome<String> {
    let (log, replayed) = (directory.join("writes.dm"), directory.join("replayed.img"));
    format.make(&replayed, bytes)?;
    let flushes = write_log::replay(&log, &replayed, |_| Ok(()))?;
    format.make(&replayed, bytes)?;
    let mut sum = None;
    write_log::replay(&log, &replayed, |flush| {
        if flush + 1 == flushes {
            sum = Some(format.sum(directory, &replayed)?);
        }
        Ok(())
    })?;
    let sum = sum.ok_or("nothing that was written to OS-0's disk was flushed")?;
    Ok(format!("\nhost: flushes={flushes} image sha256={sum}\n"))
}

/// The checksum of the disk in an image, which is whole.
fn image_sum(directory: &Path, image: &Path) -> Outcome<String> {
    let raw = directory.join("disk.raw");
    let mut check = Command::new("qemu-img");
    check.args(["check", "-q", "-f", "qcow2"]).arg(image);
    let output = check.output().map_err(because("cannot run qemu-img"))?;
    // 3: clusters are counted that nothing refers to, which a server that is killed may leave, as QEMU does.
    if !matches!(output.status.code(), Some(0 | 3)) {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("qemu-img check: {}: {said}", output.status));
    }
    let mut convert = Command::new("qemu-img");
    convert.args(["convert", "-f", "qcow2", "-O", "raw"]);
    run(convert.arg(image).arg(&raw))?;
    sum(&raw)
}

fn sum(path: &Path) -> Outcome<String> {
    let sum = run(Command::new("sha256sum").arg(path))?;
    Ok(sum.split(' ').next().unwrap_or_default().to_owned())
}

/// What a program prints that ends well.
fn run(command: &mut Command) -> Outcome<String> {
    let name = format!("{command:?}");
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.map_err(because(format!("cannot run {name}")))?;
    if !output.status.success() {
        return Err(format!("{name} ended with {}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
