//! Rules about Rust code.

use super::{Finding, is_test_file, within};
use crate::rust_source::{Kind, Source, Token};

/// The most lines of a function, from `fn` to its last brace.
const FUNCTION_LINES_MAX: usize = 70;
/// The most lines of a file.
const FILE_LINES_MAX: usize = 600;
/// How far above an `unsafe` its justification may begin.
const SAFETY_REACH: usize = 16;

/// Where unsafe code may be.
const UNSAFE: [&str; 6] = [
    "machine",
    "hypervisor",
    "sim/plugin",
    "sim/profile",
    "sim/qemu",
    "sim/wire",
];
/// Where instructions and registers of one architecture may be.
const MACHINE_CODE: [&str; 3] = ["machine/aarch64", "machine/bare", "sim/guest"];
/// Where input must not be able to panic.
const NO_PANIC: [&str; 6] = ["abi", "model", "machine", "hypervisor", "sim", "tools"];
/// Of those, where a panic is how a test fails: the runtime of bare test guests, and the stand-in
/// for the machine, which accuses whoever breaks the machine's rules.
const PANIC_IS_A_VERDICT: [&str; 2] = ["machine/bare", "machine/fake"];
/// Of the models, the one function that says what a guest may do with its memory, and the tables that hold it.
const RIGHTS: [&str; 2] = ["model/pmap/src/entry.rs", "model/stage2"];

pub fn check(path: &str, text: &str) -> Vec<Finding> {
    let source = Source::read(text, is_test_file(path));
    let mut findings = Vec::new();
    let lines = text.lines().count();
    if lines > FILE_LINES_MAX {
        findings.push(Finding::new(
            path,
            lines,
            format!("the file has {lines} lines, more than {FILE_LINES_MAX}"),
        ));
    }
    for index in 0..source.tokens.len() {
        let found = long_function(&source, index)
            .or_else(|| unsafe_code(path, &source, index))
            .or_else(|| machine_code(path, &source, index))
            .or_else(|| made_rights(path, &source, index))
            .or_else(|| may_panic(path, &source, index));
        findings.extend(found.map(|what| Finding::new(path, source.tokens[index].line, what)));
    }
    findings
}

fn word(token: Option<&Token>) -> &str {
    match token.map(|token| &token.kind) {
        Some(Kind::Word(word)) => word,
        _ => "",
    }
}

fn mark_at(source: &Source, index: usize, mark: char) -> bool {
    source
        .tokens
        .get(index)
        .is_some_and(|token| token.mark(mark))
}

fn long_function(source: &Source, index: usize) -> Option<String> {
    let name = word(source.tokens.get(index + 1));
    if !source.tokens[index].is("fn") || name.is_empty() {
        return None;
    }
    let last = source.item_end(index);
    let lines = source.tokens[last].line - source.tokens[index].line + 1;
    (lines > FUNCTION_LINES_MAX)
        .then(|| format!("'{name}' has {lines} lines, more than {FUNCTION_LINES_MAX}"))
}

fn unsafe_code(path: &str, source: &Source, index: usize) -> Option<String> {
    if !source.tokens[index].is("unsafe") {
        return None;
    }
    if !within(path, &UNSAFE) {
        return Some(format!(
            "unsafe code may be below {} only",
            UNSAFE.join(", ")
        ));
    }
    (needs_reason(source, index) && !has_safety_comment(source, index))
        .then(|| "unsafe code without a SAFETY comment".into())
}

/// Whether this `unsafe` promises something that a reader must be able to check. Declarations of
/// foreign items, types, attributes, and functions whose trait says what is safe do not.
fn needs_reason(source: &Source, index: usize) -> bool {
    let next = word(source.tokens.get(index + 1));
    let at = |after: usize, mark: char| mark_at(source, index + after, mark);
    match next {
        "impl" => true,
        "fn" => !at(2, '(') && !in_trait_impl(source, index),
        "extern" => !at(3, '{') && !at(2, '{'),
        _ => at(1, '{'),
    }
}

/// Whether the braces around a token are those of an `impl TRAIT for TYPE`.
fn in_trait_impl(source: &Source, index: usize) -> bool {
    let mut depth = 0usize;
    let opened = source.tokens[..index].iter().rposition(|token| {
        match token.kind {
            Kind::Mark('}') => depth += 1,
            Kind::Mark('{') if depth == 0 => return true,
            Kind::Mark('{') => depth -= 1,
            _ => {}
        }
        false
    });
    let Some(opened) = opened else { return false };
    let head = source.tokens[..opened]
        .iter()
        .rev()
        .take_while(|t| !t.mark(';') && !t.mark('}') && !t.mark('{'));
    let head: Vec<&Token> = head.collect();
    head.iter().any(|token| token.is("impl")) && head.iter().any(|token| token.is("for"))
}

/// Whether a comment above the statement or item, or beside it, says why it is sound.
fn has_safety_comment(source: &Source, index: usize) -> bool {
    let line = source.tokens[index].line;
    let begins = statement_line(source, index);
    let says = |line: usize| {
        let comment = source.comment(line);
        comment.contains("SAFETY") || comment.contains("# Safety")
    };
    if (begins..=line).any(says) {
        return true;
    }
    let mut above = begins;
    while above > 1 && begins - above < SAFETY_REACH {
        above -= 1;
        if says(above) {
            return true;
        }
        // Attributes may stand between the comment and the item; anything else ends the search.
        let code = source.tokens.iter().find(|token| token.line == above);
        let is_end = match code {
            Some(token) => !token.mark('#'),
            None => source.comment(above).is_empty(),
        };
        if is_end {
            return false;
        }
    }
    false
}

/// The line on which the statement or item begins that the token belongs to.
fn statement_line(source: &Source, index: usize) -> usize {
    let before = source.tokens[..index]
        .iter()
        .rposition(|t| t.mark(';') || t.mark('{') || t.mark('}') || t.mark(']'));
    let first = before.map_or(0, |before| before + 1);
    source.tokens[first.min(index)].line
}

fn machine_code(path: &str, source: &Source, index: usize) -> Option<String> {
    let name = word(source.tokens.get(index));
    let is_asm =
        ["asm", "global_asm", "naked_asm"].contains(&name) && mark_at(source, index + 1, '!');
    let forbidden = (is_asm || name == "target_arch") && !within(path, &MACHINE_CODE);
    forbidden.then(|| format!("'{name}' may be below {} only", MACHINE_CODE.join(", ")))
}

/// Rights of a guest's memory that are made by hand, and not asked of its entry.
fn made_rights(path: &str, source: &Source, index: usize) -> Option<String> {
    let token = &source.tokens[index];
    let is_made = mark_at(source, index + 1, ':') && mark_at(source, index + 2, ':')
        || mark_at(source, index + 1, '{') && !mark_at(source, index.wrapping_sub(1), '>');
    let may =
        token.test || !within(path, &["model"]) || RIGHTS.contains(&path) || within(path, &RIGHTS);
    (token.is("Rights") && is_made && !may)
        .then(|| "rights of a guest's memory made by hand; ask 'Entry::rights'".into())
}

fn may_panic(path: &str, source: &Source, index: usize) -> Option<String> {
    let token = &source.tokens[index];
    if token.test || token.excused || !within(path, &NO_PANIC) || within(path, &PANIC_IS_A_VERDICT)
    {
        return None;
    }
    let name = word(Some(token));
    let is_call = index > 0 && mark_at(source, index - 1, '.') && mark_at(source, index + 1, '(');
    let is_macro = mark_at(source, index + 1, '!');
    let panics = match name {
        "unwrap" | "expect" => is_call,
        "panic" | "todo" | "unimplemented" => is_macro,
        _ => false,
    };
    panics.then(|| format!("'{name}' outside tests; handle it, or say why it cannot happen in #[expect(clippy::...)]"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<String> {
        check(path, text).iter().map(ToString::to_string).collect()
    }

    fn function(lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "x();\n".repeat(lines - 2))
    }

    #[test]
    fn length_is_limited() {
        assert!(found("a.rs", &function(70)).is_empty());
        assert_eq!(
            found("a.rs", &function(71)),
            ["a.rs:1: 'long' has 71 lines, more than 70"]
        );
        assert!(found("a.rs", &"\n".repeat(600)).is_empty());
        assert_eq!(found("a.rs", &"\n".repeat(601)).len(), 1);
        assert!(found("a.rs", "trait A { fn a(b: [u8; 3]); }\nlet c: fn(u8);\n").is_empty());
    }

    #[test]
    fn unsafe_code_is_confined_and_justified() {
        let bare = "fn a() { unsafe { b() } }";
        assert_eq!(
            found("model/a/src/lib.rs", bare),
            [
                "model/a/src/lib.rs:1: unsafe code may be below machine, hypervisor, sim/plugin, sim/profile, sim/qemu, sim/wire only"
            ]
        );
        assert_eq!(
            found("hypervisor/src/a.rs", bare),
            ["hypervisor/src/a.rs:1: unsafe code without a SAFETY comment"]
        );
        for good in [
            "fn a() {\n    // SAFETY: b is.\n    let c =\n        unsafe { b() };\n}",
            "/// Does.\n///\n/// # Safety\n/// As b.\n#[inline]\npub unsafe fn a() {}",
            "// SAFETY: no state.\nunsafe impl Sync for A {}",
            "#[unsafe(no_mangle)]\nextern \"C\" fn a() {}",
            "struct A(unsafe fn(u8));",
            "unsafe extern \"C\" {\n    fn a();\n}",
            "// SAFETY: as the trait says.\nunsafe impl A for B {\n    fn c() {}\n    unsafe fn d() {}\n}",
        ] {
            assert!(found("machine/aarch64/src/a.rs", good).is_empty(), "{good}");
        }
        assert_eq!(
            found("hypervisor/src/a.rs", "impl A {\n    unsafe fn b() {}\n}").len(),
            1
        );
        let other = "// SAFETY: b is.\nunsafe { b() };\nunsafe { c() };";
        assert_eq!(found("machine/locks/src/a.rs", other).len(), 1);
    }

    #[test]
    fn machine_code_is_confined() {
        let text = "// SAFETY: yes.\nunsafe { asm!(\"nop\") }";
        assert!(found("machine/aarch64/src/a.rs", text).is_empty());
        assert_eq!(
            found("hypervisor/src/a.rs", text),
            [
                "hypervisor/src/a.rs:2: 'asm' may be below machine/aarch64, machine/bare, sim/guest only"
            ]
        );
        assert_eq!(
            found(
                "model/a/src/b.rs",
                "#[cfg(target_arch = \"aarch64\")] fn a() {}"
            )
            .len(),
            1
        );
        assert!(
            found(
                "xtask/src/a.rs",
                "// asm! and target_arch in words\nlet a = \"asm!\";"
            )
            .is_empty()
        );
    }

    #[test]
    fn rights_are_made_in_one_place() {
        let by_hand = "fn a() { show(Rights::ALL); show(Rights { write: b, execute: true }) }";
        assert_eq!(found("model/address_space/src/a.rs", by_hand).len(), 2);
        for path in [
            "model/pmap/src/entry.rs",
            "model/stage2/src/a.rs",
            "model/address_space/tests/a.rs",
            "hypervisor/src/a.rs",
        ] {
            assert!(found(path, by_hand).is_empty(), "{path}");
        }
        let asked = "use a::{B, Rights};\nfn a(b: Rights) -> Rights { c.rights() }";
        assert!(found("model/address_space/src/a.rs", asked).is_empty());
    }

    #[test]
    fn products_do_not_panic() {
        let text = "fn a() { b.unwrap(); c.expect(\"d\"); panic!(); todo!() }";
        assert_eq!(found("model/a/src/lib.rs", text).len(), 4);
        assert!(found("xtask/src/a.rs", text).is_empty());
        assert!(found("model/a/tests/a.rs", text).is_empty());
        assert!(found("machine/bare/src/a.rs", text).is_empty());
        assert!(
            found(
                "model/a/src/lib.rs",
                "#[cfg(test)] mod tests { fn a() { b.unwrap() } }"
            )
            .is_empty()
        );
        assert!(
            found(
                "model/a/src/lib.rs",
                "#[expect(clippy::expect_used, reason = \"r\")] fn a() { b.expect(\"c\") }"
            )
            .is_empty()
        );
        assert!(
            found(
                "model/a/src/lib.rs",
                "fn expect() { a.unwrap_or(b); core::panic::Location }"
            )
            .is_empty()
        );
    }
}
