//! Several simulated machines, hosts of a cluster, with an Ethernet between their network cards.
//!
//! Each host is a machine with a process of this command of its own, which is its broker. In lock-step, a plugin of QEMU's
//! (`sim/wire`) carries frames at exact virtual times. Free, each QEMU sends frames through a socket to [`Switch`], in the process
//! that started all hosts.

use super::{
    rundir::RunDir,
    shape::{Arguments, prefixed},
};
use crate::{
    cli::Auth,
    cluster::ClusterFile,
    failure::{Failure, Result, exit, reason},
};
use abi::bundle::ClusterRecord;
use clap::{Args, ValueEnum as _};
use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::{ffi::OsStrExt as _, net::UnixDatagram},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};

/// The most hosts of a cluster.
pub const HOSTS_MAX: usize = 8;
/// What the command itself says to the wire.
const OWN_KEYS: [&str; 6] = ["me", "hosts", "shared", "report", "record", "cure"];
/// The longest frame that QEMU sends.
const FRAME_BYTES_MAX: usize = 4_096 + 65_536;

/// The hosts of a cluster.
#[derive(Args, Clone, Debug, Default)]
pub struct Cluster {
    /// Start so many machines of this shape, host0 and so on, whose network cards are on one Ethernet. They run in lock-step of
    /// virtual time (--icount, 0 where nothing is said), and need QEMU 10.0 and the plugin (see sim/README.md)
    #[arg(long, value_name = "N", conflicts_with_all = ["net", "flash", "disk"],
        value_parser = clap::value_parser!(u8).range(2..=HOSTS_MAX as i64))]
    pub hosts: Option<u8>,
    /// A VM file, or a directory of them, for one host; the others are for all (repeatable)
    #[arg(long, value_name = "HOST=FILE", requires = "hosts", value_parser = on)]
    pub on: Vec<(String, PathBuf)>,
    /// CPU model of one host, in place of --cpu (repeatable)
    #[arg(long, value_name = "HOST=MODEL", requires = "hosts", value_parser = of_host)]
    pub cpu_on: Vec<(String, String)>,
    /// A cluster file: the hypervisors join, host0 as its first host and so on, and their cards have the addresses 52:54:00:00:00:00
    /// and so on. HOST=FILE is for one host (repeatable)
    #[arg(long, value_name = "[HOST=]FILE", requires = "hosts")]
    pub cluster: Vec<OsString>,
    /// How frames between hypervisors are sealed, as of `underpin bundle --auth`. HOST=off is for one host (repeatable)
    #[arg(long, value_name = "[HOST=]on|chacha20|off", requires = "cluster", value_parser = auth)]
    pub auth: Vec<(Option<String>, Auth)>,
    /// Options of the Ethernet (see sim/README.md), as in class=20us,lose=0.1%,die=1@2s
    #[arg(long, value_name = "KEY=VALUE,...", requires = "hosts", value_delimiter = ',', value_parser = wire)]
    pub wire: Vec<String>,
    /// Let hosts run at their own pace, in real time unless with --icount: nothing repeats
    #[arg(long, requires = "hosts", conflicts_with = "wire")]
    pub free: bool,
    /// The plugin of the Ethernet [default: $UNDERPIN_SIM_WIRE, else target/sim/release/libsim_wire.so of the source tree]
    #[arg(long, value_name = "FILE", requires = "hosts", conflicts_with = "free")]
    pub wire_plugin: Option<PathBuf>,
}

/// `HOST=`, and what is for that host.
fn of_host(text: &str) -> std::result::Result<(String, String), String> {
    let pair = text.split_once('=');
    let pair = pair.filter(|(host, rest)| !host.is_empty() && !rest.is_empty());
    pair.map(|(host, rest)| (host.to_owned(), rest.to_owned()))
        .ok_or_else(|| format!("'{text}' does not begin with a host, as in host1=..."))
}

/// `HOST=FILE`.
fn on(text: &str) -> std::result::Result<(String, PathBuf), String> {
    let (host, file) = of_host(text)?;
    Ok((host, file.into()))
}

/// A word of [`Auth`], or one for a host: `HOST=off`.
fn auth(text: &str) -> std::result::Result<(Option<String>, Auth), String> {
    let (host, word) = match text.split_once('=') {
        Some((host, word)) => (Some(host.to_owned()), word),
        None => (None, text),
    };
    let auth = Auth::from_str(word, false);
    let auth = auth.map_err(|_| format!("'{word}' is neither on, chacha20 nor off"))?;
    Ok((host, auth))
}

/// One option of the wire.
fn wire(text: &str) -> std::result::Result<String, String> {
    match text.split_once('=') {
        Some((key, _)) if OWN_KEYS.contains(&key) => Err(format!(
            "'{key}' is set by the command itself; leave it out"
        )),
        Some((key, _)) if !key.is_empty() => Ok(text.to_owned()),
        _ => Err(format!("'{text}' is not KEY=VALUE, as in latency=10us")),
    }
}

/// Whether a word is `HOST=` and what is for that host.
fn is_for(word: &[u8], host: &str) -> bool {
    let rest = word.strip_prefix(host.as_bytes());
    rest.is_some_and(|rest| rest.first() == Some(&b'='))
}

/// The name of a host.
pub fn name(host: usize) -> String {
    format!("host{host}")
}

impl Cluster {
    /// The names of all hosts; none where it is no cluster.
    pub fn names(&self) -> Vec<String> {
        (0..usize::from(self.hosts.unwrap_or(0)))
            .map(name)
            .collect()
    }

    /// Each host that `--on`, `--cpu-on` and `--auth` name, which this cluster may not have.
    pub fn named(&self) -> impl Iterator<Item = &str> {
        let on = self.on.iter().map(|(host, _)| &**host);
        let cpu_on = self.cpu_on.iter().map(|(host, _)| &**host);
        let auth = self.auth.iter().filter_map(|(host, _)| host.as_deref());
        on.chain(cpu_on).chain(auth)
    }

    /// The number of a host of this cluster.
    ///
    /// # Errors
    /// It has no such host.
    pub fn number(&self, host: &str) -> Result<usize> {
        let names = self.names();
        let found = names.iter().position(|name| name == host);
        found.ok_or_else(|| match names.last() {
            None => Failure::new(exit::USAGE, format!("there is no cluster with a {host}"))
                .help("start one: underpin sim --hosts N"),
            Some(last) => {
                let message = format!("'{host}' is no host of this cluster");
                Failure::new(exit::USAGE, message).help(format!("use host0 to {last}"))
            }
        })
    }

    /// The cluster that a host is to join, if it is to join one.
    ///
    /// # Errors
    /// Its file has problems, or does not fit the simulated hosts.
    pub fn membership(&self, host: &str) -> Result<Option<ClusterRecord>> {
        let number = self.number(host)?;
        let own = format!("{host}=");
        let files = self.cluster.iter().map(|file| file.as_encoded_bytes());
        let is_for_one = |file: &[u8]| self.names().iter().any(|name| is_for(file, name));
        let one = files.clone().rev().find(|file| is_for(file, host));
        let one = one.and_then(|file| file.strip_prefix(own.as_bytes()));
        let Some(file) = one.or_else(|| files.rev().find(|file| !is_for_one(file))) else {
            return Ok(None);
        };
        let file = ClusterFile::read(Path::new(OsStr::from_bytes(file)))?;
        let mac = [0x52, 0x54, 0, 0, 0, number as u8];
        let Some(known) = file.hosts.get(number).filter(|known| known.mac == mac) else {
            let place = file.path.display();
            let message = format!(
                "{place}: its host {number} is not {host}, whose card is 52:54:00:00:00:{number:02x}"
            );
            let help = "name a host for each simulated one, in order, with that mac";
            return Err(Failure::new(exit::FILE, message).help(help));
        };
        let record = file.record(&known.name)?;
        Ok(Some(self.auth_of(host).apply(record)))
    }

    /// Whether a host seals frames: as the last word for it says, or for all.
    fn auth_of(&self, host: &str) -> Auth {
        let of = |name: Option<&str>| {
            let mut said = self.auth.iter().rev();
            let found = said.find(|(it, _)| it.as_deref() == name);
            found.map(|(_, auth)| *auth)
        };
        of(Some(host)).or_else(|| of(None)).unwrap_or_default()
    }

    /// The host, where its bundle is unlike that of others.
    pub fn own_bundle<'a>(&self, run: &'a RunDir, is_member: bool) -> Option<&'a str> {
        run.host()
            .filter(|host| is_member || !self.files_on(host).is_empty())
    }

    /// The CPU model of a host, where it has one of its own; the last that was named.
    pub fn cpu_of(&self, number: usize) -> Option<&str> {
        let name = name(number);
        let mut models = self.cpu_on.iter().rev();
        models
            .find(|(host, _)| *host == name)
            .map(|(_, model)| &**model)
    }

    /// Whether the wire ends all hosts at a virtual time, by its option `end=`.
    pub fn ends(&self) -> bool {
        self.wire.iter().any(|option| option.starts_with("end="))
    }

    /// The files of VMs for one host alone.
    pub fn files_on(&self, host: &str) -> Vec<PathBuf> {
        let on = self.on.iter().filter(|(name, _)| name == host);
        on.map(|(_, file)| file.clone()).collect()
    }
}

/// How a host is joined to the others.
#[derive(Clone, Debug)]
pub struct Port {
    /// The cluster's directory.
    pub cluster: PathBuf,
    /// The host's own.
    pub host_dir: PathBuf,
    /// The host's number.
    pub me: usize,
}

impl Port {
    /// The network card, and what it is connected to.
    pub(super) fn arguments(&self, args: &mut Arguments, cluster: &Cluster, plugin: Option<&Path>) {
        let me = self.me;
        let mut card = format!("virtio-net-device,netdev=wire,mac=52:54:00:00:00:{me:02x}");
        if let Some(plugin) = plugin {
            let mut words = prefixed("", plugin, "");
            for option in &cluster.wire {
                words.push(OsString::from(format!(",{option}")));
            }
            words.push(format!(",me={me},hosts={}", cluster.names().len()));
            let report = wire_report(&self.host_dir);
            for (key, path) in [(",shared=", shared(&self.cluster)), (",report=", report)] {
                words.push(prefixed(key, &path, ""));
            }
            args.pair("-plugin", words);
            // The card sends when it is rung, in the thread that runs CPUs.
            card.push_str(",tx=timer,x-txtimer=1");
        } else {
            let mut words = OsString::from("dgram,id=wire,local.type=unix,remote.type=unix");
            for (key, path) in [
                (",local.path=", card_socket(&self.cluster, me)),
                (",remote.path=", switch_socket(&self.cluster, me)),
            ] {
                words.push(prefixed(key, &path, ""));
            }
            args.pair("-netdev", words);
        }
        args.pair("-device", card);
    }
}

/// The memory that the hosts' plugins share.
fn shared(cluster: &Path) -> PathBuf {
    cluster.join("wire")
}

/// What a host's plugin counted.
pub fn wire_report(host_dir: &Path) -> PathBuf {
    host_dir.join("wire.report")
}

fn card_socket(cluster: &Path, host: usize) -> PathBuf {
    cluster.join(format!("card{host}.sock"))
}

fn switch_socket(cluster: &Path, host: usize) -> PathBuf {
    cluster.join(format!("switch{host}.sock"))
}

/// Makes what the hosts' cards are connected to, before the first host starts.
pub fn connect(cluster: &Cluster, directory: &Path) -> Result<()> {
    let failed = |error: io::Error| Failure::file("cannot connect hosts in", directory, &error);
    if cluster.free {
        return Switch::start(directory, cluster.names().len()).map_err(failed);
    }
    fs::write(shared(directory), []).map_err(failed)
}

/// An Ethernet switch that knows the hosts' cards and learns no other addresses.
struct Switch {
    ports: Vec<(UnixDatagram, PathBuf)>,
}

impl Switch {
    /// Starts one, which works until the process ends.
    fn start(directory: &Path, hosts: usize) -> io::Result<()> {
        let port = |host| {
            let path = switch_socket(directory, host);
            let _ = fs::remove_file(&path); // of a cluster that was killed
            Ok((UnixDatagram::bind(path)?, card_socket(directory, host)))
        };
        let ports = (0..hosts).map(port).collect::<io::Result<_>>()?;
        let switch = Arc::new(Self { ports });
        for from in 0..hosts {
            let switch = Arc::clone(&switch);
            let named = thread::Builder::new().name(format!("port{from}"));
            named.spawn(move || switch.carry(from))?;
        }
        Ok(())
    }

    /// Carries what one host sends.
    fn carry(&self, from: usize) {
        let Some((socket, _)) = self.ports.get(from) else {
            return;
        };
        let mut frame = vec![0; FRAME_BYTES_MAX];
        while let Ok(bytes) = socket.recv(&mut frame) {
            let frame = frame.get(..bytes).unwrap_or_default();
            for to in receivers(frame, from, self.ports.len()) {
                if let Some((_, card)) = self.ports.get(to) {
                    // A host that is not up, or has ended, loses it.
                    let _ = socket.send_to(frame, card);
                }
            }
        }
    }
}

/// The hosts that get a frame: the one whose card it names, else all others.
fn receivers(frame: &[u8], from: usize, hosts: usize) -> Vec<usize> {
    let card = match frame {
        [0x52, 0x54, 0, 0, 0, host, ..] => Some(usize::from(*host)).filter(|host| *host < hosts),
        _ => None,
    };
    let all = (0..hosts).filter(|to| *to != from);
    all.filter(|to| card.is_none_or(|card| card == *to))
        .collect()
}

/// What to say of a host that cannot be started.
pub fn not_started(host: &str, error: &io::Error) -> Failure {
    Failure::new(
        exit::FAILED,
        format!("cannot start {host}: {}", reason(error)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn hosts_have_names_and_files() {
        let mut cluster = Cluster {
            hosts: Some(2),
            on: vec![on("host1=a").unwrap(), on("host1=b").unwrap()],
            ..Cluster::default()
        };
        assert_eq!(cluster.names(), ["host0", "host1"]);
        assert_eq!(cluster.number("host1").unwrap(), 1);
        let refused = cluster.number("host2").unwrap_err();
        assert_eq!(refused.message(), "'host2' is no host of this cluster");
        assert!(Cluster::default().number("host0").is_err());
        assert_eq!(cluster.files_on("host1"), ["a", "b"].map(PathBuf::from));
        assert!(cluster.files_on("host0").is_empty());
        for text in ["", "host0", "=a", "host0="] {
            assert!(on(text).is_err(), "{text}");
        }
        assert!(wire("lose=1%").is_ok());
        assert!(!cluster.ends());
        cluster.wire = ["lose=1%", "end=5s"].map(str::to_owned).into();
        assert!(cluster.ends());
        for text in ["lose", "=1", "me=1", "shared=x", "record=y"] {
            assert!(wire(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_host_gets_its_own_cluster_file_or_that_of_all() {
        let directory = std::env::temp_dir().join(format!("underpin-join-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let write = |name: &str, number: u32| {
            let host =
                |n: u32| format!("[[host]]\nname = \"h{n}\"\nmac = \"52:54:00:00:00:0{n}\"\n");
            let text = format!("key = \"k\"\nnumber = {number}\n{}{}", host(0), host(1));
            let file = directory.join(name);
            fs::write(&file, text).unwrap();
            file.display().to_string()
        };
        crate::cluster::make_key(&directory.join("k")).unwrap();
        let (all, one) = (write("all", 1), write("one", 2));
        let mut cluster = Cluster {
            hosts: Some(3),
            ..Cluster::default()
        };
        assert!(cluster.membership("host0").unwrap().is_none());
        cluster.cluster = [format!("host1={one}"), all].map(OsString::from).into();
        let record = |host: &str| cluster.membership(host).unwrap().unwrap();
        assert_eq!((record("host0").number, record("host0").host), (1, 0));
        assert_eq!((record("host1").number, record("host1").host), (2, 1));
        let third = cluster.membership("host2").err().unwrap();
        assert!(
            third
                .message()
                .contains("its host 2 is not host2, whose card is 52:54:00:00:00:02")
        );
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn frames_go_to_one_card_or_to_all_others() {
        assert_eq!(receivers(&[0x52, 0x54, 0, 0, 0, 2, 9], 0, 3), [2]);
        assert_eq!(receivers(&[0x52, 0x54, 0, 0, 0, 0, 9], 0, 3), [0; 0]);
        assert_eq!(receivers(&[0x52, 0x54, 0, 0, 0, 3, 9], 0, 3), [1, 2]);
        assert_eq!(receivers(&[0xff; 60], 1, 3), [0, 2]);
        assert_eq!(receivers(&[], 1, 3), [0, 2]);
    }

    #[test]
    fn a_switch_carries_frames() {
        let directory =
            std::env::temp_dir().join(format!("underpin-switch-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let free = Cluster {
            hosts: Some(3),
            free: true,
            ..Cluster::default()
        };
        connect(&free, &directory).unwrap();
        let cards =
            [0, 1, 2].map(|host| UnixDatagram::bind(card_socket(&directory, host)).unwrap());
        let mut buffer = [0; 64];
        let frame = [0xff; 60];
        cards[0]
            .send_to(&frame, switch_socket(&directory, 0))
            .unwrap();
        for card in &cards {
            card.set_read_timeout(Some(Duration::from_secs(10)))
                .unwrap();
        }
        for card in &cards[1..] {
            assert_eq!(card.recv(&mut buffer).unwrap(), 60);
        }
        cards[1]
            .send_to(&[0x52, 0x54, 0, 0, 0, 0, 1], switch_socket(&directory, 1))
            .unwrap();
        assert_eq!(cards[0].recv(&mut buffer).unwrap(), 7);
        cards[2]
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        assert!(cards[2].recv(&mut buffer).is_err());
        fs::remove_dir_all(directory).unwrap();
    }
}
