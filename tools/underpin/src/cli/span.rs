//! `underpin span`.

use crate::units;
use clap::{Args, Subcommand};
use std::{path::PathBuf, time::Duration};

const WHY: &str = "\
A VM that spans hosts waits when a vCPU uses a page that another host has. This command watches all
its hosts for a while and shows the pages for which vCPUs waited longest, with what its misses tell:

  false sharing          hosts use different lines of 64 bytes, and one writes
  lock                   hosts write one line
  migrating              hosts write the same lines, one after the other
  producer and consumer  one host writes, others read
  unclear                less than 8 misses, of one host, or nobody writes

MOST AT is the program counter of most misses: a function with --map, if the guest's kernel boots
with nokaslr.";

/// What `underpin span` does.
#[derive(Debug, Subcommand)]
pub enum SpanVerb {
    /// Tell which pages cost most, of what kind they are, and what their owner can do
    #[command(after_help = WHY)]
    Why(SpanWhy),
    /// Move a vCPU of a VM to another of its hosts, while it runs
    #[command(after_help = MOVE)]
    Move(SpanMove),
}

const MOVE: &str = "\
The vCPU stands still for a few round trips of the link. What it uses of the VM's memory follows it
page by page; the shares of memory stay where they are. vCPU 0 stays with the devices, and a host
has at most 8 vCPUs. When the VM starts again, its vCPUs begin where its file puts them.";

pub const DRAIN: &str = "\
The vCPUs that such a VM has on the host go to its other hosts, as with `underpin span move`. Its
pages follow, and the first host of the VM answers for them from then on. Then the host leaves the
cluster, and the VM goes on without it. The host that has a VM's vCPU 0 and devices stays. VMs of
this machine alone run on. When the VM starts again, it waits for all hosts that its file names.";

/// `underpin drain`.
#[derive(Args, Debug)]
pub struct Drain {
    /// The host's name; `underpin cluster` lists them
    #[arg(value_name = "HOST")]
    pub name: String,
}

/// `underpin span move`.
#[derive(Args, Debug)]
pub struct SpanMove {
    /// The VM
    pub vm: String,
    /// The vCPU's number; `underpin show` lists them
    pub vcpu: u32,
    /// The host's name; `underpin cluster` lists them
    pub to: String,
}

/// `underpin span why`.
#[derive(Args, Debug)]
pub struct SpanWhy {
    /// The VM
    pub vm: String,
    /// Watch for so long; ends before that with Ctrl-C
    #[arg(long = "for", default_value = "2s", value_name = "TIME", value_parser = units::parse_duration)]
    pub time: Duration,
    /// The guest kernel's System.map: functions are shown by name
    #[arg(long, value_name = "FILE")]
    pub map: Option<PathBuf>,
}
