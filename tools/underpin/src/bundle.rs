//! Builds a bundle: one file with all that the machine's VMs are made of (`abi::bundle`).
//!
//! Images are streamed with their holes left out; a file that several VMs use is one entry. Where
//! nothing has changed since the last time, nothing is written.

use crate::{
    failure::{Failure, Result, exit},
    progress::Progress,
    vmfile::VmFile,
};
use abi::{
    Text,
    bundle::{ENTRIES_MAX, ENTRY_ALIGN, Entry, Header, MAGIC, VERSION, kind},
};
use std::{
    collections::HashSet,
    ffi::OsString,
    fmt::Write as _,
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};
use zerocopy::IntoBytes as _;

/// Most bytes that are copied between two looks at the progress bar.
const CHUNK: u64 = 16 << 20;

/// A bundle that is laid out and not yet written.
pub struct Plan {
    entries: Vec<Planned>,
    size: u64,
}

/// One entry to be.
struct Planned {
    kind: u32,
    name: String,
    offset: u64,
    size: u64,
    content: Content,
}

/// Where an entry's bytes come from.
enum Content {
    Bytes(Vec<u8>),
    /// A file, and its canonical path.
    File(PathBuf),
}

impl Plan {
    /// Lays out a bundle of these VMs and the files behind them.
    pub fn new(vms: &[VmFile]) -> Result<Self> {
        let mut plan = Self {
            entries: Vec::new(),
            size: 0,
        };
        for (kind, path) in vms.iter().flat_map(VmFile::files) {
            plan.add_file(kind, path)?;
        }
        for vm in vms {
            let record = vm.record(|kind, path| plan.number_of(kind, path))?;
            plan.entries.push(Planned {
                kind: kind::VM,
                name: vm.name.clone(),
                offset: 0,
                size: size_of_val(&record) as u64,
                content: Content::Bytes(record.as_bytes().to_owned()),
            });
        }
        plan.lay_out()?;
        Ok(plan)
    }

    /// Bytes of the bundle.
    pub fn size(&self) -> u64 {
        self.size
    }

    fn add_file(&mut self, kind: u32, path: &Path) -> Result<()> {
        let file = canonical(path)?;
        if self.position(kind, &file).is_some() {
            return Ok(());
        }
        let failed = |error| Failure::file("cannot read", path, &error);
        let size = fs::metadata(&file).map_err(failed)?.len();
        let base = entry_name(kind, &file);
        let taken: HashSet<&str> = self
            .entries
            .iter()
            .filter(|e| e.kind == kind)
            .map(|e| e.name.as_str())
            .collect();
        let free = |name: &String| !taken.contains(name.as_str());
        let mut names = std::iter::once(base.clone()).chain((2..).map(|n| numbered(&base, n)));
        let name = names.find(free).unwrap_or(base.clone());
        self.entries.push(Planned {
            kind,
            name,
            offset: 0,
            size,
            content: Content::File(file),
        });
        Ok(())
    }

    fn position(&self, kind: u32, file: &Path) -> Option<usize> {
        let same =
            |e: &Planned| matches!(&e.content, Content::File(f) if e.kind == kind && f == file);
        self.entries.iter().position(same)
    }

    fn number_of(&self, kind: u32, path: &Path) -> Result<u32> {
        let gone = || Failure::new(exit::FILE, format!("{} is gone", path.display()));
        Ok(self.position(kind, &canonical(path)?).ok_or_else(gone)? as u32)
    }

    fn lay_out(&mut self) -> Result<()> {
        if self.entries.len() > ENTRIES_MAX as usize {
            let message = format!("{} entries are too many for a bundle", self.entries.len());
            let help = format!("use fewer VMs or files: at most {ENTRIES_MAX} together");
            return Err(Failure::new(exit::FILE, message).help(help));
        }
        let table = size_of::<Header>() + self.entries.len() * size_of::<Entry>();
        self.size = (table as u64).next_multiple_of(ENTRY_ALIGN);
        for entry in &mut self.entries {
            entry.offset = self.size;
            let end = self.size.checked_add(entry.size);
            let end = end.and_then(|end| end.checked_next_multiple_of(ENTRY_ALIGN));
            self.size = end.ok_or_else(|| Failure::new(exit::FILE, "the bundle is too large"))?;
        }
        Ok(())
    }

    /// Writes the bundle, unless `out` holds the same already; tells whether it wrote.
    pub fn write(&self, out: &Path, progress: Progress) -> Result<bool> {
        let side = with_suffix(out, ".fingerprint");
        let fingerprint = self.fingerprint()?;
        let whole = fs::metadata(out).is_ok_and(|m| m.len() == self.size);
        if whole && fs::read_to_string(&side).is_ok_and(|old| old == fingerprint) {
            return Ok(false);
        }
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error: io::Error| Failure::file("cannot write", &path, &error)
        };
        if let Some(parent) = out.parent() {
            fs::create_dir_all(parent).map_err(failed(parent))?;
        }
        // A bundle that is half written never has the name of a whole one.
        let part = with_suffix(out, ".part");
        let _ = fs::remove_file(&side);
        let written = self.write_all(&part, progress).and_then(|()| {
            fs::rename(&part, out)
                .and_then(|()| fs::write(&side, &fingerprint))
                .map_err(failed(out))
        });
        if written.is_err() {
            let _ = fs::remove_file(&part);
        }
        written.map(|()| true)
    }

    fn write_all(&self, path: &Path, progress: Progress) -> Result<()> {
        let failed = |error| Failure::file("cannot write the bundle", path, &error);
        let mut out = File::create(path).map_err(failed)?;
        out.set_len(self.size).map_err(failed)?;
        out.write_all(&self.head()).map_err(failed)?;
        let bar = progress.bytes("writing the bundle", self.size);
        for entry in &self.entries {
            bar.set_position(entry.offset);
            out.seek(SeekFrom::Start(entry.offset)).map_err(failed)?;
            match &entry.content {
                Content::Bytes(bytes) => out.write_all(bytes).map_err(failed)?,
                Content::File(file) => {
                    let mut source = File::open(file)
                        .map_err(|error| Failure::file("cannot read", file, &error))?;
                    copy_sparse(&mut source, &mut out, entry, |n| bar.inc(n)).map_err(failed)?;
                }
            }
        }
        bar.finish_and_clear();
        Ok(())
    }

    /// Header and entry table.
    fn head(&self) -> Vec<u8> {
        let count = self.entries.len() as u32;
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            entries: count,
            size: self.size,
            reserved: 0,
        };
        let mut head = header.as_bytes().to_owned();
        for e in &self.entries {
            let name = Text::cut(&e.name);
            let entry = Entry {
                kind: e.kind,
                reserved: 0,
                offset: e.offset,
                size: e.size,
                name,
            };
            head.extend_from_slice(entry.as_bytes());
        }
        head
    }

    /// Text that changes when the bundle would.
    fn fingerprint(&self) -> Result<String> {
        let mut text = format!("underpin bundle {VERSION}\n");
        for entry in &self.entries {
            let Planned {
                kind,
                name,
                offset,
                size,
                ..
            } = entry;
            let _ = write!(text, "{kind} {name} {offset} {size} ");
            match &entry.content {
                Content::Bytes(bytes) => {
                    for byte in bytes {
                        let _ = write!(text, "{byte:02x}");
                    }
                }
                Content::File(file) => {
                    let failed = |error| Failure::file("cannot read", file, &error);
                    let m = fs::metadata(file).map_err(failed)?;
                    let (seconds, rest, inode) = (m.mtime(), m.mtime_nsec(), m.ino());
                    let _ = write!(text, "{} {inode} {seconds}.{rest:09}", file.display());
                }
            }
            text.push('\n');
        }
        Ok(text)
    }
}

/// The name that a file gets in a bundle, before a number tells it from its namesakes: of a Linux
/// kernel its version, otherwise the file's stem.
pub fn entry_name(kind: u32, file: &Path) -> String {
    let stem = || {
        file.file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    };
    let version = if kind == kind::KERNEL {
        kernel_version(file)
    } else {
        None
    };
    Text::<36>::cut(&version.unwrap_or_else(stem)).to_string()
}

/// Whether an entry of the bundle can be the one that [`entry_name`] named `base`.
pub fn is_entry_of(base: &str, entry: &str) -> bool {
    let number = entry
        .strip_prefix(base)
        .and_then(|rest| rest.strip_prefix('~'));
    entry == base || number.is_some_and(|n| n.parse::<u32>().is_ok())
}

fn numbered(base: &str, n: u32) -> String {
    // 36 bytes at most, so that up to 999 fit into an entry's 40.
    format!("{base}~{n}")
}

/// The version in a Linux kernel's banner, "Linux version 6.12.48+deb13-arm64 (...".
fn kernel_version(file: &Path) -> Option<String> {
    let mut file = File::open(file).ok()?;
    let mut buffer = vec![0; 1 << 20];
    let mut kept = 0;
    loop {
        let read = file.read(buffer.get_mut(kept..)?).ok()?;
        let seen = buffer.get(..kept + read)?;
        if let Some(version) = version_in(seen) {
            return String::from_utf8(version.to_vec()).ok();
        }
        if read == 0 {
            return None;
        }
        // The banner may lie across two reads.
        let tail = seen.len().saturating_sub(BANNER.len() + VERSION_MAX);
        kept = seen.len() - tail;
        buffer.copy_within(tail..tail + kept, 0);
    }
}

/// Begins a Linux kernel's banner.
const BANNER: &[u8] = b"Linux version ";
/// More bytes than a kernel's version has.
const VERSION_MAX: usize = 64;

fn version_in(bytes: &[u8]) -> Option<&[u8]> {
    let mut rest = bytes;
    // Most bytes are no L, and looking for one byte is fast.
    while let Some(start) = rest.iter().position(|byte| *byte == BANNER[0]) {
        rest = rest.get(start..)?;
        if let Some(text) = rest.strip_prefix(BANNER)
            && text.first().is_some_and(u8::is_ascii_digit)
            && let Some(end) = text
                .iter()
                .take(VERSION_MAX)
                .position(|b| !b.is_ascii_graphic())
        {
            return text.get(..end);
        }
        rest = rest.get(1..)?;
    }
    None
}

/// Copies a file's bytes to where `out` stands, leaving its holes as holes.
fn copy_sparse(
    from: &mut File,
    out: &mut File,
    entry: &Planned,
    copied: impl Fn(u64),
) -> io::Result<()> {
    use rustix::fs::{SeekFrom as Sparse, seek};
    let mut position = 0;
    while position < entry.size {
        let data = match seek(&*from, Sparse::Data(position)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => break,
            Err(_) => position, // a file system that knows no holes
        };
        let hole = seek(&*from, Sparse::Hole(data)).unwrap_or(entry.size);
        position = hole.min(entry.size).max(data);
        from.seek(SeekFrom::Start(data))?;
        out.seek(SeekFrom::Start(entry.offset + data))?;
        let mut left = position - data;
        while left > 0 {
            let n = io::copy(&mut (&*from).take(left.min(CHUNK)), out)?;
            if n == 0 {
                return Err(io::Error::other(
                    "a source became shorter while it was copied",
                ));
            }
            copied(n);
            left -= n;
        }
        if position == data {
            break;
        }
    }
    Ok(())
}

fn canonical(path: &Path) -> Result<PathBuf> {
    path.canonicalize()
        .map_err(|error| Failure::file("cannot read", path, &error))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests;
