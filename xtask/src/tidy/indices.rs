//! Indices on the paths of guests' requests: each is in the table of `docs/assertions.md`, which says why it is inside.

use super::{Finding, Tree, has_extension, is_test_file, within};
use crate::rust_source::{Kind, Source, Token};
use std::collections::{BTreeMap, BTreeSet};

/// The document, and how the heading of its table begins.
const TABLE: &str = "docs/assertions.md";
const HEADING: &str = "| Index |";
/// Where requests of guests go through.
const FOLDERS: [&str; 7] = [
    "hypervisor/src/devices",
    "model/disk/src",
    "model/disk_overlay/src",
    "model/ethernet/src",
    "model/served/src",
    "model/uplink/src",
    "model/virtio/src",
];
const FILES: [&str; 4] = [
    "hypervisor/src/drivers/jobs.rs",
    "hypervisor/src/drivers/served.rs",
    "hypervisor/src/drivers/uplink.rs",
    "hypervisor/src/guest/ram.rs",
];
/// Words before a `[` that begins an array, a slice or a pattern.
const NO_NAMES: [&str; 12] = [
    "as", "const", "dyn", "else", "for", "if", "in", "let", "match", "move", "mut", "return",
];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let Some(table) = tree.get(TABLE) else {
        return Vec::new();
    };
    let listed = listed(table);
    let mut findings = Vec::new();
    let mut used = BTreeSet::new();
    for (path, text) in tree.iter().filter(|(path, _)| is_on_a_path(path)) {
        for (name, line) in indexed(&Source::read(text, is_test_file(path))) {
            let row = listed.get(name.as_str());
            match row.and_then(|files| files.keys().find(|file| is_of(path, file))) {
                Some(file) => drop(used.insert((name, *file))),
                None => findings.push(Finding::new(
                    path,
                    line,
                    format!(
                        "`{name}[]` is not in {TABLE}: say there why it is inside, or use `get`"
                    ),
                )),
            }
        }
    }
    for (name, files) in &listed {
        for (file, line) in files {
            if !used.contains(&((*name).to_owned(), *file)) {
                let what = format!("{file} has no `{name}[]`");
                findings.push(Finding::new(TABLE, *line, what));
            }
        }
    }
    findings
}

fn is_on_a_path(path: &str) -> bool {
    let is_there = within(path, &FOLDERS) || FILES.contains(&path);
    is_there && has_extension(path, "rs")
}

/// Whether a file of the table is that one, of which it may leave out folders.
fn is_of(path: &str, file: &str) -> bool {
    let rest = path.strip_suffix(file);
    rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
}

/// What is indexed, by name, with the files that it is indexed in and the row.
fn listed(table: &str) -> BTreeMap<&str, BTreeMap<&str, usize>> {
    let mut all: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
    let rows = table.lines().zip(1..);
    let rows = rows.skip_while(|(row, _)| !row.starts_with(HEADING));
    for (row, line) in rows.skip(2).take_while(|(row, _)| row.starts_with('|')) {
        let mut cells = row.split('|').skip(1);
        let (names, files) = (cells.next(), cells.next());
        for name in names.into_iter().flat_map(spans) {
            let files = files.into_iter().flat_map(spans);
            let row = all.entry(name).or_default();
            row.extend(files.map(|file| (file, line)));
        }
    }
    all
}

/// The pieces of code in a cell.
fn spans(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// Each index of the product's code: the name of what is indexed, and the line.
fn indexed(source: &Source) -> Vec<(String, usize)> {
    let tokens = &source.tokens;
    let name_before = |at: usize| {
        let before = at.checked_sub(1)?;
        match &tokens[before] {
            closed if closed.mark(')') => name(tokens, opening(tokens, before)?.checked_sub(1)?),
            _ => name(tokens, before),
        }
    };
    let opened = (0..tokens.len()).filter(|at| tokens[*at].mark('[') && !tokens[*at].test);
    opened
        .filter_map(|at| Some((name_before(at)?, tokens[at].line)))
        .collect()
}

fn name(tokens: &[Token], at: usize) -> Option<String> {
    match &tokens[at].kind {
        Kind::Word(word) if !NO_NAMES.contains(&word.as_str()) => Some(word.clone()),
        _ => None,
    }
}

/// The index of the mark that opens what `close` closes.
fn opening(tokens: &[Token], close: usize) -> Option<usize> {
    let mut depth = 0_usize;
    (0..=close).rev().find(|at| {
        depth += usize::from(tokens[*at].mark(')'));
        depth -= usize::from(tokens[*at].mark('('));
        depth == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(code: &str, row: &str) -> Vec<String> {
        let table = format!("# A\n\n| Index | File | Why |\n|---|---|---|\n{row}\n");
        let tree = Tree::from([
            (TABLE.to_owned(), table),
            ("model/virtio/src/queue.rs".to_owned(), code.to_owned()),
            (
                "tools/a.rs".to_owned(),
                "fn f(a: &[u8]) { a[1]; }".to_owned(),
            ),
        ]);
        check(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_index_is_in_the_table_or_a_finding() {
        let code = "fn f(&mut self, a: &mut [u8]) -> [u8; 2] { for n in [1] { self.raw[n] } }";
        assert_eq!(
            found(code, ""),
            [
                "model/virtio/src/queue.rs:1: `raw[]` is not in docs/assertions.md: say there why it is inside, or use `get`"
            ]
        );
        assert!(found(code, "| `raw` | `queue.rs` | as long |").is_empty());
        assert_eq!(found(code, "| `raw` | `ring.rs` | as long |").len(), 2);
        let of_call = "fn f(a: u32) { a.to_le_bytes(0, (1))[..2]; }";
        assert_eq!(found(of_call, "").len(), 1);
        assert!(found(of_call, "| `to_le_bytes` | `virtio/src/queue.rs` | four |").is_empty());
        let in_test = "#[cfg(test)]\nmod tests { fn f(a: &[u8]) { a[0]; } }";
        assert!(found(in_test, "").is_empty());
    }

    #[test]
    fn a_row_that_nothing_needs_is_a_finding() {
        let code = "fn f(a: &[u8]) { a[1]; }";
        assert_eq!(
            found(code, "| `a`, `b` | `queue.rs` | |"),
            ["docs/assertions.md:5: queue.rs has no `b[]`"]
        );
    }
}
