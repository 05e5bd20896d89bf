//! Looks at the files that a VM is made of, so that a wrong one is told before a VM fails to boot.

use crate::failure::reason;
use abi::bundle::kind;
use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

/// A file behind a VM.
pub struct Image {
    /// Where it is.
    pub path: PathBuf,
    /// Its bytes.
    pub size: u64,
}

/// Checks that a file is there, and that its first bytes can be of that kind
/// (`abi::bundle::kind`). The error is a sentence, and what to do.
pub fn inspect(path: &Path, kind: u32) -> Result<Image, (String, String)> {
    let shown = path.display();
    let cannot = |error: std::io::Error| {
        let help = match error.kind() {
            std::io::ErrorKind::NotFound if path.starts_with(super::cache_dir()) => {
                "`make demo` fills the cache; paths without cache: are relative to the VM file"
            }
            std::io::ErrorKind::NotFound => "paths are relative to the VM file",
            _ => "look at who owns the file: ls -ld",
        };
        (
            format!("cannot read {shown}: {}", reason(&error)),
            help.to_owned(),
        )
    };
    let file = File::open(path).map_err(cannot)?;
    let metadata = file.metadata().map_err(cannot)?;
    if !metadata.is_file() {
        return Err((
            format!("{shown} is no regular file"),
            "name a file".to_owned(),
        ));
    }
    let mut head = Vec::new();
    file.take(64).read_to_end(&mut head).map_err(cannot)?;
    match fault(&head, kind) {
        Some((what, help)) => Err((format!("{shown} {what}"), format!("{help} {shown}"))),
        None => Ok(Image {
            path: path.to_owned(),
            size: metadata.len(),
        }),
    }
}

/// What speaks against a file that begins with these bytes, and the command that mends it.
fn fault(head: &[u8], kind: u32) -> Option<(&'static str, &'static str)> {
    let begins = |magic: &[u8]| head.starts_with(magic);
    match kind {
        _ if head.is_empty() => Some(("is empty", "make it anew, or name another:")),
        kind::KERNEL if begins(b"\x1f\x8b") => Some((
            "is compressed, and a kernel must be a plain arm64 Image",
            "unpack it: gunzip -c",
        )),
        kind::KERNEL if head.get(4..8) == Some(b"zimg") => Some((
            "is an EFI zboot image, and a kernel must be a plain arm64 Image",
            "unpack it first:",
        )),
        kind::KERNEL if begins(b"\x7fELF") => Some((
            "is an ELF file, and a kernel must be a plain arm64 Image",
            "use objcopy -O binary",
        )),
        kind::DISK if begins(b"QFI\xfb") => Some((
            "is a qcow2 image, and disks must be raw",
            "convert it: qemu-img convert -O raw",
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_wrong_formats_are_told_apart() {
        assert!(
            fault(b"\x1f\x8b\x08", kind::KERNEL)
                .unwrap()
                .0
                .contains("compressed")
        );
        assert!(
            fault(b"MZ\0\0zimg", kind::KERNEL)
                .unwrap()
                .0
                .contains("zboot")
        );
        assert!(
            fault(b"QFI\xfb", kind::DISK)
                .unwrap()
                .1
                .contains("qemu-img")
        );
        assert!(fault(b"", kind::INITRD).is_some());
        assert!(fault(b"\x1f\x8b\x08", kind::INITRD).is_none());
        assert!(fault(b"\x00\x00\x00\x14", kind::KERNEL).is_none());
    }
}
