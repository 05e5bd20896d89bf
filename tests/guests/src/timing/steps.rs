//! What each step of sharing costs, per page.

use core::hint::black_box;

use machine_bare::memory::PAGE_SIZE;
use machine_bare::verdict::Verdict;
use machine_bare::{println, timer};

use crate::{EMPTY, GROUP, Guest, JUNK};

/// Pages that are averaged: a region that one block could map.
const PAGES: u64 = 512;
/// Words of a page.
const WORDS: usize = PAGE_SIZE as usize / 8;
/// A part of the kernel image that nobody has touched yet.
static KERNEL: [u64; KERNEL_PAGES as usize * WORDS] = [0x5a; KERNEL_PAGES as usize * WORDS];
const KERNEL_PAGES: u64 = 128;

/// Pages of memory, each region for another purpose.
const NEW: u64 = 0;
const NEW_GROUPS: u64 = PAGES;
const OWN: u64 = 2 * PAGES;
const OWN_GROUPS: u64 = 3 * PAGES;
const CLAIMED: u64 = 4 * PAGES;
const OTHER: u64 = 5 * PAGES;

/// Prints what `operate` takes for each of [`PAGES`], which it is called for in steps of `step`.
fn measure(key: &str, step: u64, operate: impl FnMut(u64) -> Verdict) -> Verdict {
    measure_some(key, PAGES, step, operate)
}

fn measure_some(
    key: &str,
    pages: u64,
    step: u64,
    mut operate: impl FnMut(u64) -> Verdict,
) -> Verdict {
    let start = timer::now();
    for page in (0..pages).step_by(step as usize) {
        operate(page)?;
    }
    let ticks = timer::now() - start;
    let tenths = u128::from(ticks) * 10_000_000_000 / u128::from(timer::frequency());
    let ns = tenths as u64 / pages;
    let instructions = ns / 2;
    println!(
        "timing: {key} {}.{} {}.{}",
        ns / 10,
        ns % 10,
        instructions / 10,
        instructions % 10
    );
    Ok(())
}

/// Measures all of them.
pub fn run(guest: &mut Guest) -> Verdict {
    measure_some("kernel_touch", KERNEL_PAGES, 1, |page| {
        black_box(black_box(&KERNEL)[page as usize * WORDS]);
        Ok(())
    })?;
    reads(guest)?;
    measure("break_copy", 1, |page| {
        store(guest, NEW + page);
        Ok(())
    })?;
    measure("store", 1, |page| {
        store(guest, NEW + page);
        Ok(())
    })?;
    measure("break_clear", 1, |page| {
        clear(guest, NEW_GROUPS + page);
        Ok(())
    })?;
    measure("clear_page", 1, |page| {
        clear(guest, NEW_GROUPS + page);
        Ok(())
    })?;
    claims(guest)
}

fn store(guest: &Guest, page: u64) {
    guest.memory.write(page * PAGE_SIZE, 1);
}

fn clear(guest: &Guest, page: u64) {
    guest.memory.clear_page(page);
}

/// Reads into memory that was never touched, that is the guest's own, and that shares already.
fn reads(guest: &mut Guest) -> Verdict {
    measure("read_1_new", 1, |page| guest.read(page, NEW + page, 1))?;
    measure("read_16_new", GROUP, |page| {
        guest.read(PAGES + page, NEW_GROUPS + page, GROUP)
    })?;
    for page in 0..PAGES {
        store(guest, OWN + page);
        store(guest, OWN_GROUPS + page);
    }
    measure("read_1", 1, |page| guest.read(page, OWN + page, 1))?;
    measure("read_16", GROUP, |page| {
        guest.read(page, OWN_GROUPS + page, GROUP)
    })?;
    measure("read_16_again", GROUP, |page| {
        guest.read(PAGES + page, OWN_GROUPS + page, GROUP)
    })?;
    measure("read_16_empty", GROUP, |page| {
        guest.read(EMPTY + page, OWN_GROUPS + page, GROUP)
    })
}

/// Writes what the disk had nowhere, reads it again, and takes it from the disk: then the guest is
/// its only user.
fn claims(guest: &mut Guest) -> Verdict {
    for page in 0..PAGES {
        guest.compose(CLAIMED + page, JUNK + page);
        guest.compose(OTHER + page, 2 * JUNK + page);
    }
    measure("write_16", GROUP, |page| {
        guest.write(page, CLAIMED + page, GROUP)
    })?;
    measure("read_16_written", GROUP, |page| {
        guest.read(page, CLAIMED + page, GROUP)
    })?;
    measure("write_16_over", GROUP, |page| {
        guest.write(page, OTHER + page, GROUP)
    })?;
    measure("claim", 1, |page| {
        store(guest, CLAIMED + page);
        Ok(())
    })
}
