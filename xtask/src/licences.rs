//! Every outside crate must have a licence that Underpin's users can live with.

use serde::Deserialize;

/// What a licence expression must be satisfied by.
const ALLOWED: [&str; 12] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-1-Clause",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    source: Option<String>,
}

/// Checks what `cargo metadata` printed; gives a line for each outside crate that is refused. Those
/// of `by_name` may have the licence that stands beside them, whatever it is.
///
/// # Errors
/// It is not what `cargo metadata` prints.
pub fn refused(metadata: &[u8], by_name: &[(&str, &str)]) -> Result<Vec<String>, String> {
    let metadata: Metadata = serde_json::from_slice(metadata)
        .map_err(|e| format!("cannot read cargo's metadata: {e}"))?;
    let outside = metadata
        .packages
        .into_iter()
        .filter(|package| package.source.is_some());
    let refused = outside.filter(|package| {
        let may_have = |licence| is_allowed(licence) || by_name.contains(&(&package.name, licence));
        !package.license.as_deref().is_some_and(may_have)
    });
    let say = |p: Package| {
        format!(
            "{} {}: {}",
            p.name,
            p.version,
            p.license.as_deref().unwrap_or("no licence")
        )
    };
    Ok(refused.map(say).collect())
}

/// Whether an SPDX expression can be satisfied with allowed licences alone.
fn is_allowed(expression: &str) -> bool {
    // Old manifests write a slash for OR.
    let text = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ")
        .replace(" WITH ", "~");
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut rest = &words[..];
    any_of(&mut rest) == Some(true) && rest.is_empty()
}

/// `a OR b`; `None` where the expression makes no sense.
fn any_of(rest: &mut &[&str]) -> Option<bool> {
    let mut allowed = all_of(rest)?;
    while let Some(after) = rest.strip_prefix(&["OR"]) {
        *rest = after;
        allowed |= all_of(rest)?;
    }
    Some(allowed)
}

/// `a AND b`, which binds closer.
fn all_of(rest: &mut &[&str]) -> Option<bool> {
    let mut allowed = one(rest)?;
    while let Some(after) = rest.strip_prefix(&["AND"]) {
        *rest = after;
        allowed &= one(rest)?;
    }
    Some(allowed)
}

fn one(rest: &mut &[&str]) -> Option<bool> {
    let (first, after) = rest.split_first()?;
    *rest = after;
    if *first != "(" {
        return Some(ALLOWED.contains(&first.replace('~', " WITH ").as_str()));
    }
    let allowed = any_of(rest)?;
    *rest = rest.strip_prefix(&[")"])?;
    Some(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_understood() {
        for good in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0 OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR MIT",
        ] {
            assert!(is_allowed(good), "{good}");
        }
        for bad in [
            "",
            "GPL-3.0-only",
            "MIT AND GPL-3.0-only",
            "(MIT",
            "MIT OR",
            "MIT Zlib",
            "MPL-2.0",
        ] {
            assert!(!is_allowed(bad), "{bad}");
        }
    }

    #[test]
    fn only_outside_crates_are_asked() {
        let package = |name, source, license| {
            format!(
                "{{\"name\":\"{name}\",\"version\":\"1.0.0\",\"source\":{source},\"license\":{license}}}"
            )
        };
        let ours = package("ours", "null", "null");
        let good = package("good", "\"registry\"", "\"MIT\"");
        let bad = package("bad", "\"registry\"", "\"GPL-3.0\"");
        let none = package("none", "\"registry\"", "null");
        let metadata = format!("{{\"packages\":[{ours},{good},{bad},{none}]}}");
        assert_eq!(
            refused(metadata.as_bytes(), &[]).unwrap(),
            ["bad 1.0.0: GPL-3.0", "none 1.0.0: no licence"]
        );
        let by_name = [("bad", "GPL-3.0"), ("none", "GPL-3.0")];
        assert_eq!(
            refused(metadata.as_bytes(), &by_name).unwrap(),
            ["none 1.0.0: no licence"]
        );
        assert!(refused(b"[]", &[]).is_err());
    }
}
