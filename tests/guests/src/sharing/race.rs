//! Another CPU stores into the pages of a read as soon as the first word of each is the block's: what it stores
//! is lost or stays its own, and is never what another VM reads of the block.

use core::sync::atomic::{AtomicU64, Ordering, fence};

use machine_bare::machine::Machine;
use machine_bare::memory::{PAGE_SIZE, Scratch};
use machine_bare::verdict::{Verdict, check};
use machine_bare::{boot, cpu, println};

use crate::disk::{Disk, SECTOR};
use crate::mirror::BLOCKS;

/// Pages of a read: what one transfer of a physical disk brings.
const PAGES: u64 = 16;
/// What a page begins with before it is read into, and what is stored then.
const MARK: u64 = 0x6d61_726b_6d61_726b;
const FOREIGN: u64 = 0x0bad_0bad_0bad_0bad;
/// Where in a page.
const AT: u64 = 512;

/// The pages while they are read into; 0 otherwise, and 1 when all is over.
static RACE: AtomicU64 = AtomicU64::new(0);
/// How many stores there were.
static STORES: AtomicU64 = AtomicU64::new(0);

/// Reads the whole disk while another CPU stores.
pub fn run(machine: &'static Machine) -> Verdict {
    let memory = machine.scratch();
    let pages = memory.part(PAGE_SIZE, PAGES * PAGE_SIZE);
    let mut disk = Disk::open(machine, memory.part(0, PAGE_SIZE))?;
    check(cpu::start_others(store).is_ok(), "the other CPU stays off")?;
    for first in (0..BLOCKS).step_by(PAGES as usize) {
        for page in 0..PAGES {
            pages.write(page * PAGE_SIZE, MARK);
            pages.write(page * PAGE_SIZE + AT, 0);
        }
        fence(Ordering::SeqCst);
        RACE.store(pages.base(), Ordering::SeqCst);
        let data = [(pages.base(), PAGES * PAGE_SIZE)];
        disk.read(first * PAGE_SIZE / SECTOR, &data)?;
        RACE.store(0, Ordering::SeqCst);
    }
    RACE.store(1, Ordering::SeqCst);
    let stores = STORES.load(Ordering::SeqCst);
    println!("sharing: {stores} stores into pages of reads");
    check(stores > 0, "no store came in between")
}

/// The other CPU.
fn store(_: usize) {
    let memory = boot::machine().scratch();
    let pages: Scratch = memory.part(PAGE_SIZE, PAGES * PAGE_SIZE);
    loop {
        match RACE.load(Ordering::SeqCst) {
            0 => {}
            1 => return,
            _ => (0..PAGES).for_each(|page| store_to(&pages, page * PAGE_SIZE)),
        }
    }
}

fn store_to(pages: &Scratch, page: u64) {
    if pages.read(page) != MARK && pages.read(page + AT) != FOREIGN {
        pages.write(page + AT, FOREIGN);
        STORES.fetch_add(1, Ordering::Relaxed);
    }
}
