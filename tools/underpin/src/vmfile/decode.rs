//! From the text of a VM file to a [`VmFile`], with all problems told.

use super::{
    Backing, CPUS_MAX, Disk, MEMORY, MEMORY_STEP, NODES_MAX, VmFile, cache_dir, image, is_name,
    section::{Found, Problems, Section},
};
use crate::{
    failure::{Failure, Result, exit},
    units,
};
use abi::{
    Text,
    bundle::{DISKS_MAX, kind},
};
use std::path::{Path, PathBuf};
use toml::de::DeTable;

const KEYS: [&str; 10] = [
    "name",
    "cpus",
    "memory",
    "weight",
    "cap",
    "nodes",
    "autostart",
    "on_reset",
    "boot",
    "disk",
];
const DISK_KEYS: [&str; 5] = ["image", "partition", "mode", "overlay", "block_size"];

/// Decodes the text of the VM file `path`.
pub fn decode(path: &Path, text: &str) -> Result<VmFile> {
    let problems = Problems::new(&path.display().to_string(), text);
    let (table, errors) = DeTable::parse_recoverable(text);
    for error in &errors {
        let span = error.span().unwrap_or_default();
        problems.add(
            &span,
            error.message().to_owned(),
            "VM files are TOML; `underpin check --help` shows one",
        );
    }
    let vm = errors.is_empty().then(|| {
        let root = Section::new("", table.get_ref(), 0..text.len(), &KEYS, &problems);
        let decoder = Decoder {
            path,
            problems: &problems,
        };
        decoder.vm(&root)
    });
    let vm = vm.flatten();
    match (vm, problems.into_failure()) {
        (Some(vm), None) => Ok(vm),
        // What yields no VM has said why.
        (_, failure) => Err(failure.unwrap_or_else(|| Failure::new(exit::FILE, "not a VM file"))),
    }
}

/// Turns checked sections into a [`VmFile`].
struct Decoder<'a> {
    path: &'a Path,
    problems: &'a Problems,
}

impl Decoder<'_> {
    /// Everything of the file; `None` where something that has no default is missing.
    fn vm(&self, root: &Section<'_, '_>) -> Option<VmFile> {
        // All is read before anything is given up, so that all problems are told.
        let name = self.name(root);
        let memory = self.memory(root);
        let boot = self.boot(root, memory.as_ref());
        let cpus = root.number("cpus", 1..CPUS_MAX + 1, 1);
        let weight = root.number("weight", 1..10001, 256);
        let cap = root.number("cap", 0..101, 0);
        let nodes = nodes(root);
        let autostart = root.boolean("autostart", true);
        let restart = root.choice("on_reset", &["restart", "end"]) == "restart";
        let disks = self.disks(root);
        let (kernel, initrd, args) = boot?;
        Some(VmFile {
            path: self.path.to_owned(),
            name: name?,
            cpus,
            memory: memory?.value,
            weight,
            cap,
            nodes,
            autostart,
            restart,
            kernel,
            initrd,
            args,
            disks,
        })
    }

    /// The kernel, the initial RAM disk and the command line.
    fn boot(
        &self,
        root: &Section<'_, '_>,
        memory: Option<&Found<u64>>,
    ) -> Option<(PathBuf, Option<PathBuf>, String)> {
        if root.has("boot").is_none() {
            root.missing("boot", "add a line [boot] and below it kernel = \"PATH\"");
        }
        let boot = root.section("[boot]", "boot", &["kernel", "initrd", "args"])?;
        if boot.has("kernel").is_none() {
            boot.missing("kernel", "add kernel = \"PATH\", an arm64 Image");
        }
        let kernel = self.file(&boot, "kernel", kind::KERNEL);
        let initrd = self.file(&boot, "initrd", kind::INITRD);
        let args = self.args(&boot);
        let size = |file: &Option<image::Image>| file.as_ref().map_or(0, |file| file.size);
        if let Some(memory) = memory {
            self.fits(memory, &boot, size(&kernel).saturating_add(size(&initrd)));
        }
        Some((kernel?.path, initrd.map(|initrd| initrd.path), args))
    }

    fn name(&self, root: &Section<'_, '_>) -> Option<String> {
        if root.has("name").is_none() {
            root.missing("name", "add name = \"web1\" or the like");
        }
        let found = root.text("name", "\"web1\"")?;
        if !is_name(found.value) {
            let message = format!("'{}' cannot be a VM's name", found.value);
            let help = "use 1 to 31 characters: small letters a to z, digits and hyphens";
            self.problems.add(&found.span, message, help);
            return None;
        }
        Some(found.value.to_owned())
    }

    /// `memory = "512MiB"` or `memory = { base = "512MiB" }`.
    fn memory(&self, root: &Section<'_, '_>) -> Option<Found<u64>> {
        let inner;
        let (section, key) = if root.is_table("memory") {
            inner = root.section("memory", "memory", &["base"])?;
            (&inner, "base")
        } else {
            (root, "memory")
        };
        if section.has(key).is_none() {
            section.missing(key, "add memory = \"512MiB\" or the like");
        }
        let found = section.size(key, "\"512MiB\"")?;
        let told = units::size(found.value);
        if !MEMORY.contains(&found.value) {
            let message = format!("a VM cannot have {told} of memory");
            self.problems
                .add(&found.span, message, "use 64MiB to 256GiB");
        } else if !found.value.is_multiple_of(MEMORY_STEP) {
            let message = format!("memory of {told} is no multiple of 2 MiB");
            let near = found.value.next_multiple_of(MEMORY_STEP) >> 20;
            self.problems
                .add(&found.span, message, &format!("use \"{near}MiB\""));
        } else {
            return Some(found);
        }
        None
    }

    fn fits(&self, memory: &Found<u64>, boot: &Section<'_, '_>, files: u64) {
        if files < memory.value {
            return;
        }
        let told = units::size(files);
        let message = format!("kernel and initrd have {told}, and the memory is not larger");
        let span = boot.has("kernel").unwrap_or_else(|| memory.span.clone());
        self.problems.add(
            &span,
            message,
            "give the VM more memory, or a smaller initrd",
        );
    }

    fn args(&self, boot: &Section<'_, '_>) -> String {
        let Some(found) = boot.text("args", "\"console=ttyAMA0\"") else {
            return String::new();
        };
        // One byte of the field stays zero, since the guest's device tree ends texts with it.
        if found.value.len() >= size_of::<Text<1024>>() || found.value.contains('\0') {
            let message = format!("args has {} bytes, more than 1023", found.value.len());
            self.problems
                .add(&found.span, message, "shorten the kernel's command line");
        }
        found.value.to_owned()
    }

    fn disks(&self, root: &Section<'_, '_>) -> Vec<Disk> {
        let sections = root.sections("[[disk]]", "disk", &DISK_KEYS);
        if let Some(extra) = sections.get(DISKS_MAX) {
            let message = format!("{} disks are more than a VM may have", sections.len());
            let help = format!("use at most {DISKS_MAX}");
            self.problems.add(extra.span(), message, &help);
        }
        sections
            .iter()
            .filter_map(|section| self.disk(section))
            .collect()
    }

    fn disk(&self, disk: &Section<'_, '_>) -> Option<Disk> {
        let block_size = self.block_size(disk);
        let backing = match (disk.has("image"), disk.has("partition")) {
            (Some(_), None) => self.image(disk, block_size)?,
            (None, Some(_)) => self.partition(disk)?,
            (None, None) => {
                disk.missing("image", "add image = \"PATH\", or partition = \"NAME\"");
                return None;
            }
            (Some(_), Some(span)) => {
                let message = "a disk cannot be both an image and a partition".to_owned();
                self.problems
                    .add(&span, message, "remove one of the two keys");
                return None;
            }
        };
        Some(Disk {
            backing,
            block_size,
        })
    }

    fn block_size(&self, disk: &Section<'_, '_>) -> u32 {
        let size = disk.number("block_size", 512..4097, 512);
        if let (false, Some(span)) = (size == 512 || size == 4096, disk.has("block_size")) {
            let message = format!("a block size of {size} is not known");
            self.problems.add(&span, message, "use 512 or 4096");
        }
        size
    }

    fn image(&self, disk: &Section<'_, '_>, block_size: u32) -> Option<Backing> {
        let mode = disk.choice("mode", &["cow", "read-only"]);
        let file = self.file(disk, "image", kind::DISK)?;
        if !file.size.is_multiple_of(u64::from(block_size)) {
            let message = format!(
                "the image has {} bytes, no multiple of {block_size}",
                file.size
            );
            let help =
                "use a smaller block_size, or make the image longer: truncate --size=%4096 FILE";
            self.problems
                .add(&disk.has("image").unwrap_or_default(), message, help);
        }
        let overlay = disk.size("overlay", "\"1GiB\"");
        if mode == "read-only" {
            if let Some(overlay) = overlay {
                let message = "a read-only disk has no overlay".to_owned();
                self.problems
                    .add(&overlay.span, message, "remove it, or use mode = \"cow\"");
            }
            return Some(Backing::ReadOnly(file.path));
        }
        Some(Backing::CopyOnWrite(
            file.path,
            overlay.map_or(0, |overlay| overlay.value),
        ))
    }

    fn partition(&self, disk: &Section<'_, '_>) -> Option<Backing> {
        disk.choice("mode", &["persistent"]);
        let name = disk.text("partition", "\"data\"")?;
        if let Some(span) = disk.has("overlay") {
            let message = "a persistent disk has no overlay".to_owned();
            self.problems.add(
                &span,
                message,
                "remove it: what is written stays in the partition",
            );
        }
        if name.value.is_empty() || Text::<40>::new(name.value).is_none() {
            let message = format!("'{}' cannot be a partition's name", name.value);
            self.problems.add(
                &name.span,
                message,
                "use the name in the partition table, 1 to 40 bytes",
            );
        }
        Some(Backing::Partition(name.value.to_owned()))
    }

    /// A file that the VM file names: looks whether it is there and is what it should be.
    fn file(&self, section: &Section<'_, '_>, key: &str, kind: u32) -> Option<image::Image> {
        let found = section.text(key, "\"PATH\"")?;
        let path = match found.value.strip_prefix("cache:") {
            Some(rest) => cache_dir().join(rest),
            None => self
                .path
                .parent()
                .unwrap_or(Path::new(""))
                .join(found.value),
        };
        image::inspect(&path, kind)
            .map_err(|(message, help)| self.problems.add(&found.span, message, &help))
            .ok()
    }
}

/// `nodes = "auto"` or a list of node numbers, as a bit mask.
fn nodes(root: &Section<'_, '_>) -> u64 {
    let example = "[0, 1] or \"auto\"";
    if root.has("nodes").is_none() || root.is_text("nodes") {
        root.choice("nodes", &["auto"]);
        return 0;
    }
    let nodes = root
        .numbers("nodes", NODES_MAX, example)
        .unwrap_or_default();
    nodes.into_iter().fold(0, |mask, node| mask | 1 << node)
}
