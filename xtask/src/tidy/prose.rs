//! Rules about the words of documents, as far as a program can check them.

use super::{Finding, has_extension, within};

/// The most words in a cell of `STATUS.md`'s tables.
const CELL_WORDS_MAX: usize = 25;
/// First words of headings that could not stand in an index.
const NO_HEADINGS: [&str; 9] = [
    "Who", "What", "Where", "When", "How", "That", "It", "A", "An",
];
/// Words that become untrue by themselves.
const DATED: [&str; 2] = ["today", "nowadays"];
/// Documents whose rows are one line each.
const ROWS: &str = "STATUS.md";

pub fn check(path: &str, content: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !has_extension(path, "md") {
        return findings;
    }
    let is_record = within(path, &["docs/decisions"]);
    let mut fenced = false;
    for (index, line) in content.lines().enumerate() {
        fenced ^= line.trim_start().starts_with("```");
        if fenced {
            continue;
        }
        let mut say = |what: String| findings.push(Finding::new(path, index + 1, what));
        if let Some(heading) = line.strip_prefix('#').filter(|_| !is_record) {
            let first = heading.trim_start_matches('#').split_whitespace().next();
            if let Some(word) = first.filter(|word| NO_HEADINGS.contains(word)) {
                say(format!("a heading is a noun phrase, not '{word} ...'"));
            }
        }
        let words = || line.split(|c: char| !c.is_alphanumeric());
        for dated in DATED.iter().filter(|_| !is_record) {
            if words().any(|word| word.eq_ignore_ascii_case(dated)) {
                say(format!("'{dated}' becomes untrue by itself"));
            }
        }
        if path == ROWS && line.starts_with('|') {
            for cell in line.split('|') {
                let count = cell.split_whitespace().count();
                if count > CELL_WORDS_MAX {
                    say(format!(
                        "a cell of {count} words, more than {CELL_WORDS_MAX}"
                    ));
                }
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, content: &str) -> Vec<usize> {
        check(path, content)
            .iter()
            .map(|finding| finding.line)
            .collect()
    }

    #[test]
    fn headings_are_noun_phrases() {
        let text = "# Network\n## What it costs\n```\n# What a shell says\n```\n### Why frames are copied\n";
        assert_eq!(lines("docs/a.md", text), [2]);
        assert_eq!(lines("docs/decisions/0001-a.md", text), [0; 0]);
        assert_eq!(lines("a.rs", text), [0; 0]);
    }

    #[test]
    fn cells_of_the_status_are_short() {
        let long = "w ".repeat(26);
        let text = format!("| a | {long} |\n{long}\n");
        assert_eq!(lines("STATUS.md", &text), [1]);
        assert_eq!(lines("SPECIFICATION.md", &text), [0; 0]);
    }

    #[test]
    fn documents_have_no_date() {
        assert_eq!(lines("a.md", "It works.\nToday it does.\n"), [2]);
    }
}
