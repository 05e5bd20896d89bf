//! What a disk's bytes are in a file: the file's own, or those of a qcow2 image.
//!
//! The format is what the user says, and never what a file looks like: a guest writes its raw disk as it likes, and
//! one that were taken for qcow2 by its first bytes could name any file of this system as what lies below it. For
//! the same reason an image that needs another file is refused. `imago` reads and writes qcow2 ([decision
//! 55](../../../../docs/decisions/0055-imago-reads-qcow2.md)); what it would take without a word is refused before.

use crate::failure::{Failure, Result, exit};
use imago::{FormatAccess, file, qcow2::Qcow2};
use std::{
    cell::Cell,
    fmt,
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

/// How a file holds a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Byte for byte.
    #[default]
    Raw,
    /// As QEMU's format of that name, in one file.
    Qcow2,
}

impl Format {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
        }
    }

    /// The format of that name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Raw, Self::Qcow2]
            .into_iter()
            .find(|format| format.name() == name)
    }
}

/// The bytes of a disk.
pub enum Image {
    /// Of a file or block device.
    Raw(File),
    /// Of an image in one.
    Qcow2(Qcow2Image),
}

impl Image {
    /// Fills `data` from `at` on.
    pub fn read(&self, data: &mut [u8], at: u64) -> io::Result<()> {
        match self {
            Self::Raw(file) => file.read_exact_at(data, at),
            Self::Qcow2(image) => image.guarded(|access| access.read(data, at)),
        }
    }

    /// Writes `data`; afterwards the file has all that is needed to read it again.
    pub fn write(&self, data: &[u8], at: u64) -> io::Result<()> {
        match self {
            Self::Raw(file) => file.write_all_at(data, at),
            // Where clusters lie would else wait in this process, which may be killed.
            Self::Qcow2(image) => image.guarded(|access| {
                access.write(data, at)?;
                access.flush()
            }),
        }
    }

    /// What was written outlives a loss of power.
    pub fn sync(&self) -> io::Result<()> {
        match self {
            Self::Raw(file) => file.sync_data(),
            Self::Qcow2(image) => image.guarded(|access| {
                access.flush()?;
                access.sync()
            }),
        }
    }
}

/// A qcow2 image that is read and written by a library.
pub struct Qcow2Image {
    access: FormatAccess<file::File>,
    /// The library has given up in the middle of something: nothing that it holds is believed.
    is_broken: Cell<bool>,
}

impl Qcow2Image {
    /// Opens the image in a file that is this process's alone; `head` is the file's beginning.
    ///
    /// # Errors
    /// It is none, is damaged, or is of a kind that is not served.
    pub fn open(path: &Path, file: File, head: &[u8]) -> Result<Self> {
        let refused = |why: &dyn fmt::Display, help: &str| {
            let message = format!("{} cannot be served as qcow2: {why}", path.display());
            Failure::new(exit::FILE, message).help(help)
        };
        check(head).map_err(|unfit| refused(&unfit, unfit.advice()))?;
        let open = || -> io::Result<_> {
            let mut image = Qcow2::<file::File>::open_image(file.try_into()?, true)?;
            image.set_backing(None);
            image.set_data_file(None);
            Ok(FormatAccess::new(image))
        };
        let given_up = |_| Err(io::Error::other("its tables make no sense"));
        let access = catch_unwind(AssertUnwindSafe(open)).unwrap_or_else(given_up);
        let access = access.map_err(|error| {
            refused(
                &format!("it is damaged: {error}"),
                "see what `qemu-img check` says of it, and use a copy",
            )
        })?;
        Ok(Self {
            access,
            is_broken: Cell::new(false),
        })
    }

    /// Bytes of the disk.
    pub fn size(&self) -> u64 {
        self.access.size()
    }

    /// Does something with the image; that the library panics is an error of this image, for good.
    fn guarded(
        &self,
        todo: impl FnOnce(&FormatAccess<file::File>) -> io::Result<()>,
    ) -> io::Result<()> {
        let broken = || io::Error::other("the image's tables make no sense");
        if self.is_broken.get() {
            return Err(broken());
        }
        catch_unwind(AssertUnwindSafe(|| todo(&self.access))).unwrap_or_else(|_| {
            self.is_broken.set(true);
            Err(broken())
        })
    }
}

/// Why an image is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unfit {
    /// Its first bytes are those of something else.
    Nothing,
    /// It is of a version that there is not yet.
    Version(u32),
    /// What it does not hold is to be read from another file.
    Backing,
    /// Its data are in another file.
    DataFile,
    /// Its data are encrypted.
    Encrypted,
    /// It was not closed in order, and counts wrongly what is used.
    Dirty,
    /// Somebody has marked it as damaged.
    Corrupt,
    /// It uses what is not known here, as bits of the header.
    Features(u64),
}

impl Unfit {
    fn advice(self) -> &'static str {
        match self {
            Self::Nothing => "leave ',format=qcow2' out if it is raw",
            Self::Backing => "make it whole: qemu-img convert -O qcow2 IMAGE WHOLE",
            Self::Dirty | Self::Corrupt => "mend a copy: qemu-img check -r all COPY",
            _ => "make another: qemu-img convert -O qcow2 IMAGE OTHER",
        }
    }
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "it is no such image",
            Self::Version(version) => return write!(f, "its version is {version}, not 2 or 3"),
            Self::Backing => "it needs another image below it",
            Self::DataFile => "its data are in another file",
            Self::Encrypted => "it is encrypted",
            Self::Dirty => "it was not closed in order",
            Self::Corrupt => "it is marked as damaged",
            Self::Features(bits) => {
                return write!(f, "it uses features that are not known here: {bits:#x}");
            }
        })
    }
}

/// Bytes of a header that are looked at here.
const HEAD: usize = 104;
/// `QFI` and 0xfb.
const MAGIC: u32 = 0x5146_49fb;
/// Bits of the incompatible features.
const DIRTY: u64 = 1 << 0;
const CORRUPT: u64 = 1 << 1;
const DATA_FILE: u64 = 1 << 2;

/// Whether an image with this header is one that is served (QEMU's docs/interop/qcow2, big endian).
fn check(head: &[u8]) -> std::result::Result<(), Unfit> {
    let head: &[u8; HEAD] = head.first_chunk().ok_or(Unfit::Nothing)?;
    let number = |at: usize, bytes: usize| {
        let field = head.get(at..at + bytes).unwrap_or_default();
        field
            .iter()
            .fold(0, |value, byte| value << 8 | u64::from(*byte))
    };
    if number(0, 4) != u64::from(MAGIC) {
        return Err(Unfit::Nothing);
    }
    let version = number(4, 4) as u32;
    if !(2..=3).contains(&version) {
        return Err(Unfit::Version(version));
    }
    // Version 2 has other things where features are.
    let features = if version == 3 { number(72, 8) } else { 0 };
    let all = [
        (features & CORRUPT != 0, Unfit::Corrupt),
        (features & DIRTY != 0, Unfit::Dirty),
        (features & DATA_FILE != 0, Unfit::DataFile),
        (features != 0, Unfit::Features(features)),
        (number(8, 8) != 0, Unfit::Backing),
        (number(32, 4) != 0, Unfit::Encrypted),
    ];
    let unfit = all.into_iter().find(|(is_so, _)| *is_so);
    unfit.map_or(Ok(()), |(_, unfit)| Err(unfit))
}

#[cfg(test)]
mod tests;
