//! From the text of a VM file to a [`VmFile`], with all problems told.

use super::{
    CPUS_MAX, NODES_MAX, VmFile, cache_dir,
    image::{self, Image, Wanted},
    is_name,
    memory::Told,
    section::{Problems, Section},
};
use crate::failure::{Failure, Result, exit};
use abi::{Text, bundle::control_rights};
use std::path::{Path, PathBuf};
use toml::de::DeTable;

const KEYS: [&str; 16] = [
    "name",
    "cpus",
    "memory",
    "sharing",
    "weight",
    "cap",
    "nodes",
    "hosts",
    "coherence",
    "autostart",
    "on_reset",
    "boot",
    "disk",
    "net",
    "regions",
    "control",
];
const BOOT_KEYS: [&str; 4] = ["kernel", "format", "initrd", "args"];

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
pub struct Decoder<'a> {
    path: &'a Path,
    /// What is wrong with the file.
    pub problems: &'a Problems,
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
        let hosts = self.hosts(root, cpus, memory.as_ref().map(|told| &told.memory));
        let without = self.without(root);
        let autostart = root.boolean("autostart", true);
        let restart = root.choice("on_reset", &["restart", "end"]) == "restart";
        let sharing = self.sharing(root);
        let disks = self.disks(root);
        let nets = self.nets(root, name.as_deref().unwrap_or_default());
        let regions = self.regions(root);
        let control = control(root);
        let (kernel, initrd, args) = boot?;
        let vm = VmFile {
            path: self.path.to_owned(),
            name: name?,
            cpus,
            memory: memory?.memory,
            sharing,
            weight,
            cap: cap as u16,
            nodes,
            hosts,
            without,
            autostart,
            restart,
            kernel,
            initrd,
            args,
            disks,
            nets,
            regions,
            control,
        };
        self.spans(root, &vm);
        Some(vm)
    }

    /// The kernel, the initial RAM disk and the command line.
    fn boot(
        &self,
        root: &Section<'_, '_>,
        memory: Option<&Told>,
    ) -> Option<(PathBuf, Option<PathBuf>, String)> {
        if root.has("boot").is_none() {
            root.missing("boot", "add a line [boot] and below it kernel = \"PATH\"");
        }
        let boot = root.section("[boot]", "boot", &BOOT_KEYS)?;
        if boot.has("kernel").is_none() {
            boot.missing("kernel", "add kernel = \"PATH\", an arm64 Image");
        }
        let wanted = match boot.choice("format", &["image", "flat"]) {
            "flat" => Wanted::FlatImage,
            _ => Wanted::LinuxImage,
        };
        let kernel = self.file(&boot, "kernel", wanted);
        let initrd = self.file(&boot, "initrd", Wanted::Initrd);
        let args = self.args(&boot);
        let size = |file: &Option<Image>| file.as_ref().map_or(0, |file| file.size);
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

    /// The name of a partition of a disk of the machine.
    pub fn partition_name(&self, section: &Section<'_, '_>, key: &str) -> Option<String> {
        let name = section.text(key, "\"data\"")?;
        if name.value.is_empty() || Text::<40>::new(name.value).is_none() {
            let message = format!("'{}' cannot be a partition's name", name.value);
            let help = "use the name in the partition table, 1 to 40 bytes";
            self.problems.add(&name.span, message, help);
        }
        Some(name.value.to_owned())
    }

    /// A file that the VM file names: looks whether it is there and is what it should be.
    pub fn file(&self, section: &Section<'_, '_>, key: &str, wanted: Wanted) -> Option<Image> {
        let found = section.text(key, "\"PATH\"")?;
        image::inspect(&self.path(found.value), wanted)
            .map_err(|(message, help)| self.problems.add(&found.span, message, &help))
            .ok()
    }

    /// Where a file is that the VM file names so.
    pub fn path(&self, named: &str) -> PathBuf {
        match named.strip_prefix("cache:") {
            Some(rest) => cache_dir().join(rest),
            None => self.path.parent().unwrap_or(Path::new("")).join(named),
        }
    }
}

/// `control = "none"`, `"read"` or `"all"`; or `true` for the last.
fn control(root: &Section<'_, '_>) -> u8 {
    if root.has("control").is_some() && !root.is_text("control") {
        return if root.boolean("control", false) {
            control_rights::ALL
        } else {
            control_rights::NONE
        };
    }
    match root.choice("control", &["none", "read", "all"]) {
        "read" => control_rights::READ,
        "all" => control_rights::ALL,
        _ => control_rights::NONE,
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
