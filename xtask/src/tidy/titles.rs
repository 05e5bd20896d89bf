//! Rules about the titles of commits.

use super::Finding;
use std::{path::Path, process::Command};

/// The rules hold for commits after this one.
const SINCE: &str = "33c7794fac1ae6e11475c665a8c1face0584a050";
/// The most characters of a title.
const TITLE_MAX: usize = 72;

/// Checks the titles of the commits that the checkout has beside those before the rules. Nothing is found where git
/// does not know them, as in an unpacked archive.
pub fn check(root: &Path) -> Vec<Finding> {
    let mut git = Command::new("git");
    git.arg("-C").arg(root);
    git.args(["log", "--no-merges", "--format=%h%x09%s"])
        .arg(format!("{SINCE}..HEAD"));
    let Some(output) = git.output().ok().filter(|output| output.status.success()) else {
        return Vec::new();
    };
    let log = String::from_utf8_lossy(&output.stdout).into_owned();
    let titles = log.lines().filter_map(|line| line.split_once('\t'));
    let wrong = titles.filter_map(|(commit, title)| Some((commit, fault(title)?)));
    wrong
        .map(|(commit, what)| Finding::new(&format!("commit {commit}"), 1, what))
        .collect()
}

/// What is wrong with a title, which is to be `area: verb object` or `area, area: verb object`.
fn fault(title: &str) -> Option<String> {
    let count = title.chars().count();
    if count > TITLE_MAX {
        return Some(format!(
            "its title has {count} characters, more than {TITLE_MAX}"
        ));
    }
    let is_area = |area: &str| {
        let part = |c: char| c.is_ascii_alphanumeric() || "_-/.".contains(c);
        !area.is_empty() && area.chars().all(part)
    };
    let (areas, what) = title.split_once(": ").unwrap_or_default();
    let begins = what.chars().next().is_some_and(char::is_lowercase);
    if begins && areas.split(", ").all(is_area) {
        return None;
    }
    Some(format!("its title is not 'area: verb object': {title}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_name_an_area() {
        assert_eq!(
            fault("tlb: invalidate locally while a VM runs on one CPU"),
            None
        );
        assert_eq!(fault("frame_table, vmid: remove pins"), None);
        for title in [
            "wip",
            "A page moves with whoever uses it",
            "tests: ",
            "What is: a title",
            "tests: Add a scenario",
        ] {
            assert!(fault(title).is_some(), "{title}");
        }
        let long = format!("tests: {}", "a".repeat(72));
        assert!(fault(&long).is_some_and(|why| why.contains("79 characters")));
    }
}
