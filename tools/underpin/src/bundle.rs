//! Builds a bundle: one file with all that the machine's VMs are made of (`abi::bundle`).
//!
//! Files are streamed with their holes left out; one that several VMs use is one entry. Of disk
//! images each different block is stored once. Where nothing has changed since the last time,
//! nothing is written.

use crate::{
    failure::{Failure, Result, exit},
    progress::Progress,
    vmfile::VmFile,
};
use abi::{
    Text,
    bundle::{ClusterRecord, ENTRIES_MAX, ENTRY_ALIGN, Entry, Header, MAGIC, VERSION, kind},
};
use std::{
    collections::HashSet,
    ffi::OsString,
    fmt::Write as _,
    fs::{self, File},
    io::{self, Read as _},
    os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::SystemTime,
};
use zerocopy::IntoBytes as _;

mod blocks;

pub use blocks::Tally;
use blocks::{Store, data_runs, shrunk};

/// Bytes of a plain file that are copied at once.
const CHUNK: usize = 1 << 20;

/// A bundle that is laid out and not yet written.
pub struct Plan {
    entries: Vec<Planned>,
    /// Bytes before the blocks of disk images, where there are any; otherwise, all.
    head: u64,
}

/// One entry to be.
struct Planned {
    entry: Entry,
    content: Content,
    /// The share group that it belongs to, that of the first VM with it.
    group: String,
}

/// Where an entry's bytes come from.
enum Content {
    Bytes(Vec<u8>),
    /// A file, and its canonical path.
    File(PathBuf),
    /// The blocks of the files that are disk images.
    Blocks,
}

impl Planned {
    /// An entry that has no place yet.
    fn new(kind: u32, name: &str, size: u64, content: Content, group: &str) -> Self {
        let entry = Entry {
            kind,
            reserved: 0,
            offset: 0,
            size,
            name: Text::cut(name),
        };
        let group = group.to_owned();
        Self {
            entry,
            content,
            group,
        }
    }
}

/// A bundle that is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Whether it was written now; otherwise it was there and had not changed.
    pub anew: bool,
    /// Its bytes.
    pub size: u64,
    /// What became of its disk images.
    pub tally: Tally,
}

impl Plan {
    /// Lays out a bundle of these VMs and the files behind them.
    pub fn new(vms: &[VmFile]) -> Result<Self> {
        Self::with_cluster(vms, None)
    }

    /// As [`Self::new`], for a host of a cluster.
    pub fn with_cluster(vms: &[VmFile], cluster: Option<ClusterRecord>) -> Result<Self> {
        let mut plan = Self {
            entries: Vec::new(),
            head: 0,
        };
        let hosts: Vec<_> = vms
            .iter()
            .map(|vm| vm.hosts_in(cluster.as_ref()))
            .collect::<Result<_>>()?;
        let here = vms.iter().zip(hosts);
        let here = here.filter_map(|(vm, hosts)| Some((vm, hosts?)));
        for (vm, _) in here.clone() {
            for (kind, path) in vm.files() {
                plan.add_file(kind, path, &vm.sharing.group)?;
            }
        }
        let has_disks = plan.entries.iter().any(|e| e.entry.kind == kind::DISK);
        for (vm, hosts) in here {
            let mut record = vm.record(|kind, path| plan.number_of(kind, path))?;
            record.hosts = hosts;
            let content = Content::Bytes(record.as_bytes().to_owned());
            let size = size_of_val(&record) as u64;
            plan.entries
                .push(Planned::new(kind::VM, &vm.name, size, content, ""));
        }
        if let Some(record) = cluster {
            let content = Content::Bytes(record.as_bytes().to_owned());
            let size = size_of_val(&record) as u64;
            let planned = Planned::new(kind::CLUSTER, "cluster", size, content, "");
            plan.entries.push(planned);
        }
        if has_disks {
            let blocks = Planned::new(kind::BLOCKS, "blocks", 0, Content::Blocks, "");
            plan.entries.push(blocks);
        }
        plan.lay_out()?;
        Ok(plan)
    }

    /// The most bytes the bundle can have: as many as if no disk had a hole, a block of zeroes or
    /// one that equals another.
    pub fn size_at_most(&self) -> u64 {
        let disks = self.disks().map(|disk| disk.size).sum::<u64>();
        self.head.saturating_add(disks)
    }

    fn disks(&self) -> impl Iterator<Item = &Entry> {
        let entries = self.entries.iter().map(|planned| &planned.entry);
        entries.filter(|entry| entry.kind == kind::DISK)
    }

    fn add_file(&mut self, kind: u32, path: &Path, group: &str) -> Result<()> {
        let file = canonical(path)?;
        if self.position(kind, &file).is_some() {
            return Ok(());
        }
        let failed = |error| Failure::file("cannot read", path, &error);
        let size = fs::metadata(&file).map_err(failed)?.len();
        let base = entry_name(kind, &file);
        let of_kind = |planned: &&Planned| planned.entry.kind == kind;
        let names = self.entries.iter().filter(of_kind);
        let taken: HashSet<&str> = names.filter_map(|e| e.entry.name.as_str()).collect();
        let free = |name: &String| !taken.contains(name.as_str());
        let mut names = std::iter::once(base.clone()).chain((2..).map(|n| numbered(&base, n)));
        let name = names.find(free).unwrap_or(base.clone());
        self.entries
            .push(Planned::new(kind, &name, size, Content::File(file), group));
        Ok(())
    }

    fn position(&self, kind: u32, file: &Path) -> Option<usize> {
        let same = |e: &Planned| matches!(&e.content, Content::File(f) if e.entry.kind == kind && f == file);
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
        self.head = (table as u64).next_multiple_of(ENTRY_ALIGN);
        for Planned { entry, .. } in &mut self.entries {
            entry.offset = self.head;
            let end = self.head.checked_add(entry.stored());
            let end = end.and_then(|end| end.checked_next_multiple_of(ENTRY_ALIGN));
            self.head = end.ok_or_else(|| Failure::new(exit::FILE, "the bundle is too large"))?;
        }
        Ok(())
    }

    /// Writes the bundle, unless `out` holds the same already.
    pub fn write(&self, out: &Path, progress: Progress) -> Result<Written> {
        let side = with_suffix(out, ".fingerprint");
        let fingerprint = self.fingerprint()?;
        if let Some(written) = unchanged(out, &side, &fingerprint) {
            return Ok(written);
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
        for old in [&side, &part] {
            let _ = fs::remove_file(old);
        }
        let written = self.write_all(&part, progress).and_then(|written| {
            let side_text = fingerprint + &written.line();
            fs::rename(&part, out)
                .and_then(|()| self.create(&side))
                .and_then(|file| file.write_all_at(side_text.as_bytes(), 0))
                .map_err(failed(out))?;
            Ok(written)
        });
        if written.is_err() {
            let _ = fs::remove_file(&part);
        }
        written
    }

    /// Makes a file that is not there yet. If the bundle has a cluster's key, its owner alone can ever read it.
    fn create(&self, path: &Path) -> io::Result<File> {
        let mut options = File::options();
        options.read(true).write(true).create_new(true);
        if self.entries.iter().any(|e| e.entry.kind == kind::CLUSTER) {
            options.mode(0o600);
        }
        options.open(path)
    }

    fn write_all(&self, path: &Path, progress: Progress) -> Result<Written> {
        let failed = |error| Failure::file("cannot write the bundle", path, &error);
        let out = self.create(path).map_err(failed)?;
        let bar = progress.bytes("writing the bundle", self.size_at_most());
        let mut store = Store::new(&out, self.head);
        for Planned {
            entry,
            content,
            group,
        } in &self.entries
        {
            let at = bar.position();
            let file = match content {
                Content::Bytes(bytes) => {
                    out.write_all_at(bytes, entry.offset).map_err(failed)?;
                    continue;
                }
                Content::File(file) => file,
                Content::Blocks => continue,
            };
            let unread = |error| Failure::file("cannot read", file, &error);
            let source = File::open(file).map_err(unread)?;
            let before = stamp(&source).map_err(unread)?;
            let copied = |n| bar.set_position(at + n);
            if entry.kind == kind::DISK {
                let map = store
                    .add(&source, entry.size, group, copied)
                    .map_err(failed)?;
                out.write_all_at(map.as_bytes(), entry.offset)
                    .map_err(failed)?;
            } else {
                copy_sparse(&source, &out, entry, copied).map_err(failed)?;
            }
            if before.0 != entry.size || stamp(&source).map_err(unread)? != before {
                let message = format!("{} changed while it was copied", file.display());
                return Err(Failure::new(exit::FILE, message).help("do it again when it is done"));
            }
            bar.set_position(at + entry.size);
        }
        let tally = store.tally();
        let size = self.head + tally.different;
        out.write_all_at(&self.table(size, tally.different), 0)
            .map_err(failed)?;
        out.set_len(size).map_err(failed)?;
        bar.finish_and_clear();
        Ok(Written {
            anew: true,
            size,
            tally,
        })
    }

    /// Header and entry table of a bundle with so many bytes, and so many of blocks.
    fn table(&self, size: u64, blocks: u64) -> Vec<u8> {
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            entries: self.entries.len() as u32,
            size,
            reserved: 0,
        };
        let mut table = header.as_bytes().to_owned();
        for Planned { entry, content, .. } in &self.entries {
            let mut entry = *entry;
            if matches!(content, Content::Blocks) {
                entry.size = blocks;
            }
            table.extend_from_slice(entry.as_bytes());
        }
        table
    }

    /// Text that changes when the bundle would.
    fn fingerprint(&self) -> Result<String> {
        let mut text = format!("underpin bundle {VERSION}\n");
        for Planned { entry, content, .. } in &self.entries {
            let Entry {
                kind,
                name,
                offset,
                size,
                ..
            } = entry;
            let _ = write!(text, "{kind} {name} {offset} {size} ");
            match content {
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
                Content::Blocks => {}
            }
            text.push('\n');
        }
        Ok(text)
    }
}

impl Written {
    /// The last line of a fingerprint.
    fn line(&self) -> String {
        let Tally {
            images,
            bytes,
            different,
            zero,
            equal,
        } = self.tally;
        let size = self.size;
        format!("written {size} {images} {bytes} {different} {zero} {equal}\n")
    }

    fn from_line(line: &str) -> Option<Self> {
        let words = line.strip_prefix("written ")?.split_whitespace();
        let numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
        let [size, images, bytes, different, zero, equal] = numbers[..] else {
            return None;
        };
        let tally = Tally {
            images,
            bytes,
            different,
            zero,
            equal,
        };
        Some(Self {
            anew: false,
            size,
            tally,
        })
    }
}

/// The bundle in `out`, if that has not changed since it was written with this fingerprint.
fn unchanged(out: &Path, side: &Path, fingerprint: &str) -> Option<Written> {
    let text = fs::read_to_string(side).ok()?;
    let written = Written::from_line(text.strip_prefix(fingerprint)?)?;
    (fs::metadata(out).ok()?.len() == written.size).then_some(written)
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

/// Copies a file's bytes to an entry's place, leaving its holes as holes; `copied` hears how far
/// it is.
fn copy_sparse(from: &File, out: &File, entry: &Entry, copied: impl Fn(u64)) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    for run in data_runs(from, entry.size) {
        let mut run = run?;
        while !run.is_empty() {
            let len = (run.end - run.start).min(CHUNK as u64);
            let chunk = &mut buffer[..len as usize];
            from.read_exact_at(chunk, run.start).map_err(shrunk)?;
            out.write_all_at(chunk, entry.offset + run.start)?;
            run.start += len;
            copied(run.start);
        }
    }
    Ok(())
}

/// A file's size and when it was written last.
fn stamp(file: &File) -> io::Result<(u64, SystemTime)> {
    let metadata = file.metadata()?;
    Ok((metadata.len(), metadata.modified()?))
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
