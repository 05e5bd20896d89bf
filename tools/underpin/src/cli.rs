//! The command line.

mod cluster;
mod set;
mod span;

pub use cluster::{Auth, ClusterVerb, Membership, Probe};
pub use set::{Blocks, Claim, Set};
pub use span::{Drain, SpanMove, SpanVerb, SpanWhy};

use crate::{beneath::Served, codes, sim::Shape, units, vmfile::NODES_MAX};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use std::{net::SocketAddr, path::PathBuf, time::Duration};
use tools_abi::TRACE_CLASSES;

const VM_FILE: &str = "\
A VM file is TOML; paths are relative to it, and cache: stands for the cache directory
($UNDERPIN_CACHE, else ~/.cache/underpin):

  name      = \"web1\"       small letters, digits and hyphens
  cpus      = 2            1 to 16; left out: 1
  memory    = \"512MiB\"     64MiB to 256GiB; or { base = \"512MiB\", max = \"1GiB\",
                           swap = \"PARTITION\", hold = \"100ms\" }: what it is sure of,
                           what it may grow to, where it is swapped to, and how long what
                           its guest reports free stays bound (up to 60s); only base must
                           be there
  weight    = 256          share of CPU time, 1 to 10000
  cap       = 0            percent of one CPU for each vCPU at most; 0: no limit
  nodes     = \"auto\"       or a list of NUMA nodes, as in [0, 1]
  hosts     = 2            so many hosts of the cluster, or their names, as in [\"a\", \"b\"]: each has
                           an equal share of vCPUs and memory; left out: this machine alone
  coherence = \"best\"       what the hosts do for its pages beyond IVY's protocol: \"all\"; \"ivy\":
                           nothing; or some, as in [\"versions\", \"burst\"] (docs/span.md)
  autostart = true         start with the machine
  on_reset  = \"restart\"    or \"end\"
  regions   = [{ name = \"table\", size = \"64MiB\", access = \"rw\" }]
                           memory that VMs of a group share on purpose; or \"ro\"; up to 4
  control   = \"none\"       what the VM may ask of the hypervisor: \"read\": how its own
                           share group stands; \"all\" (or true): everything
  [sharing]                memory that is equal is one copy, by default too
  group     = \"default\"    VMs of one group share among themselves, and with no others
  claim     = \"none\"       who gets what sharing saves: \"grow\": the VMs that share;
                           \"start\": more VMs of the group; \"none\": the machine
  hide      = false        true: a guest cannot tell what is shared by the time of its writes
  blocks    = \"share\"      or \"keep\": 2 MiB mappings are not split to share a page
  never     = false        true: nothing of this VM is shared
  [boot]
  kernel    = \"vmlinuz\"    a plain arm64 Image
  format    = \"image\"      or \"flat\": no header, entered at the first byte
  initrd    = \"initrd.gz\"  may be left out
  args      = \"quiet\"      the kernel's command line
  [[disk]]                 up to 4
  image     = \"disk.img\"   raw; shared by all VMs that name it
  mode      = \"cow\"        writes go to an overlay, gone at the end; or \"read-only\"
  overlay   = \"1GiB\"       what the written blocks may take; left out: the disk's size;
                           or { size = \"1GiB\", on = \"scratch\" }: on that partition of a disk
                           of the machine, whose type is for overlays (`underpin explain impossible`),
                           which nobody else has meanwhile; gone at the end
  block_size = 512         or 4096
  limit     = \"5MB/s\"      what may be read and written in a second; left out: no limit
  never_share = false      true: nothing that is read from it is shared
  [[disk]]
  partition = \"data\"       of a disk of the machine (sim --disk)
  mode      = \"persistent\" or \"cow\": writes go to an overlay, as over an image
  [[disk]]
  file      = \"data.img\"   raw, of this VM alone: what it writes stays in the file
  size      = \"8GiB\"       where the file is not there, it is made (sparse); else the file's own
  [[disk]]
  directory = \"www\"       a copy of it in an ext4 file system, made when the machine starts; writes
                           go to an overlay, as over an image; VMs that name it share the copy
  size      = \"1GiB\"       of the file system; left out: what is in it, and some room
  [[net]]                  up to 2
  switch    = \"lan\"        VMs on one switch reach each other, and no others
  mac       = \"02:00:00:00:00:01\"  left out: made of the VM's name
  mtu       = 1500         68 to 65535
  offloads  = true         false: the guest makes checksums and segments itself
  uplink    = false        true: the switch has a way out (sim --net; underpin0 beside OS-0)
  limit     = \"100MB/s\"    what it may send in a second; left out: no limit
  floods    = 1000         frames a second to more than one receiver; 0: no limit
  learns    = 0            further addresses that it may send from

`check` warns of disk images whose files cannot be shared page by page: partitions that begin
within a page, ext4 and EROFS with blocks below 4 KiB, compressed EROFS.";

/// Underpin, a hypervisor for 64-bit Arm: describe VMs, run them on a simulated machine, look
/// after them.
#[derive(Debug, Parser)]
#[command(name = "underpin", version, after_help = codes::exit_statuses(), max_term_width = 100)]
pub struct Cli {
    /// How to print results and errors
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Table)]
    pub output: Format,
    /// Which machine is meant, where several run; left out: os0, where Underpin is beneath this
    /// system, and sim elsewhere
    #[arg(long, global = true, value_name = "NAME")]
    pub machine: Option<String>,
    /// Which host of a cluster is meant: of sim --hosts, host0 and so on; left out: `list` and `shutdown` mean all.
    /// Inside a VM with control = "read" or "all", a host that `underpin cluster` shows, by its name
    #[arg(long, global = true, value_name = "HOST")]
    pub host: Option<String>,
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
        /// The cluster that the machine belongs to.
        #[command(flatten)]
        membership: Membership,
    },
    /// Show the hosts of the machine's cluster; tell why one is not in, make a key, or check a cluster file
    #[command(after_help = cluster::FILE)]
    Cluster {
        /// What to do.
        #[command(subcommand)]
        verb: Option<ClusterVerb>,
    },
    /// Tell what the hosts of a VM take from each other
    Span {
        /// What to do.
        #[command(subcommand)]
        verb: SpanVerb,
    },
    /// Free a host of VMs that span hosts while they run, so that it can be switched off
    #[command(after_help = span::DRAIN)]
    Drain(Drain),
    /// Start a simulated machine with these VMs
    Sim(Box<Sim>),
    /// List the VMs
    List,
    /// Show one VM in full
    Show(Vm),
    /// Run the VMs of files, on the running machine or on a new one
    Run(Run),
    /// In a running system: lend memory to VMs, and serve commands for them until all have ended
    Serve(Serve),
    /// Start a VM that is defined or has ended
    Start {
        /// The VM's name
        vm: String,
        /// Only tell whether it would start
        #[arg(long)]
        dry_run: bool,
    },
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
    /// Change a VM's share of CPU time and memory, or pull its network cables
    Set(Set),
    /// Show who has what of the machine's memory, why, and what sharing saves
    Mem(Mem),
    /// Show on which nodes VMs' memory is, why pages stay there, and move it
    Numa {
        /// What to show or do.
        #[command(subcommand)]
        verb: Option<NumaVerb>,
    },
    /// Watch the machine and its VMs at work
    #[command(after_help = TOP)]
    Top(Top),
    /// Print what the machine counts, for Prometheus, or serve it
    Metrics(Metrics),
    /// Record a run and draw it as one page for a browser
    Report(Report),
    /// Record what happens, event by event, and show it by VM
    #[command(after_help = TRACE)]
    Trace(Trace),
    /// Use a VM's console (leave it with Ctrl-])
    Console(Console),
    /// List the machine's NUMA nodes
    Nodes,
    /// Show the machine, and what the hypervisor takes of its memory
    Machine,
    /// End all VMs and power the machine off
    Shutdown,
    /// In a running system: keep a kernel that is started in its place when it ends while VMs run
    Stage(crate::beneath::Stage),
    /// For the system that the command runs in.
    #[command(flatten)]
    Os0(tools_os0::Verb),
    /// Say what an exit status, or what happens to memory, means and what to do about it
    Explain {
        /// An exit status, its name, or the name of an event; left out: all of them
        code: Option<String>,
    },
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

/// `underpin run`.
#[derive(Args, Debug)]
pub struct Run {
    /// VM files, or directories of them
    #[arg(required = true)]
    pub files: Vec<PathBuf>,
    /// Only tell whether they would start on the running machine
    #[arg(long)]
    pub dry_run: bool,
    /// What a machine is made of that this system lends.
    #[command(flatten)]
    pub loan: Loan,
}

/// What this system gives to a machine for its VMs.
#[derive(Args, Clone, Debug, Default)]
pub struct Loan {
    /// The memory to lend, where the machine is made of this system's; left out: what the VMs need
    #[arg(long, value_name = "SIZE", value_parser = whole_blocks)]
    pub lend: Option<u64>,
    /// A file or block device that VM files name as a partition; scratch:FILE: for overlays and swap; FILE,format=qcow2
    #[arg(long = "disk", value_name = "NAME=FILE", value_parser = Served::parse)]
    pub disks: Vec<Served>,
}

impl Loan {
    /// Whether nothing is said of it.
    pub fn is_usual(&self) -> bool {
        self.lend.is_none() && self.disks.is_empty()
    }
}

/// `underpin serve`.
#[derive(Args, Debug)]
pub struct Serve {
    /// VM files, or directories of them; left out: go on with VMs whose server has ended
    pub files: Vec<PathBuf>,
    /// What the machine is made of.
    #[command(flatten)]
    pub loan: Loan,
    /// Return when the VMs have been started, and leave the server running
    #[arg(long)]
    pub detach: bool,
    /// This process is the one that `--detach` leaves behind.
    #[arg(long, hide = true)]
    pub detached: bool,
}

/// `underpin sim`.
#[derive(Args, Clone, Debug)]
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
    /// Ask the hypervisor nothing until all VMs have ended, and power the machine off then: requests come at
    /// chance moments, and without them two runs of a measuring machine are the same
    #[arg(long, conflicts_with = "detach")]
    pub unasked: bool,
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

/// A size that is whole pages, and not none.
fn whole_pages(text: &str) -> Result<u64, String> {
    match units::parse_size(text)? {
        0 => Err(format!("'{text}' is nothing")),
        bytes if bytes.is_multiple_of(4096) => Ok(bytes),
        _ => Err(format!("'{text}' is no multiple of 4KiB")),
    }
}

/// What `underpin numa` does.
#[derive(Debug, Subcommand)]
pub enum NumaVerb {
    /// Show each VM's memory by node (this is what `underpin numa` does)
    Show,
    /// Tell what became of a VM's pages that nodes missed on often
    Why(Vm),
    /// Move a VM's memory to a node while it runs
    Move {
        /// The VM's name
        vm: String,
        /// The node's number
        #[arg(value_parser = node)]
        node: u8,
        /// Wait until it is there, and tell what came of it
        #[arg(long)]
        wait: bool,
    },
}

/// A node's number.
fn node(text: &str) -> Result<u8, String> {
    let number = text
        .parse()
        .ok()
        .filter(|node| u32::from(*node) < NODES_MAX);
    let last = NODES_MAX - 1;
    number.ok_or_else(|| {
        format!("'{text}' is no node: use a number from 0 to {last}; `underpin nodes` lists them")
    })
}

/// A size as the memory of a VM has it.
fn whole_blocks(text: &str) -> Result<u64, String> {
    let bytes = Some(whole_pages(text)?).filter(|bytes| bytes.is_multiple_of(2 << 20));
    bytes.ok_or_else(|| format!("'{text}' is no multiple of 2MiB"))
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

const MEM: &str = "\
Columns of `underpin mem`. Those that say nothing now are left out; --wide shows all:

  BASE      what the VM is sure of
  LIMIT     the most it may have now; EL2 enforces it. With claim = \"grow\" it follows what
            EL2 could take back (`underpin mem VM`: takeable), an estimate: pages that
            partitions hold are counted once a second
  TARGET    what its balloon driver was asked to keep to
  RESIDENT  its memory with a frame behind it
  PRIVATE   of it, frames of its own
  SHARED    of it, frames that others use or could use
  CHARGE    what it pays for: private frames, 1/n of each frame that n use,
            its overlays in memory (OVERLAY), its tables (TABLES)
  ENTITLED  what sharing saves on its account: (n-1)/n of each frame that n use
  DRAWN     of it, what the VM was given beyond its base
  BALANCE   entitled less drawn
  OWED      what it must give back before it may go on
  2M, 4K    entries of its translation of that size";

/// `underpin mem`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, after_help = MEM)]
pub struct Mem {
    /// What to show or do.
    #[command(subcommand)]
    pub verb: Option<MemVerb>,
    /// What is shown where nothing is said.
    #[command(flatten)]
    pub show: MemShow,
}

/// What `underpin mem` does.
#[derive(Debug, Subcommand)]
pub enum MemVerb {
    /// Show each VM's memory, and the machine's (this is what `underpin mem` does)
    #[command(after_help = MEM)]
    Show(MemShow),
    /// Tell why a VM's memory is not shared, and what to do about it
    Why(Vm),
    /// Tell how many more VMs of a description would start, and what binds
    Fit {
        /// The VM file; its kernel and images must be in the machine's bundle
        file: PathBuf,
        /// Fail where not that many would start
        #[arg(short = 'n', long, default_value_t = 1, value_name = "N")]
        count: u64,
    },
    /// Ask a VM's guest to give memory back
    Reclaim {
        /// The VM's name
        vm: String,
        /// How much, as in 64MiB
        #[arg(value_parser = whole_pages)]
        size: u64,
    },
    /// Compare the frame table with the maps and accounts of VMs (exact while all are paused)
    Recount,
    /// Compare all pages of VMs: what could be shared, for how long, and what is
    Analyze(Analyze),
}

/// `underpin mem show`.
#[derive(Args, Debug)]
pub struct MemShow {
    /// One VM, in full
    pub vm: Option<String>,
    /// Show all columns
    #[arg(short, long)]
    pub wide: bool,
}

/// `underpin mem analyze`.
#[derive(Args, Debug)]
pub struct Analyze {
    /// The VMs; left out: all that run
    pub vms: Vec<String>,
    /// Look again and again, that often (without --for: until Ctrl-C)
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration)]
    pub every: Option<Duration>,
    /// Stop after this time (without --every: look every 10s)
    #[arg(long = "for", value_name = "TIME", value_parser = units::parse_duration)]
    pub time: Option<Duration>,
    /// Let the VMs run meanwhile: pages may then change while they are compared
    #[arg(long)]
    pub live: bool,
    /// Write a line for each snapshot to this file
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Draw the results into this file
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    /// What the VM's /proc/kpageflags says, copied to a file: tells page cache from other memory.
    /// The file is read anew at each snapshot
    #[arg(long, value_name = "VM=FILE", value_parser = vm_and_file)]
    pub kpageflags: Vec<(String, PathBuf)>,
}

fn vm_and_file(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((vm, file)) if !vm.is_empty() && !file.is_empty() => {
            Ok((vm.to_owned(), PathBuf::from(file)))
        }
        _ => Err(format!("'{text}' is not VM=FILE")),
    }
}

/// What `underpin top` shows, for its help on the command line and on the screen.
pub const TOP: &str = "\
Columns. CPU times are percent of one CPU; terminals that are narrow show fewer:

  CPU%      its vCPUs ran
  ST%       they could have run and did not (steal)
  HYP%      the hypervisor worked for them
  EXIT/s    entries into the hypervisor
  RES       its memory with a frame behind it (resident)
  PRIV      of it, frames of its own (private)
  SHR       of it, frames that others use or could use (shared)
  ENT       what sharing saves on its account (entitled)
  OWED      what it must give back before it may go on
  RD/s      bytes read from disks
  WR/s      bytes written to disks
  TX/s      bytes sent to networks
  RX/s      bytes received from networks

Keys:

  c m e d t s n sort by CPU, memory, exits, disk, traffic, steal, name
  r             reverse the order
  Up, Down      select a VM, or scroll its page; also PgUp, PgDn, Home, End
  Enter         show the VM selected: its vCPUs, exits by class, memory
  Esc           go back
  ?             show or hide this
  q, Ctrl-C     go back, and end";

/// `underpin top`.
#[derive(Args, Debug)]
pub struct Top {
    /// Time from one sample to the next
    #[arg(short, long, default_value = "1s", value_name = "TIME", value_parser = delay)]
    pub delay: Duration,
    /// Print samples instead of drawing on the terminal; -o json: an object on a line each
    #[arg(short, long)]
    pub batch: bool,
    /// Print so many samples; left out: until Ctrl-C
    #[arg(short, long = "number", value_name = "N", requires = "batch", value_parser = clap::value_parser!(u64).range(1..))]
    pub number: Option<u64>,
}

/// The time between two samples: enough to take one in, and not for ever.
fn delay(text: &str) -> Result<Duration, String> {
    let delay = units::parse_duration(text)?;
    let allowed = Duration::from_millis(100)..=Duration::from_hours(1);
    let within = allowed.contains(&delay).then_some(delay);
    within.ok_or_else(|| format!("'{text}' is not between 100ms and 60m"))
}

/// `underpin report`.
#[derive(Args, Debug)]
pub struct Report {
    /// Where the page goes, as index.html, and the samples, as samples.jsonl
    pub directory: PathBuf,
    /// Record for so long; ends before that with Ctrl-C
    #[arg(long = "for", default_value = "30s", value_name = "TIME", value_parser = units::parse_duration)]
    pub time: Duration,
    /// Time from one sample to the next
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = delay)]
    pub every: Duration,
    /// Record nothing: draw what `underpin top --batch -o json`, or an earlier report, has put into
    /// this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["time", "every"])]
    pub from: Option<PathBuf>,
}

const TRACE: &str = "\
Classes of events:

  exits       a vCPU left its guest: why, and the time until it was back
  faults      memory was not there, or with fewer rights: the time until it was; away-read and
              away-write: another host of the VM has the page (underpin span why)
  shares      a page changed who uses it: mapped, zeroes, offered, private, broken, claimed
  switches    a vCPU was on a CPU: from when to when, and why it left
  interrupts  a CPU took a physical interrupt
  stretches   a CPU worked for longer than 200 us without a look at its interrupts: what at
  hosts       the link to a host of the cluster is up or down, or the membership has changed

Each CPU keeps its 4096 latest events; this command takes them out all the time, and says how
many it came too late for. --out writes Chrome's trace format, which Perfetto's viewer opens.";

/// `underpin trace`.
#[derive(Args, Debug)]
pub struct Trace {
    /// The VM; left out: all, and what the machine does for none
    pub vm: Option<String>,
    /// Record for so long; ends before that with Ctrl-C
    #[arg(long = "for", default_value = "1s", value_name = "TIME", value_parser = units::parse_duration)]
    pub time: Duration,
    /// Write all events to this file, as Chrome's trace JSON
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Only these classes of events
    #[arg(long, value_name = "CLASS,...", value_delimiter = ',', value_parser = TRACE_CLASSES)]
    pub classes: Vec<String>,
    /// Only turn tracing off, where a command that ended badly left it on
    #[arg(long, conflicts_with_all = ["vm", "time", "out", "classes"])]
    pub stop: bool,
}

/// `underpin metrics`.
#[derive(Args, Debug)]
pub struct Metrics {
    /// Serve them to everybody who can reach this address, by HTTP at /metrics
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Option<SocketAddr>,
}
