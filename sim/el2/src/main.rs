//! Lives of a whole machine: boots the hypervisor on CPUs that a seed interleaves, runs guests on it, asks it through its
//! control port, lets things go wrong, and compares what each guest reads with a flat memory of its own.
//!
//! `cargo run -p sim_el2 -- --seed N` repeats a life exactly. A life that goes wrong is made as small as it can be, and its
//! steps are printed.
#![forbid(unsafe_code)]

mod bundle;
mod cluster;
mod control;
mod disk;
mod driver;
mod flat;
mod life;
mod moving;
mod network;
mod program;
mod scene;
mod shrink;
mod stands;
mod tree;
mod wire;

use clap::Parser;
use life::Life;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use scene::{Limits, Scene};
use std::process::{Command, ExitCode, Output};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Runs the hypervisor in ordinary processes: whole lives of a machine, each decided by its seed.
#[derive(Debug, Parser)]
struct Options {
    /// The seed of the only life, or of the first.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Lives, each in a process of its own; without it there is one, in this process.
    #[arg(long)]
    lives: Option<u64>,
    /// Begins lives, each in a process of its own, for so many seconds.
    #[arg(long, conflicts_with = "lives")]
    seconds: Option<u64>,
    /// Lives at a time.
    #[arg(long, default_value_t = 2)]
    jobs: u64,
    /// Begins no more lives once one has gone wrong.
    #[arg(long)]
    first: bool,
    /// Leaves a life that goes wrong as large as it is.
    #[arg(long)]
    as_is: bool,
    /// Prints what the hypervisor writes to its log.
    #[arg(long)]
    log: bool,
    /// Prints what guests do, what is asked of the hypervisor, and what it answers.
    #[arg(long)]
    tell: bool,
    /// A VM moves to another machine, instead of requests and faults.
    #[arg(long)]
    moves: bool,
    /// Two or three hosts of a cluster, seldom up to eight, over a bad network, each in a process of its own, instead of one
    /// machine. In every other life a VM spans some of them.
    #[arg(long, conflicts_with = "moves")]
    cluster: bool,
    /// The last host of the cluster says something else of itself, and must stay alone; with other features it joins.
    #[arg(long, value_name = "WHAT", conflicts_with = "moves")]
    odd: Option<cluster::Odd>,
    /// Is that host of a cluster, on the standard input and output.
    #[arg(long, requires = "hosts", hide = true)]
    host: Option<u8>,
    /// Hosts of it.
    #[arg(long, requires = "host", hide = true)]
    hosts: Option<u8>,
    /// What decides the VM that spans two of them.
    #[arg(long, requires = "host", hide = true)]
    vm: Option<u64>,
    /// A page takes one frame of their link.
    #[arg(long, requires = "host", hide = true)]
    jumbo: bool,
    #[command(flatten)]
    limits: Limits,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if let (Some(host), Some(hosts)) = (options.host, options.hosts) {
        let (seed, odd, vm) = (options.seed, options.odd, options.vm);
        let been = cluster::be(cluster::Birth {
            host,
            hosts,
            seed,
            odd,
            vm,
            is_jumbo: options.jumbo,
        });
        return ExitCode::from(u8::from(been.is_err()));
    }
    let is_well = match (options.lives, options.seconds) {
        (None, None) => one(&options),
        (lives, seconds) => many(&options, lives.unwrap_or(u64::MAX), seconds),
    };
    ExitCode::from(u8::from(!is_well))
}

/// Lives one life.
fn one(options: &Options) -> bool {
    if options.moves {
        return moves(options);
    }
    if options.cluster {
        return joins(options);
    }
    let scene = Scene::new(options.seed, options.limits);
    if options.tell {
        scene.describe().iter().for_each(|line| println!("{line}"));
    }
    let life = life::live(options.seed, &scene, options.tell, |text| {
        if options.log {
            print!("{text}");
        }
    });
    let Life {
        sums,
        steps,
        trace,
        told,
        wrong,
    } = life;
    for line in told {
        println!("{line}");
    }
    println!(
        "seed {}: {} loads and {} stores of {} vCPUs, {} of {} disk requests failed, {} frames, {steps} steps, trace {trace:016x}",
        options.seed, sums.loads, sums.stores, sums.done, sums.failed, sums.requests, sums.arrived
    );
    if let Some(what) = &wrong {
        println!("seed {}: {what}", options.seed);
    }
    wrong.is_none()
}

/// Lives a life in which a VM moves.
fn moves(options: &Options) -> bool {
    let limits = Limits {
        requests: 0,
        faults: 0,
        ..options.limits
    };
    let scene = Scene::new(options.seed, limits);
    let mut log = |text: &str| {
        if options.log {
            print!("{text}");
        }
    };
    let seed = options.seed;
    match moving::live(seed, &scene, &mut log) {
        Ok((moved, sums)) => println!("seed {seed}: {moved:?}, {} loads", sums.loads),
        Err(what) => {
            println!("seed {seed}: {what}");
            return false;
        }
    }
    true
}

/// Lives a life of a cluster.
fn joins(options: &Options) -> bool {
    let mut log = |text: &str| {
        if options.log {
            print!("{text}");
        }
    };
    let seed = options.seed;
    let lived = match options.odd {
        Some(cluster::Odd::Features) => cluster::live_unlike(seed, &mut log),
        Some(cluster::Odd::Asks) => cluster::live_asking(seed, &mut log),
        Some(odd) => cluster::live_apart(seed, odd, &mut log),
        None => cluster::live(seed, &mut log),
    };
    match lived {
        Ok(life) => println!("seed {seed}: {life:?}"),
        Err(what) => {
            println!("seed {seed}: {what}");
            return false;
        }
    }
    true
}

/// Lives many lives; says which went wrong, and makes the first of them small.
fn many(options: &Options, lives: u64, seconds: Option<u64>) -> bool {
    let began = Instant::now();
    let (next, bad) = (AtomicU64::new(0), AtomicU64::new(0));
    let first = AtomicU64::new(u64::MAX);
    let is_over = || {
        seconds.is_some_and(|seconds| began.elapsed().as_secs() >= seconds)
            || options.first && bad.load(Ordering::Relaxed) > 0
    };
    std::thread::scope(|scope| {
        for job in 0..options.jobs.max(1) {
            let (next, bad, first, is_over) = (&next, &bad, &first, &is_over);
            scope.spawn(move || {
                if options.cluster {
                    stay(job as usize);
                }
                while !is_over() {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= lives {
                        return;
                    }
                    if !is_well(options, options.seed.wrapping_add(number)) {
                        first.fetch_min(number, Ordering::Relaxed);
                        bad.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let lives = next.into_inner().min(lives);
    let (bad, seconds) = (bad.into_inner(), began.elapsed().as_secs_f64());
    let rate = lives as f64 * 60.0 / seconds;
    println!("{lives} lives in {seconds:.1} s, {rate:.0} a minute; {bad} went wrong");
    if bad > 0 && !options.as_is && !options.moves && !options.cluster {
        let seed = options.seed.wrapping_add(first.into_inner());
        shrink::tell(seed, options.limits);
    }
    bad == 0
}

/// Keeps a job, and the processes that it starts, on one CPU: the hosts of a cluster take turns, and to wake the next one on
/// another CPU takes longer than its turn.
fn stay(job: usize) {
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|cpu| allowed.is_set(*cpu))
        .collect();
    let mut only = CpuSet::new();
    only.set(cpus[job % cpus.len()]);
    // Where it may not, the lives only take longer.
    let _ = sched_setaffinity(None, &only);
}

/// A life in a process of its own.
fn in_process(seed: u64, limits: Limits, more: &[&str]) -> Result<Output, String> {
    let own = std::env::current_exe().map_err(|error| format!("{error}"))?;
    Command::new(own)
        .args(["--seed", &seed.to_string()])
        .args(limits.arguments())
        .args(more)
        .env("RUST_BACKTRACE", "0")
        .output()
        .map_err(|error| format!("cannot start a process: {error}"))
}

/// Lives one life in a process of its own.
fn is_well(options: &Options, seed: u64) -> bool {
    let more: &[&str] = match (options.moves, options.cluster) {
        (true, _) => &["--moves"],
        (_, true) => &["--cluster"],
        _ => &[],
    };
    match in_process(seed, options.limits, more) {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            print!("{}", String::from_utf8_lossy(&output.stdout));
            eprint!("{}", String::from_utf8_lossy(&output.stderr));
            println!("seed {seed}: {}", output.status);
            false
        }
        Err(error) => {
            println!("seed {seed}: {error}");
            false
        }
    }
}
