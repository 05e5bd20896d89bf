//! Prints results: tables for people, JSON for programs.

use crate::{
    cli::Format,
    failure::{Failure, Result, exit, reason},
};
use serde_json::Value;
use std::{
    env,
    io::{self, IsTerminal as _, Write as _},
    process,
};

/// How a piece of text stands out on a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Not at all.
    Plain,
    /// A heading.
    Strong,
    /// Something that runs.
    Good,
    /// Something that stands still.
    Still,
    /// Something that went wrong.
    Bad,
}

/// Where results go.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    format: Format,
    colour: bool,
    /// The host of a cluster that results are about. Leaked: there is one for each host and process.
    host: Option<&'static str>,
}

impl Output {
    /// For the standard output of this process.
    pub fn new(format: Format) -> Self {
        let wanted = env::var_os("NO_COLOR").is_none_or(|no| no.is_empty());
        Self {
            format,
            colour: wanted && io::stdout().is_terminal(),
            host: None,
        }
    }

    /// The same for results about a host of a cluster.
    #[must_use]
    pub fn of_host(self, host: &str) -> Self {
        Self {
            host: Some(String::from(host).leak()),
            ..self
        }
    }

    /// The host that results are about.
    pub fn host(self) -> Option<&'static str> {
        self.host
    }

    /// Says in a result for programs which host it is about: in an object, or in each of a list.
    pub fn of_its_host(self, mut value: Value) -> Value {
        if let Some(host) = self.host {
            let objects = match &mut value {
                Value::Array(all) => all.iter_mut().collect(),
                one => vec![one],
            };
            for object in objects.into_iter().filter_map(Value::as_object_mut) {
                object.insert("host".to_owned(), host.into());
            }
        }
        value
    }

    /// Whether results are JSON.
    pub fn is_json(self) -> bool {
        self.format == Format::Json
    }

    /// Whether text may be coloured.
    pub fn is_coloured(self) -> bool {
        self.colour
    }

    /// Prints a result: `json` makes it for programs, `text` for people.
    pub fn result(
        self,
        json: impl FnOnce() -> Value,
        text: impl FnOnce(Self) -> String,
    ) -> Result<()> {
        if self.is_json() {
            print(&format!("{:#}\n", self.of_its_host(json())))
        } else {
            print(&text(self))
        }
    }

    /// Text in a tone.
    pub fn paint(self, tone: Tone, text: &str) -> String {
        let colour = match tone {
            _ if !self.colour => return text.to_owned(),
            Tone::Plain => return text.to_owned(),
            Tone::Strong => 1,
            Tone::Good => 32,
            Tone::Still => 33,
            Tone::Bad => 31,
        };
        format!("\x1b[{colour}m{text}\x1b[0m")
    }
}

/// Writes to standard output. Where the reader has gone (`| head`), the command ends well.
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
            process::exit(i32::from(exit::OK))
        }
        Err(error) => Err(Failure::new(
            exit::FAILED,
            format!("cannot print: {}", reason(&error)),
        )),
        Ok(()) => Ok(()),
    }
}

/// Which side of its column a cell stands at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// For words.
    Left,
    /// For numbers.
    Right,
}

/// A table with a heading for each column.
#[derive(Debug)]
pub struct Table {
    columns: Vec<(&'static str, Side)>,
    rows: Vec<Vec<(String, Tone)>>,
}

impl Table {
    /// A table without rows.
    pub fn new(columns: &[(&'static str, Side)]) -> Self {
        Self {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row of plain cells.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows
            .push(cells.into_iter().map(|cell| (cell, Tone::Plain)).collect());
    }

    /// Gives a cell of the last row a tone.
    pub fn tone(&mut self, column: usize, tone: Tone) {
        if let Some(cell) = self.rows.last_mut().and_then(|row| row.get_mut(column)) {
            cell.1 = tone;
        }
    }

    /// Takes out columns, by their titles.
    pub fn without(&mut self, titles: &[&str]) {
        let stays: Vec<bool> = self
            .columns
            .iter()
            .map(|(title, _)| !titles.contains(title))
            .collect();
        for row in &mut self.rows {
            let mut stays = stays.iter();
            row.retain(|_| stays.next().is_none_or(|stays| *stays));
        }
        self.columns.retain(|(title, _)| !titles.contains(title));
    }

    /// The table as lines.
    pub fn render(&self, output: Output) -> String {
        let width = |(n, (title, _)): (usize, &(&str, Side))| {
            let cells = self.rows.iter().filter_map(|row| row.get(n));
            cells
                .map(|(cell, _)| cell.chars().count())
                .max()
                .unwrap_or(0)
                .max(title.len())
        };
        let widths: Vec<usize> = self.columns.iter().enumerate().map(width).collect();
        let line = |cells: &mut dyn Iterator<Item = (&str, Tone)>| {
            let mut line = String::new();
            let mut owed = 0; // blanks that are written only when something follows
            for ((cell, tone), (width, (_, side))) in cells.zip(widths.iter().zip(&self.columns)) {
                let gap = width.saturating_sub(cell.chars().count());
                let (before, after) = if *side == Side::Right {
                    (gap, 0)
                } else {
                    (0, gap)
                };
                if cell.is_empty() {
                    owed += width + 2;
                    continue;
                }
                line.push_str(&" ".repeat(owed + before));
                line.push_str(&output.paint(tone, cell));
                owed = after + 2;
            }
            line.push('\n');
            line
        };
        let mut text = line(&mut self.columns.iter().map(|(title, _)| (*title, Tone::Strong)));
        for row in &self.rows {
            text.push_str(&line(
                &mut row.iter().map(|(cell, tone)| (cell.as_str(), *tone)),
            ));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_end_with_text() {
        let output = Output {
            format: Format::Table,
            colour: false,
            host: None,
        };
        let mut table = Table::new(&[
            ("NAME", Side::Left),
            ("N", Side::Right),
            ("WHY", Side::Left),
        ]);
        table.row(["a".into(), "100".into(), String::new()]);
        table.row(["longer".into(), "7".into(), "ßo".into()]);
        assert_eq!(
            table.render(output),
            "NAME      N  WHY\na       100\nlonger    7  ßo\n"
        );
    }

    #[test]
    fn columns_go_with_their_cells() {
        let output = Output {
            format: Format::Table,
            colour: false,
            host: None,
        };
        let mut table = Table::new(&[("A", Side::Left), ("B", Side::Left), ("C", Side::Left)]);
        table.row(["1".into(), "2".into(), "3".into()]);
        table.without(&["B", "X"]);
        assert_eq!(table.render(output), "A  C\n1  3\n");
    }

    #[test]
    fn tones_are_written_only_in_colour() {
        let plain = Output {
            format: Format::Table,
            colour: false,
            host: None,
        };
        assert_eq!(plain.paint(Tone::Bad, "x"), "x");
        let colour = Output {
            colour: true,
            host: None,
            ..plain
        };
        assert_eq!(colour.paint(Tone::Bad, "x"), "\x1b[31mx\x1b[0m");
    }
}
