//! `underpin cluster`, and the options by which a machine becomes a host of a cluster.

use crate::{cluster::ClusterFile, failure::Result, units};
use abi::bundle::ClusterRecord;
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// A cluster file, for people.
pub const FILE: &str = "\
A cluster file is TOML, the same on all hosts; the key's path is relative to it:

  key       = \"cluster.key\"  64 hexadecimal digits, mode 600; the same on all hosts
  number    = 0              tells clusters on one wire apart
  mtu       = 1500           or 4256 to 9216, if cards and switches carry as much: a page
                             then takes one frame in place of three
  [[host]]                   2 to 16
  name      = \"a\"            small letters, digits and hyphens
  mac       = \"02:00:00:00:88:01\"  of its card of the link

`underpin bundle --cluster FILE --as NAME` puts it into the bundle of a host, and
`underpin sim --hosts N --cluster FILE` into those of simulated hosts. docs/cluster.md has the
steps.";

/// The cluster that a machine belongs to, and which of its hosts it is.
#[derive(Args, Clone, Debug, Default)]
pub struct Membership {
    /// The machine is a host of the cluster of this file
    #[arg(long, value_name = "FILE", requires = "own")]
    pub cluster: Option<PathBuf>,
    /// The machine's name in the cluster's file
    #[arg(long = "as", value_name = "NAME", requires = "cluster")]
    pub own: Option<String>,
    /// How frames between hosts are sealed
    #[arg(
        long,
        value_name = "on|chacha20|off",
        requires = "cluster",
        default_value = "on",
        hide_default_value = true
    )]
    pub auth: Auth,
}

/// How frames between hosts are sealed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Auth {
    /// By AES-128-GCM, or by ChaCha20-Poly1305 if a CPU of either host has no AES
    #[default]
    On,
    /// By ChaCha20-Poly1305, as if this host's CPUs had no AES
    #[value(name = "chacha20")]
    ChaCha20,
    /// They are neither secret nor authentic; hosts with and without do not talk to each other
    Off,
}

impl Auth {
    /// Writes it to what the machine's hypervisor takes.
    pub fn apply(self, mut record: ClusterRecord) -> ClusterRecord {
        record.is_open = u8::from(self == Self::Off);
        record.no_aes = u8::from(self == Self::ChaCha20);
        record
    }
}

impl Membership {
    /// Returns the cluster as the machine's hypervisor takes it.
    ///
    /// # Errors
    /// The files have problems, or no such host.
    pub fn record(&self) -> Result<Option<ClusterRecord>> {
        match (&self.cluster, &self.own) {
            (Some(file), Some(host)) => {
                let record = ClusterFile::read(file)?.record(host)?;
                Ok(Some(self.auth.apply(record)))
            }
            _ => Ok(None),
        }
    }
}

/// What `underpin cluster` does.
#[derive(Debug, Subcommand)]
pub enum ClusterVerb {
    /// Tell why a host is not in: all in which it does not fit this machine
    Why {
        /// Its name in the cluster's file
        #[arg(value_name = "HOST")]
        peer: String,
    },
    /// Measure the link to a host: round trips of short messages, then a transfer of pages
    Probe(Probe),
    /// Write a new key to a file that is not there yet
    Key {
        /// The file to make
        file: PathBuf,
    },
    /// Check a cluster file and its key
    Check {
        /// The cluster file
        file: PathBuf,
    },
}

/// `underpin cluster probe`.
#[derive(Args, Debug)]
pub struct Probe {
    /// Its name in the cluster's file
    #[arg(value_name = "HOST")]
    pub peer: String,
    /// Round trips, one after the other
    #[arg(long, default_value_t = 100, value_name = "N")]
    pub rounds: u32,
    /// Short messages at once, before the transfer
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub burst: u32,
    /// What to transfer, in pages of 4 KiB, with a digest of all
    #[arg(long, default_value = "16MiB", value_name = "SIZE", value_parser = units::parse_size)]
    pub bytes: u64,
}
