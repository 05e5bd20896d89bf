//! What benches measured, in one file, and whether it is as good as what was accepted.
//!
//! Each bench hands its tables to [`record`], which puts them into `target/bench/results.json` and `results.csv`, with the
//! commit that they are of. [`Accepted`] is `bench/accepted.toml`: for a table's figures, of which less is better, what
//! they were when somebody last looked, and how far chance moves them.

pub mod short;

use crate::{
    bench::table::Figures,
    project,
    step::{Outcome, print_line},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fs, path::PathBuf, process::Command};

/// Where accepted figures are, below the checkout.
const ACCEPTED: &str = "bench/accepted.toml";

/// A figure that a bench measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// In the unit of its table.
    pub value: f64,
    /// The most that it should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aim: Option<f64>,
    /// It is more than that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub missed: bool,
}

/// The figures of one table, by key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The commit that was measured; `+` follows where files differed from it.
    pub commit: String,
    /// The figures.
    pub figures: BTreeMap<String, Figure>,
}

/// `results.json`: what was measured last, by table.
type Results = BTreeMap<String, Measured>;

impl Measured {
    /// Figures without aims.
    pub fn plain(figures: &Figures) -> Self {
        let figure = |(key, &value): (&String, &f64)| {
            let figure = Figure {
                value,
                ..Figure::default()
            };
            (key.clone(), figure)
        };
        Self {
            commit: String::new(),
            figures: figures.iter().map(figure).collect(),
        }
    }

    /// The numbers of a table whose first row is its head: each by the words that its row begins with, and its column.
    pub fn of_rows(rows: &[Vec<String>]) -> Self {
        let mut figures = BTreeMap::new();
        let head = rows.first().map_or(&[][..], Vec::as_slice);
        for row in rows.iter().skip(1) {
            let names = row.iter().take_while(|cell| number(cell).is_none());
            let name = names.map(String::as_str).collect::<Vec<_>>().join(", ");
            for (title, cell) in head.iter().zip(row) {
                let Some(value) = number(cell) else { continue };
                let key = format!("{name}: {title}");
                // Rows of the same words are told apart by their order.
                let again = (2..).map(|n| format!("{key} ({n})"));
                let mut keys = std::iter::once(key.clone()).chain(again);
                let free = keys.find(|key| !figures.contains_key(key));
                let figure = Figure {
                    value,
                    ..Figure::default()
                };
                figures.insert(free.unwrap_or(key), figure);
            }
        }
        Self {
            commit: String::new(),
            figures,
        }
    }
}

/// The number that a cell begins with, where a unit at most follows.
fn number(cell: &str) -> Option<f64> {
    let mut words = cell.split_whitespace();
    let value = words.next()?.parse().ok()?;
    let unit = words.next().unwrap_or_default();
    let is_plain = unit.len() <= 3 || unit.starts_with('(');
    is_plain.then_some(value)
}

fn directory() -> PathBuf {
    project::products().join("bench")
}

/// Puts a table's figures in the place of those that were measured before.
///
/// # Errors
/// A file cannot be written.
pub fn record(table: &str, measured: Measured) -> Outcome {
    let directory = directory();
    fs::create_dir_all(&directory)
        .map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
    let json = directory.join("results.json");
    // What cannot be read was left by an older form of this program, or by nobody.
    let text = fs::read_to_string(&json).unwrap_or_default();
    let mut results: Results = serde_json::from_str(&text).unwrap_or_default();
    let commit = commit();
    results.insert(table.to_owned(), Measured { commit, ..measured });
    let text =
        serde_json::to_string_pretty(&results).map_err(|error| format!("no results: {error}"))?;
    for (path, text) in [
        (json, text + "\n"),
        (directory.join("results.csv"), csv(&results)),
    ] {
        fs::write(&path, text)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(())
}

fn csv(results: &Results) -> String {
    let mut lines = vec!["table,key,value,aim,missed,commit\n".to_owned()];
    for (table, measured) in results {
        let commit = &measured.commit;
        lines.extend(measured.figures.iter().map(|(key, figure)| {
            let key = key.replace('"', "\"\"");
            let aim = figure.aim.map_or_else(String::new, |aim| aim.to_string());
            let missed = if figure.missed { "missed" } else { "" };
            let value = figure.value;
            format!("\"{table}\",\"{key}\",{value},{aim},{missed},{commit}\n")
        }));
    }
    lines.concat()
}

/// The commit of the checkout, where git knows it.
fn commit() -> String {
    let git = |words: &[&str]| {
        let output = Command::new("git")
            .arg("-C")
            .arg(project::root())
            .args(words)
            .output();
        output
            .ok()
            .filter(|output| output.status.success())
            .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "--short=10", "HEAD"]) else {
        return "unknown".to_owned();
    };
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]);
    if changed.is_none_or(|files| files.is_empty()) {
        commit
    } else {
        commit + "+"
    }
}

/// The accepted figures of one table.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct AcceptedTable {
    /// How far another build or order of events moves a figure, in percent.
    spread: f64,
    /// The same, for figures that move otherwise.
    #[serde(default)]
    spreads: BTreeMap<String, f64>,
    figures: BTreeMap<String, f64>,
}

/// `bench/accepted.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(transparent)]
pub struct Accepted(BTreeMap<String, AcceptedTable>);

impl Accepted {
    /// Reads the project's.
    ///
    /// # Errors
    /// It is absent or no such file.
    pub fn read() -> Outcome<Self> {
        let path = project::root().join(ACCEPTED);
        let text =
            fs::read_to_string(path).map_err(|error| format!("cannot read {ACCEPTED}: {error}"))?;
        Self::parse(&text).map_err(|error| format!("{ACCEPTED}: {error}"))
    }

    fn parse(text: &str) -> Outcome<Self> {
        let accepted: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        for (table, its) in &accepted.0 {
            let unknown = its
                .spreads
                .keys()
                .find(|key| !its.figures.contains_key(*key));
            if let Some(key) = unknown {
                return Err(format!("{table} has a spread of '{key}', but no figure"));
            }
        }
        Ok(accepted)
    }

    /// A sentence about each figure of a table that is worse than the accepted one by more than its spread, or that was
    /// not measured though there is an accepted one.
    pub fn worse(&self, table: &str, measured: &Measured) -> Vec<String> {
        let Some(its) = self.0.get(table) else {
            return Vec::new();
        };
        let judge = |(key, &accepted): (&String, &f64)| {
            let spread = its.spreads.get(key).copied().unwrap_or(its.spread);
            let Some(figure) = measured.figures.get(key) else {
                return Some(format!(
                    "{table}, {key}: accepted as {accepted}, but not measured; give it back, or take it out of {ACCEPTED}"
                ));
            };
            let value = figure.value;
            // A figure that is no number is no better than any.
            if value <= accepted * (1.0 + spread / 100.0) {
                return None;
            }
            let more = (value / accepted - 1.0) * 100.0;
            Some(format!(
                "{table}, {key}: {value:.1} is {more:.1} % more than the accepted {accepted} (spread {spread} %); find out why, or put \
                 {value:.1} into {ACCEPTED} and say in the commit what it buys"
            ))
        };
        its.figures.iter().filter_map(judge).collect()
    }

    /// A line about each figure that is better by more than its spread, and could be accepted as such.
    pub fn better(&self, table: &str, measured: &Measured) -> Vec<String> {
        let Some(its) = self.0.get(table) else {
            return Vec::new();
        };
        let judge = |(key, &accepted): (&String, &f64)| {
            let spread = its.spreads.get(key).copied().unwrap_or(its.spread);
            let value = measured.figures.get(key)?.value;
            (value < accepted * (1.0 - spread / 100.0)).then(|| {
                format!("{table}, {key}: {value:.1} is better than the accepted {accepted}; put it into {ACCEPTED}")
            })
        };
        its.figures.iter().filter_map(judge).collect()
    }
}

/// What benches do with their figures: all are recorded, and judged where that is asked.
#[derive(Debug)]
pub struct Verdict {
    accepted: Accepted,
    /// Sentences about what is not as it should be.
    pub faults: Vec<String>,
}

impl Verdict {
    /// Judges by aims only.
    pub fn print() -> Self {
        Self {
            accepted: Accepted::default(),
            faults: Vec::new(),
        }
    }

    /// Judges by accepted figures, too.
    ///
    /// # Errors
    /// There are none.
    pub fn check() -> Outcome<Self> {
        let accepted = Accepted::read()?;
        Ok(Self {
            accepted,
            ..Self::print()
        })
    }

    /// Records a table and judges it. `missed` are the keys whose aim is missed, and whether that is declared.
    ///
    /// # Errors
    /// As [`record`].
    pub fn take<'a>(
        &mut self,
        table: &str,
        measured: Measured,
        missed: impl Iterator<Item = (&'a str, bool)>,
    ) -> Outcome {
        for (key, is_declared) in missed {
            let line = format!("missed: {key} ({table})");
            if is_declared {
                print_line(&format!("{line}, as is known"));
            } else {
                self.faults.push(line);
            }
        }
        self.faults.extend(self.accepted.worse(table, &measured));
        for line in self.accepted.better(table, &measured) {
            print_line(&line);
        }
        record(table, measured)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCEPTED_TEXT: &str = "[entries]\nspread = 2.0\nspreads = { b = 10 }\nfigures = { a = 100.0, b = 100.0, c = 0.0 }\n";

    fn measured(list: &[(&str, f64)]) -> Measured {
        let list = list.iter().map(|&(key, value)| (key.to_owned(), value));
        Measured::plain(&list.collect())
    }

    #[test]
    fn a_figure_is_worse_beyond_its_spread_only() {
        let accepted = Accepted::parse(ACCEPTED_TEXT).unwrap();
        let worse = |list: &[(&str, f64)]| accepted.worse("entries", &measured(list)).len();
        assert_eq!(worse(&[("a", 102.0), ("b", 110.0), ("c", 0.0)]), 0);
        assert_eq!(worse(&[("a", 102.1), ("b", 110.0), ("c", 0.0)]), 1);
        assert_eq!(worse(&[("a", 102.1), ("b", 110.1), ("c", 0.1)]), 3);
        assert_eq!(worse(&[("a", f64::NAN), ("b", 1.0), ("c", 0.0)]), 1);
        // What nobody accepted is not judged; what is accepted must be measured.
        assert_eq!(worse(&[("a", 1.0), ("c", 0.0), ("d", 1e9)]), 1);
        assert!(accepted.worse("other", &measured(&[])).is_empty());
        let better = accepted.better("entries", &measured(&[("a", 97.9), ("b", 91.0)]));
        assert_eq!(better.len(), 1);
    }

    #[test]
    fn a_spread_belongs_to_a_figure() {
        let text = "[t]\nspread = 1\nspreads = { b = 1 }\nfigures = { a = 1.0 }\n";
        assert!(Accepted::parse(text).unwrap_err().contains("'b'"));
        assert!(Accepted::parse("[t]\nspread = 1\nfigure = { a = 1.0 }\n").is_err());
    }

    #[test]
    fn the_accepted_figures_of_the_project_can_be_read() {
        let accepted = Accepted::read().unwrap();
        for table in short::TABLES {
            assert!(accepted.0.contains_key(table), "{table}");
        }
    }

    #[test]
    fn numbers_of_a_table_are_found() {
        let rows = [
            ["program", "pages", "ms", "remote", "entries"],
            ["scene", "sampled", "12.5", "84.3 %", "10, 42224"],
            ["scene", "sampled", "13", "", "581 (1.002)"],
        ];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        let found = Measured::of_rows(&rows).figures;
        let keys: Vec<_> = found
            .iter()
            .map(|(key, figure)| (key.as_str(), figure.value))
            .collect();
        assert_eq!(
            keys,
            [
                ("scene, sampled: entries", 581.0),
                ("scene, sampled: ms", 12.5),
                ("scene, sampled: ms (2)", 13.0),
                ("scene, sampled: remote", 84.3),
            ]
        );
    }

    #[test]
    fn results_are_one_line_each() {
        let mut results = Results::new();
        let mut its = measured(&[("a \"b\"", 1.5)]);
        "abc".clone_into(&mut its.commit);
        results.insert("t".to_owned(), its);
        assert_eq!(
            csv(&results).lines().nth(1),
            Some("\"t\",\"a \"\"b\"\"\",1.5,,,abc")
        );
    }
}
