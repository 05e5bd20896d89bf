//! Builds, tests and measures the project: `make demo` and `make test` end up here.
#![forbid(unsafe_code)]

mod bench;
mod bench_cluster;
mod bench_numa;
mod bench_os0;
mod bench_sharing;
mod bench_span;
mod demo;
mod demo_attach;
mod demo_cluster;
mod figures;
mod frames;
mod gate;
mod images;
mod licences;
mod lines;
mod mutants;
mod profile;
mod project;
mod rust_source;
mod soak;
mod step;
mod tidy;

use clap::{Parser, Subcommand};
use figures::Verdict;
use std::process::ExitCode;
use step::{Outcome, Step, Steps};

#[derive(Debug, Parser)]
#[command(name = "xtask", about = "Builds, tests and measures Underpin")]
struct Options {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Build the command, the EL2 image and the bare guests
    Build {
        /// All but the hypervisor of another layout, which only scenarios beneath a Linux need
        #[arg(long)]
        usual: bool,
    },
    /// Run all checks and tests, as continuous integration does
    Test,
    /// Run the quick checks and a few telling boot tests, for people at work
    Check,
    /// Run the demo: several Debian VMs on a simulated four-node machine
    Demo {
        /// Leave the machine up at the end
        #[arg(long)]
        keep: bool,
    },
    /// Run the demo of attaching: Underpin goes beneath a running Linux, runs two VMs, and goes away
    DemoAttach {
        /// Start the same Linux once more at the end, with a shell
        #[arg(long)]
        keep: bool,
    },
    /// Run the demo of one VM over two machines: a Debian kernel computes on both, and one is killed
    DemoCluster {
        /// Kill none at the end, and leave both up until Ctrl-C
        #[arg(long)]
        keep: bool,
    },
    /// Run all benches, or these, and print their figures beside aims and peers
    Bench {
        /// Only these
        parts: Vec<bench::Part>,
        /// All but these
        #[arg(long, value_name = "PART")]
        without: Vec<bench::Part>,
        /// Fail where a figure is worse than in bench/accepted.toml, or misses an aim where that is not declared
        #[arg(long)]
        check: bool,
        /// Measure and check a few figures of what `xtask build` has left, in three minutes at most
        #[arg(long, conflicts_with_all = ["parts", "without", "write"])]
        short: bool,
        /// Put the figures into SPECIFICATION.md, too
        #[arg(long)]
        write: bool,
    },
    /// Print what sharing memory costs, saves and tells
    BenchSharing {
        /// Experiments, of `steps`, `scaling`, `equal`, `unique`, `second-reader`, `hiding`, `groups`, `outsiders`, `reports`,
        /// `footprint`, `density` and `real-work`; all without a name
        experiments: Vec<String>,
        /// Take Underpin and the bare guests as `xtask build` has left them
        #[arg(long)]
        built: bool,
        /// Put the figures into SPECIFICATION.md, too
        #[arg(long)]
        write: bool,
    },
    /// Print how long work takes on a machine with near and far memory, by where its pages are put
    BenchNuma {
        /// Only these
        cases: Vec<bench_numa::Case>,
        /// Of `programs` and `linux`, only these workloads of bench/workloads.toml
        #[arg(long, value_name = "WORKLOAD", conflicts_with = "write")]
        only: Vec<String>,
        /// Take Underpin and the bare guests as `xtask build` has left them
        #[arg(long)]
        built: bool,
        /// Put the figures into SPECIFICATION.md, too
        #[arg(long)]
        write: bool,
    },
    /// Print what the kernel's services cost in a Linux that Underpin lies beneath
    BenchOs0 {
        /// Put the figures into SPECIFICATION.md, too
        #[arg(long)]
        write: bool,
    },
    /// Print what the link between two hosts carries and costs, by classes of the simulated Ethernet
    BenchCluster {
        /// Whether the link encrypts and authenticates
        #[arg(long, value_enum, default_value_t = bench_cluster::Auth::On)]
        auth: bench_cluster::Auth,
        /// What to transfer in each class, with loss and without
        #[arg(long, default_value = bench_cluster::BYTES, value_name = "SIZE")]
        bytes: String,
        /// How to print it
        #[arg(short, long, value_enum, default_value_t = bench_cluster::Format::Table)]
        output: bench_cluster::Format,
        /// Put the figures into SPECIFICATION.md, too
        #[arg(long)]
        write: bool,
    },
    /// Print how fast parallel programs run in a VM over several hosts, beside one CPU
    BenchSpan(bench_span::Asked),
    /// Print what single steps of a VM over two or three hosts cost: misses, words that both write, interrupts
    BenchSpanSteps(bench_span::steps::Asked),
    /// Run also the slow boot tests, and fuzz, again and again
    Soak {
        /// For at least so many hours; 0: once
        #[arg(long, default_value_t = 0.0)]
        hours: f64,
    },
    /// Put each kept fault into a copy of the sources: its test must notice it
    Mutants {
        /// Only those whose name or test contains one of these
        names: Vec<String>,
        /// Do not run each test without a fault first: `xtask test` has passed
        #[arg(long)]
        trusted: bool,
    },
    /// Print what the hypervisor executed by function, as $UNDERPIN_SIM_PROFILE had it counted (see sim/README.md)
    Profile(profile::Asked),
    /// Check how much stack the EL2 image takes that `xtask build` has left
    Frames,
    /// Check the house rules
    Tidy,
    /// Count the lines and tokens of Rust that run at EL2
    Loc,
    /// Check the licences of all outside crates
    Licences,
}

fn main() -> ExitCode {
    let good = match Options::parse().task {
        Task::Build { usual } => build(if usual { images::usual } else { images::all }),
        Task::Test => gate::run(),
        Task::Check => gate::quick(),
        Task::Demo { keep } => demo::run(keep),
        Task::DemoAttach { keep } => demo_attach::run(keep),
        Task::DemoCluster { keep } => demo_cluster::run(keep),
        Task::Bench { short: true, .. } => gate::alone("figures"),
        Task::Bench {
            parts,
            without,
            check,
            write,
            ..
        } => bench::run(&parts, &without, check, write),
        Task::BenchSharing {
            experiments,
            built,
            write,
        } => bench_sharing::run(&experiments, built, write, &mut Verdict::print()),
        Task::BenchNuma {
            cases,
            only,
            built,
            write,
        } => bench_numa::run(&cases, &only, built, write, &mut Verdict::print()),
        Task::BenchOs0 { write } => bench_os0::run(write, &mut Verdict::print()),
        Task::BenchCluster {
            auth,
            bytes,
            output,
            write,
        } => bench_cluster::run(auth, &bytes, output, write),
        Task::BenchSpan(asked) => bench_span::run(&asked),
        Task::BenchSpanSteps(asked) => bench_span::steps::run(&asked),
        Task::Soak { hours } => soak::run(hours),
        Task::Mutants { names, trusted } => mutants::run(&names, trusted),
        Task::Profile(asked) => profile::run(&asked),
        Task::Frames => gate::alone("stack frames"),
        Task::Tidy => gate::alone("house rules"),
        Task::Loc => lines::print(),
        Task::Licences => gate::alone("licences"),
    };
    if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn build(images: fn(&Step<'_>) -> Outcome) -> bool {
    let steps = Steps::new(1, project::products().join("test-logs"));
    steps.run("build", |step| images(step)).is_some()
}
