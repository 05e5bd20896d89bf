//! Times what sharing costs a guest, and what a guest learns from the time of a write.
//!
//! Each line of `do=steps` is `timing: <key> <ns per page> <instructions per page>`, the second
//! being half of the first, as in `nano`. `do=writes` prints a histogram, `timing: store <ns>
//! <how often>`, of first stores to pages that were read from the disk; the counter has steps of
//! 16 ns. `do=hold` is the other VM: it has the same contents. `do=storm` writes all that it shares,
//! again and again, and `do=faults` prints, as `do=writes` does, what stores to new pages take beside such.
//! `do=read-all` reads 96 MiB three times; `do=write-all` writes as much, and prints what a page takes: any blocks, or
//! equal ones.
//!
//! Command line: `do=steps`, `hold`, `writes`, `storm`, `faults`, `read-all`, `write-all` or `idle`; `kind=image` (pages of
//! the disk's image), `written` (pages that this guest wrote there) or `equal`; `first=N` block that is held (0); `count=N` stores (1024); `fill=N` pages to touch
//! first, other ones (0); `wait=N` microseconds before anything is timed (0); `scarce=1`: while `do=writes` stores, so
//! few frames of the machine are free that all are of the reserve. It stays when it is done.
#![no_std]
#![no_main]
#![forbid(unsafe_code)]

mod equal;
mod steps;
mod storm;

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use machine_bare::machine::Machine;
use machine_bare::memory::{PAGE_SIZE, Scratch};
use machine_bare::verdict::{Verdict, check, equal};
use machine_bare::{cpu, gic, image, println, psci, timer};
use tests_guests::disk::{Disk, SECTOR};

image!("timing", main);

/// Sectors of a block.
const SECTORS: u64 = PAGE_SIZE / SECTOR;
/// Pages that one request reads or writes.
const GROUP: u64 = 16;
/// Blocks that a VM works with; at the disk's start are twice as many, none like another.
const BLOCKS: u64 = 1024;
/// What no image holds.
const JUNK: u64 = 1 << 32;
/// The first of many blocks without data.
const EMPTY: u64 = 2 * BLOCKS;
/// Blocks in all: behind those are as many without data as a region has pages.
const ALL_BLOCKS: u64 = 2 * BLOCKS + 512;
/// Frames that are left free where they are scarce: one for each store of a group.
const SCARCE: u64 = GROUP;
/// Frames that are free while such a guest reads; what is set aside for its own next pages comes out of them, so that its
/// disk may finish requests with frames of the reserve.
const PLENTY: u64 = 1024;
/// Times that are told apart.
const BINS: usize = 1 << 14;
/// How many stores took so many steps of the counter.
static HISTOGRAM: Histogram = Histogram([const { AtomicU32::new(0) }; BINS]);

/// How often something took so many steps of the counter; the last one stands for all that is more.
struct Histogram([AtomicU32; BINS]);

impl Histogram {
    fn add(&self, ticks: u64) {
        let bin = self.0.get(ticks as usize).or(self.0.last());
        bin.map(|bin| bin.fetch_add(1, Relaxed));
    }

    /// A line for each time in nanoseconds, and how often it was taken.
    fn print(&self, what: &str) {
        for (ticks, count) in (0..).zip(&self.0) {
            let (ns, count) = (
                ticks * 1_000_000_000 / timer::frequency(),
                count.load(Relaxed),
            );
            if count > 0 {
                println!("timing: {what} {ns} {count}");
            }
        }
    }
}

/// The disk and the memory that is read into.
struct Guest {
    disk: Disk,
    memory: Scratch,
}

fn main(machine: &'static Machine) -> Verdict {
    gic::init_distributor();
    gic::init_cpu();
    gic::Line::new(timer::VIRTUAL_INTID).enable();
    let memory = machine.scratch();
    let most = memory.size() - PAGE_SIZE;
    let mut guest = Guest {
        disk: Disk::open(machine, memory.part(most, PAGE_SIZE))?,
        memory: memory.part(0, most),
    };
    if machine
        .option("do")
        .is_some_and(|work| work.ends_with("-all"))
    {
        guest.has_all()?;
    } else {
        let sectors = guest.disk.capacity();
        check(sectors >= ALL_BLOCKS * SECTORS, "the disk is too small")?;
    }
    // Behind what is read into.
    let used = match machine.option("do") {
        Some("writes" | "faults") => 2 * GROUP,
        _ => BLOCKS,
    };
    for page in 0..machine.number("fill", 0) {
        guest.memory.write((used + page) * PAGE_SIZE, 1);
    }
    sleep(machine.number("wait", 0));
    let written = machine.option("kind") == Some("written");
    match machine.option("do") {
        Some("hold") => guest.hold(written, machine.number("first", 0))?,
        Some("storm") => guest.storm()?,
        Some("faults") => guest.faults(machine.number("count", 1024))?,
        Some("read-all") => guest.read_all()?,
        Some("write-all") => guest.write_all(machine.option("kind") == Some("equal"))?,
        Some("idle") => {}
        Some("writes") => {
            let scarce = machine.number("scarce", 0) > 0;
            guest.writes(written, scarce, machine.number("count", 1024))?;
        }
        _ => steps::run(&mut guest)?,
    }
    println!("timing: done");
    loop {
        sleep(1_000_000);
    }
}

/// Sleeps so many microseconds by WFI.
fn sleep(microseconds: u64) {
    let deadline = timer::now() + timer::ticks(microseconds);
    timer::fire_at(deadline);
    while !timer::is_firing() {
        cpu::wait_for_interrupt();
    }
    let intid = gic::acknowledge();
    timer::stop();
    gic::end(intid);
}

/// Has no more of the machine's frames free than so many, or as many again; where those were set aside.
fn leave_free(frames: u64) -> Verdict {
    let free = psci::set_aside(frames).unwrap_or(0);
    check(free > 0, "EL2 sets no frames aside")?;
    check(frames == PLENTY || free == frames, "more frames are free")
}

impl Guest {
    /// Where page `page` is.
    fn address(&self, page: u64) -> u64 {
        self.memory.base() + page * PAGE_SIZE
    }

    /// Reads `count` blocks from `block` on into as many pages from `page` on, by one request.
    fn read(&mut self, block: u64, page: u64, count: u64) -> Verdict {
        let to = (self.address(page), count * PAGE_SIZE);
        self.disk.read(block * SECTORS, &[to])
    }

    fn write(&mut self, block: u64, page: u64, count: u64) -> Verdict {
        let from = (self.address(page), count * PAGE_SIZE);
        self.disk.write(block * SECTORS, &[from])
    }

    /// Fills a page with what is named by a number, in any VM.
    fn compose(&self, page: u64, name: u64) {
        for word in 0..PAGE_SIZE / 8 {
            let value = (name + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ word;
            self.memory.write(page * PAGE_SIZE + 8 * word, value);
        }
    }

    /// Has what another VM will read, or write: each block from `first` on in a page of its own.
    fn hold(&mut self, written: bool, first: u64) -> Verdict {
        for page in (0..BLOCKS).step_by(GROUP as usize) {
            let block = first + page;
            if written {
                (0..GROUP).for_each(|n| self.compose(page + n, block + n));
                self.write(block, page, GROUP)?;
            }
            self.read(block, page, GROUP)?;
        }
        Ok(())
    }

    /// Stores to `count` pages that were read from the disk, one word each.
    ///
    /// A loop of random length before each of them makes the counter's steps fall anywhere: so the
    /// histogram is of what a store takes, and not of when it begins.
    fn writes(&mut self, written: bool, scarce: bool, count: u64) -> Verdict {
        let mut random = 1_u64;
        for first in (0..count).step_by(GROUP as usize) {
            let block = first % BLOCKS;
            if scarce {
                leave_free(PLENTY)?;
            }
            if written {
                self.bring_written(block)?;
            } else {
                self.read(block, 0, GROUP)?;
            }
            if scarce {
                leave_free(SCARCE)?;
            }
            for page in 0..GROUP.min(count - first) {
                // xorshift64
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                cpu::spin(random >> 60);
                let start = timer::now();
                self.memory.write(page * PAGE_SIZE, 1);
                let ticks = timer::now() - start;
                HISTOGRAM.add(ticks);
            }
        }
        self.check()?;
        HISTOGRAM.print("store");
        Ok(())
    }

    /// Writes a group to the disk, reads it again, and writes something else where it was: so each
    /// page is in a frame that nobody uses beside this guest and whoever has the same contents.
    fn bring_written(&mut self, block: u64) -> Verdict {
        (0..GROUP).for_each(|n| self.compose(n, block + n));
        self.write(block, 0, GROUP)?;
        self.read(block, 0, GROUP)?;
        (0..GROUP).for_each(|n| self.compose(GROUP + n, JUNK + block + n));
        self.write(block, GROUP, GROUP)
    }

    /// What was stored is there, and what was read beside it.
    fn check(&self) -> Verdict {
        let words = [0, 1].map(|word| self.memory.read(8 * word));
        equal("the word stored", words[0], 1)?;
        equal("a page is not empty", u64::from(words[1] == 0), 0)
    }
}
