//! `underpin set`.

use super::whole_blocks;
use crate::{units, vmfile};
use abi::{Text, bundle::NETS_MAX};
use clap::{ArgGroup, Args, ValueEnum};

/// `underpin set`.
#[derive(Args, Debug)]
#[command(group(ArgGroup::new("change").args(["weight", "cap", "base", "max", "claim", "blocks", "never", "hold", "group", "hide", "link"]).required(true).multiple(true)))]
pub struct Set {
    /// The VM's name
    pub vm: String,
    /// Its share of CPU time against other VMs; 256 is usual
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10000))]
    pub weight: Option<u32>,
    /// The most CPU time it may have, in percent of one CPU for each of its CPUs; 0: no limit
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u16).range(0..=100))]
    pub cap: Option<u16>,
    /// The memory that it is sure of, as in 512MiB
    #[arg(long, value_name = "SIZE", value_parser = whole_blocks)]
    pub base: Option<u64>,
    /// The most memory that it can have; a guest that runs cannot have more than it found at boot
    #[arg(long, value_name = "SIZE", value_parser = whole_blocks)]
    pub max: Option<u64>,
    /// What becomes of the memory that sharing saves
    #[arg(long, value_enum)]
    pub claim: Option<Claim>,
    /// What becomes of 2 MiB mappings where pages in them could be shared
    #[arg(long, value_enum)]
    pub blocks: Option<Blocks>,
    /// Whether nothing more of it is shared
    #[arg(long, value_name = "BOOL")]
    pub never: Option<bool>,
    /// How long memory that its guest reports free stays bound, as in 100ms; 0: not at all
    #[arg(long, value_name = "TIME", value_parser = units::parse_hold)]
    pub hold: Option<u16>,
    /// Its share group (not while it runs)
    #[arg(long, value_name = "GROUP", value_parser = share_group)]
    pub group: Option<Text<24>>,
    /// Whether to hide from the guest what is shared (not while it runs)
    #[arg(long, value_name = "BOOL")]
    pub hide: Option<bool>,
    /// Pull the cable of its network device N (they count from 0), or plug it in again; it stays so
    /// until said otherwise, over restarts too; may be repeated
    #[arg(long, value_name = "N=up|down", value_parser = link)]
    pub link: Vec<(usize, bool)>,
}

/// What becomes of 2 MiB mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Blocks {
    /// They are split
    Share,
    /// They stay whole, and nothing in them is shared
    Keep,
}

/// What becomes of the memory that sharing saves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Claim {
    /// It stays free
    None,
    /// The VMs that share grow by it
    Grow,
    /// More VMs of the group start with it
    Start,
}

fn share_group(text: &str) -> Result<Text<24>, String> {
    let group = Text::new(text).filter(|_| vmfile::is_name(text));
    group.ok_or_else(|| format!("'{text}' is not 1 to 24 small letters, digits and hyphens"))
}

/// A network device's number, and whether its link is up.
fn link(text: &str) -> Result<(usize, bool), String> {
    let (device, state) = text.split_once('=').unwrap_or((text, ""));
    let device = device.parse().ok().filter(|device| *device < NETS_MAX);
    match (device, state) {
        (Some(device), "up") => Ok((device, true)),
        (Some(device), "down") => Ok((device, false)),
        _ => Err(format!("'{text}' is not 0=up, 0=down or the like")),
    }
}
