//! Rules about crates: names, licences, what is forbidden in them, files that belong to none.

use super::{Finding, Tree, has_extension, within};
use crate::rust_source::{Kind, Source, Token};
use std::collections::BTreeSet;
use toml::{Table, Value};

/// The licence of everything.
const LICENCE: &str = "MIT OR Apache-2.0";
/// But for this: what is loaded into QEMU is under a licence that QEMU's permits.
const OTHER_LICENCE: [(&str, &str); 5] = [
    ("sim/clock", "GPL-2.0-or-later"),
    ("sim/plugin", "GPL-2.0-or-later"),
    ("sim/profile", "GPL-2.0-or-later"),
    ("sim/qemu", "GPL-2.0-or-later"),
    ("sim/wire", "GPL-2.0-or-later"),
];
/// Crates whose names say nothing.
const EMPTY_NAMES: [&str; 3] = ["util", "common", "base"];
/// Packages that are known by one name, wherever they lie.
const OWN_NAME: [&str; 1] = ["underpin"];
/// Crates that may hold unsafe code; all others forbid it.
const UNSAFE: [&str; 13] = [
    "machine/aarch64",
    "machine/bare",
    "machine/heap",
    "machine/host",
    "machine/locks",
    "hypervisor",
    "sim/guest",
    "sim/clock",
    "sim/plugin",
    "sim/profile",
    "sim/qemu",
    "sim/twin",
    "sim/wire",
];

pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut reached = BTreeSet::new();
    for (path, content) in tree.iter().filter(|(path, _)| path.ends_with("Cargo.toml")) {
        let Ok(manifest) = content.parse::<Table>() else {
            findings.push(Finding::new(path, 1, "this is no TOML"));
            continue;
        };
        let directory = path.trim_end_matches("Cargo.toml").trim_end_matches('/');
        if let Some(package) = manifest.get("package").and_then(Value::as_table) {
            check_package(path, directory, package, &mut findings);
            check_roots(directory, &manifest, tree, &mut reached, &mut findings);
        }
    }
    for path in tree
        .keys()
        .filter(|path| has_extension(path, "rs") && !reached.contains(*path))
    {
        findings.push(Finding::new(path, 1, "no crate has this file as a module"));
    }
    findings
}

fn check_package(path: &str, directory: &str, package: &Table, findings: &mut Vec<Finding>) {
    let mut say = |what: String| findings.push(Finding::new(path, 1, what));
    let name = package
        .get("name")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let expected = directory.replace('/', "_");
    if name != expected && !OWN_NAME.contains(&name) {
        say(format!(
            "the package '{name}' must be called '{expected}', after its directory"
        ));
    }
    if directory.split('/').any(|part| EMPTY_NAMES.contains(&part)) {
        say(format!(
            "'{directory}' says nothing; name it for what it provides"
        ));
    }
    let licence = package.get("license");
    let inherited = licence
        .and_then(|value| value.get("workspace"))
        .and_then(Value::as_bool)
        == Some(true);
    let other = OTHER_LICENCE.iter().find(|(place, _)| *place == directory);
    let expected = other.map_or(LICENCE, |(_, licence)| licence);
    if !inherited && licence.and_then(Value::as_str) != Some(expected) {
        say(format!("the licence must be '{expected}'"));
    }
}

/// Follows a crate's modules from each of its roots, and checks what its roots must say.
fn check_roots(
    directory: &str,
    manifest: &Table,
    tree: &Tree,
    reached: &mut BTreeSet<String>,
    findings: &mut Vec<Finding>,
) {
    let before = reached.len();
    let mut has_tests = false;
    for root in roots(directory, manifest, tree) {
        let forbids = tree
            .get(&root)
            .is_some_and(|text| text.contains("#![forbid(unsafe_code)]"));
        let is_product = root.contains("/src/");
        if is_product && !forbids && !within(&root, &UNSAFE) {
            findings.push(Finding::new(&root, 1, "#![forbid(unsafe_code)] is missing"));
        }
        has_tests |= !is_product && root.contains("/tests/");
        follow(root, tree, reached);
    }
    let below = format!("{directory}/src/");
    has_tests |= reached
        .iter()
        .any(|path| path.starts_with(&below) && tree[path].contains("#[cfg(test)]"));
    if within(directory, &["model"]) && reached.len() > before && !has_tests {
        findings.push(Finding::new(
            &format!("{directory}/Cargo.toml"),
            1,
            "a model crate without a test",
        ));
    }
}

/// The files where a crate's targets begin.
fn roots(directory: &str, manifest: &Table, tree: &Tree) -> Vec<String> {
    let in_crate = |path: &String| within(path, &[directory]);
    let mut roots: Vec<String> = tree
        .keys()
        .filter(|path| in_crate(path))
        .filter(|path| is_root(&path[directory.len() + 1..]))
        .cloned()
        .collect();
    for kind in ["bin", "test", "bench", "example"] {
        let targets = manifest
            .get(kind)
            .and_then(Value::as_array)
            .into_iter()
            .flatten();
        let paths = targets.filter_map(|target| target.get("path").and_then(Value::as_str));
        roots.extend(paths.map(|path| format!("{directory}/{path}")));
    }
    let library = manifest
        .get("lib")
        .and_then(|library| library.get("path"))
        .and_then(Value::as_str);
    roots.extend(library.map(|path| format!("{directory}/{path}")));
    roots.sort();
    roots.dedup();
    roots
}

/// Whether cargo takes the file of a crate for a target by its place alone.
fn is_root(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    match parts[..] {
        ["build.rs"] | ["src", "lib.rs" | "main.rs"] => true,
        ["src", "bin", _, file] | ["tests" | "benches" | "examples", _, file] => file == "main.rs",
        ["src", "bin", file] | ["tests" | "benches" | "examples", file] => {
            has_extension(file, "rs")
        }
        _ => false,
    }
}

/// Adds a file and all modules that it declares.
fn follow(root: String, tree: &Tree, reached: &mut BTreeSet<String>) {
    let mut files = vec![(root, true)];
    while let Some((path, is_root)) = files.pop() {
        let Some(text) = tree.get(&path) else {
            continue;
        };
        if !reached.insert(path.clone()) {
            continue;
        }
        let (directory, file) = path.rsplit_once('/').unwrap_or(("", &path));
        let stem = file.trim_end_matches(".rs");
        let own = if is_root || stem == "mod" {
            directory.to_owned()
        } else {
            format!("{directory}/{stem}")
        };
        for (name, place) in modules(text) {
            let places = match place {
                Some(place) => vec![format!("{directory}/{place}")],
                None => vec![format!("{own}/{name}.rs"), format!("{own}/{name}/mod.rs")],
            };
            files.extend(places.into_iter().map(|place| (place, false)));
        }
    }
}

/// The modules that a file declares without a body, each with its `#[path]`.
fn modules(text: &str) -> Vec<(String, Option<String>)> {
    let source = Source::read(text, false);
    let tokens = &source.tokens;
    let mut found = Vec::new();
    for (index, window) in tokens.windows(3).enumerate() {
        if let [
            token,
            Token {
                kind: Kind::Word(name),
                ..
            },
            end,
        ] = window
            && token.is("mod")
            && end.mark(';')
        {
            found.push((name.clone(), path_attribute(&tokens[..index])));
        }
    }
    found
}

/// The `#[path = "..."]` at the end of these tokens.
fn path_attribute(before: &[Token]) -> Option<String> {
    let start = before.iter().rposition(|token| token.mark('#'))?;
    let attribute = &before[start..];
    let ends = attribute
        .iter()
        .skip(1)
        .any(|token| token.mark(';') || token.mark('}') || token.mark('{'));
    match attribute.get(2..5) {
        Some(
            [
                name,
                _,
                Token {
                    kind: Kind::Text(path),
                    ..
                },
            ],
        ) if name.is("path") && !ends => Some(path.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "[package]\nname = \"model_a\"\nlicense.workspace = true\n";
    const ROOT: &str = "#![forbid(unsafe_code)]\nmod b;\n#[cfg(test)]\nmod tests;\n";

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let tree = files
            .iter()
            .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
            .collect();
        check(&tree).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_good_crate_is_quiet() {
        let files = [
            ("model/a/Cargo.toml", GOOD),
            ("model/a/src/lib.rs", ROOT),
            ("model/a/src/b.rs", "mod c;\n#[path = \"odd.rs\"]\nmod d;"),
            ("model/a/src/b/c.rs", ""),
            ("model/a/src/odd.rs", ""),
            ("model/a/src/tests.rs", ""),
            ("model/a/tests/e.rs", ""),
        ];
        assert_eq!(found(&files), [""; 0]);
    }

    #[test]
    fn orphans_are_found() {
        let files = [
            ("model/a/Cargo.toml", GOOD),
            ("model/a/src/lib.rs", ROOT),
            ("model/a/src/c.rs", ""),
        ];
        assert_eq!(
            found(&files),
            ["model/a/src/c.rs:1: no crate has this file as a module"]
        );
    }

    #[test]
    fn packages_are_named_and_licensed() {
        let bad = "[package]\nname = \"a\"\nlicense = \"GPL-3.0\"\n";
        assert_eq!(found(&[("model/util/Cargo.toml", bad)]).len(), 3);
        assert_eq!(
            found(&[(
                "tools/underpin/Cargo.toml",
                "[package]\nname = \"underpin\"\nlicense = \"MIT OR Apache-2.0\""
            )])
            .len(),
            0
        );
        let plugin = "[package]\nname = \"sim_plugin\"\nlicense = \"GPL-2.0-or-later\"\n";
        assert_eq!(found(&[("sim/plugin/Cargo.toml", plugin)]).len(), 0);
        assert_eq!(found(&[("Cargo.toml", "[workspace]\n")]).len(), 0);
    }

    #[test]
    fn unsafe_code_is_forbidden_and_models_are_tested() {
        let files = [("model/a/Cargo.toml", GOOD), ("model/a/src/lib.rs", "")];
        assert_eq!(
            found(&files),
            [
                "model/a/src/lib.rs:1: #![forbid(unsafe_code)] is missing",
                "model/a/Cargo.toml:1: a model crate without a test"
            ]
        );
    }
}
