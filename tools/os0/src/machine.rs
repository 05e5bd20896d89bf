//! What is looked at: files of the running system, and the module's device.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

/// The module's device.
pub const DEVICE: &str = "/dev/underpin";
/// `O_NONBLOCK` of Linux on arm64 and amd64.
const NONBLOCK: i32 = 0o4000;
/// What fails so was refused by the hypervisor (`EREMOTEIO`).
const REFUSED: i32 = 121;

/// How a request ended.
#[derive(Debug)]
pub enum Asked {
    /// It was done; this is its answer.
    Done(String),
    /// The hypervisor refused, or a CPU could not follow; the answer says why.
    Refused(String),
    /// It could not be asked.
    Failed(io::Error),
}

/// The running system, or a test's.
pub trait System {
    /// A file's content; `None` where it cannot be read.
    fn read(&self, path: &str) -> Option<String>;

    /// The last bytes of a file.
    fn tail(&self, path: &str, bytes: usize) -> Option<Vec<u8>>;

    /// Whether a file is there.
    fn exists(&self, path: &str) -> bool;

    /// What the kernel has said since it started, as far as it still has it.
    fn kernel_log(&self) -> String;

    /// Writes a request to the device, and reads its answer.
    fn ask(&self, request: &str) -> Asked;

    /// The architecture that this program is for.
    fn architecture(&self) -> &str;
}

/// The system that this program runs on.
#[derive(Clone, Copy, Debug)]
pub struct Running;

impl System for Running {
    fn read(&self, path: &str) -> Option<String> {
        let bytes = fs::read(path).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn tail(&self, path: &str, bytes: usize) -> Option<Vec<u8>> {
        let content = fs::read(path).ok()?;
        Some(content[content.len().saturating_sub(bytes)..].to_vec())
    }

    fn exists(&self, path: &str) -> bool {
        Path::new(path).exists()
    }

    fn kernel_log(&self) -> String {
        let open = OpenOptions::new()
            .read(true)
            .custom_flags(NONBLOCK)
            .open("/dev/kmsg");
        let Ok(mut file) = open else {
            return String::new();
        };
        let mut all = String::new();
        let mut record = [0; 8192];
        loop {
            match file.read(&mut record) {
                Ok(0) => return all,
                Ok(size) => all.push_str(&String::from_utf8_lossy(&record[..size])),
                // The oldest record was overwritten meanwhile: the next read is of the one after it.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
                Err(_) => return all,
            }
        }
    }

    fn ask(&self, request: &str) -> Asked {
        let open = OpenOptions::new().read(true).write(true).open(DEVICE);
        match open.and_then(|device| talk(device, request)) {
            Ok((true, answer)) => Asked::Done(answer),
            Ok((false, answer)) => Asked::Refused(answer),
            Err(error) => Asked::Failed(error),
        }
    }

    fn architecture(&self) -> &str {
        std::env::consts::ARCH
    }
}

/// Whether the hypervisor has done what was requested, and the answer in either case.
fn talk(mut device: File, request: &str) -> io::Result<(bool, String)> {
    let is_refusal = |error: &io::Error| {
        error.raw_os_error() == Some(REFUSED) || error.kind() == io::ErrorKind::ResourceBusy
    };
    let is_done = match device.write_all(request.as_bytes()) {
        Ok(()) => true,
        Err(error) if is_refusal(&error) => false,
        Err(error) => return Err(error),
    };
    let mut answer = String::new();
    device.read_to_string(&mut answer)?;
    Ok((is_done, answer))
}
