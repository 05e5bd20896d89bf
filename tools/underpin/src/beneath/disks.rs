//! Disks of VMs that this process serves from this system's files and block devices.
//!
//! EL2 copies what VMs write into an area that the kernel module has, and from there what they read
//! (`abi::served`); this process sees that area and no memory of a VM. A VM is told that a request is
//! done when its answer is in the area, and not before. So a server may end at any moment: the next one
//! does again what has no answer.

use super::image::{Format, Image, Qcow2Image};
use crate::{
    failure::{Failure, Result, exit},
    sim::RunDir,
    units,
    vmfile::DiskFile,
};
use abi::{
    Text,
    served::{
        ANSWER_AT, DATA_BYTES, FOR_OVERLAYS, HEAD_BYTES, OFFERS_AT, OFFERS_MAX, Offer, Record,
        SECTOR_BYTES, answer, operation,
    },
};
use model_served::offers;
use rustix::fs::OFlags;
use std::{
    ffi::OsString,
    fs::{self, File, TryLockError},
    io::{self, Seek as _, SeekFrom},
    os::unix::fs::{FileExt as _, FileTypeExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    thread,
};
use tools_abi::served::{Asked, asked, unanswered};
use zerocopy::IntoBytes as _;

/// The module's view of the area.
const DEVICE: &str = "/dev/underpin-disks";
/// Where a machine's directory keeps what is served, for the next server.
const LIST: &str = "disks";

/// A disk that VMs know by a name, as they know a partition of a machine's disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// Its name.
    pub name: String,
    /// The file or block device behind it.
    pub file: PathBuf,
    /// What it holds may be overwritten by overlays.
    pub is_scratch: bool,
    /// How the file holds it.
    pub format: Format,
}

/// Before a file's path: its contents may be overwritten.
const SCRATCH: &str = "scratch:";

impl Served {
    /// Reads `NAME=FILE` or `NAME=scratch:FILE`, with `,format=FORMAT` behind it unless that is raw.
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        let (text, format) = match text.rsplit_once(",format=") {
            None => (text, Format::Raw),
            Some((rest, name)) => {
                let unknown = || format!("there is no format '{name}': raw or qcow2");
                (rest, Format::parse(name).ok_or_else(unknown)?)
            }
        };
        match text.split_once('=') {
            Some((name, file)) if !name.is_empty() && !file.is_empty() => {
                if Text::<40>::new(name).is_none() {
                    return Err(format!("'{name}' is more than 40 bytes"));
                }
                let path = file.strip_prefix(SCRATCH);
                if path == Some("") {
                    return Err(format!("'{text}' names no file"));
                }
                Ok(Self {
                    name: name.to_owned(),
                    file: PathBuf::from(path.unwrap_or(file)),
                    is_scratch: path.is_some(),
                    format,
                })
            }
            _ => Err(format!("'{text}' is not NAME=FILE")),
        }
    }

    /// A file that is a VM's own disk.
    pub fn own(file: &DiskFile) -> Self {
        Self {
            name: file.name.clone(),
            file: file.path.clone(),
            is_scratch: false,
            format: Format::Raw,
        }
    }

    /// What [`Self::parse`] reads as this, whatever the file is called.
    pub fn word(&self) -> OsString {
        let kind = if self.is_scratch { SCRATCH } else { "" };
        let mut word = OsString::from(format!("{}={kind}", self.name));
        word.push(&self.file);
        word.push(format!(",format={}", self.format.name()));
        word
    }
}

/// The area, and the files in the order of their offers.
pub struct Server {
    area: File,
    files: Vec<(Image, u64)>,
}

impl Server {
    /// Offers these disks for the loan that is made next, and keeps them in mind for later servers.
    pub fn offer(run: &RunDir, disks: &[Served]) -> Result<Self> {
        let server = Self::open(disks)?;
        let mut offers = [Offer::default(); OFFERS_MAX];
        for ((offer, disk), (_, bytes)) in offers.iter_mut().zip(disks).zip(&server.files) {
            offer.name = Text::cut(&disk.name);
            offer.sectors = bytes / SECTOR_BYTES;
            offer.uses = if disk.is_scratch { FOR_OVERLAYS } else { 0 };
        }
        let failed = |error| Failure::file("cannot offer disks through", Path::new(DEVICE), &error);
        server
            .area
            .write_all_at(offers.as_bytes(), OFFERS_AT)
            .map_err(failed)?;
        keep_list(run, disks)?;
        Ok(server)
    }

    /// Goes on with the disks of the server before; `None` where it served none.
    pub fn resume(run: &RunDir) -> Result<Option<Self>> {
        let path = run.path().join(LIST);
        let list = match fs::read_to_string(&path) {
            Ok(list) => list,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Failure::file("cannot read", &path, &error)),
        };
        let disks: Vec<Served> = list
            .lines()
            .filter_map(|line| Served::parse(line).ok())
            .collect();
        Self::open(&disks).map(Some)
    }

    /// Serves the disks that a system before this one has offered, by their names.
    pub fn adopt(run: &RunDir, disks: &[Served]) -> Result<Self> {
        let mut server = Self::open(disks)?;
        let mut head = [0; HEAD_BYTES as usize];
        let failed = |error| Failure::file("cannot read", Path::new(DEVICE), &error);
        // The page read whole would count as having seen what is asked for.
        let (_, table) = head.split_at_mut(OFFERS_AT as usize);
        server
            .area
            .read_exact_at(table, OFFERS_AT)
            .map_err(failed)?;
        let mut given: Vec<_> = disks.iter().cloned().zip(server.files).collect();
        let mut taken = Vec::new();
        for offer in offers(&head) {
            let is_it = |(disk, (_, bytes)): &(Served, (Image, u64))| {
                offer.name.as_str() == Some(&disk.name) && offer.sectors == bytes / SECTOR_BYTES
            };
            let Some(place) = given.iter().position(is_it) else {
                let size = units::size(offer.sectors * SECTOR_BYTES);
                let message = format!("VMs have a disk '{}' of {size}", offer.name);
                return Err(
                    Failure::new(exit::USAGE, message).help("name its file: --disk NAME=FILE")
                );
            };
            taken.push(given.swap_remove(place));
        }
        let (disks, files): (Vec<Served>, _) = taken.into_iter().unzip();
        server.files = files;
        keep_list(run, &disks)?;
        Ok(server)
    }

    /// No disk is served any more.
    pub fn forget(run: &RunDir) {
        let _ = fs::remove_file(run.path().join(LIST));
    }

    fn open(disks: &[Served]) -> Result<Self> {
        if disks.len() > OFFERS_MAX {
            let message = format!("{} disks are more than can be served", disks.len());
            return Err(
                Failure::new(exit::USAGE, message).help(format!("use at most {OFFERS_MAX}"))
            );
        }
        let files = disks.iter().map(|disk| open_disk(&disk.file, disk.format));
        let files = files.collect::<Result<Vec<_>>>()?;
        let mut options = File::options();
        let area = options.read(true).write(true).open(DEVICE);
        let area = area.map_err(|error| Failure::file("cannot open", Path::new(DEVICE), &error))?;
        Ok(Self { area, files })
    }

    /// Serves until the memory is back, on a thread of its own.
    pub fn start(self) -> io::Result<()> {
        let thread = thread::Builder::new().name("disks".into());
        thread.spawn(move || self.serve()).map(drop)
    }

    fn serve(&self) {
        let mut head = vec![0; HEAD_BYTES as usize];
        let (mut data, start) = room(DATA_BYTES as usize);
        let data = data.get_mut(start..).unwrap_or_default();
        // The read waits until something was asked since the last one.
        while let Ok(size @ 1..) = self.area.read_at(&mut head, 0) {
            let head = head.get(..size).unwrap_or_default();
            if self.answer_all(head, data).is_err() {
                return;
            }
        }
    }

    /// Does what the area's first page asks for, and answers each when it is done. `data` has room for a slot's.
    fn answer_all(&self, head: &[u8], data: &mut [u8]) -> io::Result<()> {
        for slot in unanswered(head) {
            let at = (slot * size_of::<Record>()) as u64;
            let mut record = [0; size_of::<Record>()];
            self.area.read_exact_at(&mut record, at)?;
            let Some(todo) = asked(slot, &record) else {
                continue;
            };
            let data = data.get_mut(..todo.bytes as usize).unwrap_or_default();
            let done = self.execute(todo, data).is_ok();
            let answer = answer(todo.ticket, done).to_le_bytes();
            self.area.write_all_at(&answer, at + ANSWER_AT)?;
        }
        Ok(())
    }

    fn execute(&self, todo: Asked, data: &mut [u8]) -> io::Result<()> {
        let outside = || io::Error::from(io::ErrorKind::InvalidInput);
        let (file, size) = self.files.get(todo.disk).ok_or_else(outside)?;
        if todo.at + todo.bytes > *size {
            return Err(outside());
        }
        let at = HEAD_BYTES + todo.slot as u64 * DATA_BYTES;
        match todo.operation {
            operation::READ => {
                file.read(data, todo.at)?;
                self.area.write_all_at(data, at)
            }
            operation::WRITE => {
                self.area.read_exact_at(data, at)?;
                file.write(data, todo.at)
            }
            _ => file.sync(),
        }
    }
}

/// Keeps in mind what is served.
fn keep_list(run: &RunDir, disks: &[Served]) -> Result<()> {
    let path = run.path().join(LIST);
    let line = |disk: &Served| {
        let mut disk = disk.clone();
        disk.file = fs::canonicalize(&disk.file).unwrap_or(disk.file);
        format!("{}\n", disk.word().display())
    };
    let list: String = disks.iter().map(line).collect();
    fs::write(&path, list).map_err(|error| Failure::file("cannot write", &path, &error))
}

/// What data are read to and written from, where the kernel reads and writes them without its cache.
const ALIGN: usize = 4096;

/// Room for so many bytes, and where in it data begin.
fn room(bytes: usize) -> (Vec<u8>, usize) {
    let room = vec![0; bytes + ALIGN];
    let start = room.as_ptr().align_offset(ALIGN).min(ALIGN);
    (room, start)
}

/// Opens a file or block device so that what is written outlives this system, as VMs may: nothing that a
/// VM was told is written waits in this system's memory.
fn open_durable(path: &Path, format: Format) -> io::Result<File> {
    let open = |flags: OFlags| {
        let mut options = File::options();
        options.read(true).write(true);
        options.custom_flags(flags.bits() as i32).open(path)
    };
    let is_device = fs::metadata(path)?.file_type().is_block_device();
    // What an image says of itself is written in an order that holds through a loss of power.
    let direct = match format {
        Format::Raw => OFlags::DIRECT,
        Format::Qcow2 => OFlags::DIRECT | OFlags::DSYNC,
    };
    if is_device && let Ok(file) = open(direct) {
        let (mut room, start) = room(SECTOR_BYTES as usize);
        let sector = room.get_mut(start..start + SECTOR_BYTES as usize);
        // Sectors of other sizes, and what cannot do without a cache, take the other way.
        if sector.is_some_and(|sector| file.read_exact_at(sector, 0).is_ok()) {
            return Ok(file);
        }
    }
    open(OFlags::DSYNC)
}

/// A disk in a file or block device for this process alone, and its bytes.
fn open_disk(path: &Path, format: Format) -> Result<(Image, u64)> {
    let failed = |error: io::Error| Failure::file("cannot serve", path, &error);
    let mut file = open_durable(path, format).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let message = format!("{} is served by another process", path.display());
            return Err(Failure::new(exit::FILE, message).help("end that one, or use a copy"));
        }
        Err(TryLockError::Error(error)) => return Err(failed(error)),
    }
    let (image, size) = match format {
        Format::Raw => {
            // Of a block device, metadata does not tell.
            let size = file.seek(SeekFrom::End(0)).map_err(failed)?;
            (Image::Raw(file), size)
        }
        Format::Qcow2 => {
            let (mut room, start) = room(ALIGN);
            let head = room.get_mut(start..start + ALIGN).unwrap_or_default();
            let read = file.read_at(head, 0).map_err(failed)?;
            let image = Qcow2Image::open(path, file, head.get(..read).unwrap_or_default())?;
            let size = image.size();
            (Image::Qcow2(image), size)
        }
    };
    if size == 0 || !size.is_multiple_of(SECTOR_BYTES) {
        let message = format!("{} has {size} bytes, which is no disk", path.display());
        let help = format!("make it a multiple of {SECTOR_BYTES}: truncate --size=1G FILE");
        return Err(Failure::new(exit::FILE, message).help(help));
    }
    Ok((image, size))
}

#[cfg(test)]
mod tests;
