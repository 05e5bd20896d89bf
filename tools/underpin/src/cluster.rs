//! Cluster files: the hosts of a cluster and its key, in TOML. Every problem is told with its place in the file.

use crate::{
    failure::{Failure, Result, exit},
    vmfile::{
        is_name, parse_mac,
        section::{Problems, Section},
    },
};
use abi::{
    Text,
    bundle::{ClusterRecord, MTU_PAGE, MTU_STANDARD},
    cluster::HOSTS_MAX,
};
use std::{
    fmt::Write as _,
    fs::{self, File},
    io::{Read as _, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};
use toml::de::DeTable;

const KEYS: [&str; 4] = ["number", "key", "mtu", "host"];
/// The most bytes that a frame carries on any Ethernet, but for its header.
const MTU_MAX: u16 = 9216;
const HOST_KEYS: [&str; 2] = ["name", "mac"];
const KEY_BYTES: usize = 32;

/// A host of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Name.
    pub name: String,
    /// Address of its card of the link.
    pub mac: [u8; 6],
}

/// A cluster file that was read and checked.
#[derive(Clone, Debug)]
pub struct ClusterFile {
    /// The file.
    pub path: PathBuf,
    /// Number that tells clusters on one wire apart.
    pub number: u32,
    /// The most bytes that frames of the link carry.
    pub mtu: u16,
    /// The file with the key.
    pub key: PathBuf,
    /// The hosts, in the order of the file, which is the same on all machines.
    pub hosts: Vec<Host>,
}

impl ClusterFile {
    /// Reads a cluster file. The key is read by [`Self::record`] only.
    ///
    /// # Errors
    /// The file cannot be read, or does not describe a cluster.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path);
        let text =
            text.map_err(|error| Failure::vm_file("cannot read the cluster file", path, &error))?;
        Self::parse(path, &text)
    }

    /// As [`Self::read`], with the file's text given. The key file is found relative to `path`.
    ///
    /// # Errors
    /// The text does not describe a cluster.
    pub fn parse(path: &Path, text: &str) -> Result<Self> {
        let problems = Problems::new(&path.display().to_string(), text);
        let (table, errors) = DeTable::parse_recoverable(text);
        for error in &errors {
            let span = error.span().unwrap_or_default();
            let help = "cluster files are TOML; `underpin cluster --help` shows one";
            problems.add(&span, error.message().to_owned(), help);
        }
        let file = errors.is_empty().then(|| {
            let root = Section::new("", table.get_ref(), 0..text.len(), &KEYS, &problems);
            decode(path, &root, &problems)
        });
        match (file.flatten(), problems.into_failure()) {
            (Some(file), None) => Ok(file),
            (_, failure) => {
                Err(failure.unwrap_or_else(|| Failure::new(exit::FILE, "not a cluster file")))
            }
        }
    }

    /// Returns the cluster as the hypervisor of a host takes it.
    ///
    /// # Errors
    /// No host has that name, or the key cannot be read.
    pub fn record(&self, host: &str) -> Result<ClusterRecord> {
        let names: Vec<&str> = self.hosts.iter().map(|host| &*host.name).collect();
        let own = names.iter().position(|name| *name == host).ok_or_else(|| {
            let message = format!("no host of {} has the name '{host}'", self.path.display());
            let help = format!("use one of its names: {}", names.join(", "));
            Failure::new(exit::USAGE, message).help(help)
        })?;
        let mut record = ClusterRecord {
            number: self.number,
            host: own as u8,
            hosts: names.len() as u8,
            is_open: 0,
            no_aes: 0,
            mtu: self.mtu,
            zeroes: [0; 2],
            key: read_key(&self.key)?,
            macs: [[0; 6]; HOSTS_MAX],
            names: [Text::default(); HOSTS_MAX],
        };
        let places = record.macs.iter_mut().zip(&mut record.names);
        for ((mac, name), host) in places.zip(&self.hosts) {
            (*mac, *name) = (host.mac, Text::cut(&host.name));
        }
        Ok(record)
    }
}

fn decode(path: &Path, root: &Section<'_, '_>, problems: &Problems) -> Option<ClusterFile> {
    let number = root.number("number", 0..u32::MAX, 0);
    if root.has("key").is_none() {
        let help = "add key = \"cluster.key\"; `underpin cluster key cluster.key` makes the file";
        root.missing("key", help);
    }
    let key = root.text("key", "\"cluster.key\"");
    let sections = root.sections("[[host]]", "host", &HOST_KEYS);
    if !(2..=HOSTS_MAX).contains(&sections.len()) {
        let first_line = root.span().start..root.span().end.min(1);
        let message = format!(
            "the cluster has {} hosts; it must have 2 to {HOSTS_MAX}",
            sections.len()
        );
        problems.add(&first_line, message, "begin each host with a line [[host]]");
    }
    let mut hosts: Vec<Host> = Vec::new();
    for section in &sections {
        hosts.extend(decode_host(section, &hosts, problems));
    }
    let mtu = decode_mtu(root, problems);
    let directory = path.parent().unwrap_or(Path::new(""));
    Some(ClusterFile {
        path: path.to_owned(),
        number,
        mtu,
        key: directory.join(key?.value),
        hosts,
    })
}

/// Decodes what frames carry: as everywhere, or enough for a page.
fn decode_mtu(root: &Section<'_, '_>, problems: &Problems) -> u16 {
    let standard = u32::from(MTU_STANDARD);
    let mtu = root.number("mtu", standard..u32::from(MTU_MAX) + 1, standard) as u16;
    if let Some(span) = root.has("mtu")
        && (MTU_STANDARD + 1..MTU_PAGE).contains(&mtu)
    {
        let message = format!("'mtu' is {mtu}, with which a page takes three frames all the same");
        let help = format!(
            "use {MTU_STANDARD}, or {MTU_PAGE} to {MTU_MAX} if cards and switches carry as much"
        );
        problems.add(&span, message, &help);
    }
    mtu
}

/// Decodes a host, which differs from those before.
fn decode_host(section: &Section<'_, '_>, before: &[Host], problems: &Problems) -> Option<Host> {
    if section.has("name").is_none() {
        section.missing("name", "add name = \"a\" or the like");
    }
    if section.has("mac").is_none() {
        section.missing(
            "mac",
            "add mac = \"02:00:00:00:88:01\", the address of its card of the link",
        );
    }
    let name = section.text("name", "\"a\"").filter(|name| {
        let is_good = is_name(name.value) && name.value.len() <= 23;
        if !is_good {
            let message = format!("'{}' cannot be a host's name", name.value);
            let help = "use 1 to 23 characters: small letters a to z, digits and hyphens";
            problems.add(&name.span, message, help);
        } else if before.iter().any(|host| host.name == name.value) {
            let message = format!("two hosts have the name '{}'", name.value);
            problems.add(&name.span, message, "give one of them another name");
        }
        is_good
    });
    let mac = section.text("mac", "\"02:00:00:00:88:01\"").and_then(|mac| {
        let parsed = parse_mac(mac.value);
        if parsed.is_none() {
            let message = format!("'{}' is no address of a network device", mac.value);
            let help = "use six pairs of hexadecimal digits with colons, the first pair even and not all zero";
            problems.add(&mac.span, message, help);
        } else if before.iter().any(|host| Some(host.mac) == parsed) {
            let message = format!("two hosts have the address {}", mac.value);
            problems.add(&mac.span, message, "use the address of each host's own card");
        }
        parsed
    });
    Some(Host {
        name: name?.value.to_owned(),
        mac: mac?,
    })
}

/// Reads a key file: 64 hexadecimal digits, readable by its owner alone.
fn read_key(path: &Path) -> Result<[u8; KEY_BYTES]> {
    let failed = |error| Failure::vm_file("cannot read the cluster's key", path, &error);
    let mode = fs::metadata(path).map_err(failed)?.permissions().mode();
    if mode & 0o077 != 0 {
        let message = format!(
            "{} has mode {:o}: others could read the key",
            path.display(),
            mode & 0o777
        );
        let help = format!("chmod 600 {}", path.display());
        return Err(Failure::new(exit::FILE, message).help(help));
    }
    let text = fs::read_to_string(path).map_err(failed)?;
    parse_key(text.trim()).ok_or_else(|| {
        let message = format!(
            "{} holds no key: 64 hexadecimal digits, not all zero",
            path.display()
        );
        Failure::new(exit::FILE, message).help("make one: underpin cluster key FILE")
    })
}

fn parse_key(text: &str) -> Option<[u8; KEY_BYTES]> {
    let mut key = [0; KEY_BYTES];
    let is_hex = text.len() == 2 * KEY_BYTES && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    for (n, byte) in key.iter_mut().enumerate().filter(|_| is_hex) {
        *byte = u8::from_str_radix(&text[2 * n..2 * n + 2], 16).ok()?;
    }
    (key != [0; KEY_BYTES]).then_some(key)
}

/// Makes a key from the system's random bits and writes it to a new file that its owner alone can read.
///
/// # Errors
/// The file exists, or cannot be written.
pub fn make_key(path: &Path) -> Result<()> {
    let source = Path::new("/dev/urandom");
    let mut key = [0; KEY_BYTES];
    let read = File::open(source).and_then(|mut source| source.read_exact(&mut key));
    read.map_err(|error| Failure::file("cannot read random bits", source, &error))?;
    let mut text = String::new();
    for byte in key {
        let _ = write!(text, "{byte:02x}");
    }
    text.push('\n');
    let file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| Failure::file("cannot write the key to a new file", path, &error))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const GOOD: &str = "key = \"cluster.key\"\nnumber = 3\n[[host]]\nname = \"a\"\nmac = \"02:00:00:00:88:01\"\n\
        [[host]]\nname = \"b\"\nmac = \"02:00:00:00:88:02\"\n";

    fn directory(name: &str) -> PathBuf {
        let path =
            std::env::temp_dir().join(format!("underpin-cluster-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn a_cluster_and_its_new_key_become_a_record() {
        let directory = directory("record");
        let path = directory.join("cluster.toml");
        let key = directory.join("cluster.key");
        let file = ClusterFile::parse(&path, GOOD).unwrap();
        let missing = file.record("a").err().unwrap();
        assert!(missing.message().contains("cannot read the cluster's key"));
        assert_eq!(missing.code(), exit::FILE);
        let missing = ClusterFile::read(&path).err().unwrap();
        assert!(missing.message().contains("cannot read the cluster file"));
        assert_eq!(missing.code(), exit::FILE);
        make_key(&key).unwrap();
        assert_eq!(
            fs::metadata(&key).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert!(make_key(&key).is_err(), "a key is never overwritten");
        let record = file.record("b").unwrap();
        assert_eq!((record.number, record.host, record.hosts), (3, 1, 2));
        assert_eq!(record.macs[1], [2, 0, 0, 0, 0x88, 2]);
        assert_eq!(record.names[0].as_str(), Some("a"));
        assert_eq!((record.mtu, record.frame_bytes()), (1500, 1514));
        for (mtu, frame_bytes) in [(1500, 1514), (4256, 4270), (9216, 4270)] {
            let text = format!("mtu = {mtu}\n{GOOD}");
            let record = ClusterFile::parse(&path, &text)
                .unwrap()
                .record("a")
                .unwrap();
            assert_eq!((record.mtu, record.frame_bytes()), (mtu, frame_bytes));
        }
        assert_ne!(record.key, [0; 32]);
        let unknown = file.record("c").err().unwrap();
        assert_eq!(unknown.advice(), Some("use one of its names: a, b"));
        fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(
            file.record("a")
                .err()
                .unwrap()
                .message()
                .contains("mode 640")
        );
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&key, "12").unwrap();
        assert!(
            file.record("a")
                .err()
                .unwrap()
                .message()
                .contains("holds no key")
        );
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn every_problem_is_told() {
        let problem = |from: &str, to: &str, told: &str| {
            assert!(GOOD.contains(from), "{from}");
            let text = GOOD.replacen(from, to, 1);
            let failure = ClusterFile::parse(Path::new("cluster.toml"), &text)
                .err()
                .unwrap();
            assert!(
                failure.message().contains(told),
                "{from}: {}",
                failure.message()
            );
        };
        problem("key = \"cluster.key\"", "", "'key' is missing");
        problem("number", "numbr", "unknown key 'numbr'");
        for (mtu, told) in [
            ("1499", "outside 1500 to 9216"),
            (
                "1501",
                "'mtu' is 1501, with which a page takes three frames",
            ),
            ("4255", "'mtu' is 4255, with which"),
            ("9217", "outside 1500 to 9216"),
        ] {
            problem("number = 3", &format!("mtu = {mtu}"), told);
        }
        problem("\"b\"", "\"a\"", "two hosts have the name 'a'");
        problem("\"b\"", "\"B!\"", "'B!' cannot be a host's name");
        problem(
            "88:02",
            "88:01",
            "two hosts have the address 02:00:00:00:88:01",
        );
        problem("02:00:00:00:88:02", "01:00:00:00:88:02", "is no address");
        problem("name = \"b\"", "", "'name' is missing in [[host]]");
        let one = &GOOD[..GOOD.rfind("[[host]]").unwrap()];
        let failure = ClusterFile::parse(Path::new("cluster.toml"), one)
            .err()
            .unwrap();
        assert_eq!(
            failure.message(),
            "the cluster has 1 hosts; it must have 2 to 16"
        );
    }
}
