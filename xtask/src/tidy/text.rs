//! Rules about every text file.

use super::{Finding, Tree, has_extension, within};

/// Left-overs that must not be committed.
const LEFT_OVERS: [&str; 3] = ["TODO", "FIXME", "XXX"];
/// Directories of somebody's own machine.
const BANNED: [&str; 3] = ["/work/", "/root/", "/home/"];
/// How addresses of hosts begin: programs derive them from the machine's own configuration, only
/// documents for people may hold some.
const ADDRESSES: [&str; 2] = ["https://", "http://"];
/// Names of XML languages that look like addresses: nothing is fetched from there.
const XML_NAMES: &str = "xmlns=\"http://www.w3.org/";
/// The file that names what is banned.
const RULES: &str = "xtask/src/tidy/text.rs";
/// Made by cargo.
const LOCK: &str = "Cargo.lock";
/// Files of guests, which have directories of their own.
const GUESTS: [&str; 1] = ["assets"];

pub fn check(path: &str, content: &str, tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    if path == RULES || path.ends_with(LOCK) || within(path, &["tests/fuzz/seeds"]) {
        return findings;
    }
    for (index, line) in content.lines().enumerate() {
        let mut say = |what: String| findings.push(Finding::new(path, index + 1, what));
        if line.ends_with([' ', '\t']) {
            say("white space at the end of the line".into());
        }
        if has_extension(path, "rs") && line.contains('\t') {
            say("a tab".into());
        }
        for word in LEFT_OVERS.iter().filter(|word| has_word(line, word)) {
            say(format!("'{word}' is left; do it, or open an issue"));
        }
        let banned = |word: &&&str| {
            line.contains(**word) && !(word.starts_with('/') && within(path, &GUESTS))
        };
        for word in BANNED.iter().filter(banned) {
            say(format!("'{word}' must not be named"));
        }
        let is_prose = has_extension(path, "md") || path.starts_with("LICENSE");
        // In a string, its quotes are escaped.
        let plain = line.replace('\\', "").replace(XML_NAMES, "");
        if !is_prose && ADDRESSES.iter().any(|scheme| plain.contains(scheme)) {
            say("the address of a host; derive it from the machine's configuration".into());
        }
        if has_extension(path, "md") {
            dead_links(path, line, tree).into_iter().for_each(say);
        }
    }
    findings
}

/// Whether the word stands there with nothing of a word beside it.
fn has_word(line: &str, word: &str) -> bool {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word).any(|(at, _)| {
        !part(line[..at].chars().next_back()) && !part(line[at + word.len()..].chars().next())
    })
}

/// Links of a line of Markdown to files that are not there.
fn dead_links(path: &str, line: &str, tree: &Tree) -> Vec<String> {
    let targets = line
        .match_indices("](")
        .filter_map(|(at, _)| line[at + 2..].split_once(')').map(|(target, _)| target));
    let local = targets.filter(|target| !target.contains("://") && !target.starts_with(['#', '<']));
    let dead = local.filter(|target| {
        let file = target.split_once('#').map_or(*target, |(file, _)| file);
        let full = resolve(path, file);
        let directory = format!("{full}/");
        !tree.contains_key(&full) && !tree.keys().any(|known| known.starts_with(&directory))
    });
    dead.map(|target| format!("the link '{target}' leads nowhere"))
        .collect()
}

/// A link's target, from the project's root.
fn resolve(path: &str, target: &str) -> String {
    let mut parts: Vec<&str> = path.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            _ => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, content: &str) -> usize {
        let tree = Tree::from([
            ("docs/glossary.md".into(), String::new()),
            ("README.md".into(), String::new()),
        ]);
        check(path, content, &tree).len()
    }

    #[test]
    fn left_overs_and_white_space() {
        assert_eq!(found("a.rs", "// TODO: later\n"), 1);
        assert_eq!(found("a.sh", "mktemp a.XXXXXX\nTODOS\n"), 0);
        assert_eq!(found("a.rs", "a; \n\tb;\n"), 2);
        assert_eq!(found("Makefile", "\ta\n"), 0);
    }

    #[test]
    fn names_of_this_machine() {
        assert_eq!(found("a.md", "see /home/me/x and https://example.org"), 1);
        assert_eq!(found("a.sh", "fetch https://example.org/x"), 1);
        assert_eq!(found("assets/init", "mount /root/proc"), 0);
        assert_eq!(found("Cargo.lock", "https://example.org"), 0);
    }

    #[test]
    fn links() {
        assert_eq!(
            found(
                "README.md",
                "[a](docs/glossary.md#b) [c](docs) [d](https://e) [f](#g)"
            ),
            0
        );
        assert_eq!(found("docs/x.md", "[a](../README.md) [b](glossary.md)"), 0);
        assert_eq!(found("README.md", "[a](docs/gone.md) and [b](gone/)"), 2);
    }
}
