//! How many lines and tokens of Rust run at EL2, by subsystem, and how many lines of them are unsafe.

use crate::{
    project::{self, EL2_TARGET},
    rust_source::Source,
    step::{Outcome, print_line},
    tidy::{self, Tree, is_test_file},
};
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::Path,
};

/// The most lines that Underpin may have at EL2. The aim (mission row A19) is 36,000, which is missed. This keeps them from
/// growing unnoticed: docs/decisions/0122 has what it was before.
const LINES_MAX: usize = 40_692;

/// The most lines of what joins machines and lets a VM span them. Its budget of its own beside the 36,000 is 4,500 lines, which is
/// missed, too.
const CLUSTER_LINES_MAX: usize = 7_416;

/// The row of that. Its crates count before EL2 is linked with them.
const CLUSTER: &str = "cluster and span";
const CLUSTER_CRATES: [&str; 5] = [
    "model/cluster",
    "model/coherence",
    "model/link",
    "model/membership",
    "model/span",
];
const CLUSTER_FILES: [&str; 11] = [
    "abi/src/bundle/cluster.rs",
    "abi/src/cluster.rs",
    "abi/src/coherence.rs",
    "abi/src/control/hosts.rs",
    "abi/src/link.rs",
    "abi/src/span.rs",
    "hypervisor/src/guest/spanning.rs",
    "hypervisor/src/run/hosts.rs",
    "hypervisor/src/run/moving.rs",
    "machine/aarch64/src/gcm.rs",
    "machine/aarch64/src/simd.rs",
];
/// The hypervisor's folder of it.
const CLUSTER_FLOOR: &str = "hypervisor/src/cluster/";

/// The crate whose modules are rows of their own, as it holds two fifths of all lines.
const BY_MODULE: &str = "hypervisor";

/// Files that are in no image that is shipped (docs/decisions/0082): of hooks, and of what only an ordinary process asks for.
const HOOKS: [&str; 6] = [
    "abi/src/state/bytes.rs",
    "hypervisor/src/cluster/outside.rs",
    "hypervisor/src/life/moving.rs",
    "hypervisor/src/machine/stretch/marks.rs",
    "hypervisor/src/memory/hooks.rs",
    "hypervisor/src/outside.rs",
];

/// Code without comments and tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// Lines with a token on them.
    pub code: usize,
    /// Words, numbers, texts and marks: what no format changes.
    pub tokens: usize,
    /// Lines within `unsafe` blocks and functions.
    pub unsafe_code: usize,
}

/// The table that `xtask loc` prints.
#[derive(Debug)]
pub struct Table {
    rows: BTreeMap<String, Lines>,
}

impl Table {
    /// Counts the `src` directories of these crates.
    pub fn of(tree: &Tree, crates: impl IntoIterator<Item = String>) -> Self {
        let mut rows = BTreeMap::new();
        for name in crates {
            let below = format!("{name}/src/");
            let files = tree.iter().filter_map(|(path, text)| {
                let file = path.strip_prefix(&below)?;
                let counts = tidy::has_extension(path, "rs") && !HOOKS.contains(&path.as_str());
                counts.then_some((path, file, text))
            });
            for (path, file, text) in files {
                let is_cluster = CLUSTER_CRATES.contains(&&*name)
                    || CLUSTER_FILES.contains(&&**path)
                    || path.starts_with(CLUSTER_FLOOR);
                let subsystem = if is_cluster {
                    CLUSTER.to_owned()
                } else {
                    subsystem(&name, file)
                };
                let row: &mut Lines = rows.entry(subsystem).or_default();
                *row = row.plus(count(path, text));
            }
        }
        Self { rows }
    }

    /// All subsystems together, without [`CLUSTER`].
    pub fn total(&self) -> Lines {
        let house = self.rows.iter().filter(|(name, _)| *name != CLUSTER);
        house
            .map(|(_, lines)| *lines)
            .fold(Lines::default(), Lines::plus)
    }

    fn cluster(&self) -> Lines {
        self.rows.get(CLUSTER).copied().unwrap_or_default()
    }

    /// Whether its lines are within both ceilings.
    fn is_within(&self) -> Outcome {
        let parts = [
            (format!("all but {CLUSTER}"), self.total().code, LINES_MAX),
            (CLUSTER.to_owned(), self.cluster().code, CLUSTER_LINES_MAX),
        ];
        match parts.into_iter().find(|(_, code, most)| code > most) {
            None => Ok(()),
            Some((part, code, most)) => Err(format!(
                "{part} has {code} lines at EL2, more than {most}: take some out, or do as docs/decisions/0122 says"
            )),
        }
    }
}

impl Lines {
    fn plus(self, other: Self) -> Self {
        Self {
            code: self.code + other.code,
            tokens: self.tokens + other.tokens,
            unsafe_code: self.unsafe_code + other.unsafe_code,
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:28} {:>7} {:>8} {:>7} {:>7}",
            "subsystem", "lines", "tokens", "unsafe", "share"
        )?;
        let total = format!("all but {CLUSTER}");
        for (name, lines) in self.rows.iter().chain([(&total, &self.total())]) {
            let share = 100.0 * lines.unsafe_code as f64 / lines.code.max(1) as f64;
            writeln!(
                f,
                "{name:28} {:>7} {:>8} {:>7} {share:>6.1}%",
                lines.code, lines.tokens, lines.unsafe_code
            )?;
        }
        Ok(())
    }
}

/// The row of a file of a crate's `src`: the crate, or its module where modules are counted apart.
fn subsystem(name: &str, file: &str) -> String {
    if name != BY_MODULE {
        return name.to_owned();
    }
    let module = file.split('/').next().unwrap_or(file);
    format!("{name}/{}", module.trim_end_matches(".rs"))
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    manifest_path: String,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
    root: Option<String>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Deserialize)]
struct DependencyKind {
    kind: Option<String>,
}

/// The directories of our own crates that end up in the hypervisor, from its root package on.
fn crates_at_el2(metadata: &Metadata, root: &Path) -> Vec<String> {
    let nodes: BTreeMap<&str, &Node> = metadata
        .resolve
        .nodes
        .iter()
        .map(|node| (node.id.as_str(), node))
        .collect();
    let mut reached = BTreeSet::new();
    let mut waiting: Vec<&str> = metadata.resolve.root.as_deref().into_iter().collect();
    while let Some(id) = waiting.pop() {
        if let Some(node) = nodes.get(id).filter(|_| reached.insert(id)) {
            // A kind is "dev" or "build"; the ordinary one has no name.
            let linked = node
                .deps
                .iter()
                .filter(|dep| dep.dep_kinds.iter().any(|kind| kind.kind.is_none()));
            waiting.extend(linked.map(|dep| dep.pkg.as_str()));
        }
    }
    let ours = metadata
        .packages
        .iter()
        .filter(|package| reached.contains(package.id.as_str()));
    let directory = |package: &Package| {
        let path = Path::new(&package.manifest_path)
            .parent()?
            .strip_prefix(root)
            .ok()?;
        Some(path.to_string_lossy().into_owned())
    };
    let mut directories: Vec<String> = ours.filter_map(directory).collect();
    directories.sort();
    directories
}

/// Prints the table of the crates that the hypervisor is made of, and how many of its files import each other in circles;
/// gives whether its lines are few.
pub fn print() -> bool {
    match table() {
        Ok((table, (files, circles))) => {
            print_line(table.to_string().trim_end());
            print_line(&format!(
                "of {files} files in hypervisor/, so many are in each circle of imports: {circles:?}"
            ));
            let is_within = table.is_within();
            if let Err(why) = &is_within {
                print_line(why);
            }
            is_within.is_ok()
        }
        Err(why) => {
            print_line(&why);
            false
        }
    }
}

/// Checks that lines at EL2 are within their ceilings.
///
/// # Errors
/// A part has more; or cargo does not tell what it is made of.
pub fn check() -> Outcome {
    table()?.0.is_within()
}

fn table() -> Result<(Table, (usize, Vec<usize>)), String> {
    let metadata = project::metadata("hypervisor/Cargo.toml", EL2_TARGET)?;
    let metadata: Metadata = serde_json::from_slice(&metadata)
        .map_err(|error| format!("cannot read cargo's metadata: {error}"))?;
    let tree = tidy::read_tree(&project::root())
        .map_err(|error| format!("cannot read the project: {error}"))?;
    let circles = tidy::circles(&tree);
    let crates = crates_at_el2(&metadata, &project::root());
    let planned = CLUSTER_CRATES.map(str::to_owned);
    let unlinked = planned.into_iter().filter(|name| !crates.contains(name));
    let table = Table::of(&tree, crates.iter().cloned().chain(unlinked));
    Ok((table, circles))
}

fn count(path: &str, text: &str) -> Lines {
    let source = Source::read(text, is_test_file(path));
    let product = |index: &usize| !source.tokens[*index].test;
    let line = |index: usize| source.tokens[index].line;
    let tokens = (0..source.tokens.len()).filter(product).count();
    let code: BTreeSet<usize> = (0..source.tokens.len()).filter(product).map(line).collect();
    let mut unsafe_lines = BTreeSet::new();
    for index in (0..source.tokens.len()).filter(product) {
        let next = source.tokens.get(index + 1);
        // `unsafe impl` promises something and runs nothing.
        if source.tokens[index].is("unsafe")
            && next.is_some_and(|next| next.mark('{') || next.is("fn") || next.is("extern"))
        {
            unsafe_lines.extend((index..=source.item_end(index)).map(line));
        }
    }
    Lines {
        code: code.len(),
        tokens,
        unsafe_code: unsafe_lines.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_a_ceiling_is_told() {
        let table = |house: usize, cluster: usize| {
            let lines = |code| Lines {
                code,
                ..Lines::default()
            };
            let rows = [("a", lines(house)), (CLUSTER, lines(cluster))];
            Table {
                rows: rows.map(|(name, lines)| (name.to_owned(), lines)).into(),
            }
        };
        assert_eq!(table(LINES_MAX, CLUSTER_LINES_MAX).is_within(), Ok(()));
        let [house, cluster] = [LINES_MAX, CLUSTER_LINES_MAX].map(|most| most + 1);
        let told = |table: Table| table.is_within().unwrap_err();
        assert!(told(table(house, 0)).starts_with(&format!("all but {CLUSTER} has {house} ")));
        assert!(told(table(0, cluster)).starts_with(&format!("{CLUSTER} has {cluster} ")));
    }

    #[test]
    fn only_what_is_linked_counts() {
        let dep = |to: &str, kind: &str| {
            format!("{{\"pkg\":\"{to}\",\"dep_kinds\":[{{\"kind\":{kind}}}]}}")
        };
        let node = |id: &str, deps: &str| format!("{{\"id\":\"{id}\",\"deps\":[{deps}]}}");
        let package = |id: &str, path: &str| {
            format!("{{\"id\":\"{id}\",\"manifest_path\":\"{path}/Cargo.toml\"}}")
        };
        let nodes = [
            node(
                "h",
                &[dep("m", "null"), dep("t", "\"dev\""), dep("o", "null")].join(","),
            ),
            node("m", ""),
            node("t", ""),
            node("o", ""),
        ];
        let packages = [
            package("h", "/p/h"),
            package("m", "/p/model/m"),
            package("t", "/p/t"),
            package("o", "/elsewhere"),
        ];
        let (packages, nodes) = (packages.join(","), nodes.join(","));
        let text = format!(
            "{{\"packages\":[{packages}],\"resolve\":{{\"root\":\"h\",\"nodes\":[{nodes}]}}}}"
        );
        let metadata: Metadata = serde_json::from_str(&text).unwrap();
        assert_eq!(crates_at_el2(&metadata, Path::new("/p")), ["h", "model/m"]);
    }

    #[test]
    fn code_is_counted_and_nothing_else() {
        let text = "//! A.\n\nfn a() {\n    // b\n    unsafe {\n        c();\n    }\n}\n#[cfg(test)]\nmod tests {\n}\n";
        assert_eq!(
            count("a/src/lib.rs", text),
            Lines {
                code: 5,
                tokens: 13,
                unsafe_code: 3
            }
        );
        assert_eq!(count("a/src/tests.rs", text), Lines::default());
        let tree = Tree::from([
            ("a/src/lib.rs".into(), text.into()),
            ("a/tests/b.rs".into(), text.into()),
            (HOOKS[0].into(), text.into()),
            (HOOKS[1].into(), text.into()),
        ]);
        let table = Table::of(&tree, ["a", "hypervisor"].map(str::to_owned));
        assert_eq!(table.total().code, 5);
        assert!(table.to_string().contains("60.0%"), "{table}");
    }

    #[test]
    fn modules_of_the_hypervisor_are_rows() {
        assert_eq!(subsystem("model/pmap", "map.rs"), "model/pmap");
        assert_eq!(subsystem("hypervisor", "lib.rs"), "hypervisor/lib");
        assert_eq!(subsystem("hypervisor", "vms/table.rs"), "hypervisor/vms");
    }
}
