//! The house rules, as a test: what neither rustc, clippy nor rustfmt looks at.

mod code;
mod crates;
mod floors;
mod indices;
mod prose;
mod text;
mod titles;

pub use floors::count as circles;

use crate::mutants;
use std::{
    collections::BTreeMap,
    fmt, fs, io,
    path::{Path, PathBuf},
};

/// A place where a rule is broken.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    path: String,
    line: usize,
    what: String,
}

impl Finding {
    fn new(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line,
            what: what.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// The project's files by their paths from its root: their text, which others have none of.
pub type Tree = BTreeMap<String, String>;

/// Checks the project below `root`; gives what is wrong, in the order of files.
///
/// # Errors
/// A file cannot be read.
pub fn check(root: &Path) -> io::Result<Vec<Finding>> {
    let mut findings = check_tree(&read_tree(root)?);
    findings.extend(titles::check(root));
    let stale = mutants::stale(root).into_iter();
    findings.extend(stale.map(|(path, why)| Finding::new(&path, 1, why)));
    Ok(findings)
}

fn check_tree(tree: &Tree) -> Vec<Finding> {
    let mut findings = crates::check(tree);
    findings.extend(floors::check(tree));
    findings.extend(indices::check(tree));
    for (path, content) in tree {
        findings.extend(text::check(path, content, tree));
        findings.extend(prose::check(path, content));
        if has_extension(path, "rs") {
            findings.extend(code::check(path, content));
        }
    }
    findings.sort();
    findings
}

/// Reads all text files below a directory, but not what builds and tools leave there.
pub fn read_tree(root: &Path) -> io::Result<Tree> {
    let mut tree = Tree::new();
    let mut directories = vec![PathBuf::new()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(root.join(&directory))? {
            let entry = entry?;
            let path = directory.join(entry.file_name());
            let kind = entry.file_type()?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_run = name == "run" && directory.as_os_str().is_empty();
            if is_run || ["target", ".git"].contains(&name.as_str()) {
                // In a further work tree of git's, the second is a file.
                continue;
            }
            if kind.is_dir() {
                directories.push(path);
            } else if kind.is_file() {
                // What is not UTF-8 is no text, but links may lead to it.
                let content = String::from_utf8(fs::read(root.join(&path))?).unwrap_or_default();
                tree.insert(path.to_string_lossy().into_owned(), content);
            }
        }
    }
    Ok(tree)
}

/// Whether the file lies in one of these directories.
fn within(path: &str, directories: &[&str]) -> bool {
    let below = |directory: &&str| {
        path.strip_prefix(*directory)
            .is_some_and(|rest| rest.starts_with('/'))
    };
    directories.iter().any(below)
}

/// Whether a path ends with `.EXTENSION`.
pub fn has_extension(path: &str, extension: &str) -> bool {
    Path::new(path)
        .extension()
        .is_some_and(|found| found == extension)
}

/// Whether a Rust file holds nothing but tests, going by where it lies.
pub fn is_test_file(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    parts
        .iter()
        .any(|part| matches!(*part, "tests" | "tests.rs" | "benches" | "proptests.rs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_project_is_tidy_enough_to_be_read() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let tree = read_tree(&root).unwrap();
        assert!(tree.contains_key("xtask/src/tidy.rs"));
        assert!(!tree.keys().any(|path| path.starts_with("target/")));
    }

    #[test]
    fn directories_are_whole_names() {
        assert!(within("machine/bare/src/lib.rs", &["machine/bare"]));
        assert!(!within("machine/bareback/src/lib.rs", &["machine/bare"]));
        assert!(is_test_file("model/a/tests/b.rs") && is_test_file("abi/src/bundle/tests.rs"));
        assert!(!is_test_file("model/a/src/b.rs"));
    }
}
