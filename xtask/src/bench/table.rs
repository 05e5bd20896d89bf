//! Tables of figures beside aims and peers, in Markdown that is readable as it is.

use crate::{
    figures::{Figure, Measured},
    project,
    step::Outcome,
};
use serde::Deserialize;
use std::{collections::BTreeMap, fs, path::Path};

const SPECIFICATION: &str = "SPECIFICATION.md";

/// Figures by key.
pub type Figures = BTreeMap<String, f64>;

/// What one row of a table is about.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The key that a guest prints.
    pub key: String,
    /// What it is.
    pub what: String,
    /// The most that it should be.
    pub aim: Option<f64>,
    /// Where the aim is missed and that is known: why.
    pub miss: Option<String>,
    /// The key of the figure beside which it is set, where that is another one.
    pub against: Option<String>,
    /// What it is under Xen.
    #[serde(default)]
    pub xen: String,
    /// What it is under KVM.
    #[serde(default)]
    pub kvm: String,
}

/// `bench/figures.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rows {
    /// Entries into the hypervisor, in instructions.
    pub entry: Vec<Row>,
    /// Linux in a VM against bare Linux, in nanoseconds, with aims as ratios.
    pub linux: Vec<Row>,
    /// Memory in KiB.
    pub memory: Vec<Row>,
    /// Steps of sharing, in instructions per page.
    pub sharing: Vec<Row>,
    /// TCP between two VMs beside loopback in one, in instructions, with aims as ratios.
    pub network: Vec<Row>,
}

/// How the figures of a table are shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Instructions: the aim is for the figure.
    Instructions,
    /// Times: the aim is for the ratio to the bare machine.
    Times,
    /// KiB: there is no bare machine.
    Kib,
    /// Instructions between two VMs: the aim is for the ratio to those in one.
    Beside,
}

impl Unit {
    fn show(self, value: f64) -> String {
        match self {
            Self::Instructions => format!("{value:.1}"),
            Self::Kib | Self::Beside => format!("{value:.0}"),
            Self::Times if value < 1e6 => format!("{value:.0} ns"),
            Self::Times => format!("{:.2} ms", value / 1e6),
        }
    }

    /// Whether the aim is for the ratio.
    fn is_ratio(self) -> bool {
        matches!(self, Self::Times | Self::Beside)
    }

    fn head(self) -> &'static [&'static str] {
        match self {
            Self::Instructions => &[
                "instructions per round trip",
                "at EL1",
                "Underpin",
                "aim",
                "Xen",
                "KVM",
                "",
            ],
            Self::Times => &[
                "time per operation",
                "bare",
                "in a VM",
                "ratio",
                "aim",
                "Xen",
                "KVM",
                "",
            ],
            Self::Kib => &["KiB", "Underpin", "aim", "Xen", "KVM", ""],
            Self::Beside => &[
                "instructions",
                "loopback in one VM",
                "between two VMs",
                "ratio",
                "aim",
                "Xen",
                "KVM",
                "",
            ],
        }
    }
}

/// A table that is filled in.
pub struct Table {
    /// Its name: of its CSV file, and of its place in SPECIFICATION.md.
    pub name: &'static str,
    unit: Unit,
    lines: Vec<Line>,
}

/// A row with its figures.
struct Line {
    key: String,
    cells: Vec<String>,
    bare: Option<f64>,
    ours: f64,
    aim: Option<f64>,
    missed: bool,
    is_declared: bool,
}

impl Table {
    /// Sets each figure of ours beside the bare machine's. A row without a figure is left out.
    pub fn new(
        name: &'static str,
        unit: Unit,
        rows: &[Row],
        bare: &Figures,
        ours: &Figures,
    ) -> Self {
        let lines = rows.iter().filter_map(|row| {
            let bare = bare.get(row.against.as_ref().unwrap_or(&row.key)).copied();
            Some(Line::new(unit, row, bare, *ours.get(&row.key)?))
        });
        Self {
            name,
            unit,
            lines: lines.collect(),
        }
    }

    /// The keys of the rows whose aim is missed, and whether `bench/figures.toml` says so and why.
    pub fn missed(&self) -> impl Iterator<Item = (&str, bool)> {
        self.lines
            .iter()
            .filter(|line| line.missed)
            .map(|line| (line.key.as_str(), line.is_declared))
    }

    /// What is judged by aims: the ratio where there is one, else the figure.
    pub fn measured(&self) -> Measured {
        let figure = |line: &Line| {
            let ratio = line.bare.map(|bare| line.ours / bare);
            let figure = Figure {
                value: ratio.filter(|_| self.unit.is_ratio()).unwrap_or(line.ours),
                aim: line.aim,
                missed: line.missed,
            };
            (line.key.clone(), figure)
        };
        Measured {
            figures: self.lines.iter().map(figure).collect(),
            ..Measured::default()
        }
    }

    /// The table in Markdown, its columns aligned.
    pub fn markdown(&self) -> String {
        let head = self.unit.head().iter().map(|&cell| cell.to_owned());
        let rows = self.lines.iter().map(|line| line.cells.clone());
        let rows: Vec<Vec<String>> = std::iter::once(head.collect()).chain(rows).collect();
        markdown(&rows)
    }

    /// Writes `NAME.csv` into the directory.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_csv(&self, directory: &Path) -> Outcome {
        let number = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
        let lines = self.lines.iter().map(|line| {
            let [bare, aim] = [line.bare, line.aim].map(number);
            format!("{},{bare},{},{aim}", line.key, line.ours)
        });
        let head = std::iter::once("key,bare,underpin,aim".to_owned());
        let text = head.chain(lines).collect::<Vec<_>>().join("\n") + "\n";
        let path = directory.join(format!("{}.csv", self.name));
        fs::write(&path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
    }
}

/// A table in Markdown, its columns aligned; the first row is the head.
pub fn markdown(rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
            .max(3)
    };
    let columns = rows.first().map_or(0, Vec::len);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut lines: Vec<String> = rows.iter().map(|row| aligned(row, &widths)).collect();
    let rule = widths.iter().enumerate().map(|(column, width)| {
        let end = if column == 0 { '-' } else { ':' };
        format!("|{}{end}", "-".repeat(width + 1))
    });
    lines.insert(1, rule.collect::<String>() + "|");
    lines.join("\n") + "\n"
}

/// A row of Markdown: the first cell to the left, the others to the right.
fn aligned(cells: &[String], widths: &[usize]) -> String {
    let cells = cells.iter().zip(widths).enumerate();
    let cells = cells.map(|(column, (cell, &width))| match column {
        0 => format!("| {cell:width$} "),
        _ => format!("| {cell:>width$} "),
    });
    cells.collect::<String>() + "|"
}

impl Line {
    fn new(unit: Unit, row: &Row, bare: Option<f64>, ours: f64) -> Self {
        let ratio = bare.map(|bare| ours / bare);
        let judged = if unit.is_ratio() { ratio } else { Some(ours) };
        let missed = row.aim.zip(judged).is_some_and(|(aim, value)| value > aim);
        let mut cells = vec![row.what.clone()];
        if unit != Unit::Kib {
            cells.push(bare.map_or_else(String::new, |bare| unit.show(bare)));
        }
        cells.push(unit.show(ours));
        if unit.is_ratio() {
            cells.push(ratio.map_or_else(String::new, |ratio| format!("{ratio:.3}")));
        }
        cells.push(row.aim.map_or_else(String::new, |aim| format!("<= {aim}")));
        cells.extend([row.xen.clone(), row.kvm.clone()]);
        let verdict = match row.aim.and(judged) {
            None => "",
            Some(_) if missed => "missed",
            Some(_) => "met",
        };
        cells.push(verdict.to_owned());
        Self {
            key: row.key.clone(),
            cells,
            bare,
            ours,
            aim: row.aim,
            missed,
            is_declared: row.miss.is_some(),
        }
    }
}

/// The text with what stands between the markers `<!-- NAME -->` and `<!-- /NAME -->` replaced.
///
/// # Errors
/// A marker is missing.
pub fn replace_between(text: &str, name: &str, new: &str) -> Outcome<String> {
    let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- /{name} -->"));
    let parts = text
        .split_once(&begin)
        .and_then(|(before, rest)| Some((before, rest.split_once(&end)?.1)));
    let (before, after) = parts.ok_or_else(|| format!("the markers of '{name}' are missing"))?;
    Ok(format!("{before}{begin}{new}{end}{after}"))
}

/// Puts a table between its markers in SPECIFICATION.md.
///
/// # Errors
/// The page cannot be read or written, or has no such markers.
pub fn keep(name: &str, table: &str) -> Outcome {
    let path = project::root().join(SPECIFICATION);
    let said = |error: std::io::Error| format!("{SPECIFICATION}: {error}");
    let text = fs::read_to_string(&path).map_err(said)?;
    fs::write(&path, replace_between(&text, name, table)?).map_err(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let rows = "[[entry]]\nkey = 'a'\nwhat = 'first'\naim = 1.5\nxen = '2'\n[[entry]]\nkey = 'b'\nwhat = 'second'\naim = 1\nmiss = 'why'\n\
            [[entry]]\nkey = 'c'\nwhat = 'against'\nagainst = 'a'\n[[entry]]\nkey = 'd'\nwhat = 'never measured'\n\
            [[linux]]\nkey = 'a'\nwhat = 'a'\n[[memory]]\nkey = 'a'\nwhat = 'a'\n[[sharing]]\nkey = 'a'\nwhat = 'a'\n\
            [[network]]\nkey = 'a'\nwhat = 'a'\n";
        let rows: Rows = toml::from_str(rows).unwrap();
        let figures = |list: &[(&str, f64)]| {
            list.iter()
                .map(|&(key, value)| (key.to_owned(), value))
                .collect::<Figures>()
        };
        let bare = figures(&[("a", 1000.0), ("b", 2e6)]);
        Table::new(
            "t",
            Unit::Times,
            &rows.entry,
            &bare,
            &figures(&[("a", 1400.0), ("b", 3e6), ("c", 500.0)]),
        )
    }

    #[test]
    fn figures_stand_beside_aims_and_peers() {
        let text = table().markdown();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5);
        assert!(lines.iter().all(|line| line.len() == lines[0].len()));
        let cells = |line: &str| {
            line.split('|')
                .map(|cell| cell.trim().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            cells(lines[2])[1..9],
            [
                "first", "1000 ns", "1400 ns", "1.400", "<= 1.5", "2", "", "met"
            ]
        );
        assert_eq!(cells(lines[3])[2..5], ["2.00 ms", "3.00 ms", "1.500"]);
        assert_eq!(cells(lines[4])[4..9], ["0.500", "", "", "", ""]);
        assert_eq!(table().missed().collect::<Vec<_>>(), [("b", true)]);
        let measured = table().measured().figures;
        assert_eq!((measured["a"].value, measured["a"].missed), (1.4, false));
        assert_eq!((measured["b"].value, measured["b"].missed), (1.5, true));
    }

    #[test]
    fn only_what_is_between_the_markers_changes() {
        let text = "a\n<!-- t -->\nold\n<!-- /t -->\nb\n";
        let new = "a\n<!-- t -->\nnew\n<!-- /t -->\nb\n";
        assert_eq!(replace_between(text, "t", "new\n").unwrap(), new);
        assert!(replace_between(text, "u", "new\n").is_err());
    }

    #[test]
    fn the_rows_of_the_project_can_be_read() {
        let rows: Rows = toml::from_str(include_str!("../../../bench/figures.toml")).unwrap();
        assert!(
            rows.entry
                .iter()
                .any(|row| row.key == "null_hypercall" && row.aim == Some(200.0))
        );
    }
}
