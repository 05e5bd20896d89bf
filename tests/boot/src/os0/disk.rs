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

/// A disk twice as large as the empty image in it.
fn qcow2_disk(path: &Path, bytes: u64) -> Outcome {
    let mut create = Command::new("qemu-img");
    create.args(["create", "-q", "-f", "qcow2"]).arg(path);
    run(create.arg(bytes.to_string()))?;
    let disk = File::options().write(true).open(path);
    let disk = disk.map_err(because("cannot open a disk"))?;
    disk.set_len(2 * bytes)
        .map_err(because("cannot make a disk larger"))
}

/// QEMU's words for a disk with an empty image in it, whose writes and flushes are logged.
pub fn logged_qcow2(directory: &Path, bytes: u64) -> Outcome<String> {
    let (disk, log) = (directory.join("disk.img"), directory.join("writes.dm"));
    qcow2_disk(&disk, bytes)?;
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

/// What the image on that disk holds if power is lost right after the last flush: it is whole, and holds this.
pub fn flushed_image_sum(directory: &Path, bytes: u64) -> Outcome<String> {
    let (log, replayed) = (directory.join("writes.dm"), directory.join("replayed.img"));
    qcow2_disk(&replayed, bytes)?;
    let flushes = write_log::replay(&log, &replayed, |_| Ok(()))?;
    qcow2_disk(&replayed, bytes)?;
    let mut sum = None;
    write_log::replay(&log, &replayed, |flush| {
        if flush + 1 == flushes {
            sum = Some(image_sum(directory, &replayed)?);
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
    let sum = run(Command::new("sha256sum").arg(&raw))?;
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
