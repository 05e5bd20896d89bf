//! A raw flat image: entry at byte 0, no header. It checks how it was entered and that the memory
//! which the device tree states is there, up to the last page.
//!
//! Command line: `mib=N` says how much memory there must be; `turns=N` (1) how often it executes
//! two instructions before it ends: the same work wherever it runs.
#![no_std]
#![no_main]
#![forbid(unsafe_code)]

use machine_bare::machine::Machine;
use machine_bare::verdict::{Verdict, check, equal};
use machine_bare::{cpu, flat, println, psci};

flat!("hello", main);

fn main(machine: &'static Machine) -> Verdict {
    let entry = machine.entry;
    println!(
        "hello: image {:#x}..{:#x}, device tree {:#x} ({} bytes), memory {} MiB, {} CPUs",
        entry.image,
        entry.image_end,
        entry.device_tree,
        machine.device_tree_size,
        machine.memory_total >> 20,
        machine.cpus().len()
    );
    println!("hello: bootargs '{}'", machine.bootargs());

    equal("exception level at entry", entry.exception_level, 1)?;
    check(!entry.mmu_on, "the MMU is on at entry")?;
    equal("interrupt masks at entry", entry.masks, 0xf)?;
    check(machine.device_tree_size != 0, "no device tree in x0")?;
    check(
        entry.device_tree >= entry.image_end,
        "the device tree is not above the image",
    )?;
    check(
        machine.memory.contains(entry.device_tree),
        "the device tree is not in memory",
    )?;
    check(!machine.cpus().is_empty(), "no CPU in the device tree")?;
    let mib = machine.number("mib", machine.memory_total >> 20);
    equal("MiB of memory", machine.memory_total >> 20, mib)?;
    check(psci::query(psci::VERSION) >= 2, "PSCI is older than 0.2")?;

    let scratch = machine.scratch();
    for offset in [0, scratch.size() / 16 * 8, scratch.size() - 8] {
        scratch.write(offset, !offset);
        equal("memory read back", scratch.read(offset), !offset)?;
    }
    cpu::spin(machine.number("turns", 1));
    Ok(())
}
