//! Another CPU stores into the first page of a read as soon as its first word is the block's: what it stores
//! is lost or stays its own, and is never what another VM reads of the block.

use core::sync::atomic::{AtomicU64, Ordering};

use machine_bare::machine::Machine;
use machine_bare::memory::{PAGE_SIZE, Scratch};
use machine_bare::verdict::{Verdict, check};
use machine_bare::{boot, cpu, println};

use crate::mirror::BLOCKS;
use tests_guests::disk::{Disk, SECTOR};

/// Pages of a read: what one transfer of a physical disk brings.
const PAGES: u64 = 16;
/// What a page begins with before it is read into, and what is stored then.
const MARK: u64 = 0x6d61_726b_6d61_726b;
const FOREIGN: u64 = 0x0bad_0bad_0bad_0bad;
/// Where in a page.
const AT: u64 = 512;

/// The first page of a read while it is under way; 0 otherwise, and 1 when all is over.
static RACE: AtomicU64 = AtomicU64::new(0);
/// How many stores there were.
static STORES: AtomicU64 = AtomicU64::new(0);

/// Reads the whole disk while another CPU stores.
pub fn run(machine: &'static Machine) -> Verdict {
    let memory = machine.scratch();
    let pages = memory.part(PAGE_SIZE, BLOCKS * PAGE_SIZE);
    let mut disk = Disk::open(machine, memory.part(0, PAGE_SIZE))?;
    check(cpu::start_others(store).is_ok(), "the other CPU stays off")?;
    // Each page is read into once, and not written afterwards: that would take its frame back.
    for first in (0..BLOCKS).step_by(PAGES as usize) {
        let at = first * PAGE_SIZE;
        for page in 0..PAGES {
            pages.write(at + page * PAGE_SIZE, MARK);
        }
        pages.write(at + AT, 0);
        RACE.store(PAGE_SIZE + at, Ordering::SeqCst);
        disk.read(at / SECTOR, &[(pages.base() + at, PAGES * PAGE_SIZE)])?;
        RACE.store(0, Ordering::SeqCst);
    }
    RACE.store(1, Ordering::SeqCst);
    let stores = STORES.load(Ordering::SeqCst);
    check(stores > 0, "no store came in between")?;
    println!("sharing: has raced with {stores} stores");
    loop {
        // Its pages stay, and with them what others may find.
        cpu::wait_for_interrupt();
    }
}

/// The other CPU: it looks at the first page alone, which is filled first and waits longest for the others.
fn store(_: usize) {
    let memory = boot::machine().scratch();
    loop {
        match RACE.load(Ordering::SeqCst) {
            0 => {}
            1 => return,
            first => store_once(&memory.part(first, PAGE_SIZE)),
        }
    }
}

fn store_once(page: &Scratch) {
    if page.read(0) != MARK && page.read(AT) != FOREIGN {
        page.write(AT, FOREIGN);
        STORES.fetch_add(1, Ordering::Relaxed);
    }
}
