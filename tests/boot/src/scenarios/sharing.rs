//! One copy of what many VMs read, and nobody who notices.

mod raced;

use super::kernels::powered_off;
use crate::{Outcome, because, machine::Hardware, scenario::Scenario, vm::Vm};
use std::{fs, path::Path};

/// Blocks of 4 KiB on the image that bare guests read, and words in each.
const BLOCKS: u64 = 1024;
const WORDS: u64 = 512;

pub fn scenarios() -> Vec<Scenario> {
    vec![
        bare("share/bare-1cpu", 1, 2000),
        bare("share/bare", 2, 2000),
        hidden(),
        secret(),
        raced::by_bare_guest(),
        raced::by_linux(),
        bare("share/bare-long", 2, 200_000).slow(),
    ]
}

/// Two bare guests on one image, which each read, write, store, clear and copy, and compare every
/// word: each sees what it did itself, and nothing of the other.
fn bare(name: &str, pcpus: u32, rounds: u32) -> Scenario {
    both(
        name,
        pcpus,
        rounds,
        [vm("one", 1, rounds), vm("two", 2, rounds)],
    )
}

/// The same where no write is to tell what is shared.
fn hidden() -> Scenario {
    let vms = [vm("one", 1, 2000).hides(), vm("two", 2, 2000).hides()];
    both("share/hidden", 2, 2000, vms)
}

/// One of two guests on one image marks the pages that it reads into: it shares none of them. There is one
/// CPU, so that TLBs of all need never be told.
fn secret() -> Scenario {
    let one = vm("one", 1, 500).args("secret wait");
    let two = vm("two", 2, 500).args("wait");
    let hardware = Hardware::new(1, "1G");
    let scenario = Scenario::new("share/secret", hardware, vec![one, two]).prepare(with_blocks);
    ["one", "two"]
        .into_iter()
        .fold(scenario, |scenario, vm| {
            scenario.expect(vm, "sharing: has seen all", 120)
        })
        .check(|stage| {
            let machine = stage.machine()?;
            let (mut shared, mut told) = ([0; 2], [0; 2]);
            for (vm, shared) in ["one", "two"].into_iter().zip(&mut shared) {
                let events = machine.mem(vm)?.events;
                let counts = ["shared-by-block", "shared-by-content", "entered"];
                *shared = counts.iter().filter_map(|name| events.get(*name)).sum();
                let status = machine.vm(vm)?;
                for (reach, told) in ["one_cpu", "all_cpus"].into_iter().zip(&mut told) {
                    *told += status.invalidations.get(reach).unwrap_or(&0);
                }
            }
            if told[0] == 0 || told[1] != 0 {
                return Err(format!(
                    "TLBs of one CPU and of all were told {told:?} times"
                ));
            }
            let [one, two] = shared;
            if one == 0 && two > 0 {
                return Ok(());
            }
            Err(format!("the one shared {one} pages, the other {two}"))
        })
}

fn vm(name: &str, salt: u32, rounds: u32) -> Vm {
    let args = format!("salt={salt} rounds={rounds}");
    Vm::bare(name, "sharing", &args).cow_disk("../blocks.img")
}

fn both(name: &str, pcpus: u32, rounds: u32, vms: [Vm; 2]) -> Scenario {
    let vms = vms.into();
    let scenario = Scenario::new(name, Hardware::new(pcpus, "1G"), vms).prepare(with_blocks);
    ["one", "two"].into_iter().fold(scenario, |scenario, vm| {
        scenario
            .expect(
                vm,
                "underpin-guest: sharing ok",
                120 + u64::from(rounds / 100),
            )
            .check(move |stage| powered_off(stage, vm))
    })
}

/// `blocks.img`, whose words the guest `sharing` knows.
fn with_blocks(directory: &Path) -> Outcome<Vec<String>> {
    write_blocks(directory, BLOCKS)?;
    Ok(Vec::new())
}

/// So many of its blocks.
fn write_blocks(directory: &Path, blocks: u64) -> Outcome {
    let written = fs::write(directory.join("blocks.img"), self::blocks(blocks));
    written.map_err(because("cannot write blocks.img"))
}

/// What is in so many of them.
pub fn blocks(count: u64) -> Vec<u8> {
    let words = (0..count * WORDS).map(|word| image_word(word / WORDS, word % WORDS));
    words.flat_map(u64::to_le_bytes).collect()
}

/// Every eighth block is zero, and every eighth has the same words as block 6.
const fn image_word(block: u64, index: u64) -> u64 {
    let content = match block % 8 {
        7 => return 0,
        6 => 6,
        _ => block,
    };
    (content + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index.wrapping_mul(0x0101_0001_0001_0101)
}
