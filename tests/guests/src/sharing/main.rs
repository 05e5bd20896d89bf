//! Memory that a hypervisor may share between VMs must not show it. A copy-on-write disk is read
//! and written, by whole pages and by odd pieces; what was read is stored to, cleared and copied;
//! and each word of each page is compared with what must be there.
//!
//! Run two VMs side by side on one image, with different salts: what one writes into its memory
//! or onto its disk, the other must never see.
//!
//! Command line: `salt=N` (1), `rounds=N` random steps (2000); `secret` marks all pages that are read
//! into as never to be shared; `wait` stays when it is done, and does not power off; `race` only reads the disk
//! while another CPU stores into the pages ([`race`]), and `compare` only reads and compares it.
#![no_std]
#![no_main]
#![forbid(unsafe_code)]

mod mirror;
mod race;

use machine_bare::machine::Machine;
use machine_bare::memory::PAGE_SIZE;
use machine_bare::pages::block_size;
use machine_bare::verdict::{Verdict, check, equal, fail};
use machine_bare::{cpu, image, println, psci};

use mirror::{BLOCKS, Mirror, PAGES, WORDS};
use tests_guests::disk::SECTOR;
use tests_guests::random::Random;

image!("sharing", main);

/// Sectors of a block.
const SECTORS: u64 = PAGE_SIZE / SECTOR;
/// A block of zeroes.
const ZEROES: u64 = 7;

/// A part of the test: its name, and what it does.
type Part = (&'static str, fn(&mut Mirror, &mut Random) -> Verdict);

const PARTS: [Part; 9] = [
    ("whole pages are read", read),
    ("stores into pages that were read", store),
    ("pages are read over", read_over),
    ("a part of a page is cleared", clear_part),
    ("a page is cleared", clear),
    ("a page is copied", copy),
    ("odd pieces are read", read_pieces),
    ("zero blocks are read", read_zeroes),
    ("what is written is read", write),
];

fn main(machine: &'static Machine) -> Verdict {
    mirror::check_memory(machine)?;
    if machine.flag("race") {
        return race::run(machine);
    }
    let mut random = Random::new(machine.number("salt", 1));
    let mut mirror = Mirror::new(machine)?;
    if machine.flag("secret") {
        secret(&mirror)?;
    }
    let parts = if machine.flag("compare") {
        &[][..]
    } else {
        &PARTS
    };
    for (name, part) in parts {
        println!("sharing: {name}");
        part(&mut mirror, &mut random)?;
        mirror.verify_all()?;
    }
    let rounds = machine.number("rounds", 2000);
    println!("sharing: {rounds} random steps");
    for round in 0..rounds {
        step(&mut mirror, &mut random)?;
        if round % 64 == 0 {
            mirror.verify_all()?;
        }
    }
    mirror.verify_all()?;
    println!("sharing: the whole disk");
    for block in 0..BLOCKS {
        mirror.read_block(block, block % PAGES)?;
    }
    mirror.verify_all()?;
    if machine.flag("wait") {
        println!("sharing: has seen all");
    }
    while machine.flag("wait") {
        cpu::wait_for_interrupt();
    }
    Ok(())
}

/// Marks the pages, and some that it must not.
fn secret(mirror: &Mirror) -> Verdict {
    const NEVER: u64 = 1;
    let first = mirror.pages.base();
    let refused = [
        (first + 8, 1, NEVER),
        (first, 0, NEVER),
        (first, 1, 2),
        (0, 1, NEVER),
        (first, u64::MAX, NEVER),
        (!(PAGE_SIZE - 1), 1, NEVER),
        (first, 1 << 40, NEVER),
    ];
    for (at, pages, mark) in refused {
        let answer = psci::never_share(at, pages, mark);
        check(
            answer == Err(psci::Error::INVALID_PARAMETERS),
            "a range that makes no sense is marked",
        )?;
    }
    mark_all(mirror, NEVER)?;
    mark_all(mirror, 0)?;
    mark_all(mirror, NEVER)
}

fn mark_all(mirror: &Mirror, mark: u64) -> Verdict {
    let mut done = 0;
    while done < PAGES {
        let at = mirror.pages.base() + done * PAGE_SIZE;
        match psci::never_share(at, PAGES - done, mark) {
            Ok(more) => done += more,
            Err(_) => return fail("pages cannot be marked"),
        }
    }
    equal("pages marked", done, PAGES)
}

/// One block to a page, many to as many, and the same to two.
fn read(mirror: &mut Mirror, _random: &mut Random) -> Verdict {
    for page in 0..16 {
        mirror.read_block(page, page)?;
    }
    mirror.read(16 * SECTORS, 16 * SECTORS, 16 * PAGE_SIZE, &[])?;
    let cuts = [PAGE_SIZE, 3 * PAGE_SIZE];
    mirror.read(32 * SECTORS, 8 * SECTORS, 32 * PAGE_SIZE, &cuts)?;
    mirror.read(0, 16 * SECTORS, 48 * PAGE_SIZE, &[])
}

/// The first word, the last, and one in the middle; neighbours and the other copy stay.
fn store(mirror: &mut Mirror, random: &mut Random) -> Verdict {
    for page in (0..PAGES).step_by(2) {
        let word = [0, WORDS - 1, random.below(WORDS)][page as usize / 2 % 3];
        mirror.store(page * PAGE_SIZE + 8 * word, random.number())?;
    }
    Ok(())
}

/// The blocks that are there already, and others.
fn read_over(mirror: &mut Mirror, _random: &mut Random) -> Verdict {
    for page in 0..32 {
        mirror.read_block(page + page % 3, page)?;
    }
    Ok(())
}

/// One `dc zva` at the start of a page, and as many as clear 256 bytes and more.
fn clear_part(mirror: &mut Mirror, _random: &mut Random) -> Verdict {
    for page in 0..8 {
        let one = block_size();
        mirror.clear_blocks(page, one)?;
        mirror.read_block(page, page)?;
        mirror.clear_blocks(page, 256_u64.next_multiple_of(one))?;
    }
    Ok(())
}

fn clear(mirror: &mut Mirror, random: &mut Random) -> Verdict {
    for page in 0..8 {
        mirror.read_block(page, page)?;
        mirror.clear_page(page)?;
        mirror.store(page * PAGE_SIZE + 8 * random.below(WORDS), random.number())?;
        // Its own by now.
        mirror.clear_page(page)?;
    }
    Ok(())
}

/// From and to pages that were read, and that were stored to.
fn copy(mirror: &mut Mirror, random: &mut Random) -> Verdict {
    for page in 0..8 {
        mirror.read_block(page, page)?;
        mirror.read_block(page + 16, page + 16)?;
        mirror.copy_page(page, page + 16)?;
        mirror.store(page * PAGE_SIZE, random.number())?;
        mirror.copy_page(page + 16, page)?;
    }
    Ok(())
}

/// Sectors of a block, memory inside a page, pieces cut anywhere.
fn read_pieces(mirror: &mut Mirror, _random: &mut Random) -> Verdict {
    for n in 1..SECTORS {
        mirror.read(8 * SECTORS + n, SECTORS, 8 * n * PAGE_SIZE, &[])?;
        mirror.read(
            8 * SECTORS,
            2 * SECTORS,
            8 * n * PAGE_SIZE + n * SECTOR,
            &[],
        )?;
        mirror.read(8 * SECTORS + n, 1, 8 * n * PAGE_SIZE, &[8 * n])?;
        let cuts = [8 * n, PAGE_SIZE, PAGE_SIZE + 8];
        mirror.read(8 * SECTORS, 2 * SECTORS, 8 * n * PAGE_SIZE, &cuts)?;
    }
    Ok(())
}

/// Into pages of all kinds, which are stored to afterwards.
fn read_zeroes(mirror: &mut Mirror, random: &mut Random) -> Verdict {
    for page in 0..8 {
        mirror.store(page * PAGE_SIZE, random.number())?;
        mirror.read_block(page + 16, page + 16)?;
        mirror.read_block(ZEROES, page)?;
        mirror.read_block(ZEROES + 8, page + 16)?;
        mirror.store(page * PAGE_SIZE + 8 * page, random.number())?;
        mirror.store((page + 16) * PAGE_SIZE, random.number())?;
        mirror.read_block(ZEROES, page)?;
    }
    Ok(())
}

/// A page that is on the disk, too, is stored to; a block that is in memory, too, is written; one
/// page is written to two blocks; a sector changes one block and not its equal.
fn write(mirror: &mut Mirror, random: &mut Random) -> Verdict {
    for n in 0..8 {
        let (block, page) = (100 + n, 2 * n);
        mirror.read_block(block, page)?;
        mirror.read_block(block, page + 1)?;
        mirror.store(page * PAGE_SIZE + 8 * n, random.number())?;
        mirror.write_block(block, page)?;
        mirror.write_block(block + 8, page)?;
        mirror.store(page * PAGE_SIZE, random.number())?;
        mirror.read_block(block, page + 32)?;
        mirror.read_block(block + 8, page + 33)?;
        mirror.write((block + 8) * SECTORS + n, 1, page * PAGE_SIZE, &[])?;
        mirror.read_block(block, page + 32)?;
        mirror.read_block(block + 8, page + 33)?;
        mirror.clear_page(page)?;
        mirror.write_block(block + 16, page)?;
        mirror.store(page * PAGE_SIZE, random.number())?;
        mirror.read_block(block + 16, page + 1)?;
        mirror.verify_all()?;
    }
    Ok(())
}

/// Anything, anywhere; whole pages most of the time.
fn step(mirror: &mut Mirror, random: &mut Random) -> Verdict {
    let (block, page) = (random.below(BLOCKS), random.below(PAGES));
    // Few blocks are met often.
    let block = if random.below(2) == 0 {
        block % 32
    } else {
        block
    };
    match random.below(16) {
        0..=4 => mirror.read_block(block, page),
        5 | 6 => mirror.write_block(block, page),
        7 => mirror.store(page * PAGE_SIZE + 8 * random.below(WORDS), random.number()),
        8 => mirror.clear_page(page),
        9 => mirror.copy_page(page, (page + 1 + random.below(PAGES - 1)) % PAGES),
        10 => mirror.clear_blocks(page, block_size()),
        odd => {
            let sectors = 1 + random.below(4 * SECTORS);
            let sector = random.below(BLOCKS * SECTORS - sectors);
            let offset = 8 * random.below((PAGES * PAGE_SIZE - sectors * SECTOR) / 8 + 1);
            let offset = match random.below(2) {
                0 => offset,
                _ => offset / PAGE_SIZE * PAGE_SIZE,
            };
            let cuts = [8 * random.below(WORDS), PAGE_SIZE];
            if odd < 14 {
                mirror.read(sector, sectors, offset, &cuts)
            } else {
                mirror.write(sector, sectors, offset, &cuts)
            }
        }
    }
}
