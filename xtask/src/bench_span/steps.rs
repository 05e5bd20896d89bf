//! `xtask bench-span-steps`: what single steps of a VM over two hosts, or three, cost: a miss, a word that both write, an interrupt.
//!
//! `span_steps`, a bare guest, takes so many of one kind, and says how long they took. Two latencies tell how many round trips
//! are among them; what each host's EL2 executed for more of them is counted by function.

use super::{await_said, directory, emptied, finish};
use crate::{
    bench_numa, images,
    profile::{self, Counts},
    step::{Outcome, Step, Steps},
};
use std::{env, time::Duration};
use tests_boot::{
    assets, cluster_file,
    machine::{Hardware, Machine},
    vm::Vm,
};

/// The kinds that the guest knows, and what each is: over two hosts, and over three.
const STEPS: [(&str, &str); 10] = [
    (
        "read",
        "the second host reads a page that the first has written",
    ),
    (
        "write",
        "the second host writes a page that the first has written",
    ),
    (
        "upgrade",
        "the first host writes a page that the second has read",
    ),
    ("turn", "both hosts write a word, in turns"),
    (
        "pair",
        "each host adds to a word of its own 1,000 times, in one page",
    ),
    ("barrier", "both hosts meet, again and again"),
    (
        "sgi",
        "an SGI goes to a vCPU that sleeps, and one comes back",
    ),
    (
        "tlbi",
        "the second host invalidates a TLB entry, then writes a page as above",
    ),
    (
        "third-read",
        "the third host reads a page of the first that the second has written",
    ),
    (
        "third-write",
        "the third host writes a page of the first that the second has written",
    ),
];
/// How kinds begin that are of three hosts.
const THIRD: &str = "third-";
/// Steps of a short run, and of a long one.
const FEW: u32 = 1_000;
const MANY: u32 = 3_000;
/// Time of a frame between two cards, in microseconds: of the class of 20 us, and ten times that.
const NEAR_US: f64 = 10.0;
const FAR_US: f64 = 100.0;
/// Functions that encrypt and authenticate, and those that copy and clear, by the beginnings of their names.
const CIPHER: [&str; 2] = ["gcm_", "<machine_aarch64::gcm"];
const COPIES: [&str; 7] = [
    "memcpy",
    "memmove",
    "memset",
    "bytes_copy",
    "frame_copy",
    "frame_zero",
    "compiler_builtins::mem::",
];
/// How long steps may take.
const STEPS_MAX: Duration = Duration::from_mins(3);

/// What is measured.
#[derive(Clone, Debug, clap::Args)]
pub struct Asked {
    /// Only these kinds of steps
    #[arg(long, value_name = "STEP", value_parser = STEPS.map(|it| it.0))]
    only: Vec<String>,
    /// What is done for pages beyond IVY's protocol, as for `bench-span`
    #[arg(long, default_value = "best", value_name = "WORDS")]
    coherence: String,
    /// MTU of the hosts' Ethernet: from 4256 on, a page takes one frame
    #[arg(long, default_value_t = 1500, value_name = "BYTES")]
    mtu: u16,
    /// Show so many functions that take most of a step, too
    #[arg(long, default_value_t = 0, value_name = "N")]
    functions: usize,
    /// Take what `xtask build` has left
    #[arg(long)]
    built: bool,
    /// Put the figures into SPECIFICATION.md, too
    #[arg(long, conflicts_with_all = ["only", "coherence"])]
    write: bool,
}

impl Asked {
    /// Returns what is measured where nothing else is said.
    pub fn all(write: bool) -> Self {
        Self {
            only: Vec::new(),
            coherence: "best".to_owned(),
            mtu: 1500,
            functions: 0,
            built: false,
            write,
        }
    }
}

/// A run: nanoseconds of all its steps, and what each host's EL2 executed.
struct Run {
    ns: f64,
    hosts: Vec<Counts>,
}

/// Measures, and prints; gives whether that could be done.
pub fn run(asked: &Asked) -> bool {
    let is_asked = |it: &&(&str, &str)| bench_numa::is_asked(&asked.only, it.0);
    let steps: Vec<_> = STEPS.iter().filter(is_asked).collect();
    let tables = [2, 3].map(|count| steps.iter().any(|it| hosts(it.0) == count));
    let files = tables.iter().filter(|is_there| **is_there).count();
    let mut progress = Steps::new(1 + steps.len() + files, directory().join("steps"));
    measure(&mut progress, asked, &steps).is_some()
}

fn measure(progress: &mut Steps, asked: &Asked, steps: &[&(&str, &str)]) -> Option<()> {
    progress.run("build", |step| {
        if env::var_os("UNDERPIN_IMAGE").is_some() {
            return Err(
                "UNDERPIN_IMAGE names another image than functions are looked up in; leave it out"
                    .into(),
            );
        }
        if asked.built {
            return Ok(());
        }
        images::plugin(step)?;
        images::command(step)?;
        images::guests(step)?;
        images::hypervisor(step)
    })?;
    let (mut two, mut three) = (vec![head(2)], vec![head(3)]);
    for (name, what) in steps {
        let rows = if hosts(name) == 2 {
            &mut two
        } else {
            &mut three
        };
        rows.push(progress.run(name, |step| of_step(step, asked, name, what))?);
    }
    let size = if asked.mtu == 1500 { "" } else { "-jumbo" };
    for (name, rows) in [("span-steps", two), ("span-steps-third", three)] {
        if rows.len() > 1 {
            finish(progress, &format!("{name}{size}"), &rows, asked.write)?;
        }
    }
    Some(())
}

/// How many hosts a kind is of.
fn hosts(name: &str) -> u8 {
    if name.starts_with(THIRD) { 3 } else { 2 }
}

/// The heads of a table of steps of so many hosts.
fn head(hosts: usize) -> Vec<String> {
    let mut heads = ["step", "us, at 20 us", "round trips waited for"]
        .map(str::to_owned)
        .to_vec();
    for host in ["first", "second", "third"].iter().take(hosts) {
        heads.push(format!("{host} host, instructions"));
        heads.extend(["cipher", "copies"].map(|part| format!("{part} on the {host}")));
    }
    heads
}

fn of_step(step: &Step<'_>, asked: &Asked, name: &str, what: &str) -> Outcome<Vec<String>> {
    let run = |count, one_way_us| run_once(step, asked, name, count, one_way_us);
    let (few, many) = (run(FEW, NEAR_US)?, run(MANY, NEAR_US)?);
    let far = [run(FEW, FAR_US)?, run(MANY, FAR_US)?];
    for (host, (few, many)) in few.hosts.iter().zip(&many.hosts).enumerate() {
        let mut functions = more(few, many);
        functions.sort_by(|a, b| b.1.total_cmp(&a.1));
        for (function, count) in functions.iter().take(asked.functions) {
            step.say(&format!("host{host} {count:>8.0} {function}"));
        }
    }
    Ok(row(what, [&few, &many], [&far[0], &far[1]]))
}

/// What one step more takes of each function.
fn more(few: &Counts, many: &Counts) -> Vec<(String, f64)> {
    let of = |(name, count): (&String, &u64)| {
        let few = few.get(name).copied().unwrap_or(0);
        (
            name.clone(),
            (*count as f64 - few as f64) / f64::from(MANY - FEW),
        )
    };
    many.iter().map(of).collect()
}

/// A row of a short and a long run near, and of such far away.
fn row(what: &str, near: [&Run; 2], far: [&Run; 2]) -> Vec<String> {
    let ns = |[few, many]: [&Run; 2]| (many.ns - few.ns) / f64::from(MANY - FEW);
    let trips = (ns(far) - ns(near)) / (2000.0 * (FAR_US - NEAR_US));
    let mut cells = vec![
        what.to_owned(),
        format!("{:.1}", ns(near) / 1000.0),
        format!("{trips:.2}"),
    ];
    let [few, many] = near.map(|run| &run.hosts);
    for (few, many) in few.iter().zip(many) {
        let functions = more(few, many);
        let of = |names: &[&str]| {
            let is_one = |name: &str| names.iter().any(|start| name.starts_with(start));
            let counts = functions.iter().filter(|(name, _)| is_one(name));
            format!("{:.0}", counts.map(|it| it.1).sum::<f64>())
        };
        cells.extend([of(&[""]), of(&CIPHER), of(&COPIES)]);
    }
    cells
}

/// Takes so many steps on hosts that far apart.
fn run_once(
    step: &Step<'_>,
    asked: &Asked,
    name: &str,
    count: u32,
    one_way_us: f64,
) -> Outcome<Run> {
    step.doing(&format!("{count} of {name}, {one_way_us} us apart"));
    let directory = emptied("step")?;
    let args = format!("step={name} count={count}");
    let hosts = hosts(name);
    let vm = Vm::bare("steps", "span_steps", &args)
        .cpus(hosts.into())
        .hosts(hosts);
    // Each host has as much of it.
    let memory = format!("{}MiB", 32 * hosts);
    let vm = vm.memory(&memory).coherence(&asked.coherence);
    let wire = format!("class=20us,latency={one_way_us}us");
    let counts = directory.join("counts");
    let hardware = Hardware::hosts(hosts, "512M", &wire).counts_to(&counts);
    let hardware = cluster_file::joined(hardware, &directory, (hosts.into(), asked.mtu))?;
    let mut machine = Machine::start(&assets::command(), &directory, &hardware, &[vm])?;
    let ns = await_steps(&mut machine)?;
    let file = |host| {
        let process = machine.qemu_of(&format!("host{host}"))?;
        Ok(counts.with_extension(process))
    };
    let files = (0..hosts).map(file).collect::<Outcome<Vec<_>>>()?;
    machine.shut_down()?;
    let counts = files.iter().map(|file| profile::all(file));
    Ok(Run {
        ns,
        hosts: counts.collect::<Outcome<_>>()?,
    })
}

/// Waits for the guest's figure.
fn await_steps(machine: &mut Machine) -> Outcome<f64> {
    await_said(machine, "steps", STEPS_MAX, |console| {
        if console.contains("FAILED") {
            return Some(Err(format!("the steps failed; the console: {console}")));
        }
        let rest = console.split("steps: ns=").nth(1);
        let rest = rest.filter(|rest| rest.contains('\n'))?;
        let digits = rest.split_whitespace().next().unwrap_or("");
        let ns = digits.parse();
        Some(ns.map_err(|_| format!("'{digits}' is no number")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_what_one_step_more_costs() {
        let counts = |all: u64| {
            let functions = [
                ("gcm_run", all / 4),
                ("<machine_aarch64::gcm::Key>::open", all / 4),
                ("memcpy", all / 10),
                ("frame_copy", all / 10),
                ("frame_equal", all * 3 / 10),
            ];
            Counts::from(functions.map(|(name, count)| (name.to_owned(), count)))
        };
        let run = |ns: f64, all: u64| Run {
            ns,
            hosts: vec![counts(all), counts(2 * all)],
        };
        let near = [run(1e6, 5_000), run(61e6, 2_005_000)];
        let far = [run(2e6, 100), run(422e6, 100)];
        let cells = row("it", [&near[0], &near[1]], [&far[0], &far[1]]);
        let expected = [
            "it", "30.0", "1.00", "1000", "500", "200", "2000", "1000", "400",
        ];
        assert_eq!(cells, expected);
        assert_eq!(cells.len(), head(2).len());
        assert_eq!(head(3).len(), head(2).len() + 3);
    }
}
