//! An initial RAM disk, in the kernel's cpio format (`newc`): the same bytes for the same files.

use crate::step::Outcome;
use std::{fs, path::Path};

/// A regular file that may be executed.
const PROGRAM: u32 = 0o100_755;
/// A regular file.
const FILE: u32 = 0o100_644;
/// A directory.
const DIRECTORY: u32 = 0o40_755;

/// An archive that is being written.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    fn add(&mut self, name: &str, mode: u32, data: &[u8]) {
        self.entries += 1;
        let sizes = [data.len() as u32, name.len() as u32 + 1];
        let header = [
            self.entries,
            mode,
            0,
            0,
            1,
            0,
            sizes[0],
            0,
            0,
            0,
            0,
            sizes[1],
            0,
        ];
        self.bytes.extend(b"070701");
        for field in header {
            self.bytes.extend(format!("{field:08X}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend(data);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// The archive that starts `init`, with the kernel's modules and their load order, as the asset
/// cache keeps them in `kernel`, with other `programs` by name, and with `more` modules, kept alike.
///
/// # Errors
/// A file cannot be read.
pub fn archive(
    init: &Path,
    kernel: &Path,
    programs: &[(&str, &Path)],
    more: Option<&Path>,
) -> Outcome<Vec<u8>> {
    let read = |path: &Path| {
        fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
    };
    let mut archive = Archive::default();
    for directory in ["dev", "modules"] {
        archive.add(directory, DIRECTORY, &[]);
    }
    archive.add("init", PROGRAM, &read(init)?);
    for (name, program) in programs {
        archive.add(name, PROGRAM, &read(program)?);
    }
    let mut order = Vec::new();
    let kept = [(kernel, kernel.join("modules"))];
    let more = more.map(|more| (more, more.to_owned()));
    for (list, modules) in kept.into_iter().chain(more) {
        let names = read(&list.join("modules.order"))?;
        for module in String::from_utf8_lossy(&names).lines() {
            let bytes = read(&modules.join(module))?;
            archive.add(&format!("modules/{module}"), FILE, &bytes);
        }
        order.extend(names);
    }
    archive.add("modules.order", FILE, &order);
    archive.add("TRAILER!!!", 0, &[]);
    Ok(archive.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_sized() {
        let mut archive = Archive::default();
        archive.add("init", PROGRAM, b"12345");
        let bytes = archive.bytes;
        // A header of 110 bytes, the name with its zero, both padded; then the data, padded.
        assert_eq!(bytes.len(), (110 + 5_usize).next_multiple_of(4) + 8);
        assert!(bytes.starts_with(b"07070100000001000081ED"));
        assert_eq!(&bytes[54..62], b"00000005");
        assert_eq!(&bytes[110..115], b"init\0");
        assert_eq!(&bytes[116..124], b"12345\0\0\0");
    }
}
