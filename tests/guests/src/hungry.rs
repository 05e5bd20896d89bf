//! A guest that uses memory and gives none back: a word of each page is written, and all are compared
//! at the end.
//!
//! Command line: `mib=N` (16) how much, or `mib=all`; `pages=N` (0) how many pages more; `every=N` writes one
//! page in each N MiB of what is left, too; `wait` stays when it is done, and does not power off.
#![no_std]
#![no_main]
#![forbid(unsafe_code)]

use machine_bare::machine::Machine;
use machine_bare::memory::PAGE_SIZE;
use machine_bare::verdict::{Verdict, check, equal};
use machine_bare::{cpu, image, println};

image!("hungry", main);

const PAGES_PER_MIB: u64 = (1 << 20) / PAGE_SIZE;

fn main(machine: &'static Machine) -> Verdict {
    let memory = machine.scratch();
    let pages = match machine.option("mib") {
        Some("all") => memory.size() / PAGE_SIZE,
        _ => machine.number("mib", 16) * PAGES_PER_MIB + machine.number("pages", 0),
    };
    check(pages * PAGE_SIZE <= memory.size(), "less memory than that")?;
    for page in 0..pages {
        if page % (16 * PAGES_PER_MIB) == 0 {
            println!("hungry: {} MiB are written", page / PAGES_PER_MIB);
        }
        memory.write(page * PAGE_SIZE, word(page));
    }
    for page in 0..pages {
        equal("word of a page", memory.read(page * PAGE_SIZE), word(page))?;
    }
    let step = machine.number("every", 0) * PAGES_PER_MIB;
    let mut page = pages;
    while step > 0 && page < memory.size() / PAGE_SIZE {
        memory.write(page * PAGE_SIZE, word(page));
        page += step;
    }
    println!("hungry: has eaten");
    while machine.flag("wait") {
        cpu::wait_for_interrupt();
    }
    Ok(())
}

const fn word(page: u64) -> u64 {
    (page + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
