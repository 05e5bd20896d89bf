//! `underpin mem why`: why a VM's memory is not shared.

use super::super::Context;
use crate::{
    failure::Result,
    output::{
        Output,
        Side::{Left, Right},
        Table, Tone,
    },
    units,
};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use tools_abi::WHY_PRIVATE;
use tools_abi::status::WhyStatus;

const PAGE: u64 = 4096;
/// Pages that could be shared.
const NO_TWIN: &str = "no-second-user";

/// Each reason of [`WHY_PRIVATE`], what it means and what to do about it.
const ADVICE: [(&str, &str, &str); 10] = [
    (
        "not-from-disk",
        "The guest made it: heap, stacks, the kernel's data.",
        "Nothing to share; a guest that needs less leaves more.",
    ),
    (
        "dirtied",
        "It was shared until the guest wrote it.",
        "Mount what is only read read-only or noatime; keep logs on another disk.",
    ),
    (
        "unaligned",
        "It came from a disk, but not as a whole aligned block of 4 KiB.",
        "Use aligned partitions, and ext4 with 4 KiB blocks or plain EROFS: `underpin check`.",
    ),
    (
        "never-share",
        "The VM file or the guest forbids it.",
        "Leave out sharing.never and the disk's never_share where nothing is secret.",
    ),
    (
        "other-group",
        "The block belongs to VMs of another share group.",
        "Give VMs that trust each other the same sharing.group.",
    ),
    (
        "full",
        "Its frame had 64 users already, or no memory was left to note one more.",
        "Nothing: one copy for 64 users costs little.",
    ),
    (
        "kept-block",
        "It lies in a block of 2 MiB that is kept whole.",
        "Set sharing.blocks = \"share\" where memory matters more than TLB misses.",
    ),
    (
        "evicted",
        "It was taken from the guest and read again.",
        "Give the VM a larger base, or run fewer VMs.",
    ),
    (
        "lost-race",
        "It changed while it was compared.",
        "Nothing: it is shared at the next read.",
    ),
    (
        NO_TWIN,
        "It could be shared, and nobody else has it.",
        "Start more VMs with the same image.",
    ),
];

/// Tells why a VM's pages are private.
pub fn why(context: &Context, vm: &str) -> Result<()> {
    let status = context.connect()?.why(vm)?;
    context.output.result(
        || to_json(vm, &status),
        |output| to_text(vm, &status, output),
    )
}

/// The private pages by reason. One that this command does not know goes by its number.
fn reasons(status: &WhyStatus) -> impl Iterator<Item = (String, u64)> {
    let named = |(n, (name, pages)): (usize, (&str, u64))| match name {
        "" => (format!("reason-{n}"), pages),
        name => (name.to_owned(), pages),
    };
    let pairs = WHY_PRIVATE.into_iter().zip(status.private).enumerate();
    pairs
        .map(named)
        .filter(|(name, pages)| *pages > 0 || !name.starts_with("reason-"))
}

fn private(status: &WhyStatus) -> u64 {
    let add = |sum: u64, pages: &u64| sum.saturating_add(*pages);
    status.private.iter().fold(0, add)
}

fn to_json(vm: &str, status: &WhyStatus) -> Value {
    let counted = |pages: u64| json!({ "pages": pages, "bytes": pages.saturating_mul(PAGE) });
    let reasons = reasons(status).map(|(name, pages)| (name, counted(pages)));
    json!({
        "name": vm, "private": counted(private(status)),
        "reasons": Value::Object(reasons.collect::<Map<_, _>>()),
        "no_second_user": counted(status.no_twin), "shared": counted(status.shared),
    })
}

fn to_text(vm: &str, status: &WhyStatus, output: Output) -> String {
    let private = private(status);
    let all = private
        .saturating_add(status.no_twin)
        .saturating_add(status.shared);
    let mut table = Table::new(&[
        ("WHY", Left),
        ("PAGES", Right),
        ("SIZE", Right),
        ("PART", Right),
    ]);
    let mut row = |what: &str, pages: u64, tone: Tone| {
        let part = (u128::from(pages) * 100)
            .checked_div(all.into())
            .unwrap_or(0);
        table.row([
            what.to_owned(),
            pages.to_string(),
            units::size(pages.saturating_mul(PAGE)),
            format!("{part} %"),
        ]);
        table.tone(0, tone);
    };
    let found: Vec<(String, u64)> = reasons(status).filter(|(_, pages)| *pages > 0).collect();
    for (name, pages) in &found {
        row(name, *pages, Tone::Plain);
    }
    row("= private", private, Tone::Strong);
    row(NO_TWIN, status.no_twin, Tone::Plain);
    row("shared", status.shared, Tone::Good);
    row("= resident", all, Tone::Strong);
    let mut text = format!("{vm}\n{}", table.render(output));
    let twinless = (status.no_twin > 0).then_some(NO_TWIN);
    for name in found.iter().map(|(name, _)| name.as_str()).chain(twinless) {
        let known = ADVICE.iter().find(|(reason, ..)| *reason == name);
        let (_, meaning, advice) = known.unwrap_or(&(
            "",
            "The hypervisor is newer than this command.",
            "Build both anew: make build.",
        ));
        let name = output.paint(Tone::Strong, name);
        let _ = write!(text, "\n{name}: {meaning}\n  {advice}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Format;
    use proptest::prelude::*;
    use zerocopy::FromZeros as _;

    fn status() -> WhyStatus {
        let mut status = WhyStatus::new_zeroed();
        (status.private[0], status.private[1], status.private[12]) = (700, 200, 1);
        (status.no_twin, status.shared) = (40, 59);
        status
    }

    #[test]
    fn every_reason_has_advice() {
        for name in WHY_PRIVATE.into_iter().filter(|name| !name.is_empty()) {
            assert!(ADVICE.iter().any(|(reason, ..)| *reason == name), "{name}");
        }
    }

    #[test]
    fn table_adds_up_and_explains_what_it_shows() {
        let text = to_text("web1", &status(), Output::new(Format::Table));
        let expected = "\
web1
WHY             PAGES     SIZE   PART
not-from-disk     700  2.7 MiB   70 %
dirtied           200  800 KiB   20 %
reason-12           1    4 KiB    0 %
= private         901  3.5 MiB   90 %
no-second-user     40  160 KiB    4 %
shared             59  236 KiB    5 %
= resident       1000  3.9 MiB  100 %

not-from-disk: The guest made it: heap, stacks, the kernel's data.
  Nothing to share; a guest that needs less leaves more.
";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("\ndirtied: ") && text.contains("newer than this command"));
        assert!(!text.contains("\nevicted: "), "{text}");
        assert!(text.lines().all(|line| line.len() <= 100), "{text}");
    }

    proptest! {
        #[test]
        fn reasons_add_up_to_private(pages in proptest::array::uniform16(0u64..1 << 40)) {
            let mut status = status();
            status.private = pages;
            let json = to_json("web1", &status);
            let reasons = json["reasons"].as_object().unwrap();
            let sum: u64 = reasons.values().filter_map(|reason| reason["pages"].as_u64()).sum();
            prop_assert_eq!(json["private"]["pages"].as_u64(), Some(sum));
        }
    }
}
