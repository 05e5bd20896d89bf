//! VM files, written from Rust.

use crate::{Outcome, assets, because};
use serde::Serialize;
use std::{collections::BTreeMap, fs, path::Path};
use toml::Value;

/// A VM file's contents; see the manual page for what each key means.
#[derive(Clone, Debug, Serialize)]
pub struct Vm {
    /// Its name.
    pub name: String,
    cpus: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    hosts: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    coherence: Option<Value>,
    memory: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    weight: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cap: Option<u32>,
    autostart: bool,
    on_reset: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nodes: Vec<u8>,
    boot: Boot,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    sharing: BTreeMap<&'static str, Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    disk: Vec<Disk>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    net: Vec<Net>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    regions: Vec<Region>,
    #[serde(skip_serializing_if = "Option::is_none")]
    control: Option<&'static str>,
}

#[derive(Clone, Debug, Serialize)]
struct Region {
    name: String,
    size: String,
    access: &'static str,
}

#[derive(Clone, Debug, Serialize)]
struct Boot {
    kernel: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    format: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    initrd: Option<String>,
    args: String,
}

#[derive(Clone, Debug, Default, Serialize)]
struct Disk {
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    partition: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    directory: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<&'static str>,
    mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    overlay: Option<Value>,
}

#[derive(Clone, Debug, Serialize)]
struct Net {
    switch: String,
    offloads: bool,
    uplink: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    mac: Option<String>,
}

/// Where an asset cache has bare guests.
const CACHED: &str = "cache:guests/";
/// For a kernel that is not to test its ciphers.
pub const NO_SELF_TESTS: &str = "cryptomgr.notests";
/// For one that is to all the same.
pub const SELF_TESTS: &str = "cryptomgr.notests=0";

impl Vm {
    fn new(name: &str, kernel: String, initrd: Option<String>, args: String) -> Self {
        let boot = Boot {
            kernel,
            format: None,
            initrd,
            args,
        };
        Self {
            name: name.to_owned(),
            cpus: 1,
            hosts: None,
            coherence: None,
            memory: "256MiB".into(),
            weight: None,
            cap: None,
            autostart: true,
            on_reset: "restart",
            nodes: Vec::new(),
            boot,
            sharing: BTreeMap::new(),
            disk: Vec::new(),
            net: Vec::new(),
            regions: Vec::new(),
            control: None,
        }
    }

    /// A Debian kernel with the test guests' initial RAM disk, which does what `action` names. A
    /// panic ends the VM at once, so that no test waits for it in vain. Its ciphers are not tested, which takes a tenth of the
    /// time; scenarios of kernels have [`SELF_TESTS`].
    pub fn linux(name: &str, kernel: &str, action: &str) -> Self {
        let args = format!("console=ttyAMA0 quiet panic=-1 {NO_SELF_TESTS} underpin.do={action}");
        Self::new(
            name,
            assets::kernel(kernel),
            Some(assets::initramfs(kernel)),
            args,
        )
    }

    /// A bare guest of `tests/guests`.
    pub fn bare(name: &str, guest: &str, args: &str) -> Self {
        Self::new(name, assets::guest(guest), None, args.to_owned()).memory("64MiB")
    }

    /// As [`Self::bare`], of an asset cache that has bare guests, as OS-0 has it.
    pub fn cached(name: &str, guest: &str, args: &str) -> Self {
        let kernel = format!("{CACHED}{guest}.img");
        Self::new(name, kernel, None, args.to_owned()).memory("64MiB")
    }

    /// The bare guest, where [`Self::cached`] names one.
    pub fn cached_guest(&self) -> Option<&str> {
        self.boot.kernel.strip_prefix(CACHED)?.strip_suffix(".img")
    }

    /// Without an Image header, to be entered at its first byte.
    #[must_use]
    pub fn flat(mut self) -> Self {
        self.boot.format = Some("flat");
        self
    }

    /// With another initial RAM disk.
    #[must_use]
    pub fn initrd(mut self, path: &str) -> Self {
        self.boot.initrd = Some(path.to_owned());
        self
    }

    /// That may ask things of the hypervisor: `"read"` or `"all"`.
    #[must_use]
    pub fn control(mut self, rights: &'static str) -> Self {
        self.control = Some(rights);
        self
    }

    /// With a region of memory that others of its group have, too, to be used `"rw"` or `"ro"`.
    #[must_use]
    pub fn region(mut self, name: &str, size: &str, access: &'static str) -> Self {
        self.regions.push(Region {
            name: name.to_owned(),
            size: size.to_owned(),
            access,
        });
        self
    }

    /// Over so many hosts of the cluster.
    #[must_use]
    pub fn hosts(mut self, hosts: u8) -> Self {
        self.hosts = Some(hosts);
        self
    }

    /// With this of what is done for pages of several hosts: a word of VM files, or names with `+` between them.
    #[must_use]
    pub fn coherence(mut self, words: &str) -> Self {
        let names = || words.split('+').map(Value::from).collect();
        let is_word = ["best", "all", "ivy"].contains(&words);
        self.coherence = Some(if is_word {
            words.into()
        } else {
            Value::Array(names())
        });
        self
    }

    /// On this NUMA node alone.
    #[must_use]
    pub fn on_node(mut self, node: u8) -> Self {
        self.nodes.push(node);
        self
    }

    /// With so many vCPUs.
    #[must_use]
    pub fn cpus(mut self, cpus: u32) -> Self {
        self.cpus = cpus;
        self
    }

    /// With memory such as `512MiB`.
    #[must_use]
    pub fn memory(mut self, memory: &str) -> Self {
        self.memory = memory.into();
        self
    }

    /// Sure of `base`, with a guest that sees `max`; swapped to a partition of the machine's disk.
    #[must_use]
    pub fn terms(mut self, base: &str, max: &str, swap: Option<&str>) -> Self {
        let mut terms = toml::Table::new();
        terms.insert("base".to_owned(), base.into());
        terms.insert("max".to_owned(), max.into());
        if let Some(swap) = swap {
            terms.insert("swap".to_owned(), swap.into());
        }
        self.memory = terms.into();
        self
    }

    /// That grows by what it shares.
    #[must_use]
    pub fn grows(mut self) -> Self {
        self.sharing.insert("claim", "grow".into());
        self
    }

    /// Whose savings more VMs of its group start with.
    #[must_use]
    pub fn starts_others(mut self) -> Self {
        self.sharing.insert("claim", "start".into());
        self
    }

    /// Of which nothing is shared.
    #[must_use]
    pub fn never_shares(mut self) -> Self {
        self.sharing.insert("never", true.into());
        self
    }

    /// Started again where it or somebody else resets it.
    #[must_use]
    pub fn restarts(mut self) -> Self {
        self.on_reset = "restart";
        self
    }

    /// Of a share group.
    #[must_use]
    pub fn group(mut self, group: &str) -> Self {
        self.sharing.insert("group", group.into());
        self
    }

    /// That cannot tell by the time of a write what it shares.
    #[must_use]
    pub fn hides(mut self) -> Self {
        self.sharing.insert("hide", true.into());
        self
    }

    /// With a weight; 256 is usual.
    #[must_use]
    pub fn weight(mut self, weight: u32) -> Self {
        self.weight = Some(weight);
        self
    }

    /// With a cap, in percent of a CPU for each vCPU.
    #[must_use]
    pub fn cap(mut self, percent: u32) -> Self {
        self.cap = Some(percent);
        self
    }

    /// Not started until somebody asks.
    #[must_use]
    pub fn asleep(mut self) -> Self {
        self.autostart = false;
        self
    }

    /// With more words on the kernel's command line.
    #[must_use]
    pub fn args(mut self, more: &str) -> Self {
        self.boot.args.push(' ');
        self.boot.args.push_str(more);
        self
    }

    fn with_disk(mut self, disk: Disk) -> Self {
        self.disk.push(disk);
        self
    }

    /// With a private copy-on-write disk over an image.
    #[must_use]
    pub fn cow_disk(self, image: &str) -> Self {
        self.with_disk(Disk {
            image: Some(image.to_owned()),
            mode: "cow",
            ..Disk::default()
        })
    }

    /// With an image that it only reads.
    #[must_use]
    pub fn read_only_disk(self, image: &str) -> Self {
        self.with_disk(Disk {
            image: Some(image.to_owned()),
            mode: "read-only",
            ..Disk::default()
        })
    }

    /// With a private copy-on-write disk over a partition of the machine's physical disk.
    #[must_use]
    pub fn cow_partition(self, partition: &str) -> Self {
        self.with_disk(Disk {
            partition: Some(partition.to_owned()),
            mode: "cow",
            ..Disk::default()
        })
    }

    /// With a partition of the machine's physical disk.
    #[must_use]
    pub fn persistent_disk(self, partition: &str) -> Self {
        self.with_disk(Disk {
            partition: Some(partition.to_owned()),
            mode: "persistent",
            ..Disk::default()
        })
    }

    /// With a file of the host as its own disk; made where a size is given.
    #[must_use]
    pub fn file_disk(self, file: &str, size: Option<&'static str>) -> Self {
        self.with_disk(Disk {
            file: Some(file.to_owned()),
            size,
            mode: "persistent",
            ..Disk::default()
        })
    }

    /// With a copy of a directory of the host as a disk.
    #[must_use]
    pub fn directory_disk(self, directory: &str) -> Self {
        self.with_disk(Disk {
            directory: Some(directory.to_owned()),
            mode: "cow",
            ..Disk::default()
        })
    }

    /// Whose last disk's overlay is of that size, on a partition of the machine's physical disk or in
    /// memory.
    #[must_use]
    pub fn overlay(mut self, size: &str, on: &str) -> Self {
        let mut overlay = toml::Table::new();
        overlay.insert("size".to_owned(), size.into());
        overlay.insert("on".to_owned(), on.into());
        if let Some(disk) = self.disk.last_mut() {
            disk.overlay = Some(overlay.into());
        }
        self
    }

    /// With a network device on a switch.
    #[must_use]
    pub fn net(self, switch: &str) -> Self {
        self.with_net(switch, true, false)
    }

    /// With one that knows no offloads.
    #[must_use]
    pub fn plain_net(self, switch: &str) -> Self {
        self.with_net(switch, false, false)
    }

    /// With one on a switch with a way out.
    #[must_use]
    pub fn uplink(self, switch: &str) -> Self {
        self.with_net(switch, true, true)
    }

    fn with_net(mut self, switch: &str, offloads: bool, uplink: bool) -> Self {
        self.net.push(Net {
            switch: switch.to_owned(),
            offloads,
            uplink,
            mac: None,
        });
        self
    }

    /// Whose last network card has this address.
    #[must_use]
    pub fn address(mut self, mac: &str) -> Self {
        if let Some(net) = self.net.last_mut() {
            net.mac = Some(mac.to_owned());
        }
        self
    }

    /// The VM file's text.
    pub fn to_toml(&self) -> Outcome<String> {
        toml::to_string(self).map_err(because(format!(
            "cannot write the file of VM '{}'",
            self.name
        )))
    }

    /// Writes `NAME.toml` into the directory.
    pub fn write(&self, directory: &Path) -> Outcome {
        let path = directory.join(format!("{}.toml", self.name));
        fs::write(&path, self.to_toml()?)
            .map_err(because(format!("cannot write {}", path.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_has_the_documented_keys() {
        let vm = Vm::linux("web", "trixie", "work")
            .cpus(2)
            .memory("512MiB")
            .weight(512)
            .cow_disk("a.img");
        let text = vm.args("nosmp").to_toml().unwrap();
        let back: toml::Table = text.parse().unwrap();
        assert_eq!(back["name"].as_str(), Some("web"));
        assert_eq!(back["weight"].as_integer(), Some(512));
        assert_eq!(
            back["boot"]["kernel"].as_str(),
            Some("cache:kernels/trixie/vmlinuz")
        );
        assert_eq!(
            back["boot"]["args"].as_str(),
            Some("console=ttyAMA0 quiet panic=-1 cryptomgr.notests underpin.do=work nosmp")
        );
        assert_eq!(back["disk"][0]["mode"].as_str(), Some("cow"));
        assert!(!text.contains("cap"));
    }
}
