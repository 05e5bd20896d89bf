//! What one step costs, beside the number of shared frames and of users: `cargo bench -p
//! model_sharing`. Each line takes the same 1,000 frames, spread over all, again and again, so that
//! what grows is the work and not the cache misses of ever more frames.
//!
//! Lines are `growth: FRAMES STEP NS`. Under callgrind with `--toggle-collect=*measured*` and
//! `--dump-after=*note_end*` each line has a dump of the instructions that 1,000 steps took: `xtask
//! bench-sharing scaling` puts both together. `once` takes one round, `frames=N` one number of frames.
#![allow(clippy::unwrap_used, reason = "it only measures")]

use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::sync::atomic::AtomicU32;
use std::time::Instant;

use machine_contract::TableMemory;
use model_addr::{FrameRange, Gfn, Mfn, NodeId, VmId};
use model_frame_table::{
    CacheKey, FrameEntry, MemoryMap, MemoryRange, Origin, Owner, Pool, Purpose,
};
use model_sharing::{
    Accounts, Expect, Ground, Index, LONGEST_CHAIN, MAX_USERS, RecordId, Size, Slab, claim, enlist,
    evict, join, join_equal, leave, publish,
};

const KEY: CacheKey = CacheKey {
    group: 0,
    disk: 1,
    block: 0,
};
const NODE: NodeId = NodeId(0);
/// The first frame.
const FIRST: u64 = 0x4_0000;
/// Where a block is before it is anywhere.
const BUFFER: Mfn = Mfn(0);
/// Frames that are measured.
const TAKEN: u64 = 1000;
const ROUNDS: u32 = 20;
const COUNTS: [u64; 3] = [10_000, 1_000_000, 10_000_000];

/// Frames of records, one after the other; they are read as memory is, with no lock.
struct Tables {
    words: Vec<[Cell<u64>; 512]>,
    /// The first that was never allocated.
    next: Cell<u64>,
    free: RefCell<Vec<Mfn>>,
}

impl Tables {
    /// Room for so many records.
    fn new(records: u64) -> Self {
        let frames = records / 255 + 2;
        Self {
            words: (0..frames).map(|_| [const { Cell::new(0) }; 512]).collect(),
            next: Cell::default(),
            free: RefCell::default(),
        }
    }
}

impl TableMemory for &Tables {
    fn allocate_table(&mut self) -> Option<Mfn> {
        if let Some(table) = self.free.borrow_mut().pop() {
            self.words[table.0 as usize]
                .iter()
                .for_each(|word| word.set(0));
            return Some(table);
        }
        let next = self.next.get();
        self.next.set(next + 1);
        Some(Mfn(next))
    }

    fn free_table(&mut self, table: Mfn) {
        self.free.borrow_mut().push(table);
    }

    fn read(&self, table: Mfn, index: usize) -> u64 {
        self.words[table.0 as usize][index].get()
    }

    fn write(&mut self, table: Mfn, index: usize, value: u64) {
        self.words[table.0 as usize][index].set(value);
    }
}

/// A machine of one CPU: its locks cost nothing.
struct Machine<'a> {
    map: MemoryMap<'a>,
    accounts: Accounts,
    index: Index<'a>,
    pool: RefCell<Pool>,
    slab: RefCell<Slab>,
    tables: Tables,
    /// What each frame holds.
    contents: RefCell<Vec<u64>>,
    /// What [`BUFFER`] holds.
    buffer: Cell<u64>,
    compares: Cell<u64>,
}

impl Machine<'_> {
    fn content(&self, frame: Mfn) -> u64 {
        match frame.0.checked_sub(FIRST) {
            Some(at) => self.contents.borrow()[at as usize],
            None => self.buffer.get(),
        }
    }

    fn fill(&self, frame: Mfn, content: u64) {
        self.contents.borrow_mut()[(frame.0 - FIRST) as usize] = content;
    }
}

impl Ground for Machine<'_> {
    fn map(&self) -> &MemoryMap<'_> {
        &self.map
    }

    fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    fn index(&self) -> &Index<'_> {
        &self.index
    }

    fn lock_stripe(&self, _: usize) -> impl Sized {}

    fn word(&self, frame: Mfn, _: usize) -> u64 {
        self.content(frame)
    }

    fn is_equal(&self, frame: Mfn, page: Mfn) -> bool {
        self.compares.set(self.compares.get() + 1);
        self.content(frame) == self.content(page)
    }

    fn clean(&self, _: Mfn) {}
    fn drop_instructions(&self, _: Mfn) {}

    fn take_record(&self, _: NodeId, size: Size) -> Option<RecordId> {
        self.slab.borrow_mut().take(&mut &self.tables, size)
    }

    fn give_record(&self, record: RecordId) {
        self.slab.borrow_mut().give(&mut &self.tables, record);
    }

    fn read<const N: usize>(&self, record: RecordId) -> [u64; N] {
        record.read(&&self.tables)
    }

    fn write(&self, record: RecordId, n: usize, word: u64) {
        record.write(&mut &self.tables, n, word);
    }

    fn free(&self, frame: Mfn) {
        self.pool.borrow_mut().free(&self.map, frame, 0).unwrap();
    }
}

fn user(vm: u64, frame: Mfn) -> Owner {
    Owner {
        vm: VmId {
            index: vm as u16,
            generation: 1,
        },
        gfn: Gfn(frame.0),
    }
}

impl Machine<'_> {
    /// A new frame of VM 0, found by its contents.
    fn share_one(&self) -> Mfn {
        let purpose = Purpose::Private(user(0, Mfn(0)));
        let frame = self.pool.borrow_mut().allocate(&self.map, 0, purpose, NODE);
        let frame = frame.unwrap();
        let entry = self.map.entry(frame).unwrap();
        entry.lock().unwrap().set_owner(user(0, frame));
        self.fill(frame, frame.0);
        self.publish(frame);
        frame
    }

    fn publish(&self, frame: Mfn) {
        publish(self, frame, user(0, frame), KEY).unwrap();
        let bucket = self.index.content_bucket(0, |_| frame.0);
        self.index.insert(&self.map, bucket, frame, LONGEST_CHAIN);
    }

    fn join(&self, frame: Mfn, vm: u64) {
        join(self, frame, user(vm, frame), Expect::Group(0)).unwrap();
    }

    fn leave(&self, frame: Mfn, vm: u64) {
        black_box(leave(self, frame, user(vm, frame), true).unwrap());
    }

    fn find(&self, frame: Mfn) -> bool {
        let bucket = self.index.content_bucket(0, |_| frame.0);
        let found = self.index.find(&self.map, bucket, |at, _| at == frame);
        found.is_some()
    }
}

/// What is measured: how often, and of how many frames.
#[derive(Clone, Copy)]
struct Run {
    rounds: u32,
    count: u64,
}

/// What callgrind counts.
#[inline(never)]
fn measured(frames: &[Mfn], step: &mut dyn FnMut(Mfn)) {
    for frame in frames {
        step(*frame);
    }
}

/// Where callgrind puts down what it has counted.
#[inline(never)]
fn note_end(name: &str, count: u64, ns: f64) {
    println!("growth: {count} {name} {ns:.0}");
}

impl Run {
    /// Prints the nanoseconds that a step takes of those that `step` does for each frame, the best
    /// of some rounds; `undo` is not counted.
    fn time(
        self,
        name: &str,
        frames: &[Mfn],
        mut step: impl FnMut(Mfn),
        mut undo: impl FnMut(Mfn),
    ) {
        let mut best = f64::MAX;
        for _ in 0..self.rounds {
            let start = Instant::now();
            measured(frames, &mut step);
            best = best.min(start.elapsed().as_nanos() as f64);
            for frame in frames {
                undo(*frame);
            }
        }
        note_end(name, self.count, best / frames.len() as f64);
    }
}

/// Calls `with` for a machine of so many frames, none of which is used, and as many buckets.
fn on_machine(count: u64, with: impl FnOnce(&Machine<'_>)) {
    let entries: Vec<_> = (0..count).map(|_| FrameEntry::default()).collect();
    let heads = 2 * count.next_power_of_two();
    let heads: Vec<_> = (0..heads).map(|_| AtomicU32::new(0)).collect();
    let frames = FrameRange {
        start: Mfn(FIRST),
        count,
    };
    let map = MemoryMap::new(&[MemoryRange {
        frames,
        node: NODE,
        entries: &entries,
    }]);
    let mut pool = Pool::new(NODE);
    let map = map.unwrap();
    pool.add(&map, frames, Origin::Machine).unwrap();
    with(&Machine {
        map,
        accounts: Accounts::zero(),
        index: Index::new(&heads, 0x5eed),
        pool: RefCell::new(pool),
        slab: RefCell::default(),
        tables: Tables::new(count + TAKEN * u64::from(MAX_USERS)),
        contents: RefCell::new(vec![0; count as usize]),
        buffer: Cell::default(),
        compares: Cell::default(),
    });
}

fn measure(run: Run) {
    let count = run.count;
    on_machine(count, |machine| {
        for _ in 0..count {
            machine.share_one();
        }
        let taken = (0..TAKEN).map(|n| Mfn(FIRST + n * count / TAKEN));
        let taken: Vec<_> = taken.collect();
        with_one_user(run, machine, &taken);
        with_many_users(run, machine, &taken);
    });
    // Each user is of another VM than the one before.
    blocks(run, "different", 1, |n| n);
    blocks(run, "equal", 1, |_| 7);
    blocks(run, "two-VMs", 2, |_| 7);
    blocks(run, "eight-VMs", 8, |_| 7);
    blocks(run, "all-VMs", 64, |_| 7);
}

/// So many blocks are written, or read from where nothing is known of them: some of them leave, and come anew.
fn blocks(run: Run, name: &str, vms: u64, content: impl Fn(u64) -> u64) {
    let user = |block: Mfn| user(block.0 % vms, block);
    on_machine(run.count + TAKEN, |machine| {
        let come = |block: Mfn| {
            machine.buffer.set(content(block.0));
            join_equal(machine, BUFFER, user(block), 0, &mut 32).unwrap_or_else(|| {
                let purpose = Purpose::Private(user(block));
                let frame = machine.pool.borrow_mut();
                let frame = { frame }.allocate(&machine.map, 0, purpose, NODE).unwrap();
                machine.fill(frame, content(block.0));
                publish(machine, frame, user(block), CacheKey::of_content(0)).unwrap();
                enlist(machine, frame);
                frame
            })
        };
        let go = |block, frame| black_box(leave(machine, frame, user(block), false).unwrap());
        let frames: Vec<_> = (0..run.count).map(|n| Cell::new(come(Mfn(n)))).collect();
        let frame = |block: Mfn| &frames[block.0 as usize];
        let compares = machine.compares.take();
        let taken = (0..TAKEN).map(|n| Mfn((n * run.count / TAKEN + n % vms) % run.count));
        let taken: Vec<_> = taken.collect();
        run.time(
            &format!("leave-{name}"),
            &taken,
            |block| _ = go(block, frame(block).get()),
            |block| frame(block).set(come(block)),
        );
        for block in &taken {
            go(*block, frame(*block).get());
        }
        run.time(
            &format!("block-{name}"),
            &taken,
            |block| frame(block).set(come(block)),
            |block| _ = go(block, frame(block).get()),
        );
        println!("compares: {} {name} {compares}", run.count);
    });
}

/// Frames have the user of VM 0 before, and nobody after.
fn with_one_user(run: Run, machine: &Machine<'_>, taken: &[Mfn]) {
    let look_up = |frame| assert!(black_box(machine.find(frame)));
    run.time("find", taken, look_up, |_| ());
    // What a target or a payer is chosen by: accounts are exact, and nothing waits to be counted.
    let settle = |_| {
        let account = black_box(&machine.accounts).get(0);
        black_box((account.charge(), account.entitlement()));
    };
    run.time("settle", taken, settle, |_| ());
    run.time(
        "claim",
        taken,
        |frame| assert!(claim(machine, frame, user(0, frame))),
        |frame| machine.publish(frame),
    );
    run.time(
        "retire",
        taken,
        |at| machine.leave(at, 0),
        |at| machine.join(at, 0),
    );
    for frame in taken {
        machine.leave(*frame, 0);
    }
    run.time(
        "evict",
        taken,
        |frame| assert!(evict(machine, frame)),
        |_| machine.leave(machine.share_one(), 0),
    );
}

/// Frames have nobody before, and all users that they may have after.
fn with_many_users(run: Run, machine: &Machine<'_>, taken: &[Mfn]) {
    let mut have = 0;
    for users in [2, 4, 8, 16, 32, u64::from(MAX_USERS)] {
        let last = users - 1;
        for vm in have..last {
            for frame in taken {
                machine.join(*frame, vm);
            }
        }
        run.time(
            &format!("join-{users}"),
            taken,
            |at| machine.join(at, last),
            |at| machine.leave(at, last),
        );
        for frame in taken {
            machine.join(*frame, last);
        }
        have = users;
        // Who came first: its record is the last of the list.
        run.time(
            &format!("leave-{users}"),
            taken,
            |at| machine.leave(at, 0),
            |at| machine.join(at, 0),
        );
    }
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let is_said = |word: &str| words.iter().any(|said| said == word);
    // Only `cargo bench` says so; a test run has a look whether it works.
    let most = if is_said("--bench") { COUNTS.len() } else { 1 };
    let rounds = if is_said("once") { 1 } else { ROUNDS };
    let only = words.iter().find_map(|word| word.strip_prefix("frames="));
    for count in COUNTS.into_iter().take(most) {
        if only.is_none_or(|only| only == count.to_string()) {
            measure(Run { rounds, count });
        }
    }
}
