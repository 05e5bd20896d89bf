//! The command line.

use crate::{sim::Shape, units};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use std::{path::PathBuf, time::Duration};

const EXIT_STATUS: &str = "\
Exit status:
   0  done
   1  failed for a reason without a number of its own
   2  the command line makes no sense
   3  no machine of that name runs
   4  the machine died or did not start
   5  something took longer than allowed
   6  a VM file, kernel or image is wrong
  10  the hypervisor did not understand the request
  11  no VM has that name
  12  the VM's state does not allow it
  13  a VM of that name is there already
  14  the machine has no memory left for it
  15  what the VM file asks for is impossible on this machine
  16  another VM uses the persistent disk
 130  interrupted";

const VM_FILE: &str = "\
A VM file is TOML; paths are relative to it, and cache: stands for the cache directory
($UNDERPIN_CACHE, else ~/.cache/underpin):

  name      = \"web1\"       small letters, digits and hyphens
  cpus      = 2            1 to 16; left out: 1
  memory    = \"512MiB\"     64MiB to 256GiB
  weight    = 256          share of CPU time, 1 to 10000
  cap       = 0            percent of one CPU for each vCPU at most; 0: no limit
  nodes     = \"auto\"       or a list of NUMA nodes, as in [0, 1]
  autostart = true         start with the machine
  on_reset  = \"restart\"    or \"end\"
  [boot]
  kernel    = \"vmlinuz\"    a plain arm64 Image, or a flat image
  initrd    = \"initrd.gz\"  may be left out
  args      = \"quiet\"      the kernel's command line
  [[disk]]                 up to 4
  image     = \"disk.img\"   raw; shared by all VMs that name it
  mode      = \"cow\"        writes go to memory and are gone at the end; or \"read-only\"
  overlay   = \"1GiB\"       what the written blocks may take; left out: the disk's size
  block_size = 512         or 4096
  [[disk]]
  partition = \"data\"       of a disk of the machine (sim --disk)
  mode      = \"persistent\"";

/// Underpin, a hypervisor for 64-bit Arm: describe VMs, run them on a simulated machine, look
/// after them.
#[derive(Debug, Parser)]
#[command(name = "underpin", version, after_help = EXIT_STATUS, max_term_width = 100)]
pub struct Cli {
    /// How to print results and errors
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Table)]
    pub output: Format,
    /// Which machine is meant, where several run
    #[arg(long, global = true, default_value = "sim", value_name = "NAME")]
    pub machine: String,
    /// Say nothing but results and errors
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Tables and sentences for people
    Table,
    /// JSON with full numbers, for programs
    Json,
}

/// What the command does.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Check VM files without running them
    #[command(after_help = VM_FILE)]
    Check {
        /// VM files, or directories of them
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Build the file that a machine boots its VMs from
    Bundle {
        /// VM files, or directories of them
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// The file to write
        #[arg(short = 'O', long = "out", value_name = "FILE")]
        out: PathBuf,
    },
    /// Start a simulated machine with these VMs
    Sim(Box<Sim>),
    /// List the VMs
    List,
    /// Show one VM in full
    Show(Vm),
    /// Run the VM of a file, on the running machine or on a new one
    Run {
        /// The VM file
        file: PathBuf,
    },
    /// Start a VM that is defined or has ended
    Start(Vm),
    /// Press a VM's power button and wait until it has ended
    Stop {
        /// The VM's name
        vm: String,
        /// How long to wait
        #[arg(long, default_value = "60s", value_name = "TIME", value_parser = units::parse_duration)]
        timeout: Duration,
    },
    /// End a VM at once
    Kill(Vm),
    /// Let a VM's CPUs stand still
    Pause(Vm),
    /// Let a paused VM go on
    Resume(Vm),
    /// Press a VM's reset button
    Reset(Vm),
    /// Change a VM's share of CPU time
    Set(Set),
    /// Use a VM's console (leave it with Ctrl-])
    Console(Console),
    /// List the machine's NUMA nodes
    Nodes,
    /// Show the machine, and what the hypervisor takes of its memory
    Machine,
    /// End all VMs and power the machine off
    Shutdown,
    /// Print the completion script of a shell
    Completion {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page
    Man {
        /// Write a page for the command and one for each verb to this directory instead
        #[arg(long, value_name = "DIR")]
        directory: Option<PathBuf>,
    },
}

/// One VM.
#[derive(Args, Debug)]
pub struct Vm {
    /// The VM's name
    pub vm: String,
}

/// `underpin sim`.
#[derive(Args, Debug)]
pub struct Sim {
    /// VM files, or directories of them
    pub files: Vec<PathBuf>,
    /// The machine.
    #[command(flatten)]
    pub shape: Shape,
    /// Return when the hypervisor answers, and leave the machine running
    #[arg(long)]
    pub detach: bool,
    /// Power the machine off when all VMs have ended
    #[arg(long)]
    pub exit_when_done: bool,
    /// Copy all logs to this directory at the end
    #[arg(long, value_name = "DIR")]
    pub keep_logs: Option<PathBuf>,
    /// End the machine after this time, as a failure
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
    pub timeout: Option<Duration>,
    /// This process is the one that `--detach` leaves behind.
    #[arg(long, hide = true)]
    pub detached: bool,
}

/// `underpin set`.
#[derive(Args, Debug)]
pub struct Set {
    /// The VM's name
    pub vm: String,
    /// Its share of CPU time against other VMs; 256 is usual
    #[arg(long, required_unless_present = "cap", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10000))]
    pub weight: Option<u32>,
    /// The most CPU time it may have, in percent of one CPU for each of its CPUs; 0: no limit
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(0..=100))]
    pub cap: Option<u32>,
}

/// `underpin console`.
#[derive(Args, Debug)]
pub struct Console {
    /// The VM's name
    pub vm: String,
    /// Print the console's log and leave
    #[arg(long)]
    pub log: bool,
    /// Follow the console without typing at it
    #[arg(short, long)]
    pub follow: bool,
}
