//! The floors of `hypervisor/src`: a file imports from its own folder and from those below, never from one above.

use super::{Finding, Tree, has_extension};
use crate::rust_source::{Kind, Source};
use std::collections::{BTreeMap, BTreeSet};

const ROOT: &str = "hypervisor/src/";
/// The folders, from the bottom up.
const FLOORS: [&str; 15] = [
    "machine",
    "vcpu",
    "memory",
    "drivers",
    "cluster",
    "guest",
    "devices",
    "vms",
    "placement",
    "economy",
    "life",
    "control",
    "run",
    "start",
    "beneath",
];
/// The most files of one folder that import each other in a circle. It may only fall.
const CIRCLE_MAX: usize = 15;

/// Which files each file imports from, and in which line first.
type Imports<'a> = BTreeMap<&'a str, BTreeMap<&'a str, usize>>;

pub fn check(tree: &Tree) -> Vec<Finding> {
    let imports = imports(tree);
    let mut findings = Vec::new();
    for (file, from) in &imports {
        let Some(own) = floor(file) else {
            findings.push(Finding::new(
                &format!("{ROOT}{file}"),
                1,
                format!("the folder is none of {}", FLOORS.join(", ")),
            ));
            continue;
        };
        for (other, line) in from {
            if floor(other).is_some_and(|other| other > own) {
                let what = format!("{file} imports {other}, which is on a floor above");
                findings.push(Finding::new(&format!("{ROOT}{file}"), *line, what));
            }
        }
    }
    for circle in circles(&imports).iter().filter(|it| it.len() > CIRCLE_MAX) {
        let what = format!("{} files import each other in a circle", circle.len());
        findings.push(Finding::new(&format!("{ROOT}{}", circle[0]), 1, what));
    }
    findings
}

/// How many files there are, and how many are in each circle, the largest first.
pub fn count(tree: &Tree) -> (usize, Vec<usize>) {
    let imports = imports(tree);
    let sizes = circles(&imports).iter().map(Vec::len).collect();
    (imports.len(), sizes)
}

fn floor(file: &str) -> Option<usize> {
    let (folder, _) = file.split_once('/')?;
    FLOORS.iter().position(|floor| *floor == folder)
}

fn imports(tree: &Tree) -> Imports<'_> {
    let files = tree.iter().filter_map(|(path, text)| {
        let file = path.strip_prefix(ROOT)?;
        let is_own =
            has_extension(file, "rs") && !["lib.rs", "main.rs", "outside.rs"].contains(&file);
        is_own.then_some((file, text))
    });
    let files: Vec<(&str, &String)> = files.collect();
    let modules = files.iter().map(|(file, _)| (module(file), *file));
    let modules: BTreeMap<Vec<&str>, &str> = modules.collect();
    let of = |(file, text): &(&'_ str, &String)| of_file(file, text, &modules);
    files.iter().map(|it| (it.0, of(it))).collect()
}

/// A file's module, from the crate on.
fn module(file: &str) -> Vec<&str> {
    let path = file.trim_end_matches(".rs").trim_end_matches("/mod");
    path.split('/').collect()
}

fn of_file<'a>(
    file: &str,
    text: &str,
    modules: &BTreeMap<Vec<&'a str>, &'a str>,
) -> BTreeMap<&'a str, usize> {
    let source = Source::read(text, false);
    let own = module(file);
    let mut found = BTreeMap::new();
    let mut index = 0;
    while index < source.tokens.len() {
        let begins = index == 0 || !source.tokens[index - 1].mark(':');
        let line = source.tokens[index].line;
        let mut paths = Vec::new();
        let end = read_paths(&source, index, &mut Vec::new(), &mut paths);
        for path in paths.iter().filter(|path| begins && path.len() > 1) {
            let parts: Vec<&str> = path.iter().map(String::as_str).collect();
            let from = absolute(&own, &parts);
            let mut known = (1..=from.len()).rev();
            let target = known.find_map(|n| modules.get(&from[..n]));
            if let Some(target) = target.filter(|target| **target != file) {
                found.entry(*target).or_insert(line);
            }
        }
        index = end.max(index + 1);
    }
    found
}

/// The path from the crate on; one that begins with another name is a child's, if there is one of that name.
fn absolute<'a>(own: &[&'a str], parts: &[&'a str]) -> Vec<&'a str> {
    let ups = parts.iter().take_while(|part| **part == "super").count();
    match parts[0] {
        "crate" => parts[1..].to_vec(),
        "self" => [own, &parts[1..]].concat(),
        _ => [&own[..own.len().saturating_sub(ups)], &parts[ups..]].concat(),
    }
}

/// Reads the paths that begin at a word, with what is in braces; gives where they end.
fn read_paths(
    source: &Source,
    mut index: usize,
    path: &mut Vec<String>,
    paths: &mut Vec<Vec<String>>,
) -> usize {
    let depth = path.len();
    let mark =
        |index: usize, mark| { source.tokens.get(index) }.is_some_and(|token| token.mark(mark));
    while let Some(Kind::Word(word)) = source.tokens.get(index).map(|token| &token.kind) {
        if depth == 0 || word != "self" {
            path.push(word.clone());
        }
        index += 1;
        if !mark(index, ':') || !mark(index + 1, ':') {
            break;
        }
        index += 2;
    }
    if path.len() > depth && mark(index, '{') && mark(index - 1, ':') {
        index += 1;
        while index < source.tokens.len() && !mark(index, '}') {
            index = read_paths(source, index, path, paths).max(index + 1);
        }
        index += 1;
    } else if index > 0 {
        paths.push(path.clone());
    }
    path.truncate(depth);
    index
}

/// Files that import each other, directly or by way of others, the largest circle first.
fn circles<'a>(imports: &Imports<'a>) -> Vec<Vec<&'a str>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> = imports
        .keys()
        .map(|file| {
            let (mut seen, mut next) = (BTreeSet::new(), vec![*file]);
            while let Some(at) = next.pop() {
                let from = imports.get(at).into_iter().flat_map(BTreeMap::keys);
                next.extend(from.filter(|other| seen.insert(**other)));
            }
            (*file, seen)
        })
        .collect();
    let mut circles: Vec<Vec<&str>> = Vec::new();
    for file in imports
        .keys()
        .filter(|file| reached[*file].contains(**file))
    {
        if !circles.iter().any(|circle| circle.contains(file)) {
            let is_with = |other: &&&str| {
                reached[*file].contains(**other) && reached[**other].contains(*file)
            };
            circles.push(imports.keys().filter(is_with).copied().collect());
        }
    }
    circles.sort_by_key(|circle| core::cmp::Reverse(circle.len()));
    circles
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Tree {
        let path = |file: &str| format!("{ROOT}{file}");
        let files = files
            .iter()
            .map(|(file, text)| (path(file), (*text).into()));
        files.collect()
    }

    #[test]
    fn imports_point_down() {
        let files = [
            ("lib.rs", "use crate::run::entry;"),
            ("machine/mod.rs", "pub mod cpu;"),
            ("machine/cpu.rs", "fn a() { crate::run::entry::b() }"),
            (
                "run/entry.rs",
                "use crate::machine::{self, cpu::{Cpu, this}};",
            ),
            ("cellar/a.rs", ""),
        ];
        let findings: Vec<String> = check(&tree(&files))
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings[0].contains("cellar"), "{findings:?}");
        assert!(findings[1].contains("machine/cpu.rs imports run/entry.rs"));
    }

    #[test]
    fn circles_are_counted() {
        let files = [
            ("run/a.rs", "use crate::run::{b::B, d};"),
            ("run/b.rs", "mod e;\nuse super::c;\ne::f();"),
            ("run/b/e.rs", "self::x();"),
            ("run/c.rs", "use crate::run::a::{self};"),
            ("run/d.rs", "// use crate::run::a;"),
        ];
        assert_eq!(count(&tree(&files)), (5, vec![3]));
        assert_eq!(
            circles(&imports(&tree(&files)))[0],
            ["run/a.rs", "run/b.rs", "run/c.rs"]
        );
    }
}
