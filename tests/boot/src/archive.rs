//! Initial RAM disks made in a test: a cpio archive before one of the asset cache.

use crate::{Outcome, assets, because};
use std::{fs, path::Path};

const REGULAR: u32 = 0o100_755;
const DIRECTORY: u32 = 0o40_755;

/// Writes an initial RAM disk with `files` (path, content), all executable, before the one of the
/// asset cache for that kernel. Linux unpacks one after the other, and wants plain archives to
/// begin at a multiple of four bytes.
///
/// # Errors
/// The one of the cache is missing, or the new one cannot be written.
pub fn initrd(path: &Path, kernel: &str, files: &[(&str, Vec<u8>)]) -> Outcome {
    let mut bytes = newc(files);
    bytes.extend(assets::read_cached(&format!("initramfs/{kernel}.cpio.gz"))?);
    fs::write(path, bytes).map_err(because(format!("cannot write {}", path.display())))
}

/// A cpio archive (Linux: `Documentation/driver-api/early-userspace/buffer-format.rst`).
fn newc(files: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut archive = Vec::new();
    // A directory comes before what is in it; once more does no harm.
    let parents = |name: &str| -> Vec<String> {
        let ends = name.match_indices('/').map(|(end, _)| end);
        ends.map(|end| name[..end].to_owned()).collect()
    };
    for (number, (name, content)) in files.iter().enumerate() {
        for directory in parents(name) {
            entry(&mut archive, 0, &directory, DIRECTORY, &[]);
        }
        entry(&mut archive, number as u32 + 1, name, REGULAR, content);
    }
    entry(&mut archive, 0, "TRAILER!!!", 0, &[]);
    archive
}

fn entry(archive: &mut Vec<u8>, inode: u32, name: &str, mode: u32, content: &[u8]) {
    let name_size = name.len() as u32 + 1;
    // inode, mode, uid, gid, links, time, size, device, special device, name, checksum.
    let size = content.len() as u32;
    let fields = [inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
    archive.extend(b"070701");
    for field in fields {
        archive.extend(format!("{field:08X}").bytes());
    }
    archive.extend(name.bytes().chain([0]));
    archive.resize(archive.len().next_multiple_of(4), 0);
    archive.extend(content);
    archive.resize(archive.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_of_one_file() {
        let archive = newc(&[("a", b"xyz".to_vec())]);
        assert!(archive.starts_with(b"070701000000010000"));
        // Header 110, name 2, content 3 and 1 of padding.
        assert_eq!(&archive[110..116], b"a\0xyz\0");
        assert_eq!(&archive[116..122], b"070701");
        assert!(archive.windows(10).any(|bytes| bytes == b"TRAILER!!!"));
        assert_eq!(archive.len() % 4, 0);
    }
}
