//! Looks at the files that a VM is made of, so that a wrong one is told before a VM fails to boot.

use crate::failure::reason;
use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

/// As many bytes of a file as are looked at: an arm64 Image's tables are within.
const HEAD: u64 = 4096;

/// What a file must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A plain arm64 Linux `Image`.
    LinuxImage,
    /// A program without a header, entered at its first byte.
    FlatImage,
    /// An initial RAM disk.
    Initrd,
    /// A raw disk.
    Disk,
}

/// A file behind a VM.
pub struct Image {
    /// Where it is.
    pub path: PathBuf,
    /// Its bytes.
    pub size: u64,
}

/// What speaks against a file, and what to do.
pub type Fault = (String, String);

/// Checks that a file is there, and that its size and first bytes can be of what is wanted. The
/// error is a sentence, and what to do.
pub fn inspect(path: &Path, wanted: Wanted) -> Result<Image, Fault> {
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
    file.take(HEAD).read_to_end(&mut head).map_err(cannot)?;
    let size = metadata.len();
    let fault = wrong_format(&head, wanted)
        .map(|(what, command)| (what.to_owned(), format!("{command} {shown}")))
        .or_else(|| match wanted {
            Wanted::LinuxImage => not_linux(&head, size),
            Wanted::FlatImage => not_flat(&head),
            Wanted::Initrd | Wanted::Disk => None,
        });
    match fault {
        Some((what, help)) => Err((format!("{shown} {what}"), help)),
        None => Ok(Image {
            path: path.to_owned(),
            size,
        }),
    }
}

/// What speaks against a file that begins with these bytes, and the command that mends it.
pub fn wrong_format(head: &[u8], wanted: Wanted) -> Option<(&'static str, &'static str)> {
    let begins = |magic: &[u8]| head.starts_with(magic);
    match wanted {
        _ if head.is_empty() => Some(("is empty", "make it anew, or name another:")),
        Wanted::LinuxImage if begins(b"\x1f\x8b") => Some((
            "is compressed, and a kernel must be a plain arm64 Image",
            "unpack it: gunzip -c",
        )),
        Wanted::LinuxImage if head.get(4..8) == Some(b"zimg") => Some((
            "is an EFI zboot image, and a kernel must be a plain arm64 Image",
            "unpack it first:",
        )),
        Wanted::LinuxImage | Wanted::FlatImage if begins(b"\x7fELF") => Some((
            "is an ELF file, and what is booted must be a plain image",
            "use objcopy -O binary",
        )),
        Wanted::Disk if begins(b"QFI\xfb") => Some((
            "is a qcow2 image, and disks must be raw",
            "convert it: qemu-img convert -O raw",
        )),
        _ => None,
    }
}

/// What speaks against an arm64 Image of so many bytes (Linux: `arch/arm64/booting.rst`).
fn not_linux(head: &[u8], size: u64) -> Option<Fault> {
    if !has_header(head) {
        return Some((
            "has no arm64 Image header".to_owned(),
            "name an arm64 kernel; a program without a header, entered at its first byte, \
             needs format = \"flat\" in [boot]"
                .to_owned(),
        ));
    }
    let stated = stated_size(head)?;
    (size < stated).then(|| {
        (
            format!("is cut off: it has {size} bytes, and {stated} by its own header"),
            "copy or download it anew".to_owned(),
        )
    })
}

/// What speaks against a flat image: the hypervisor would take it for a kernel.
fn not_flat(head: &[u8]) -> Option<Fault> {
    has_header(head).then(|| {
        (
            "has an arm64 Image header, so it is no flat image".to_owned(),
            "remove format = \"flat\"".to_owned(),
        )
    })
}

/// Whether it begins with the 64 bytes of an arm64 Image, which have a magic number near the end.
fn has_header(head: &[u8]) -> bool {
    head.len() >= 64 && head.get(56..60) == Some(b"ARM\x64")
}

/// How many bytes the file has by its PE header, which kernels with an EFI stub have; the Image
/// header itself tells only how much memory the kernel takes (PE format: COFF file header and
/// section table).
fn stated_size(head: &[u8]) -> Option<u64> {
    let bytes = |at: usize, count: usize| head.get(at..at.checked_add(count)?);
    let half = |at| Some(u16::from_le_bytes(bytes(at, 2)?.try_into().ok()?));
    let word = |at| Some(u32::from_le_bytes(bytes(at, 4)?.try_into().ok()?));
    let pe = word(60)? as usize;
    if !head.starts_with(b"MZ") || bytes(pe, 4)? != b"PE\0\0" {
        return None;
    }
    let table = pe + 24 + usize::from(half(pe + 20)?);
    let end = |section: usize| {
        let at = table + 40 * section;
        Some(u64::from(word(at + 16)?) + u64::from(word(at + 20)?))
    };
    (0..half(pe + 6)?.into()).filter_map(end).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first bytes of a kernel whose only section ends at `end`.
    fn kernel(end: u32) -> Vec<u8> {
        let mut head = vec![0; 512];
        head[..2].copy_from_slice(b"MZ");
        head[56..60].copy_from_slice(b"ARM\x64");
        head[60] = 0x40;
        head[0x40..0x44].copy_from_slice(b"PE\0\0");
        (head[0x46], head[0x54]) = (1, 0xa0);
        let section = 0x40 + 24 + 0xa0;
        head[section + 16..section + 20].copy_from_slice(&(end - 4096).to_le_bytes());
        head[section + 20..section + 24].copy_from_slice(&4096_u32.to_le_bytes());
        head
    }

    #[test]
    fn known_wrong_formats_are_told_apart() {
        let said = |head: &[u8], wanted| wrong_format(head, wanted).map(|(what, _)| what);
        let linux = Wanted::LinuxImage;
        assert!(said(b"\x1f\x8b\x08", linux).unwrap().contains("compressed"));
        assert!(said(b"MZ\0\0zimg", linux).unwrap().contains("zboot"));
        assert!(said(b"\x7fELF", Wanted::FlatImage).unwrap().contains("ELF"));
        assert!(said(b"QFI\xfb", Wanted::Disk).unwrap().contains("qcow2"));
        assert!(said(b"", Wanted::Initrd).is_some());
        assert!(said(b"\x1f\x8b\x08", Wanted::Initrd).is_none());
        assert!(said(b"\x00\x00\x00\x14", Wanted::FlatImage).is_none());
    }

    #[test]
    fn a_kernel_has_a_header_and_all_its_bytes() {
        let said = |head: &[u8], size| not_linux(head, size).map(|(what, _)| what);
        let whole = kernel(3 << 20);
        assert_eq!(said(&whole, 3 << 20), None);
        assert_eq!(said(&whole, 4 << 20), None);
        assert_eq!(
            said(&whole, 3_000_000).unwrap(),
            "is cut off: it has 3000000 bytes, and 3145728 by its own header"
        );
        assert!(
            said(&whole[..63], 63)
                .unwrap()
                .contains("no arm64 Image header")
        );
        assert!(
            said(&[0x14; 4096], 4096)
                .unwrap()
                .contains("no arm64 Image header")
        );
        // Without an EFI stub nothing tells the file's size.
        let mut plain = whole.clone();
        plain[0] = 0;
        assert_eq!(said(&plain, 512), None);
    }

    #[test]
    fn absurd_tables_are_no_kernels_end() {
        let mut odd = kernel(3 << 20);
        odd[60..64].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(stated_size(&odd), None);
        let mut odd = kernel(3 << 20);
        odd[0x54..0x56].copy_from_slice(&u16::MAX.to_le_bytes());
        assert_eq!(stated_size(&odd), None);
    }

    #[test]
    fn a_kernel_is_no_flat_image() {
        assert!(not_flat(&kernel(1 << 20)).is_some());
        assert!(not_flat(b"\x00\x00\x00\x14").is_none());
    }
}
