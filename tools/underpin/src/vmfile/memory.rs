//! The memory of a VM file, and how it is shared.

use super::{
    MEMORY, MEMORY_STEP,
    decode::Decoder,
    section::{Found, Section},
};
use crate::units;
use abi::bundle::{DEFAULT_GROUP, block_policy, claim};
use std::ops::Range;

/// A VM's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Bytes that it is always granted.
    pub base: u64,
    /// The most bytes that it can have: what the guest finds at boot.
    pub max: u64,
    /// The name of the partition that it may be swapped to.
    pub swap: Option<String>,
    /// Milliseconds that what its guest reports free stays bound.
    pub hold_ms: u16,
}

/// How a VM shares memory with others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// The name of its share group: VMs of one group share among themselves only.
    pub group: String,
    /// Who gets the memory that sharing saves (`abi::bundle::claim`).
    pub claim: u8,
    /// Whether to hide from the guest which pages are shared.
    pub hide: bool,
    /// What becomes of 2 MiB mappings (`abi::bundle::block_policy`).
    pub blocks: u8,
    /// Whether nothing of it is shared.
    pub never: bool,
}

/// A memory, and the bytes of the file that say it.
pub struct Told {
    /// The memory.
    pub memory: Memory,
    span: Range<usize>,
}

impl Decoder<'_> {
    /// `memory = "512MiB"` or
    /// `memory = { base = "512MiB", max = "1GiB", swap = "PARTITION", hold = "100ms" }`.
    pub fn memory(&self, root: &Section<'_, '_>) -> Option<Told> {
        if !root.is_table("memory") {
            if root.has("memory").is_none() {
                root.missing("memory", "add memory = \"512MiB\" or the like");
            }
            let Found { value, span } = self.bytes(root, "memory")?;
            let memory = Memory {
                base: value,
                max: value,
                swap: None,
                hold_ms: 0,
            };
            return Some(Told { memory, span });
        }
        let section = root.section("memory", "memory", &["base", "max", "swap", "hold"])?;
        if section.has("base").is_none() {
            section.missing("base", "add base = \"512MiB\" or the like");
        }
        let (base, max) = (self.bytes(&section, "base"), self.bytes(&section, "max"));
        let swap = self.partition_name(&section, "swap");
        let hold_ms = section.hold("hold", "\"100ms\"").unwrap_or(0);
        let base = base?;
        let max = match (max, section.has("max")) {
            (Some(max), _) => max.value,
            (None, None) => base.value,
            (None, Some(_)) => return None,
        };
        if max < base.value {
            let [base, max] = [base.value, max].map(units::size);
            let message = format!("'max' is {max}, less than the base of {base}");
            let span = section.has("max").unwrap_or_default();
            let help = "make 'max' larger, or leave it out: then it is as large as the base";
            self.problems.add(&span, message, help);
            return None;
        }
        let Found { value: base, span } = base;
        let memory = Memory {
            base,
            max,
            swap,
            hold_ms,
        };
        Some(Told { memory, span })
    }

    /// How much memory: neither too little nor too much, and whole stage-2 blocks.
    fn bytes(&self, section: &Section<'_, '_>, key: &str) -> Option<Found<u64>> {
        let found = section.size(key, "\"512MiB\"")?;
        let told = units::size(found.value);
        if !MEMORY.contains(&found.value) {
            let message = format!("a VM cannot have {told} of memory");
            self.problems
                .add(&found.span, message, "use 64MiB to 256GiB");
        } else if !found.value.is_multiple_of(MEMORY_STEP) {
            let message = format!("memory of {told} is no multiple of 2 MiB");
            let near = found.value.next_multiple_of(MEMORY_STEP) >> 20;
            self.problems
                .add(&found.span, message, &format!("use \"{near}MiB\""));
        } else {
            return Some(found);
        }
        None
    }

    /// Kernel and initrd, of `files` bytes, must fit into the memory.
    pub fn fits(&self, told: &Told, boot: &Section<'_, '_>, files: u64) {
        if files < told.memory.base {
            return;
        }
        let size = units::size(files);
        let message = format!("kernel and initrd have {size}, and the memory is not larger");
        let span = boot.has("kernel").unwrap_or_else(|| told.span.clone());
        let help = "give the VM more memory, or a smaller initrd";
        self.problems.add(&span, message, help);
    }

    /// `sharing = { group = "default", claim = "none", hide = false, blocks = "share" }`.
    pub fn sharing(&self, root: &Section<'_, '_>) -> Sharing {
        let default = Sharing {
            group: DEFAULT_GROUP.to_owned(),
            claim: claim::NONE,
            hide: false,
            blocks: block_policy::SHARE,
            never: false,
        };
        let keys = ["group", "claim", "hide", "blocks", "never"];
        let section = root.has("sharing");
        let Some(section) = section.and_then(|_| root.section("sharing", "sharing", &keys)) else {
            return default;
        };
        Sharing {
            group: self.group(&section).unwrap_or(default.group),
            claim: match section.choice("claim", &["none", "grow", "start"]) {
                "grow" => claim::GROW,
                "start" => claim::START,
                _ => claim::NONE,
            },
            hide: section.boolean("hide", false),
            blocks: match section.choice("blocks", &["share", "keep"]) {
                "keep" => block_policy::KEEP,
                _ => block_policy::SHARE,
            },
            never: section.boolean("never", false),
        }
    }

    fn group(&self, section: &Section<'_, '_>) -> Option<String> {
        let found = section.text("group", "\"team-a\"")?;
        if !super::is_name(found.value) || found.value.len() > GROUP_MAX {
            let message = format!("'{}' cannot be a share group's name", found.value);
            let help = "use 1 to 24 characters: small letters a to z, digits and hyphens";
            self.problems.add(&found.span, message, help);
        }
        Some(found.value.to_owned())
    }
}

/// Characters that a share group's name may have.
const GROUP_MAX: usize = 24;
