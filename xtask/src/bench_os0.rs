//! `xtask bench-os0`: what the kernel's services cost in an operating system that Underpin can lie beneath (Mercury,
//! table 1): without Underpin, with it detached, attached, and in a VM beside that system.
//!
//! Each machine has one CPU, whose clock counts instructions. What is measured is `assets/os0/services.c`.

use crate::{
    bench::table::{Figures, keep, markdown},
    figures::{Measured, Verdict},
    images, project,
    step::{Outcome, Step, Steps, print_line},
};
use std::{fs, path::PathBuf};
use tests_boot::{
    os0::{Beneath, Os0},
    vm::Vm,
};

const KERNEL: &str = "trixie-cloud";
/// The seconds that a machine may take to each of its figures.
const MACHINE_MAX: u64 = 900;
/// Where the kernel runs, as assets/os0/init says it and as people read it.
const PLACES: [(&str, &str); 5] = [
    ("native", "without Underpin"),
    ("detached", "detached"),
    ("attached", "attached"),
    ("again", "detached again"),
    ("vm", "in a VM beside it"),
];
/// The program's keys, and what they are.
const SERVICES: [(&str, &str); 9] = [
    ("load", "a program's own work, 1,048,576 steps"),
    ("fork", "fork, and its end"),
    ("exec", "fork and exec"),
    ("sh", "fork and exec of a shell that does that"),
    ("switch", "context switch by a pipe"),
    ("mmap", "mmap of 1 MiB, and munmap"),
    (
        "protection_fault",
        "protection fault, to a signal's handler",
    ),
    ("page_fault", "page fault, with a page of zeroes"),
    ("disk_read", "read of 4 KiB of a disk, without waiting"),
];

/// Measures and prints; with `write`, also puts the table into SPECIFICATION.md. Gives whether that could be done.
pub fn run(write: bool, verdict: &mut Verdict) -> bool {
    let steps = Steps::new(4, directory());
    measure(&steps, write, verdict).is_some()
}

fn directory() -> PathBuf {
    project::products().join("bench/os0")
}

fn measure(steps: &Steps, write: bool, verdict: &mut Verdict) -> Option<()> {
    steps.run("build", |step| {
        images::plugin(step)?;
        images::arm64_command(step)?;
        images::hypervisor(step)?;
        fs::create_dir_all(directory()).map_err(|error| format!("cannot make a directory: {error}"))
    })?;
    let mut all = steps.run("without Underpin", |step| {
        play(step, &machine().beneath(Beneath::NoEl2))
    })?;
    all.extend(steps.run("on Underpin", |step| {
        // Its program comes on a disk, and its script on another.
        let vm = Vm::linux("services", KERNEL, "script").memory("256MiB");
        let vm = vm.persistent_disk("first").persistent_disk("program");
        play(step, &machine().beside(vec![vm]))
    })?);
    let table = table(&all);
    print_line(&format!("\n{}\n{}", table.0, table.1));
    steps.run("files", |_| {
        verdict.take("os0", Measured::plain(&all), std::iter::empty())?;
        if write { keep("os0", &table.0) } else { Ok(()) }
    })
}

fn machine() -> Os0 {
    let os0 = Os0::new(KERNEL, 1, "2G", "services").cpu("max,pauth=off,sve=off,sme=off");
    os0.late_disk(16 << 20)
        .counted()
        .expect("services end", MACHINE_MAX)
}

fn play(step: &Step<'_>, machine: &Os0) -> Outcome<Figures> {
    let mut told = String::new();
    let mut listener = |said: &str| {
        let last = said.lines().rev().find(|line| line.contains("services: "));
        if let Some(line) = last.filter(|line| **line != told) {
            line.clone_into(&mut told);
            if step.has_bar() {
                step.doing(line.trim());
            }
        }
    };
    let said = machine.play_to(&directory(), &directory(), &mut listener)?;
    Ok(figures(&said))
}

/// Reads `services: KEY LEAST MOST` below `os0: services PLACE`: `PLACE KEY`, and its `spread` in percent.
fn figures(said: &str) -> Figures {
    let mut place = "";
    let mut all = Figures::new();
    for line in said.lines() {
        if let Some((_, name)) = line.split_once("os0: services ") {
            place = name.trim();
        }
        let Some((_, figure)) = line.split_once("services: ") else {
            continue;
        };
        let mut words = figure.split_whitespace();
        let mut next = || words.next();
        let (key, least, most) = (next(), next(), next());
        let number = |word: Option<&str>| word.and_then(|word| word.parse::<f64>().ok());
        if let (Some(key), Some(least), Some(most)) = (key, number(least), number(most)) {
            all.insert(format!("{place} {key}"), least);
            all.insert(
                format!("{place} {key} spread"),
                most * 100.0 / least - 100.0,
            );
        }
    }
    all
}

/// The table in Markdown, and a line about what lies between repetitions.
fn table(all: &Figures) -> (String, String) {
    let mut head = vec!["instructions".to_owned()];
    head.extend(PLACES.iter().map(|(_, words)| (*words).to_owned()));
    let mut rows = vec![head];
    let mut most = 0_f64;
    for (key, what) in SERVICES {
        let native = all.get(&format!("native {key}")).copied();
        let mut row = vec![what.to_owned()];
        for (place, _) in PLACES {
            let figure = all.get(&format!("{place} {key}"));
            let ratio = figure.zip(native).filter(|_| place != "native");
            row.push(match (figure, ratio) {
                (None, _) => String::new(),
                (Some(figure), None) => format!("{figure:.0}"),
                (Some(figure), Some((_, native))) => {
                    format!("{figure:.0} ({:.3})", figure / native)
                }
            });
            let spread = all.get(&format!("{place} {key} spread"));
            most = most.max(spread.copied().unwrap_or_default());
        }
        rows.push(row);
    }
    let spread = format!(
        "Each is the least of five averages; the largest of five is {most:.1} % more at most."
    );
    (markdown(&rows), spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_belong_to_the_place_above_them() {
        let said = "os0: services native\nservices: fork 1000 1010\r\nos0: services vm\n\
                    os0: console x services: fork 1100 1100\nservices: bad\nos0: services end\n";
        let all = figures(said);
        assert_eq!(all.len(), 4);
        let (table, spread) = table(&all);
        let row = table.lines().find(|line| line.contains("its end"));
        let cells: Vec<&str> = row.unwrap().split('|').map(str::trim).collect();
        assert_eq!(cells[2..7], ["1000", "", "", "", "1100 (1.100)"]);
        assert!(spread.contains("1.0 % more"), "{spread}");
    }
}
