//! `xtask bench-sharing`: what sharing memory costs, saves and tells.
//!
//! Each experiment leaves a table (CSV) and a plot (SVG) in `target/bench-sharing`. Those that count
//! instructions run on machines whose clock does so, where a run can be repeated bit for bit.

mod crowd;
mod density;
mod equal;
mod footprint;
mod groups;
mod hiding;
mod histogram;
pub mod lab;
mod outsiders;
pub mod plot;
mod real_work;
mod reports;
mod scaling;
mod second_reader;
pub mod steps;
mod unique;

use crate::{
    bench::{
        self,
        table::{Figures, markdown, replace_between},
    },
    figures::{Measured, Verdict},
    images, project,
    step::{Outcome, Step, Steps, print_line},
};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Where the figures are kept.
const SPECIFICATION: &str = "SPECIFICATION.md";
/// The experiments, by name.
const EXPERIMENTS: [(&str, Experiment); 12] = [
    ("steps", steps::run),
    ("scaling", scaling::run),
    ("equal", equal::run),
    ("unique", unique::run),
    ("second-reader", second_reader::run),
    ("hiding", hiding::run),
    ("groups", groups::run),
    ("outsiders", outsiders::run),
    ("reports", reports::run),
    ("footprint", footprint::run),
    ("density", density::run),
    ("real-work", real_work::run),
];

/// Pictures that SPECIFICATION.md shows.
const FIGURES: [&str; 4] = ["footprint", "real-work-gcc", "real-work-web", "reports"];

/// What measures something.
type Experiment = fn(&mut Step<'_>) -> Outcome<Found>;

/// What an experiment found.
pub struct Found {
    /// Its name in SPECIFICATION.md, `sharing-NAME`, and that of its files.
    name: &'static str,
    /// The table; its first row is the head.
    rows: Vec<Vec<String>>,
    /// What else is worth a line.
    notes: Vec<String>,
    /// What missed its aim, or was not as it must be.
    wrong: Vec<String>,
    /// The figures by key; without them, the table's numbers are taken.
    figures: Option<Figures>,
}

/// Builds, unless `built` says that Underpin and the bare guests are there, and runs the experiments named, or all; prints
/// what they find and, with `write`, puts it into SPECIFICATION.md. Gives whether all was as it
/// must be.
pub fn run(names: &[String], built: bool, write: bool, verdict: &mut Verdict) -> bool {
    let is_asked = |name: &str| names.is_empty() || names.iter().any(|asked| asked == name);
    let asked: Vec<_> = EXPERIMENTS
        .iter()
        .filter(|(name, _)| is_asked(name))
        .collect();
    let logs = project::products().join("bench-sharing/logs");
    let steps = Steps::new(asked.len() + 2, logs);
    let counts_linux = asked
        .iter()
        .any(|(name, _)| ["unique", "second-reader", "reports"].contains(name));
    let built = steps.run("build", |step| build(step, built, counts_linux));
    if built.is_none() {
        return false;
    }
    let mut all = Vec::new();
    let mut good = true;
    for (name, experiment) in asked {
        match steps.run(name, experiment) {
            Some(found) => {
                print_line(&format!("\n{}", markdown(&found.rows)));
                for line in &found.notes {
                    print_line(line);
                }
                for line in &found.wrong {
                    print_line(&format!("wrong: {line}"));
                }
                good &= found.wrong.is_empty();
                all.push(found);
            }
            None => good = false,
        }
    }
    let kept = steps.run("files", |_| {
        for found in &all {
            let table = format!("sharing-{}", found.name);
            // What is missed has been told as wrong.
            verdict.take(&table, found.measured(), std::iter::empty())?;
        }
        keep(&all, write)
    });
    kept.is_some() && good
}

impl Found {
    fn measured(&self) -> Measured {
        match &self.figures {
            Some(figures) => Measured::plain(figures),
            None => Measured::of_rows(&self.rows),
        }
    }
}

fn build(step: &Step<'_>, built: bool, counts_linux: bool) -> Outcome {
    if !built {
        images::all(step)?;
    }
    if counts_linux {
        bench::linux_program(step)?;
    }
    Ok(())
}

/// Writes the tables and, where asked, SPECIFICATION.md.
fn keep(all: &[Found], write: bool) -> Outcome {
    let mut text = fs::read_to_string(project::root().join(SPECIFICATION))
        .map_err(|error| format!("cannot read {SPECIFICATION}: {error}"))?;
    for found in all {
        let csv: String = found.rows.iter().map(|row| row.join(",") + "\n").collect();
        put(
            &lab::directory("")?.join(format!("{}.csv", found.name)),
            &csv,
        )?;
        if write {
            let notes: Vec<String> = found
                .notes
                .iter()
                .map(|note| {
                    format!(
                        "
- {note}"
                    )
                })
                .collect();
            let new = format!("{}{}\n", markdown(&found.rows), notes.concat());
            text = replace_between(&text, &format!("sharing-{}", found.name), &new)?;
        }
    }
    if write {
        put(&project::root().join(SPECIFICATION), &text)?;
        for name in FIGURES {
            keep_figure(name, all)?;
        }
    }
    Ok(())
}

/// Puts a picture of an experiment that was run beside the documents.
fn keep_figure(name: &str, all: &[Found]) -> Outcome {
    if !all.iter().any(|found| name.starts_with(found.name)) {
        return Ok(());
    }
    let picture = plot_of(name)?;
    let text = fs::read_to_string(&picture)
        .map_err(|error| format!("cannot read {}: {error}", picture.display()))?;
    let figures = project::root().join("docs/figures");
    fs::create_dir_all(&figures)
        .map_err(|error| format!("cannot make {}: {error}", figures.display()))?;
    put(&figures.join(format!("{name}.svg")), &text)
}

fn put(path: &Path, text: &str) -> Outcome {
    fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// Where a plot goes.
fn plot_of(name: &str) -> Outcome<PathBuf> {
    Ok(lab::directory("")?.join(format!("{name}.svg")))
}

/// An image of so many blocks, none like another, and so many empty ones.
fn image(name: &str, blocks: u64, empty: u64) -> Outcome<PathBuf> {
    let path = lab::directory("images")?.join(name);
    let words = (1..=blocks * 512).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.resize(bytes.len() + empty as usize * 4096, 0);
    fs::write(&path, bytes).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    Ok(path)
}

/// A VM file.
struct Vm<'a> {
    name: &'a str,
    kernel: &'a Path,
    initrd: Option<&'a Path>,
    args: String,
    /// As it stands in the file: a string or a table.
    memory: &'a str,
    /// Its `sharing` table, such as `never = true`.
    sharing: &'a str,
    disk: Option<&'a Path>,
    /// What its disk gives in a second, such as `5MB/s`.
    limit: Option<&'a str>,
}

impl Vm<'_> {
    fn text(&self) -> String {
        let line = |key: &str, path: Option<&Path>| {
            path.map_or_else(String::new, |path| {
                format!("{key} = '{}'\n", path.display())
            })
        };
        let disk = self.disk.map_or("", |_| "[[disk]]\nmode = 'cow'\n");
        let limit = self
            .limit
            .map_or_else(String::new, |limit| format!("limit = '{limit}'\n"));
        format!(
            "name = '{}'\nmemory = {}\nsharing = {{ {} }}\n[boot]\nargs = '{}'\n{}{}{disk}{limit}{}",
            self.name,
            self.memory,
            self.sharing,
            self.args,
            line("kernel", Some(self.kernel)),
            line("initrd", self.initrd),
            line("image", self.disk),
        )
    }
}
